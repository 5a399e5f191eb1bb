from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.core.errors import BadInput
from tarry.tasks import tasks
from tarry.tasks.data import hold_out
from tarry.tasks.data.npz import read_npz
from tests.helpers.by_flags import build_by_flags

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 5, 4), np.uint8)
GOOD: dict[str, Any] = {
    "x_train": IMAGES,
    "y_train": np.array([0, 1, 2, 0, 1, 2]),
    "x_test": IMAGES[:2],
    "y_test": np.array([2, 1]),
}
TABLE: dict[str, Any] = {"x": RNG.random((10, 3)), "y": np.arange(10) % 2}


def save(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_a_file_with_its_split_is_read_as_it_is(tmp_path: Path) -> None:
    a = read_npz(save(tmp_path / "a.npz", GOOD), flag="f")
    assert np.array_equal(a.x_train, IMAGES)
    assert a.x_train.dtype == np.uint8
    assert a.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert a.y_test.tolist() == [2, 1]
    assert a.y_test.dtype == np.int64
    assert a.groups is None


@pytest.mark.parametrize("name", ["subject", "group"])
@pytest.mark.parametrize("kind", [np.bool_, np.uint8])
def test_a_table_is_cut_by_is_test_and_keeps_the_groups_of_its_training_examples(
    tmp_path: Path, name: str, kind: type
) -> None:
    test = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 1])
    extra = {name: np.arange(10) * 7, "is_test": test.astype(kind)}
    a = read_npz(save(tmp_path / "a.npz", {**TABLE, **extra}), flag="f")
    assert np.array_equal(a.x_train, TABLE["x"][[0, 2, 3, 5, 6, 7, 8]].astype(np.float32))
    assert np.array_equal(a.x_test, TABLE["x"][[1, 4, 9]].astype(np.float32))
    assert a.y_test.tolist() == [1, 0, 1]
    assert a.groups is not None
    assert a.groups.tolist() == [0, 14, 21, 35, 42, 49, 56]


@pytest.mark.parametrize("name", ["subject", "group"])
def test_a_file_with_its_split_may_have_the_groups_of_its_training_examples(tmp_path: Path, name: str) -> None:
    a = read_npz(save(tmp_path / "a.npz", {**GOOD, name: np.arange(6) * 3}), flag="f")
    assert a.groups is not None
    assert a.groups.tolist() == [0, 3, 6, 9, 12, 15]


def test_labels_may_stand_one_below_the_other(tmp_path: Path) -> None:
    a = read_npz(save(tmp_path / "a.npz", {**GOOD, "y_train": GOOD["y_train"][:, None]}), flag="f")
    assert a.y_train.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_table_without_is_test_holds_out_the_same_stratified_fifth_every_time(tmp_path: Path) -> None:
    table = {"x": np.arange(100.0)[:, None], "y": np.repeat([0, 1], [75, 25])}
    path = save(tmp_path / "a.npz", table)
    a, b = read_npz(path, flag="f"), read_npz(path, flag="f")
    assert np.bincount(a.y_test).tolist() == [15, 5]
    assert np.array_equal(a.x_test, b.x_test)
    assert sorted([*a.x_train[:, 0], *a.x_test[:, 0]]) == list(range(100))


def test_hold_out_takes_each_class_in_proportion_and_does_not_take_the_first_ones() -> None:
    labels = np.repeat([3, 5, 9], [50, 30, 20])
    marked = hold_out(labels, 10)
    assert np.bincount(labels[marked], minlength=10)[[3, 5, 9]].tolist() == [5, 3, 2]
    assert not marked[[0, 1, 2, 3, 4, 50, 51, 52, 80, 81]].all()


def test_labels_may_be_whole_numbers_written_as_floats(tmp_path: Path) -> None:
    a = read_npz(save(tmp_path / "a.npz", {**GOOD, "y_test": np.array([2.0, 1.0])}), flag="f")
    assert a.y_test.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"y_test": None},
            "wants the arrays x_train, y_train, x_test, y_test, or x and y; it has x_train, y_train, x_te",
        ),
        ({"y_train": np.zeros(5, int)}, r"y_train is int64 5; expected one number for each of the 6 examples"),
        ({"y_test": np.zeros((2, 2), int)}, r"y_test is int64 2×2; expected one number"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 0.5])}, r"y_train \(float64\) must hold whole numbers"),
        ({"y_train": np.array([0, 1, 2, 0, 1, np.nan])}, r"y_train \(float64\) must hold whole numbers"),
        ({"y_train": np.array([0, 1, 2, 0, 1, np.inf])}, r"y_train \(float64\) must hold whole numbers"),
        ({"y_train": np.array(list("abcabc"))}, r"y_train \(<U1\) must hold whole numbers"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "y_train holds -1; expected whole numbers from 0 up"),
        ({"y_train": np.full(6, 2**63 + 5, np.uint64)}, "y_train holds 9223372036854775813; expected .* below 2\\^63"),
        (
            {"group": np.arange(8)},
            "training examples' group is int64 8; expected one number for each of the 6 examples",
        ),
        ({"y_train": np.array([0, 1, 2, 0, 1, 100_000])}, "y_train goes up to 100000; .* at most 100000 classes"),
        ({"y_train": np.array([None, 1, 2, 0, 1, 2])}, "is not a plain .npz archive of numbers .*Object arrays"),
        (
            {"x_test": IMAGES[:2].astype(np.float32)},
            "x_train is uint8 6×5×4 and x_test float32 2×5×4; type and shape must be the same",
        ),
        ({"x_test": IMAGES[:2, :4]}, "x_train is uint8 6×5×4 and x_test uint8 2×4×4; type and shape must be the same"),
        ({"x_train": IMAGES.reshape(6, 20)}, "x_train is uint8 6×20; uint8 inputs are images.* as float32"),
        ({"x_train": np.zeros((6, 3, 8, 8), np.uint8)}, "x_train is uint8 6×3×8×8; .*at most 4 channels"),
        (
            {"x_train": IMAGES.astype(np.int64)},
            "x_train is int64 6×5×4; expected images as uint8 or other inputs as float32",
        ),
        ({"x_train": np.zeros(6)}, "x_train is float64 6; expected one row or image an example"),
        ({"x_train": np.zeros((0, 5, 4), np.uint8)}, "x_train is uint8 0×5×4; expected one row"),
        ({"x_train": np.array([[1.0, np.nan]] * 6)}, "x_train holds NaN, infinite or too large numbers"),
        ({"x_train": np.full((6, 3), 1e300)}, "x_train holds NaN, infinite or too large numbers"),
    ],
)
def test_a_malformed_file_is_refused_with_what_is_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "a.npz", {**GOOD, **change})
    with pytest.raises(BadInput, match=f"^--task.path {path}: {message}"):
        build_by_flags(tasks, "npz", path=str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "or x and y; it has x$"),
        ({"is_test": np.zeros(10, bool)}, "is_test must mark some examples"),
        ({"is_test": np.arange(10) % 3}, "is_test must mark some examples"),
        ({"is_test": np.ones(3, bool)}, "is_test is bool 3; expected one number for each of the 10"),
        ({"subject": np.arange(9)}, "subject is int64 9; expected one number for each of the 10"),
        ({"group": np.arange(10) / 2}, r"group \(float64\) must hold whole numbers"),
        ({"x": TABLE["x"][:4], "y": TABLE["y"][:4]}, "4 examples are too few to hold out a test set; give is_test"),
    ],
)
def test_a_malformed_table_is_refused_with_what_is_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "a.npz", {**TABLE, **change})
    with pytest.raises(BadInput, match=message):
        read_npz(path, flag="--task.path")


def npy_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    return buffer.getvalue()


def zip_of_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        z.writestr("x_train.npy", "these are no numbers")
    return buffer.getvalue()


def good_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **GOOD)
    return buffer.getvalue()


def bit_flipped() -> bytes:
    data = bytearray(good_bytes())
    data[100] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a plain .npz archive"),
        (b"x,y\n1,2\n", "is not a plain .npz archive"),
        (npy_bytes(), "holds a single array; expected an .npz archive"),
        (good_bytes()[:200], "is not a plain .npz archive"),
        (bit_flipped(), "is not a plain .npz archive"),
        (zip_of_text(), "is not a plain .npz archive|x_train"),
    ],
)
def test_a_file_that_is_no_archive_of_arrays_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_npz(path, flag="--task.path a.npz")


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--task.path .*gone.npz: there is no such file.*digits.* no download"):
        build_by_flags(tasks, "npz", path=str(tmp_path / "gone.npz"))


def test_a_registered_task_is_found_by_name() -> None:
    assert tasks["digits"].name == "digits"
    assert set(tasks) >= {"digits", "mnist", "cifar10", "cifar100", "npz"}


def test_a_file_dropped_into_the_data_folder_is_a_task_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    save(tmp_path / "gait.npz", {**TABLE, "subject": np.arange(10) % 4, "is_test": np.arange(10) > 6})
    entry = tasks["gait"]
    assert (entry.name, [p.name for p in entry.params]) == ("gait", ["model", "limit", "hidden"])
    assert entry.summary == tasks["npz"].summary
    task = tasks.build("gait", limit="5", hidden="7")
    assert task.name == "gait"
    assert task.groups is not None
    assert task.groups.tolist() == [0, 1, 2, 3, 0]
    assert sum(p.numel() for p in task.model().parameters()) == 3 * 7 + 7 + 7 * 2 + 2
    assert task.train is not None
    assert len(task.train[0]) == 5
    with pytest.raises(BadInput, match=r"--task.path x: task 'gait' has no parameter 'path'"):
        build_by_flags(tasks, "gait", path="x")


def test_a_registered_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    save(tmp_path / "digits.npz", TABLE)
    assert tasks.build("digits").train[0].shape == (1437, 1, 8, 8)  # type: ignore[index]


def test_a_factory_in_a_python_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tarry.tasks import tasks\ndef small():\n    return tasks.build('digits')\n")
    assert tasks.build(f"{tmp_path / 'mine.py'}:small").name == "digits"


def test_an_unknown_task_is_refused_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARRY_DATA", raising=False)
    names = ["cifar10", "cifar100", "digits", "har", "mnist", "npz"]
    with pytest.raises(
        BadInput, match=r"--task genome: there is no such task. Tasks: .* TARRY_DATA is unset: set"
    ) as e:
        tasks.find("genome")
    assert all(f" {name}," in str(e.value) for name in names)
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    save(tmp_path / "gait.npz", TABLE)
    with pytest.raises(BadInput, match=rf" TARRY_DATA={tmp_path} holds gait.npz. .*--task npz --task.path FILE"):
        tasks.find("genome")
    with pytest.raises(BadInput, match=r"--task mnsit: there is no such task. Did you mean 'mnist'\?"):
        tasks.find("mnsit")
    with pytest.raises(BadInput, match=r"--task MNIST: .* Did you mean 'mnist'\?"):
        tasks.find("MNIST")
    with pytest.raises(BadInput, match=r"--task CIFAR-10: .* Did you mean 'cifar10'\?"):
        tasks.find("CIFAR-10")
    with pytest.raises(BadInput, match=r"--task tiny-imagenet: .* Did you mean 'tiny_imagenet'\?"):
        tasks.find("tiny-imagenet")
    with pytest.raises(BadInput, match=r"Did you mean 'gait'\?"):
        tasks.find("gati")


def test_a_file_of_medmnist_that_is_in_no_catalog_is_a_task_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    x = RNG.integers(0, 256, (6, 28, 28, 3), np.uint8)
    parts = {f"{part}_images": x for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.arange(6)[:, None] for part in ("train", "val", "test")}
    save(tmp_path / "bloodmnist.npz", {**parts, **labels})
    task = tasks.build("bloodmnist", model="cnn")
    assert task.train is not None
    assert task.train[0].shape == (12, 3, 28, 28)
    assert task.model()(task.train[0]).shape == (12, 6)
