from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

import tarry
from tarry.core.errors import BadInput
from tarry.core.task import Task
from tarry.tasks import image_inputs
from tarry.tasks.unlabeled import unlabeled_sets
from tests.helpers.by_flags import build_by_flags

RNG = np.random.default_rng(4)
LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)


class Untouchable:
    """Labels that nobody may look at."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the labels' {name} was asked for")

    def __len__(self) -> int:
        raise AssertionError("the labels were counted")

    def __getitem__(self, i: Any) -> Any:
        raise AssertionError("a label was read")


def secret() -> Any:
    return object.__new__(Untouchable)


def task(*shape: int, n: int = 30, dtype: torch.dtype = torch.float64, **more: Any) -> Task:
    """Labels that cannot be touched, everywhere."""
    x = torch.arange(n * int(np.prod(shape)), dtype=torch.float64).view(n, *shape)
    x = (x / x.numel()).to(dtype) if dtype.is_floating_point else x.to(dtype)
    parts: dict[str, Any] = {"train": (x, secret()), "test": (-x, secret()), **more}
    return Task("mine", model=torch.nn.Identity, loss=cross_entropy, **parts)


def make(name: str, on: Task, seed: int = 0, **params: Any) -> Tensor:
    return build_by_flags(unlabeled_sets, name, **params)(on, seed)


def train_x(on: Task) -> Tensor:
    assert on.train is not None
    return on.train[0]


def test_the_sets_are_these() -> None:
    assert list(unlabeled_sets) == ["folder", "mixup", "noise", "stl10", "task", "test"]


def other_file(folder: Path, monkeypatch: pytest.MonkeyPatch, labels: Any = None) -> np.ndarray[Any, Any]:
    """A colour data set `other` in the data folder."""
    monkeypatch.setenv("TARRY_DATA", str(folder))
    x = RNG.integers(0, 256, (50, 10, 12, 3)).astype(np.uint8)
    y = np.arange(50) % 5 if labels is None else labels
    np.savez(folder / "other.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    return x


EVERY: list[tuple[str, dict[str, Any]]] = [
    ("noise", {"samples": 20}),
    ("mixup", {"samples": 20}),
    ("test", {"samples": 20}),
    ("task", {"samples": 20, "of": "digits"}),
    ("folder", {"samples": 20, "path": "images.npy"}),
]


@pytest.mark.parametrize(("name", "params"), EVERY, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_set_has_the_tasks_shape_and_numbers_a_seed_of_its_own_and_reads_no_label(
    name: str, params: dict[str, Any], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", RNG.integers(0, 256, (40, 5, 6)).astype(np.uint8))
    mine = task(1, 6, 7, dtype=dtype)
    one = make(name, mine, seed=1, **params)
    assert one.shape == (20, 1, 6, 7)
    assert one.dtype == dtype
    assert torch.isfinite(one).all()
    assert torch.equal(one, make(name, mine, seed=1, **params))
    assert not torch.equal(one, make(name, mine, seed=2, **params))


def test_noise_is_standard_normal_unless_told_otherwise() -> None:
    x = make("noise", task(1, 4, 4), samples=4000)
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02
    assert abs((x < -1).double().mean().item() - 0.1587) < 0.01
    other = make("noise", task(1, 4, 4), samples=4000, mean=3.0, std=0.5)
    torch.testing.assert_close(other, 3 + 0.5 * x)


def test_noise_knows_no_number_of_the_tasks_inputs() -> None:
    one = task(2, 3)
    x, y = one.train  # type: ignore[misc]
    assert torch.equal(make("noise", one), make("noise", replace(one, train=(x * 1e6 + 7, y))))


@pytest.mark.parametrize("dealt", [False, True], ids=["whole", "dealt out"])
def test_mixup_lies_between_two_training_inputs(dealt: bool) -> None:
    """Inputs are corners of a simplex: a mix has a share in at most two, adding up to 1."""
    corners = torch.eye(6, dtype=torch.float64)
    mine = task(6, train=(corners, secret()))
    if dealt:
        mine = replace(mine, train=None, clients=[(corners[:2], secret()), (corners[2:], secret())])
    x = make("mixup", mine, samples=3000)
    torch.testing.assert_close(x.sum(1), torch.ones(3000, dtype=torch.float64))
    assert ((x > 0).sum(1) <= 2).all()
    assert (x >= 0).all()
    torch.testing.assert_close(x.mean(0), torch.full((6,), 1 / 6, dtype=torch.float64), rtol=0, atol=0.02)
    pairs = x[(x > 0).sum(1) == 2]
    largest = pairs.max(1).values
    assert abs(largest.mean().item() - 0.75) < 0.02, "shares are uniform: the larger one is 3/4 on average"
    near = make("mixup", mine, samples=3000, alpha=0.05).max(1).values
    assert (near > 0.99).double().mean() > 0.6, "Beta(a, a) with small a is near one or the other"


def test_the_test_set_gives_its_inputs_at_random_without_repeats_and_all_where_there_are_fewer() -> None:
    mine = task(4)
    assert mine.test is not None
    x = make("test", mine, samples=10)
    rows = [mine.test[0].tolist().index(row) for row in x.tolist()]
    assert len(set(rows)) == 10
    assert rows == sorted(rows)
    assert torch.equal(make("test", mine), mine.test[0])


def test_another_tasks_inputs_are_resized_and_made_grey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.from_numpy(other_file(tmp_path, monkeypatch)).double().permute(0, 3, 1, 2) / 255
    normal = (pixels - pixels.mean((0, 2, 3), keepdim=True)) / pixels.std((0, 2, 3), correction=0, keepdim=True)
    same = make("task", task(3, 10, 12), of="other")
    torch.testing.assert_close(same, normal, rtol=0, atol=1e-5)
    gray = make("task", task(1, 10, 12), of="other")
    torch.testing.assert_close(gray[:, 0], (normal * LUMA.view(3, 1, 1)).sum(1), rtol=0, atol=1e-5)
    small = make("task", task(3, 5, 6), of="other", samples=50)
    halves = interpolate(normal, scale_factor=0.5, mode="area")
    assert torch.corrcoef(torch.stack([small.flatten(), halves.flatten()]))[0, 1] > 0.9
    large = make("task", task(3, 19, 23), of="other")
    expected = interpolate(normal, size=(19, 23), mode="bilinear", align_corners=False)
    torch.testing.assert_close(large, expected, rtol=0, atol=1e-5)


def test_grey_inputs_become_colours_alike() -> None:
    digits, x = train_x(tarry.tasks.build("digits")), make("task", task(3, 8, 8), of="digits", samples=5000)
    assert x.shape == (1437, 3, 8, 8)
    for channel in range(3):
        torch.testing.assert_close(x[:, channel].float(), digits[:, 0])


def save_images(folder: Path) -> list[Any]:
    """Pictures of three kinds and a file that is none."""
    arrays = [RNG.integers(0, 256, (9, 7, 3)).astype(np.uint8) for _ in range(6)]
    (folder / "deeper").mkdir(parents=True)
    for i, a in enumerate(arrays):
        Image.fromarray(a).save(folder / ("deeper" if i > 3 else ".") / f"{i}.png")
    (folder / "notes.txt").write_text("not a picture")
    return arrays


def test_a_folder_of_images_is_resized_and_normalized_per_channel(tmp_path: Path) -> None:
    arrays = save_images(tmp_path / "pictures")
    x = make("folder", task(3, 9, 7), path=str(tmp_path / "pictures"))
    assert x.shape == (6, 3, 9, 7)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)
    pixels = torch.from_numpy(np.stack(arrays)).double().permute(0, 3, 1, 2)
    flat = pixels.transpose(0, 1).reshape(3, -1), x.transpose(0, 1).reshape(3, -1)
    for channel in range(3):
        assert torch.corrcoef(torch.stack([flat[0][channel], flat[1][channel]]))[0, 1] > 0.9999
    assert make("folder", task(1, 4, 4), path=str(tmp_path / "pictures"), samples=4).shape == (4, 1, 4, 4)


def test_a_file_of_arrays_is_read_without_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.normal(size=(8, 3, 4, 4))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(8))
    np.savez(tmp_path / "b.npz", images=x)
    np.save(tmp_path / "c.npy", x.astype(np.float32))
    read: list[str] = []
    real = image_inputs.array_of
    monkeypatch.setattr(image_inputs, "array_of", lambda z, member: (read.append(member.filename), real(z, member))[1])
    for name in ("a.npz", "b.npz", "c.npy"):
        got = make("folder", task(3, 4, 4), path=str(tmp_path / name))
        torch.testing.assert_close(got, torch.from_numpy(x), rtol=0, atol=1e-6)
    assert read == ["x.npy", "images.npy"]


def test_whole_numbers_are_for_tasks_of_whole_numbers(tmp_path: Path) -> None:
    tokens = RNG.integers(0, 50, (8, 5))
    np.save(tmp_path / "tokens.npy", tokens)
    got = make("folder", task(5, dtype=torch.int64), path=str(tmp_path / "tokens.npy"))
    assert got.dtype == torch.int64
    assert got.tolist() == tokens.tolist()
    assert make("test", task(5, dtype=torch.int64)).dtype == torch.int64


BAD: list[tuple[str, dict[str, Any], Callable[[], Task], str]] = [
    (
        "noise",
        {},
        lambda: task(5, dtype=torch.int64),
        "--unlabeled noise: the inputs of task 'mine' are integers",
    ),
    (
        "mixup",
        {},
        lambda: task(5, dtype=torch.int64),
        "--unlabeled mixup: the inputs of task 'mine' are integers",
    ),
    ("test", {}, lambda: task(5, test=None), "--unlabeled test: task 'mine' has no test set"),
    ("task", {"of": "digit"}, lambda: task(1, 8, 8), "--unlabeled.of digit: .*Did you mean 'digits'"),
    ("task", {"of": "npz"}, lambda: task(1, 8, 8), "--unlabeled.of npz: .*needs it"),
    (
        "task",
        {"of": "digits"},
        lambda: task(64),
        "--unlabeled.of digits: its inputs are 1×8×8, those of the task 64",
    ),
    (
        "task",
        {"of": "digits"},
        lambda: task(2, 5, 5, dtype=torch.int64),
        "--unlabeled.of digits: .* floating-point",
    ),
    ("folder", {"path": "nowhere"}, lambda: task(1, 8, 8), "--unlabeled.path nowhere: there is no such directory"),
    ("folder", {"path": "empty"}, lambda: task(1, 8, 8), "--unlabeled.path empty: has no images; expected files"),
    (
        "folder",
        {"path": "empty"},
        lambda: task(5),
        "--unlabeled.path empty: the inputs of the task are 5, not gray or RGB",
    ),
    ("folder", {"path": "torn.png/"}, lambda: task(3, 8, 8), "broken.png cannot be read as an image"),
    (
        "folder",
        {"path": "torn.npz"},
        lambda: task(3, 8, 8),
        "--unlabeled.path torn.npz: is not a plain file of numbers",
    ),
    (
        "folder",
        {"path": "two.npz"},
        lambda: task(3, 8, 8),
        "expected an array x or x_train, or a single array; it has a, b",
    ),
    ("folder", {"path": "flat.npy"}, lambda: task(3, 8, 8), "holds float64 5; expected numbers, one input per row"),
    (
        "folder",
        {"path": "none.npy"},
        lambda: task(3, 8, 8),
        "holds float64 0×3×8×8; expected numbers, one input per row",
    ),
    ("folder", {"path": "text.npy"}, lambda: task(3, 8, 8), "holds <U1 1×1; expected numbers, one input per row"),
    ("folder", {"path": "nan.npy"}, lambda: task(2), "--unlabeled.path nan.npy: holds NaN or infinite values"),
    ("folder", {"path": "bytes.npy"}, lambda: task(4), "uint8 inputs are images"),
    ("folder", {"path": "four.npy"}, lambda: task(3, 8, 8), "cannot convert images of 4 channels to 3"),
    (
        "folder",
        {"path": "tokens.npy"},
        lambda: task(4),
        "its inputs are integers, those of the task are floating-point",
    ),
    ("noise", {}, lambda: task(3, train=None), "--unlabeled: task 'mine' has neither clients nor training examples"),
]


@pytest.mark.parametrize(("name", "params", "on", "words"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_done_is_told(
    name: str, params: dict[str, Any], on: Callable[[], Task], words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("torn.png").mkdir()
    Path("torn.png/broken.png").write_bytes(b"\x89PNG nothing more")
    Path("torn.npz").write_bytes(b"PK nothing more")
    np.savez("two.npz", a=np.zeros(3), b=np.zeros(3))
    np.save("flat.npy", np.zeros(5))
    np.save("none.npy", np.zeros((0, 3, 8, 8)))
    np.save("text.npy", np.array([["a"]]))
    np.save("nan.npy", np.full((3, 2), np.nan))
    np.save("bytes.npy", np.zeros((3, 4), np.uint8))
    np.save("four.npy", np.zeros((3, 8, 8, 4), np.uint8))
    np.save("tokens.npy", np.zeros((3, 4), np.int64))
    with pytest.raises(BadInput, match=words):
        make(name, on(), **params)


@pytest.mark.parametrize(("name", "params"), EVERY, ids=lambda x: x if isinstance(x, str) else "")
def test_fewer_than_one_sample_is_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"--unlabeled.samples 0: must be 1 or more"):
        build_by_flags(unlabeled_sets, name, **{**params, "samples": 0})


@pytest.mark.parametrize(("name", "params"), [("noise", {"std": 0.0}), ("mixup", {"alpha": -1.0})])
def test_a_spread_must_be_above_0(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"--unlabeled\.\w+ .*: must be above 0"):
        build_by_flags(unlabeled_sets, name, **params)


def test_without_pillow_a_folder_of_images_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_images(tmp_path / "pictures")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BadInput, match=r"needs Pillow; install it, or save the images as an \.npz file"):
        make("folder", task(3, 8, 8), path=str(tmp_path / "pictures"))


SHORT: dict[str, Any] = {
    "clients": 4,
    "delay": [[1.0], [1.5], [2.0], [5.0]],
    "steps": 2,
    "updates": 12,
    "eval_every": 100.0,
}


def trajectory(on: Any, unlabeled: Any) -> str:
    method = {"name": "fedecho", "buffer": 2, "lr": 0.01}
    return tarry.run(method, on, unlabeled=unlabeled, **SHORT).weights_sha256


def test_poisoned_labels_of_another_task_change_no_trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other task's labels as they were, all the same, and none that a model could have."""
    mine = {"name": "digits", "hidden": 8, "limit": 200}
    state = RNG.bit_generator.state
    shas = set()
    for labels in (None, np.zeros(50, int), np.full(50, 99_999)):
        RNG.bit_generator.state = state  # the same pictures
        other_file(tmp_path, monkeypatch, labels)
        shas.add(trajectory(mine, "task:of=other,samples=30"))
    assert len(shas) == 1
    assert shas != {trajectory(mine, "noise:samples=30")}, "the set does matter"


def test_poisoned_test_labels_change_no_trajectory() -> None:
    digits = tarry.tasks.build("digits", hidden=8, limit=200)
    assert digits.test is not None
    x, y = digits.test
    shas = {
        trajectory(replace(digits, test=(x, labels)), "test:samples=30")
        for labels in (y, y.flip(0), torch.zeros_like(y))
    }
    assert len(shas) == 1


def test_a_labelled_file_may_hold_labels_that_cannot_be_read(tmp_path: Path) -> None:
    """Its labels are damaged on disk: whoever read them would fail."""
    x, path = RNG.normal(size=(40, 1, 8, 8)).astype(np.float32), tmp_path / "set.npz"
    np.savez(path, x=x, y=np.arange(40))
    good = trajectory({"name": "digits", "hidden": 8, "limit": 200}, {"name": "folder", "path": str(path)})
    blob = path.read_bytes()
    buffer = io.BytesIO()
    np.save(buffer, np.arange(40))
    labels = buffer.getvalue()
    assert blob.count(labels) == 1
    path.write_bytes(blob.replace(labels, bytes(len(labels))))
    with pytest.raises(Exception, match=r"Bad CRC|magic|pickle"), np.load(path) as z:
        z["y"]
    bad = trajectory({"name": "digits", "hidden": 8, "limit": 200}, {"name": "folder", "path": str(path)})
    assert bad == good
