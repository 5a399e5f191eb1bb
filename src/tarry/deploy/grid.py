"""Flower's grid as the driver sees it. Only this module knows Flower's records.

It is pinned to the version of the extra `flower`, whose wire protocol the tests cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import first_line
from .failures import failure_text
from .wire import (
    Array,
    EncodedArray,
    FieldValue,
    Rejected,
    ReplyMessage,
    Request,
    RunEnded,
    Unreachable,
    merge_records,
    npy_header,
)

if TYPE_CHECKING:
    from flwr.app import Array as FlowerArray
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

__all__ = ["FlowerGrid", "arrays_of", "fields_of", "remove_arrays", "to_records"]

#: what Flower's error codes mean for a ticket
_ERRORS = {
    1: "its app cannot be loaded",
    2: "its app raised an error",
    3: "the message was gone",
    4: "the message ran out of time",
    5: "its node is not there",
    6: "a mod rejected it",
    7: "its node does not trust the app",
    8: "its app was killed",
}


def to_records(
    fields: Mapping[str, FieldValue],
    arrays: Mapping[str, Array],
    names: tuple[str, str] = ("config", "arrays"),
) -> RecordDict:
    """Return fields and arrays as two of Flower's records, of these names."""
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    content: dict[str, Any] = {names[0]: ConfigRecord(dict(fields))}
    if arrays:
        content[names[1]] = ArrayRecord({name: _encode(a) for name, a in arrays.items()})
    return RecordDict(content)


def _encode(array: Array) -> FlowerArray:
    """Return an array as Flower's Array(array) does, with one copy of the numbers: Flower needs them as bytes."""
    from flwr.app import Array as FlowerArray

    array = np.asarray(array, order="C")
    numbers: Any = array.reshape(-1).view(np.uint8)
    data = b"".join((npy_header(array), memoryview(numbers)))
    return FlowerArray(array.dtype.name, tuple(array.shape), "numpy.ndarray", data)


def fields_of(content: RecordDict) -> dict[str, Any]:
    """Return the entries of all config and metric records; raise Rejected if a name occurs in two."""
    records: list[Any] = [*content.config_records.values(), *content.metric_records.values()]
    return merge_records(records)


def arrays_of(content: RecordDict) -> dict[str, EncodedArray]:
    """Return the arrays of all array records, not decoded, and take them out of the records.

    Raise Rejected if a name occurs in two.
    """
    records: Any = content.array_records.values()
    try:
        arrays = merge_records(records)
        return {k: EncodedArray(str(a.dtype), tuple(a.shape), str(a.stype), a.data) for k, a in arrays.items()}
    finally:
        remove_arrays(content)


def remove_arrays(content: RecordDict) -> None:
    """Take the arrays out of the records: records refer to each other in a circle, and are freed late."""
    for record in content.array_records.values():
        record.clear()


class FlowerGrid:
    """A grid over Flower's messages."""

    def __init__(self, grid: Grid, run: str):
        self._grid, self.run = grid, run
        self._keeps_messages = hasattr(grid, "state")  # Flower's simulation engine hands on the messages themselves

    def nodes(self) -> dict[int, str]:
        with _flower_errors():
            if not hasattr(self._grid, "get_nodes"):
                return dict.fromkeys(self._grid.get_node_ids(), "")
            return {n.node_id: n.last_activated_at for n in self._grid.get_nodes()}

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        from flwr.app import Message

        messages = [
            Message(to_records(r.fields, r.arrays, r.records), dst_node_id=r.node, message_type=r.kind, ttl=r.ttl)
            for r in requests
        ]
        with _flower_errors():
            ids = list(self._grid.push_messages(messages))
        if not self._keeps_messages:
            for message in messages:
                remove_arrays(message.content)
        return [i or None for i in ids] if ids else [None] * len(requests)

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        with _flower_errors():
            return [_to_reply(m) for m in self._grid.pull_messages(list(ids))]


def _to_reply(message: Message) -> ReplyMessage:
    about = message.metadata
    if message.has_error():
        error = message.error
        why = _ERRORS.get(error.code, f"error {error.code}")
        return ReplyMessage(about.reply_to_message_id, about.src_node_id, {}, {}, why, failure_text(error.reason or ""))
    if not message.has_content():
        return ReplyMessage(about.reply_to_message_id, about.src_node_id, {}, {}, error="an answer without content")
    content = message.content
    try:
        return ReplyMessage(about.reply_to_message_id, about.src_node_id, fields_of(content), arrays_of(content))
    except (Rejected, ValueError, KeyError, TypeError, AttributeError) as e:
        why = first_line(e) or type(e).__name__
        return ReplyMessage(about.reply_to_message_id, about.src_node_id, {}, {}, malformed=why)


@contextmanager
def _flower_errors() -> Iterator[None]:
    """Raise the driver's errors in place of Flower's."""
    import httpx
    from flwr.supercore.run import RunNotRunningException

    try:
        yield
    except RunNotRunningException as e:
        raise RunEnded("Flower has ended the run") from e
    except (httpx.HTTPError, ConnectionError) as e:
        raise Unreachable(str(e) or type(e).__name__) from e
    except (ValueError, KeyError, TypeError) as e:  # a malformed message of one node must not end the run for all
        raise Unreachable(f"a message cannot be read: {e}") from e
