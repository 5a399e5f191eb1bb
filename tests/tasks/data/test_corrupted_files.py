"""Whatever is changed in a file, it is read or rejected with a sentence: nothing else ever comes out of a loader."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tarry.core.errors import BadInput
from tarry.tasks.data import load
from tests.tasks.data.file_writers import (
    batches,
    binary,
    har,
    made,
    save,
    stl10,
    write,
    write_idx,
    write_svhn,
    write_tar,
    zipped,
)
from tests.tasks.data.test_formats import activities, femnist, tiny

TRIES = 40


def _npz(folder: Path) -> None:
    save(folder, "mnist", made(28, 28))


def _zip(name: str, contents: dict[str, bytes]) -> Callable[[Path], None]:
    return lambda folder: write(folder, {name: zipped(contents)}) and None


FORMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "npz": ("mnist", _npz),
    "idx.gz": ("mnist", lambda f: write_idx(f, made(28, 28, n=3, tested=2))),
    "idx": ("mnist", lambda f: write_idx(f, made(28, 28, n=3, tested=2), packed=False)),
    "pickles": ("cifar10", lambda f: write(f / "cifar-10-batches-py", batches(made(32, 32, 3), fine=False))),
    "pickles of python 3": (
        "cifar100",
        lambda f: write(f / "cifar-100-python", batches(made(32, 32, 3), fine=True, python=3, protocol=5)),
    ),
    "binary in a tar": (
        "cifar10",
        lambda f: write_tar(f / "cifar-10-binary.tar", binary(made(32, 32, 3, n=5), fine=False), kind="w"),
    ),
    "pickles in a tar.gz": (
        "cifar10",
        lambda f: write_tar(f / "cifar-10-python.tar.gz", batches(made(32, 32, 3), fine=False)),
    ),
    "mat": ("svhn", lambda f: write_svhn(f, made(32, 32, 3, n=3, tested=2))),
    "leaf": ("femnist", lambda f: write(f / "femnist", femnist()[0])),
    "stl10": ("stl10", lambda f: write(f / "stl10_binary", stl10(made(96, 96, 3, n=1, tested=1)))),
    "pictures in a zip": ("tiny_imagenet", _zip("tiny-imagenet-200.zip", tiny()[0])),
    "har in a zip": ("har", _zip("UCI HAR Dataset.zip", har(activities()))),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_file_is_read_or_refused(folder: Path, form: str) -> None:
    name, make = FORMS[form]
    make(folder)
    load(name)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    rng = np.random.default_rng(len(form))
    rejected = 0
    for i in range(TRIES):
        file = files[rng.integers(len(files))]
        good = file.read_bytes()
        bad = bytearray(good)
        where = int(rng.integers(min(len(bad), 400 if i % 2 else len(bad))))  # half of the time near the header
        if i % 4 == 3:
            del bad[where:]
        else:
            bad[where : where + 1 + i % 3] = rng.bytes(1 + i % 3)
        file.write_bytes(bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a library says about a strange file is not our business
            try:
                load(name)
            except BadInput:
                rejected += 1
        file.write_bytes(good)
    assert rejected > 0
    load(name)
