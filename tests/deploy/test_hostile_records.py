"""Flower messages with records that were made to do harm: one reply each, and those of other nodes are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message.message import make_message

from tarry.core.rejections import Reason
from tarry.deploy.grid import FlowerGrid, to_records
from tarry.deploy.wire import ArraySchema, Rejected, ReplyMessage, decode_arrays, parse_fields

SCHEMA = ArraySchema({"delta": (4,)}, np.dtype(np.float32))
FIELDS: dict[str, Any] = {"number": 7, "token": "t", "loss": 0.5}


class Mailbox:
    """A grid that holds replies."""

    def __init__(self, *replies: Message):
        self.replies = list(replies)

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return self.replies


def honest() -> RecordDict:
    return to_records(FIELDS, {"delta": np.ones(4, np.float32)})


def reply(content: RecordDict, node: int = 5) -> Message:
    """A reply as the SuperLink delivers it."""
    return make_message(Metadata(1, f"r{node}", node, 1, f"m{node}", "", 0.0, 60.0, "train"), content)


def read(found: ReplyMessage) -> None:
    """Read a reply as the driver does."""
    if found.malformed:
        raise Rejected(found.malformed)
    parse_fields(found.fields, number=int, token=str, loss=float)
    decode_arrays(found.arrays, SCHEMA)


def with_records(**records: Any) -> Callable[[], RecordDict]:
    return lambda: RecordDict({**dict(honest().items()), **records})


def numbers(n: int = 4) -> Array:
    return Array(np.ones(n, np.float32))


HOSTILE: dict[str, tuple[Callable[[], RecordDict], Reason]] = {
    "an array name in two records": (with_records(more=ArrayRecord({"delta": numbers()})), Reason.RECORD),
    "a field in two records": (with_records(more=ConfigRecord({"token": "u"})), Reason.RECORD),
    "a field that is also a metric": (with_records(more=MetricRecord({"number": 8})), Reason.RECORD),
    "a list of two million numbers": (with_records(more=MetricRecord({"x": [0.0] * 2_000_000})), Reason.RECORD),
    "a list of long texts": (with_records(more=ConfigRecord({"x": ["y" * 9000]})), Reason.RECORD),
    "a megabyte of bytes": (with_records(more=ConfigRecord({"x": b"y" * 1_000_000})), Reason.RECORD),
    "thousands of fields": (with_records(more=MetricRecord({f"x{k}": k for k in range(5000)})), Reason.RECORD),
    "a very long name": (with_records(more=ConfigRecord({"x" * 100_000: 1})), Reason.RECORD),
    "thousands of arrays": (with_records(more=ArrayRecord({f"x{k}": numbers(1) for k in range(2000)})), Reason.ARRAYS),
    "another serialization": (
        lambda: RecordDict(
            {
                "config": ConfigRecord(FIELDS),
                "arrays": ArrayRecord({"delta": Array("float32", (4,), "pickle", b"\x80\x04N.")}),
            }
        ),
        Reason.ARRAYS,
    ),
    "a claim about the shape": (
        lambda: RecordDict(
            {
                "config": ConfigRecord(FIELDS),
                "arrays": ArrayRecord({"delta": Array("float32", (1 << 40,), "numpy.ndarray", numbers().data)}),
            }
        ),
        Reason.ARRAYS,
    ),
    "no records at all": (RecordDict, Reason.FIELDS),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_record_is_rejected_and_replies_of_others_are_read(what):
    make, reason = HOSTILE[what]
    grid = FlowerGrid(Mailbox(reply(honest(), 1), reply(make(), 2), reply(honest(), 3)), "run")  # type: ignore[arg-type]
    first, hostile, last = grid.pull(["m1", "m2", "m3"])
    read(first)
    read(last)
    with pytest.raises(Rejected) as e:
        read(hostile)
    assert e.value.reason is reason
    assert len(str(e.value)) < 300
    assert (hostile.request, hostile.node) == ("m2", 2)


def test_records_of_any_name_are_read_together():
    content = RecordDict({"a": ConfigRecord({"number": 7}), "b": ConfigRecord({"token": "t"})})
    content["c"], content["d"] = MetricRecord({"loss": 0.5}), ArrayRecord({"delta": numbers()})
    read(FlowerGrid(Mailbox(reply(content)), "run").pull(["m5"])[0])  # type: ignore[arg-type]
