"""The catalog: where sets are looked for, what is said when one is missing, and the hub."""

from __future__ import annotations

import builtins
import io
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tarry
from tarry.core import slow_read
from tarry.core.errors import BadInput
from tarry.tasks import tasks
from tarry.tasks.data import DataSet, TextDataset, catalog, fetch, load
from tarry.tasks.data.sets import collect_notices
from tarry.tasks.unlabeled import unlabeled_sets
from tests.helpers.by_flags import build_by_flags
from tests.tasks.data.file_writers import SHAPES, Made, made, picture, save, stl10, write, write_svhn, write_tar

IMAGES = {
    "mnist": 10,
    "fashion_mnist": 10,
    "cifar10": 10,
    "cifar100": 100,
    "svhn": 10,
    "cinic10": 10,
    "pathmnist": 9,
    "tissuemnist": 8,
    "femnist": 62,
    "stl10": 10,
    "tiny_imagenet": 200,
}
SETS = {**IMAGES, "har": 6}


@pytest.mark.parametrize("name", SETS)
def test_a_missing_set_is_told_in_one_message_with_files_place_source_and_stand_in(folder: Path, name: str) -> None:
    with pytest.raises(BadInput) as e:
        build_by_flags(tasks, name)
    said, known = str(e.value), catalog()[name]
    assert len(e.value.problems) == 1
    assert said.startswith(f"--task {name}: the data set is not there. TARRY_DATA={folder} holds nothing.")
    assert f"{name}.npz" in said
    for form in known.forms:
        assert form.words in said
    assert f"Get it: {known.get}." in said
    assert f"What stands in: {known.stand_in}." in said
    if known.hub is not None:
        assert f"TARRY_HUB=1 or --task.hub true fetches {known.hub.id} from the Hugging Face hub." in said


def test_the_data_folder_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARRY_DATA", raising=False)
    with pytest.raises(BadInput, match=r"--task mnist: .*TARRY_DATA is unset: set it to a folder of data sets"):
        load("mnist")
    monkeypatch.setenv("TARRY_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match=r"TARRY_DATA=.*nowhere is not a folder"):
        load("mnist")
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    write(tmp_path, {"other.npz": b"", "some/thing": b"", ".hidden": b""})
    with pytest.raises(BadInput, match=rf"TARRY_DATA={tmp_path} holds other.npz, some/\. Put there"):
        load("mnist")
    write(tmp_path, {f"f{i:02}": b"" for i in range(20)})
    with pytest.raises(BadInput, match=r"holds f00, f01, .* f11 and 10 more\."):
        load("mnist")


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_a_task_of_its_name_that_says_what_it_is(name: str) -> None:
    entry = tasks[name]
    assert catalog()[name].what in entry.summary
    params = {p.name for p in entry.params}
    assert params >= {"model", "limit", "hub"}
    assert ("augment" in params) == (name in IMAGES)


@pytest.mark.parametrize("name", IMAGES)
def test_a_label_beyond_a_sets_classes_is_refused_and_its_last_class_is_not(folder: Path, name: str) -> None:
    m = made(*SHAPES[name])
    arrays = {"x_train": m.x_train, "x_test": m.x_test, "y_test": m.y_test % 2}
    last = np.full(len(m.x_train), IMAGES[name] - 1)
    np.savez(folder / f"{name}.npz", y_train=last, **arrays)
    assert load(name).y_train.max() == IMAGES[name] - 1
    np.savez(folder / f"{name}.npz", y_train=last + 1, **arrays)
    with pytest.raises(BadInput, match=rf"{name}.npz has the label {IMAGES[name]}; {name} has the classes 0 … "):
        load(name)


@pytest.mark.parametrize("name", SHAPES)
def test_images_of_another_size_or_colour_are_no_named_set(folder: Path, name: str) -> None:
    height, width, *colour = SHAPES[name]
    others = [(height, width, 4), (height, width + 1, *colour), (height, width) if colour else (height, width, 3)]
    wants = f"{height}×{width}{'×3' if colour else ', gray'}"
    for shape in others:
        path = save(folder, name, made(*shape, classes=2))
        has = "×".join(map(str, shape))
        with pytest.raises(BadInput, match=rf"{path} has images of {has}; those of {name} are {wants}\..* --task NAME"):
            load(name)
    save(folder, name, made(*SHAPES[name], *([] if colour else [1]), classes=2))
    load(name)


@pytest.mark.parametrize("name", catalog())
def test_a_set_is_looked_for_in_a_folder_of_its_name(folder: Path, name: str) -> None:
    made_of = catalog()[name]
    file = made_of.forms[0].at[0]
    write(folder / name, {file: b""})
    found = made_of.find()
    assert found is not None
    assert found[0] == folder / name / file


def test_a_folder_with_something_else_in_it_is_told_from_one_with_the_set(folder: Path) -> None:
    write(folder / "cifar10", {"readme.html": b""})
    with pytest.raises(BadInput, match=r"holds cifar10/\. Put there .* or cifar10/data_batch_1 or CIFAR10/"):
        load("cifar10")


@pytest.mark.parametrize("name", [n for n, s in catalog().items() if s.sizes])
def test_the_sizes_of_a_set_are_those_it_is_described_with(name: str) -> None:
    known = catalog()[name]
    assert all(f"{n:,}" in known.what for size in known.sizes for n in size if n)
    assert all(known.size_notice(*size) is None for size in known.sizes)


def test_images_have_their_sizes_but_for_femnist() -> None:
    assert {name for name in SETS if not catalog()[name].sizes} == {"femnist"}


PAIRS = DataSet("pairs", "", (), "", "", sizes=((4076, 1725), (3668, 408)))


@pytest.mark.parametrize(
    ("known", "have", "limit", "said"),
    [
        ("cifar100", (20_000, 10_000), None, "20,000 of 50,000 training examples"),
        ("cifar100", (20_000, 10_000), 20_000, None),
        ("cifar100", (20_000, 10_000), 30_000, "20,000 of 30,000 training examples"),
        ("cifar100", (20_000, 10_000), 90_000, "20,000 of 50,000 training examples"),
        ("cifar100", (50_000, 10_000), 90_000, None),
        ("cifar100", (50_000, 300), 10, "300 of 10,000 test examples"),
        (
            "mnist",
            (56_000, 14_000),
            None,
            "56,000 of 60,000 training examples and 14,000 in place of 10,000 test examples",
        ),
        ("mnist", (70_000, 10_000), None, "70,000 in place of 60,000 training examples"),
        ("mnist", (70_000, 10_000), 100, None),
        ("femnist", (3, 2), None, None),
        (PAIRS, (3668, 408), None, None),
        (PAIRS, (3000, 408), None, "3,000 of 3,668 training examples"),
        (PAIRS, (4076, 5), None, "5 of 1,725 test examples"),
        (PAIRS, (3000, 1725), None, "3,000 of 4,076 training examples"),
    ],
)
def test_other_numbers_of_examples_than_a_set_has_are_said(
    known: str | DataSet, have: tuple[int, int], limit: int | None, said: str | None
) -> None:
    assert (catalog()[known] if isinstance(known, str) else known).size_notice(*have, limit) == said


SHORT: dict[str, Any] = {"time": 40.0, "clients": 3, "epochs": 1, "delay": "constant:seconds=30"}


def test_a_run_on_a_part_of_a_set_says_so(folder: Path) -> None:
    save(folder, "mnist", made(28, 28, n=12, tested=5))
    train, test = "12 of 60,000 training examples", "5 of 10,000 test examples"
    assert tarry.run("fedavg", "mnist:model=mlp", **SHORT).warnings == [f"mnist.npz: {train} and {test}"]
    assert tarry.run("fedavg", "mnist:model=mlp,limit=9", **SHORT).warnings == [f"mnist.npz: {test}"]
    assert tarry.run("fedavg", "digits", **SHORT).warnings == []


@pytest.mark.parametrize(("where", "said"), [(".", "svhn"), ("SVHN", "SVHN")])
def test_where_a_part_of_a_set_lies_is_said_from_the_data_folder_on(folder: Path, where: str, said: str) -> None:
    write_svhn(folder / where, made(32, 32, 3))
    with collect_notices(3) as heard:
        load("svhn")
    assert heard == [f"{said}: 5 of 26,032 test examples"]
    load("svhn")  # nobody listens
    assert len(heard) == 1


def test_a_set_that_is_none_is_refused_with_the_nearest_name(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"--task MNIST: there is no such data set. Did you mean 'mnist'\?"):
        load("MNIST")
    with pytest.raises(BadInput, match=r"there is no such data set. Did you mean 'ag_news'"):
        fetch("agnews")


def test_any_set_is_fetched_and_one_of_texts_is_not_loaded_as_arrays(folder: Path) -> None:
    write(folder, {"sst2.jsonl": b'{"split": "train", "y": 1, "text": "fine"}\n'})
    texts = fetch("sst2")
    assert isinstance(texts, TextDataset)
    assert texts.train == ("fine",)
    with pytest.raises(
        BadInput, match=r"--task sst2: is no set of images or series but of texts; tarry.tasks.data.fetch"
    ):
        load("sst2")


class Rows:
    """As much of `datasets.Dataset` as a loader needs: a column by name, a row by turn."""

    def __init__(self, columns: dict[str, list[Any]]):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        keys = list(self.columns)
        return (dict(zip(keys, row, strict=True)) for row in zip(*self.columns.values(), strict=True))


def pictures(images: Any) -> list[Any]:
    from PIL import Image

    return [Image.open(io.BytesIO(picture(image, "png"))) for image in images]


@dataclass
class Hub:
    """What the hub was asked for, and what it holds."""

    calls: list[tuple[str, ...]]
    colour: Made
    gray: Made
    known: dict[str, Any]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A `datasets` that knows CIFAR-100, MNIST and FEMNIST; what it was asked for."""
    colour, gray = made(32, 32, 3, classes=100), made(28, 28)
    writers = ["w9", "w9", "w1", "w1", "w9", "w2", "w2", "w2", "w1", "w9", "w9", "w1"]
    known: dict[str, Any] = {
        "uoft-cs/cifar100": {
            "train": Rows({"img": pictures(colour.x_train), "fine_label": colour.y_train.tolist()}),
            "test": Rows({"img": pictures(colour.x_test), "fine_label": colour.y_test.tolist()}),
        },
        "ylecun/mnist": {"train": Rows({"image": pictures(gray.x_train), "label": gray.y_train.tolist()})},
        "zalando-datasets/fashion_mnist": {"train": Rows({"picture": []}), "test": Rows({"picture": []})},
        "flwrlabs/femnist": {
            "train": Rows(
                {"image": pictures(gray.x_train), "writer_id": writers, "character": [0, 1] * 6, "hsf_id": [0] * 12}
            )
        },
    }
    calls = list[tuple[str, ...]]()

    def load_dataset(*args: str) -> Any:
        calls.append(args)
        if args[0] not in known:
            raise ConnectionError("no route to host")
        return known[args[0]]

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return Hub(calls, colour, gray, known)


def test_the_hub_is_not_asked_unless_wanted(folder: Path, hub: Hub) -> None:
    with pytest.raises(BadInput, match="the data set is not there"):
        build_by_flags(tasks, "cifar100")
    assert hub.calls == []


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_set_comes_from_the_hub_when_wanted(
    folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "environment":
        monkeypatch.setenv("TARRY_HUB", "1")
    arrays = load("cifar100", hub=how == "flag")
    colour = hub.colour
    assert np.array_equal(arrays.x_train, colour.x_train)
    assert np.array_equal(arrays.x_test, colour.x_test)
    assert arrays.y_train.tolist() == colour.y_train.tolist()
    assert hub.calls == [("uoft-cs/cifar100",)]
    task = tasks.build("cifar100", hub="true")
    assert task.train is not None
    assert task.train[0].shape == (12, 3, 32, 32)


def test_a_file_in_the_folder_comes_before_the_hub(folder: Path, hub: Hub) -> None:
    m = made(32, 32, 3)
    np.savez(folder / "cifar100.npz", x_train=m.x_train, y_train=m.y_train, x_test=m.x_test, y_test=m.y_test)
    assert np.array_equal(load("cifar100", hub=True).x_train, m.x_train)
    assert hub.calls == []


def test_femnist_from_the_hub_has_its_writers_and_a_held_out_fifth(folder: Path, hub: Hub) -> None:
    arrays = load("femnist", hub=True)
    gray = hub.gray
    assert (len(arrays.x_train), len(arrays.x_test)) == (10, 2)
    assert arrays.groups is not None
    writer = [0, 0, 1, 1, 0, 2, 2, 2, 1, 0, 0, 1]
    places = [next(i for i, x in enumerate(gray.x_train) if np.array_equal(x, image)) for image in arrays.x_train]
    assert arrays.groups.tolist() == [writer[i] for i in places]


def test_what_goes_wrong_at_the_hub_is_told(folder: Path, hub: Hub) -> None:
    with pytest.raises(BadInput, match=r"--task svhn: .* hub: could not be fetched \(ConnectionError: no route"):
        load("svhn", hub=True)
    assert hub.calls[-1] == ("ufldl-stanford/svhn", "cropped_digits")
    with pytest.raises(BadInput, match=r"ylecun/mnist of the Hugging Face hub: has no part test; it has train"):
        load("mnist", hub=True)
    with pytest.raises(BadInput, match=r"has no column image, label; it has picture"):
        load("fashion_mnist", hub=True)
    with pytest.raises(BadInput, match=r"--task har: the data set is not there.*The Hugging Face hub is not asked"):
        load("har", hub=True)


def test_images_of_several_sizes_at_the_hub_are_refused(folder: Path, hub: Hub) -> None:
    mixed = [*pictures(hub.gray.x_train[:1]), *pictures(hub.colour.x_train[:1])]
    hub.known["ylecun/mnist"] = dict.fromkeys(("train", "test"), Rows({"image": mixed, "label": [0, 1]}))
    with pytest.raises(BadInput, match=r"ylecun/mnist of .*: its images are of several sizes, 28×28, 32×32; a task"):
        load("mnist", hub=True)


@pytest.mark.parametrize("installed", [True, False])
def test_what_is_not_to_be_had_from_the_hub_is_told_with_place_source_and_stand_in(
    folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setenv("TARRY_HUB", "1")
    if not installed:
        without(monkeypatch, "datasets")
    with pytest.raises(BadInput) as e:
        build_by_flags(tasks, "svhn")
    said, known = str(e.value), catalog()["svhn"]
    assert "no route to host" in said if installed else 'pip install "tarry[hub]"' in said
    for part in (str(folder), known.forms[1].words, known.get, known.stand_in):
        assert part in said
    assert "fetches" not in said
    assert len(e.value.problems) == 1


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = builtins.__import__

    def fail(wanted: str, *args: Any) -> Any:
        if wanted.partition(".")[0] == name:
            raise ImportError(f"no {name}")
        return real(wanted, *args)

    monkeypatch.setattr(builtins, "__import__", fail)


def test_packages_that_are_not_installed_are_named_with_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "tiny-imagenet-200" / "train", {"a.JPEG": b""})
    with monkeypatch.context() as m:
        without(m, "PIL")
        with pytest.raises(BadInput, match=r'needs Pillow: pip install "tarry\[pictures\]"'):
            load("tiny_imagenet")
    without(monkeypatch, "datasets")
    with pytest.raises(BadInput, match=r'needs the package datasets: pip install "tarry\[hub\]"'):
        load("mnist", hub=True)


@pytest.mark.parametrize("packed", [True, False])
def test_the_unlabeled_part_of_stl10_is_an_unlabeled_set(folder: Path, packed: bool) -> None:
    m = made(96, 96, 3, n=5, tested=2)
    m.x_train[:] = np.arange(5, dtype=np.uint8)[:, None, None, None] * 50
    m.x_train[:, :48, :, 0] = 255  # upright: red above
    parts = stl10(m)
    contents = {**parts, "unlabeled_X.bin": parts["train_X.bin"]}
    if packed:
        write_tar(folder / "stl10_binary.tar.gz", contents, under="stl10_binary/")
    else:
        write(folder / "stl10_binary", contents)
    x, y = torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
    task = tasks.build("digits")
    task = type(task)("mine", model=task.model, loss=task.loss, clients=[(x, y)])
    got = unlabeled_sets.build("stl10", samples=3)(task, 0)
    assert got.shape == (3, 3, 32, 32)
    assert torch.allclose(got.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    red = got[:, 0].mean(2)
    assert (red[:, :15] > red[:, 17:].max()).all()
    assert len(unlabeled_sets.build("stl10")(task, 0)) == 5


def test_stl10_without_its_unlabeled_part_is_told(folder: Path) -> None:
    task = tasks.build("digits")
    np.savez(folder / "stl10.npz", x=np.zeros((10, 96, 96, 3), np.uint8), y=np.arange(10))
    with pytest.raises(BadInput, match=r"--unlabeled stl10: the data set is not there.*stl10_binary.tar.gz"):
        build_by_flags(unlabeled_sets, "stl10")(task, 0)
    write(folder / "stl10_binary", {"train_X.bin": b""})
    with pytest.raises(BadInput, match=r"--unlabeled stl10: .*stl10_binary: lacks unlabeled_X.bin"):
        build_by_flags(unlabeled_sets, "stl10")(task, 0)
    write(folder / "stl10_binary", {"unlabeled_X.bin": bytes(5)})
    with pytest.raises(BadInput, match=r"unlabeled_X.bin: holds 5 bytes; expected images of 27,648"):
        build_by_flags(unlabeled_sets, "stl10")(task, 0)


def test_a_long_read_tells_how_far_it_has_come_and_a_short_one_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(slow_read.time, "monotonic", lambda: now)
    told = slow_read.SlowReadNotice("--task x: file")
    for done in range(60):
        now = 100.0 + done / 10
        told(done)
    assert capsys.readouterr().err == "--task x: file: 21 read, 2 s\n"
    now = 107.2
    told(1234)
    assert capsys.readouterr().err == "--task x: file: 1,234 read, 7 s\n"
