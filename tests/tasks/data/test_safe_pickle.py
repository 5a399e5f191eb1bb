"""CIFAR's pickles: plain ones are read, and a hostile one does nothing."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.tasks.data.safe_pickle import UnsafePickle, safe_unpickle
from tests.tasks.data.file_writers import batches, made, python_2_pickle, rejected, write


class Call:
    """Pickles into a call of any function."""

    def __init__(self, function: Any, *args: Any):
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


HOSTILE: dict[str, tuple[Any, str]] = {
    "a command": (lambda mark: {b"data": Call(os.system, f"touch {mark}")}, r"asks for (posix|nt)\.system"),
    "code": (lambda mark: {b"data": Call(eval, f"open({str(mark)!r}, 'w')")}, r"asks for (__builtin__|builtins)\.eval"),
    "an object": (lambda mark: Path(mark), r"asks for pathlib"),
    "no dictionary": (lambda mark: [1, 2], "wants a dict where there is none"),
    "objects": (lambda mark: {b"data": np.array([Path(mark)], object)}, "asks for pathlib|of the type|not written"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_does_nothing_and_is_refused(folder: Path, kind: str, protocol: int) -> None:
    mark = folder / "it-was-run"
    make, message = HOSTILE[kind]
    contents = batches(made(32, 32, 3), fine=False)
    contents["data_batch_3"] = pickle.dumps(make(mark), protocol=protocol)
    write(folder / "cifar-10-batches-py", contents)
    rejected("cifar10", rf"cifar-10-batches-py: data_batch_3: is no pickled CIFAR batch: .*({message})")
    assert not mark.exists()


def _bomb_of_tuples() -> bytes:
    """A key that is a tuple of tuples, 2^60 of them when it is hashed."""
    out = b"\x80\x02})"
    for i in range(60):
        out += b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86"
    return out + b"Ns."


RAW: dict[str, tuple[bytes, str]] = {
    "a slot far away": (b"\x80\x02}r\xff\xff\xff\x7f.", ""),
    "bytes that are not there": (b"\x80\x04}\x8e" + struct.pack("<Q", 10**12) + b"x.", "torn or no pickle"),
    "a key that takes for ever": (_bomb_of_tuples(), "a key there is no text"),
    "by code of an extension": (b"\x80\x02\x82\x01.", "the instruction EXT1"),
    "a persistent thing": (b"\x80\x02U\x01aQ.", "the instruction BINPERSID"),
    "an object made anew": (b"\x80\x02cnumpy\nndarray\n)\x81.", "the instruction NEWOBJ"),
    "a call of no function": (b"\x80\x02K\x01)R.", "it calls what is no function"),
    "a filling of no array": (b"\x80\x02}}b.", "it fills what is no array"),
    "nothing": (b"", "torn or no pickle"),
    "no end": (b"\x80\x02}", "torn or no pickle"),
    "nothing on the stack": (b"\x80\x02s.", "torn or no pickle"),
    "text": (b"<html>404</html>", "torn or no pickle|the instruction"),
}


@pytest.mark.parametrize("kind", RAW)
def test_a_pickle_written_by_hand_is_refused_without_using_memory(kind: str) -> None:
    content, message = RAW[kind]
    tracemalloc.start()
    if message:
        with pytest.raises(UnsafePickle, match=message):
            safe_unpickle(content)
    else:
        assert safe_unpickle(content) == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_what_is_plain_reads_as_pythons_own_unpickler_reads_it() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for content in (
        python_2_pickle({"data": x, "labels": [5, 0, 2], "batch_label": "one"}),
        pickle.dumps({b"data": x, b"labels": [5, 0, 2], b"batch_label": b"one"}, protocol=2),
        pickle.dumps({b"data": np.asfortranarray(x), b"labels": [5, 0, 2], b"batch_label": b"one"}, protocol=5),
    ):
        theirs = pickle.loads(content, encoding="bytes")  # noqa: S301
        ours = safe_unpickle(content)
        assert {k.encode() for k in ours} == set(theirs)
        assert np.array_equal(ours["data"], theirs[b"data"])
        assert (ours["labels"], ours["batch_label"]) == (theirs[b"labels"], theirs[b"batch_label"])


def test_an_array_that_claims_more_than_it_holds_is_refused() -> None:
    content = python_2_pickle({"data": np.zeros((3, 4), np.uint8)})
    claim = content.replace(
        b"J" + struct.pack("<i", 3) + b"J" + struct.pack("<i", 4), b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f"
    )
    assert claim != content
    with pytest.raises(UnsafePickle, match="claims 2147483647×2147483647 and holds 12 bytes"):
        safe_unpickle(claim)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"data": np.zeros((2, 3072), np.uint8)}, "wants data and labels; it has data$"),
        ({"data": np.zeros((2, 100), np.uint8), "labels": [0, 1]}, "data is uint8 2×100; expected N×3072 bytes"),
        ({"data": [1, 2], "labels": [0, 1]}, "data is no array; expected N×3072"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "labels is no list of 2 whole numbers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 12]}, "has the label 12; cifar10 has the classes 0 … 9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}, "training labels holds -1"),
    ],
)
def test_a_broken_cifar_batch_is_refused_with_what_is_wrong(
    folder: Path, entries: dict[str, Any], message: str
) -> None:
    contents = batches(made(32, 32, 3), fine=False)
    write(folder / "cifar-10-batches-py", {**contents, "data_batch_2": python_2_pickle(entries)})
    rejected("cifar10", message)
