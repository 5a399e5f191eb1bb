"""What a client sends is looked at before it is opened."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tarry.deploy.wire import ArraySchema, EncodedArray, Rejected, decode_arrays, parse_fields
from tests.helpers.fake_grid import npy

FORM = ArraySchema({"delta": (6,)}, np.dtype(np.float32), frozenset({"extra.change"}), max_extra_size=6)
GOOD = np.arange(6, dtype=np.float32)


def test_what_fits_is_read_bit_for_bit():
    found = decode_arrays({"delta": npy(GOOD), "extra.change": npy(np.array(0.1, np.float64))}, FORM)
    assert found["delta"].tobytes() == GOOD.tobytes()
    assert found["extra.change"].shape == ()
    assert found["extra.change"].dtype == np.float64


def test_arrays_by_column_are_read_as_they_are_meant():
    a = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    form = ArraySchema({"w": (2, 3)}, np.dtype(np.float32))
    assert decode_arrays({"w": npy(a)}, form)["w"].tolist() == a.tolist()


def pickled() -> EncodedArray:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], object), allow_pickle=True)
    return EncodedArray("float32", (6,), "numpy.ndarray", out.getvalue())


def lying(claimed: tuple[int, ...]) -> EncodedArray:
    """A header that tells of more numbers than there are."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": claimed})
    return EncodedArray("float32", (6,), "numpy.ndarray", out.getvalue() + bytes(24))


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({}, "no array 'delta'"),
        ({"delta": npy(GOOD), "more": npy(GOOD)}, "unexpected array"),
        ({"delta": npy(GOOD), "extra.change": npy(GOOD), "a": npy(GOOD)}, "3 arrays where at most 2"),
        ({"delta": npy(GOOD[:5])}, r"\(5,\), not float32 \(6,\)"),
        ({"delta": npy(GOOD.reshape(2, 3))}, r"\(2, 3\)"),
        ({"delta": npy(GOOD.astype(np.float64))}, "float64"),
        ({"delta": npy(GOOD)._replace(kind="pickle")}, "serialized as 'pickle'"),
        ({"delta": npy(GOOD)._replace(data=npy(GOOD).data + bytes(4096))}, "bytes, not 24"),
        ({"delta": npy(GOOD)._replace(data=b"")}, "bytes, not 24"),
        ({"delta": npy(GOOD)._replace(data=bytes(100))}, r"no \.npy file"),
        ({"delta": pickled()}, "not what its sender says|no .npy"),
        ({"delta": lying((1 << 40,))}, "not what its sender says"),
        ({"delta": npy(GOOD), "extra.change": npy(np.zeros(7, np.float32))}, "more than 6 numbers"),
        ({"delta": npy(GOOD), "extra.change": npy(GOOD)._replace(shape=(-1, -6))}, "more than 6|not what|bytes"),
        ({"delta": npy(GOOD), "extra.change": npy(np.zeros(2, np.int64))}, "int64"),
    ],
)
def test_what_does_not_fit_is_refused(arrays, why):
    with pytest.raises(Rejected, match=why):
        decode_arrays(arrays, FORM)


def test_arrays_that_are_not_read_are_bounded_too():
    form = ArraySchema({"w": (6,)}, np.dtype(np.float32), ignored={"counter": 8})
    assert set(decode_arrays({"w": npy(GOOD), "counter": npy(np.array(3))}, form)) == {"w"}
    with pytest.raises(Rejected):
        decode_arrays({"w": npy(GOOD), "counter": npy(np.zeros(10_000))}, form)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"num-examples": "3"},
        {"num-examples": True},
        {"num-examples": 3.0},
        {"num-examples": [3]},
        {"num-examples": 3, "talk": "x" * 5000},
        {"num-examples": 3, **{f"k{i}": i for i in range(100)}},
    ],
)
def test_words_that_do_not_fit_are_refused(words):
    with pytest.raises(Rejected):
        parse_fields(words, num_examples=int)


def test_whole_numbers_do_for_numbers():
    assert parse_fields({"loss": 2, "num-examples": 3}, loss=float, num_examples=int) == {
        "loss": 2.0,
        "num_examples": 3,
    }
