"""Text files of TARRY_DATA that are packed or Parquet, by their names."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import tarry
from tarry.core.errors import BadInput
from tarry.tasks.data import sets, text_files

ROWS = [
    {"split": split, "y": i % 2, "text": f"{'good' if i % 2 else 'bad'} film {i}"}
    for split in ("train", "test")
    for i in range(20)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _parquet(path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)


WRITERS: dict[str, Callable[[Path], object]] = {
    "films.jsonl": lambda path: path.write_bytes(LINES),
    "films.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "films.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES)),
    "films.parquet": _parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_file_is_a_task_by_its_name_with_and_without_its_ending(folder: Path, name: str) -> None:
    WRITERS[name](folder / name)
    made = [tarry.tasks.build(by, vocabulary=50, length=8) for by in ("films", name)]
    (folder / "plain").mkdir()
    WRITERS["films.jsonl"](folder / "plain" / "films.jsonl")
    plain = tarry.tasks.build("jsonl", path=str(folder / "plain" / "films.jsonl"), vocabulary=50, length=8)
    for task in made:
        assert task.name == "films"
        assert task.train is not None
        assert plain.train is not None
        assert all((a == b).all() for a, b in zip(task.train, plain.train, strict=True))


@pytest.mark.parametrize("name", ["gait.npz", "gait.npz.gz", "gait.npz.xz"])
def test_a_file_of_arrays_is_a_task_by_its_name_packed_or_not(folder: Path, name: str) -> None:
    plain = io.BytesIO()
    np.savez(plain, x=np.arange(80, dtype=np.float32).reshape(20, 4), y=np.arange(20) % 2)
    pack = {"npz": bytes, "gz": gzip.compress, "xz": lzma.compress}[name.rpartition(".")[2]]
    (folder / name).write_bytes(pack(plain.getvalue()))
    for task in (tarry.tasks.build("gait"), tarry.tasks.build(name), tarry.tasks.build("npz", path=str(folder / name))):
        assert repr(task) == "Task(gait: 16 train, 4 test, model mlp)"


def image_bytes(value: int, mode: str = "RGB", kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (8, 6), value if mode == "L" else (value, 0, 255)).save(out, kind)
    return out.getvalue()


def test_a_parquet_file_of_images_is_a_task_by_its_name(folder: Path) -> None:
    rows = [
        {"image": {"bytes": image_bytes(20 * i), "path": None}, "label": i % 2, "split": "test" if i > 7 else "train"}
        for i in range(10)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "scans.parquet")
    task = tarry.tasks.build("scans")
    assert repr(task) == "Task(scans: 8 train, 2 test, model mlp)"
    assert task.train[0].shape == (8, 3, 6, 8)
    assert task.train[1].tolist() == [0, 1] * 4
    gray = [{"img": image_bytes(20 * i, "L"), "y": i % 2} for i in range(10)]
    parquet.write_table(pyarrow.Table.from_pylist(gray), folder / "gray.parquet")
    assert tarry.tasks.build("gray").train[0].shape == (8, 1, 6, 8)


def test_a_parquet_file_of_numbers_is_a_task_with_its_groups(folder: Path) -> None:
    rows = [{"x": [float(i), 2.0], "y": i % 2, "subject": i // 5, "is_test": int(i > 7)} for i in range(10)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "gait.parquet")
    task = tarry.tasks.build("npz", path=str(folder / "gait.parquet"))
    assert task.train[0].tolist() == [[float(i), 2.0] for i in range(8)]
    assert task.groups.tolist() == [0] * 5 + [1] * 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": [1.0], "z": 1}] * 5, "wants one column y or label; it has x, z"),
        ([{"x": [1.0], "y": 1}, {"x": [1.0, 2.0], "y": 0}], "its inputs have several shapes"),
        ([{"x": [1.0], "y": None}], "column 'y' must hold whole numbers"),
        ([{"x": [1.0], "y": 1, "split": "dev"}], "has the split 'dev'; expected train, validation, test"),
        ([{"x": [1.0], "y": 1, "split": "train"}], "all rows are of the split 'train'"),
        ([{"image": b"torn", "y": 1}], "row 1: column 'image': is no JPEG or PNG image"),
        ([{"x": "a text", "y": 1}], "holds no image and no list of numbers"),
    ],
)
def test_a_parquet_file_that_holds_no_examples_is_one_error(
    folder: Path, rows: list[dict[str, object]], message: str
) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "odd.parquet")
    with pytest.raises(BadInput, match=message):
        tarry.tasks.build("npz", path=str(folder / "odd.parquet"))


def test_a_parquet_file_of_an_image_set_of_the_catalog_is_found(folder: Path) -> None:
    parts = [(split, i) for split in ("train", "test") for i in range(10)]
    rows = [{"image": {"bytes": picture_of(i)}, "label": i, "split": split} for split, i in parts]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "mnist.parquet")
    assert len(sets.load("mnist").x_train) == 10


def picture_of(i: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (28, 28), i).save(out, "PNG")
    return out.getvalue()


def test_a_parquet_file_of_a_text_set_of_the_catalog_is_found(folder: Path) -> None:
    _parquet(folder / "sst2.parquet")
    assert len(sets.fetch("sst2").train) == 20


def test_a_packed_set_of_the_catalog_is_found(folder: Path) -> None:
    rows = [
        {"split": s, "question": f"{i} + 1?", "answer": f"{i + 1}", "y": 0} for s in ("train", "test") for i in range(9)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "gsm8k.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    texts = sets.fetch("gsm8k")
    assert len(texts.train) == 9
    assert tarry.tasks.find("gsm8k.jsonl.xz").name == "gsm8k"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("films.jsonl.gz", LINES, "is torn, or not packed as its name says"),
        ("films.jsonl.gz", gzip.compress(LINES)[:-9], "is torn, or not packed as its name says"),
        ("films.jsonl.xz", lzma.compress(LINES)[:40], "is torn, or not packed as its name says"),
        ("films.parquet", LINES, "is no Parquet file that can be read"),
    ],
)
def test_a_torn_file_is_one_error(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadInput, match=message) as rejected:
        tarry.tasks.build("films")
    assert len(rejected.value.problems) == 1


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_MOST", 1000)
    (folder / "films.jsonl.xz").write_bytes(lzma.compress(LINES * 100))
    with pytest.raises(BadInput, match="unpacks to more than 1,000 bytes"):
        tarry.tasks.build("films")
