from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from torch import Tensor

from tarry.core.errors import BadInput
from tarry.core.rng import generator
from tarry.core.task import Task
from tarry.tasks import LeNet5, McMahanCNN, partitions, tasks
from tarry.tasks.images import load_digits
from tests.helpers.by_flags import build_by_flags

RNG = np.random.default_rng(1)


def held_out(task: Task) -> tuple[Tensor, Tensor]:
    assert task.test is not None
    return task.test


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    return tmp_path


def images(n: int, *shape: int) -> Any:
    return RNG.integers(0, 256, (n, *shape), np.uint8)


def save_split(path: Path, *shape: int, classes: int = 10, n: int = 40) -> dict[str, Any]:
    arrays = {
        "x_train": images(n, *shape),
        "y_train": (np.arange(n) % classes).astype(np.uint8),
        "x_test": images(7, *shape),
        "y_test": np.arange(7, dtype=np.uint8) % classes,
    }
    np.savez(path, **arrays)
    return arrays


def test_the_bundled_digits_are_those_of_scikit_learn() -> None:
    theirs = sklearn.datasets.load_digits()
    x, y = load_digits()
    assert np.array_equal(x, theirs.images)
    assert np.array_equal(y, theirs.target)


def test_digits_are_all_there_once_scaled_to_0_1_and_stratified() -> None:
    task = tasks.build("digits")
    (x, y), (xt, yt) = task.train, held_out(task)
    assert (x.shape, xt.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (x.min(), x.max()) == (0, 1)
    everything, _ = load_digits()
    rows = torch.cat([x, xt]).reshape(-1, 64).numpy() * 16
    assert np.array_equal(np.sort(rows, axis=0), np.sort(everything.reshape(-1, 64), axis=0))
    share = torch.bincount(yt) / torch.bincount(torch.cat([y, yt]))
    assert torch.allclose(share, torch.full((10,), 360 / 1797), atol=0.006)


def test_digits_have_one_test_set_whatever_the_parameters() -> None:
    a, b = tasks.build("digits"), tasks.build("digits", hidden=8, limit=100)
    assert torch.equal(held_out(a)[0], held_out(b)[0])
    assert torch.equal(a.train[0][:100], b.train[0])
    assert torch.equal(a.train[1][:100], b.train[1])


def test_digits_can_be_learnt_by_their_model() -> None:
    task = tasks.build("digits", hidden=32)
    torch.manual_seed(0)
    model = task.model()
    assert sum(p.numel() for p in model.parameters()) == 64 * 32 + 32 + 32 * 10 + 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    x, y = task.train
    for _ in range(100):
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()
    xt, yt = held_out(task)
    assert (model(xt).argmax(1) == yt).sum() > 0.9 * len(yt)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "model"),
    [
        ("mnist", (28, 28), 10, LeNet5),
        ("mnist", (28, 28, 1), 10, LeNet5),
        ("cifar10", (32, 32, 3), 10, McMahanCNN),
        ("cifar100", (32, 32, 3), 100, McMahanCNN),
    ],
)
def test_a_named_set_is_read_from_the_data_folder(
    folder: Path, name: str, shape: tuple[int, ...], classes: int, model: type
) -> None:
    arrays = save_split(folder / f"{name}.npz", *shape)
    task = tasks.build(name)
    channels = 3 if shape[-1] == 3 else 1
    x, y = task.train
    assert x.shape == (40, channels, *shape[:2])
    assert y.tolist() == arrays["y_train"].tolist()
    net = pickle.loads(pickle.dumps(task.model))()  # noqa: S301
    assert isinstance(net, model)
    assert net(x[:3]).shape == (3, classes)
    assert task.name == name


def test_images_are_normalized_by_the_channels_of_the_training_set(folder: Path) -> None:
    arrays = save_split(folder / "cifar10.npz", 32, 32, 3)
    arrays["x_train"][..., 1] = 77  # a channel without variance is only centered
    np.savez(folder / "cifar10.npz", **arrays)
    task = tasks.build("cifar10")
    scaled = arrays["x_train"].astype(np.float64) / 255
    mean, std = scaled.mean((0, 1, 2)), scaled.std((0, 1, 2))
    std[1] = 1
    for got, raw in ((task.train[0], arrays["x_train"]), (held_out(task)[0], arrays["x_test"])):
        expected = ((raw / 255 - mean) / std).transpose(0, 3, 1, 2)
        assert np.allclose(got.numpy(), expected, atol=1e-5)
        assert got.dtype == torch.float32


def test_limit_takes_the_first_examples_and_changes_nothing_else(folder: Path) -> None:
    save_split(folder / "mnist.npz", 28, 28)
    whole, part = tasks.build("mnist"), tasks.build("mnist", limit=9)
    assert torch.equal(part.train[0], whole.train[0][:9])
    assert torch.equal(part.train[1], whole.train[1][:9])
    assert torch.equal(held_out(part)[0], held_out(whole)[0])
    assert len(tasks.build("mnist", limit=1000).train[0]) == 40


def test_limit_takes_a_fair_sample_where_examples_lie_sorted_by_class(folder: Path) -> None:
    arrays = save_split(folder / "cinic10.npz", 32, 32, 3, n=60)
    arrays["y_train"] = np.repeat(np.arange(3, dtype=np.uint8), [30, 20, 10])
    np.savez(folder / "cinic10.npz", **arrays)
    whole, part = tasks.build("cinic10"), tasks.build("cinic10", limit=12)
    x, y = part.train
    assert torch.bincount(y).tolist() == [6, 4, 2]
    places = [next(i for i, image in enumerate(whole.train[0]) if torch.equal(image, one)) for one in x]
    assert places == sorted(places)
    assert whole.train[1][places].tolist() == y.tolist()


def test_the_options_of_a_model_are_flags_of_its_task(folder: Path) -> None:
    save_split(folder / "cifar10.npz", 32, 32, 3)
    net = tasks.build("cifar10", model="resnet18", norm="batch", width="8").model()
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    assert next(net.parameters()).shape[0] == 8
    with pytest.raises(BadInput, match=r"--task.norm layer: wants group \| batch"):
        build_by_flags(tasks, "cifar10", model="resnet18", norm="layer")
    with pytest.raises(
        BadInput, match=r"--task.norn batch: task 'cifar10' has no parameter 'norn'. Did you mean 'norm'"
    ):
        build_by_flags(tasks, "cifar10", model="resnet18", norn="batch")
    with pytest.raises(BadInput, match=r"--task.norm batch: task 'cifar10' has no parameter 'norm'"):
        build_by_flags(tasks, "cifar10", norm="batch")
    with pytest.raises(BadInput, match=r"--task.model resnet81: there is no such model"):
        build_by_flags(tasks, "cifar10", model="resnet81")
    assert "hidden" in {p.name for p in tasks["digits"].params}


def test_grey_images_become_three_equal_channels_and_coloured_ones_cannot(folder: Path) -> None:
    save_split(folder / "mnist.npz", 28, 28)
    save_split(folder / "cifar10.npz", 32, 32, 3)
    gray, colour = tasks.build("mnist"), tasks.build("mnist", rgb=True)
    for a, b in ((gray.train, colour.train), (held_out(gray), held_out(colour))):
        assert torch.equal(b[0], a[0].repeat(1, 3, 1, 1))
    with pytest.raises(BadInput, match=r"--task.rgb true: the images of cifar10 are not gray"):
        build_by_flags(tasks, "cifar10", rgb=True)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("fashion_mnist", (28, 28), 10),
        ("svhn", (32, 32, 3), 10),
        ("cinic10", (32, 32, 3), 10),
        ("pathmnist", (28, 28, 3), 9),
        ("tissuemnist", (28, 28), 8),
        ("femnist", (28, 28), 62),
        ("stl10", (96, 96, 3), 10),
        ("tiny_imagenet", (64, 64, 3), 200),
    ],
)
def test_the_usual_model_of_a_set_fits_its_images_and_classes(
    folder: Path, name: str, shape: tuple[int, ...], classes: int
) -> None:
    save_split(folder / f"{name}.npz", *shape, classes=8, n=8)
    task = tasks.build(name)
    assert task.model()(task.train[0][:2]).shape == (2, classes)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--task.limit 0: must be 1 or more"):
        build_by_flags(tasks, "digits", limit=0)


def test_a_label_that_the_set_does_not_have_is_refused(folder: Path) -> None:
    save_split(folder / "mnist.npz", 28, 28, classes=11)
    with pytest.raises(BadInput, match=r"--task mnist: .*mnist.npz has the label 10; mnist has the classes 0 … 9"):
        build_by_flags(tasks, "mnist")


def test_floats_and_groups_of_an_npz_file_are_kept_as_they_are(tmp_path: Path) -> None:
    x = RNG.normal(3, 5, (12, 16, 6)).astype(np.float32)
    subject = np.array([5, 5, 2, 2, 9, 9, 5, 5, 2, 2, 9, 9], np.uint8)
    is_test = np.arange(12) >= 8
    np.savez(tmp_path / "har.npz", x=x, y=np.arange(12) % 3, subject=subject, is_test=is_test)
    task = tasks.build("npz", path=str(tmp_path / "har.npz"), limit=7)
    assert task.name == "har"
    assert np.array_equal(task.train[0].numpy(), x[:7])
    assert np.array_equal(held_out(task)[0].numpy(), x[8:])
    assert task.groups is not None
    assert task.groups.tolist() == [5, 5, 2, 2, 9, 9, 5]
    assert task.model()(task.train[0]).shape == (7, 3)
    clients = task.split(partitions.build("groups"), 3, generator(0)).clients
    assert [len(y) for _, y in clients] == [2, 3, 2]
    assert torch.equal(clients[1][0], torch.from_numpy(x[[0, 1, 6]]))


def test_the_classes_of_an_npz_file_are_those_of_training_and_test_set_together(tmp_path: Path) -> None:
    arrays = save_split(tmp_path / "a.npz", 16, 16, classes=3)
    np.savez(tmp_path / "a.npz", **{**arrays, "y_test": np.array([0, 1, 2, 6, 0, 0, 0])})
    task = tasks.build("npz", path=str(tmp_path / "a.npz"), model="lenet5", limit=1)
    assert task.model()(held_out(task)[0]).shape == (7, 7)


def test_a_model_that_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--task.model lenet5: requires images"):
        build_by_flags(tasks, "digits", model="lenet5")


@pytest.mark.data
def test_the_real_mnist_has_its_published_mean_and_size() -> None:
    assert os.environ.get("TARRY_DATA"), "set TARRY_DATA to the folder that holds mnist.npz"
    task = tasks.build("mnist")
    (x, y), (xt, _) = task.train, held_out(task)
    assert (len(x), len(xt)) == (60_000, 10_000)
    assert torch.bincount(y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    # a black pixel is −mean/std with the well-known 0.1307 and 0.3081
    assert x.min().item() == pytest.approx(-0.1307 / 0.3081, abs=1e-3)


@pytest.mark.data
def test_the_real_cifar10_has_its_published_means_and_size() -> None:
    assert os.environ.get("TARRY_DATA"), "set TARRY_DATA to the folder that holds CIFAR-10"
    task = tasks.build("cifar10", augment="fedsol")
    (x, y), (xt, yt) = task.train, held_out(task)
    assert (x.shape, xt.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert torch.bincount(y).tolist() == [5000] * 10
    assert torch.bincount(yt).tolist() == [1000] * 10
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    assert np.allclose(task.augment.fill, -mean / std, atol=1e-3)  # type: ignore[union-attr]
