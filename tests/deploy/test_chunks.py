from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from tarry.deploy import chunks
from tarry.deploy.chunks import join_chunks_once

PLAIN = Array.__dict__["inflate"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    Array.inflate = PLAIN  # type: ignore[method-assign]


def received(numbers: np.ndarray[Any, Any]) -> Callable[[], Any]:
    """A message with an array, in pieces as they come from a link; the function puts them together."""
    with no_object_id_recompute():
        message = RecordDict(
            {"arrays": ArrayRecord({"weights": Array(numbers), "zeros": Array(np.zeros_like(numbers))})}
        )
        head = message.object_id
        contents = {id_: o.deflate() for id_, o in get_all_nested_objects(message).items()}
    return lambda: inflate_object_from_contents(head, contents)


def peak(put_together: Callable[[], Any]) -> int:
    """The most bytes that Python had allocated beside those at the beginning."""
    tracemalloc.start()
    try:
        kept = put_together()
        assert kept is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_array_of_many_chunks_comes_back_as_it_was():
    numbers = np.arange(4_000_000, dtype=np.float32)
    plain = received(numbers)()["arrays"]
    assert join_chunks_once()
    assert Array.__dict__["inflate"] is not PLAIN
    found = received(numbers)()["arrays"]
    for name in ("weights", "zeros"):
        assert found[name] == plain[name]
        assert found[name].object_id == plain[name].object_id
    assert np.array_equal(found["weights"].numpy(), numbers)


def test_a_large_array_is_in_memory_once():
    numbers = np.arange(4_000_000, dtype=np.float32)
    before = peak(received(numbers))
    assert join_chunks_once()
    after = peak(received(numbers))
    assert before - after > 1.5 * numbers.nbytes


def test_arrays_may_have_some_of_the_same_chunks():
    """Flower decodes a chunk once, however many arrays have it."""
    numbers = {"a": np.zeros(4_000_000, np.float32), "b": np.zeros(3_000_000, np.float32)}
    numbers["a"][-1] = numbers["b"][-1] = 7.0
    with no_object_id_recompute():
        message = ArrayRecord({name: Array(array) for name, array in numbers.items()})
        head = message.object_id
        objects = get_all_nested_objects(message)
        contents = {id_: o.deflate() for id_, o in objects.items()}
    shared = [set(dict(message[name]._chunks)) for name in numbers]
    assert shared[0] & shared[1]
    assert join_chunks_once()
    found = inflate_object_from_contents(head, contents)
    for name, array in numbers.items():
        assert np.array_equal(found[name].numpy(), array)


def test_chunks_that_do_not_belong_to_an_array_are_rejected_as_by_flower():
    assert join_chunks_once()
    array = Array(np.arange(5))
    head = array.deflate()
    with pytest.raises(ValueError, match="Unexpected set of `children`"):
        Array.inflate(head, {})
    with pytest.raises(ValueError, match="do not match"):
        Array.inflate(RecordDict({}).deflate(), {})


def test_a_second_call_changes_nothing():
    assert join_chunks_once()
    first = Array.__dict__["inflate"]
    assert join_chunks_once()
    assert Array.__dict__["inflate"] is first


def test_another_version_of_flower_stays_as_it_is_and_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setattr(chunks, "_joining", lambda _: lambda *_: Array("uint8", (1,), "numpy.ndarray", b"x"))
    with caplog.at_level(logging.WARNING, "tarry"):
        assert not join_chunks_once()
    assert Array.__dict__["inflate"] is PLAIN
    assert "joined by Flower" in caplog.text
