"""Files that a setting names, damaged or hostile: exit code 2 and one error that names the file, at once."""

from __future__ import annotations

import io
import lzma
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "zero bytes": lambda path: path.write_bytes(b"\0" * 5000),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x80" * 100),
    "a number of 5,000 digits": lambda path: path.write_text("client,start,end\n" + "9" * 5000 + ",0,1\n"),
    "a TOML number of 5,000 digits": lambda path: path.write_text("seed = " + "9" * 5000),
    "a huge cell": lambda path: path.write_text("client,start,end\n0,0," + "1" * 2_000_000 + "\n"),
    "one endless line": lambda path: path.write_bytes(b"a" * 3_000_000),
    "a deep dotted key": lambda path: path.write_text(f"lr.{'.'.join('a' * 3000)} = 1"),
    "deep nesting": lambda path: path.write_text("x = " + "[" * 100_000 + "]" * 100_000),
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a header that claims a terabyte": lambda path: path.write_bytes(npy_header(2**40)),
    "an archive that claims a terabyte": lambda path: write_archive(path),
}
FLAGS = {
    "--spec": ("x.toml", []),
    "--availability": ("x.csv", []),
    "--delay.path": ("x.csv", ["--delay", "empirical"]),
    "--delay.path of a trace": ("x.csv", ["--delay", "trace"]),
    "--task.path": ("x.npz", ["--task", "npz"]),
    "--unlabeled.path": ("x.npy", ["--method", "fedecho", "--unlabeled", "folder"]),
    "--unlabeled.path of an archive": ("x.npz", ["--method", "fedecho", "--unlabeled", "folder"]),
}


def npy_header(n: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (n,)})
    return file.getvalue()


def write_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        for name in ("x.npy", "y.npy"):
            z.writestr(name, npy_header(2**40))


@pytest.fixture(autouse=True)
def at_once():
    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("what", FILES)
def test_one_error_names_the_file(cli, here, what, flag):
    name, others = FLAGS[flag]
    FILES[what](here / name)
    said = cli("run", *others, flag.partition(" ")[0], name, "--updates", "3", "--clients", "3")
    if what == "empty" and flag == "--spec":
        assert said.code == 0  # all settings are the defaults
        return
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    assert all(name in line or "/dev/zero" in line for line in said.complaints)
    assert all(len(line) < 1000 for line in said.complaints)


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(cli, here):
    packed = lzma.compress(b"client,start,end\n" + b"0" * 50_000_000)
    (here / "x.csv.xz").write_bytes(packed)
    said = cli("run", "--availability", "x.csv.xz", "--updates", "3")
    assert said.code == 2
    assert "1,048,576 of one line" in said.err


@pytest.mark.parametrize("what", FILES)
def test_an_experiment_of_reproduce(cli, here, what):
    FILES[what](here / "x.toml")
    said = cli("reproduce", "x.toml")
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    assert "x.toml" in said.err


@pytest.mark.parametrize("what", FILES)
def test_texts_of_a_folder_of_data(cli, here, monkeypatch, what):
    monkeypatch.setenv("TARRY_DATA", str(here))
    FILES[what](here / "x.jsonl")
    said = cli("run", "--task", "x", "--updates", "3")
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    assert "x" in said.err
