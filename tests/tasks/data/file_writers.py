"""Small data sets in the forms they are distributed in, with what a loader must read from them.

Every writer follows the published description of its format, pixel by pixel, and shares nothing with the readers.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.core.errors import BadInput
from tarry.tasks.data import load

RNG = np.random.default_rng(7)
SHAPES: dict[str, tuple[int, ...]] = {
    "mnist": (28, 28),
    "fashion_mnist": (28, 28),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "svhn": (32, 32, 3),
    "cinic10": (32, 32, 3),
    "pathmnist": (28, 28, 3),
    "tissuemnist": (28, 28),
    "femnist": (28, 28),
    "stl10": (96, 96, 3),
    "tiny_imagenet": (64, 64, 3),
}
SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


@dataclass
class Made:
    """Images N×H×W(×C) with labels from 0, and groups where the set has them."""

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    groups: Any = None


def made(*shape: int, classes: int = 10, n: int = 12, tested: int = 5) -> Made:
    y, yt = RNG.permutation(np.arange(n) % classes), RNG.permutation(np.arange(tested) % classes)
    return Made(RNG.integers(0, 256, (n, *shape), np.uint8), y, RNG.integers(0, 256, (tested, *shape), np.uint8), yt)


def save(folder: Path, name: str, m: Made, **more: Any) -> Path:
    """NAME.npz with its split."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npz"
    np.savez(path, x_train=m.x_train, y_train=m.y_train, x_test=m.x_test, y_test=m.y_test, **more)
    return path


def rejected(name: str, message: str) -> None:
    """The set is rejected in one sentence."""
    with pytest.raises(BadInput, match=message) as e:
        load(name)
    assert str(e.value).startswith(f"--task {name}: ")
    assert len(e.value.problems) == 1


def idx(array: Any) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, m: Made, *, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train-images-idx3": m.x_train, "train-labels-idx1": m.y_train}
    parts |= {"t10k-images-idx3": m.x_test, "t10k-labels-idx1": m.y_test}
    for name, array in parts.items():
        if packed:
            (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx(array), 1))
        else:
            (folder / f"{name}-ubyte").write_bytes(idx(array))


def planes(x: Any) -> Any:
    """CIFAR's rows: all red values row by row, then green, then blue."""
    return np.stack([np.concatenate([image[:, :, c].ravel() for c in range(3)]) for image in x])


def python_2_pickle(entries: dict[str, Any]) -> bytes:
    """Protocol 2 as Python 2 wrote it: texts are SHORT_BINSTRING, an array is numpy.core.multiarray._reconstruct."""

    def text(s: str) -> bytes:
        return b"U" + bytes([len(s)]) + s.encode("latin1")

    def number(n: int) -> bytes:
        return b"J" + struct.pack("<i", n)

    def array(a: Any) -> bytes:
        raw = a.tobytes()
        begun = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text("b") + b"\x87R"
        dtype = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R("
        dtype += number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        shape = b"".join(number(n) for n in a.shape) + b"\x86"
        return begun + b"(" + number(1) + shape + dtype + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"

    out = b"\x80\x02}("
    for key, value in entries.items():
        out += text(key)
        if isinstance(value, np.ndarray):
            out += array(value)
        elif isinstance(value, str):
            out += text(value)
        else:
            out += b"](" + b"".join(number(v) if isinstance(v, int) else text(v) for v in value) + b"e"
    return out + b"u."


def batches(m: Made, *, fine: bool, python: int = 2, protocol: int = 2) -> dict[str, bytes]:
    """Names and contents of CIFAR's pickled batches; training is cut into five where it is CIFAR-10."""
    parts: dict[str, tuple[Any, Any]] = {}
    if fine:
        parts["train"] = (m.x_train, m.y_train)
    else:
        cuts = np.array_split(np.arange(len(m.x_train)), 5)
        parts |= {f"data_batch_{i + 1}": (m.x_train[c], m.y_train[c]) for i, c in enumerate(cuts)}
    parts["test" if fine else "test_batch"] = (m.x_test, m.y_test)
    out = {}
    for name, (x, y) in parts.items():
        entries: dict[str, Any] = {
            "batch_label": name,
            "data": planes(x),
            "filenames": [f"{i}.png" for i in range(len(x))],
        }
        entries["fine_labels" if fine else "labels"] = [int(v) for v in y]
        if fine:
            entries["coarse_labels"] = [int(v) // 5 for v in y]
        as_bytes = {k.encode(): v for k, v in entries.items()}
        out[name] = python_2_pickle(entries) if python == 2 else pickle.dumps(as_bytes, protocol=protocol)
    return out


def binary(m: Made, *, fine: bool) -> dict[str, bytes]:
    """CIFAR's binary version: label byte(s), then the 3,072 values."""

    def rows(x: Any, y: Any) -> bytes:
        ends = [bytes([int(v) // 5, int(v)]) if fine else bytes([int(v)]) for v in y]
        return b"".join(end + row.tobytes() for end, row in zip(ends, planes(x), strict=True))

    if fine:
        return {"train.bin": rows(m.x_train, m.y_train), "test.bin": rows(m.x_test, m.y_test)}
    cuts = np.array_split(np.arange(len(m.x_train)), 5)
    parts = {f"data_batch_{i + 1}.bin": rows(m.x_train[c], m.y_train[c]) for i, c in enumerate(cuts)}
    return {**parts, "test_batch.bin": rows(m.x_test, m.y_test)}


def stl10(m: Made) -> dict[str, bytes]:
    """Each image red, green, blue; each of them column by column; labels from 1."""

    def images(x: Any) -> bytes:
        return b"".join(
            bytes(int(image[row, column, c]) for c in range(3) for column in range(96) for row in range(96))
            for image in x
        )

    def labels(y: Any) -> bytes:
        return bytes(int(v) + 1 for v in y)

    out = {"train_X.bin": images(m.x_train), "train_y.bin": labels(m.y_train)}
    return out | {"test_X.bin": images(m.x_test), "test_y.bin": labels(m.y_test), "class_names.txt": b"airplane\n"}


def write_svhn(folder: Path, m: Made) -> None:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for part, x, y in (("train", m.x_train, m.y_train), ("test", m.x_test, m.y_test)):
        stored = np.zeros((32, 32, 3, len(x)), np.uint8)
        for i, image in enumerate(x):
            stored[:, :, :, i] = image
        digits = np.array([[10 if v == 0 else v] for v in y], np.uint8)
        savemat(folder / f"{part}_32x32.mat", {"X": stored, "y": digits}, do_compression=True)


def leaf(users: dict[str, tuple[list[Any], list[int]]]) -> bytes:
    said: dict[str, Any] = {"users": list(users), "num_samples": [len(y) for _, y in users.values()]}
    said["user_data"] = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps(said).encode()


def har(m: Made) -> dict[str, bytes]:
    """Text files of `UCI HAR Dataset`: x N×9×128, y from 0, groups the people of the training part."""
    out = {}
    people = {"train": m.groups, "test": np.full(len(m.x_test), 30)}
    for part, x, y in (("train", m.x_train, m.y_train), ("test", m.x_test, m.y_test)):
        for c, signal in enumerate(SIGNALS):
            rows = "\n".join("".join(f" {v: .7e}" for v in series[c]) for series in x)
            out[f"{part}/Inertial Signals/{signal}_{part}.txt"] = rows.encode() + b"\n"
        out[f"{part}/y_{part}.txt"] = "".join(f"{v + 1}\n" for v in y).encode()
        out[f"{part}/subject_{part}.txt"] = "".join(f"{v}\n" for v in people[part]).encode()
        out[f"{part}/X_{part}.txt"] = b"  2.5e-001 -2.0e-002\n"
    return out


def picture(image: Any, kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(path: Path, contents: dict[str, bytes], *, under: str = "", kind: str = "w:gz") -> Path:
    with tarfile.open(path, kind) as tar:  # type: ignore[call-overload]
        for name, content in contents.items():
            info = tarfile.TarInfo(f"{under}{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def zipped(contents: dict[str, bytes], *, under: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in contents.items():
            z.writestr(f"{under}{name}", content)
    return buffer.getvalue()
