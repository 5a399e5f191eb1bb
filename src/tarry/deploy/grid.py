"""Flower's grid as the driver sees it. Only this module knows Flower's records.

It is pinned to the version of the extra `flower`, whose wire protocol the tests cover.
"""

from __future__ import annotations

import time
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
    SingleLinkGrid,
    Unreachable,
    encoded_npy,
    merge_records,
    npy_header,
    view_npy,
)

if TYPE_CHECKING:
    from flwr.app import Array as FlowerArray
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

__all__ = [
    "FlowerGrid",
    "arrays_of",
    "error_text",
    "fields_of",
    "is_packed",
    "numpy_arrays",
    "remove_arrays",
    "to_records",
]

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


_PACKED = "array."  # prefix of an array in a config record
_MOST_PACKED = 1 << 20  # bytes of arrays that travel in a config record


def to_records(
    fields: Mapping[str, FieldValue],
    arrays: Mapping[str, Array],
    names: tuple[str, str] = ("config", "arrays"),
    *,
    is_packed: bool = False,
) -> RecordDict:
    """Return fields and arrays as two of Flower's records, of these names.

    `is_packed`: small arrays are .npy bytes in the first record. Flower stores and sends each record, array and piece
    of an array by a request of its own, so that this takes three requests instead of six or more.
    """
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    if is_packed and sum(a.nbytes for a in arrays.values()) <= _MOST_PACKED:
        packed = {_PACKED + name: _npy(a) for name, a in arrays.items()}
        return RecordDict({names[0]: ConfigRecord({**fields, **packed, _PACKED: True})})
    content: dict[str, Any] = {names[0]: ConfigRecord(dict(fields))}
    if arrays:
        content[names[1]] = ArrayRecord({name: _encode(a) for name, a in arrays.items()})
    return RecordDict(content)


def is_packed(content: RecordDict) -> bool:
    """Return whether the sender packs arrays, so that the answer may, too."""
    return any(_PACKED in record for record in content.config_records.values())


def _encode(array: Array) -> FlowerArray:
    """Return an array as Flower's Array(array) does, with one copy of the numbers: Flower needs them as bytes."""
    from flwr.app import Array as FlowerArray

    return FlowerArray(array.dtype.name, tuple(array.shape), "numpy.ndarray", _npy(array))


def _npy(array: Array) -> bytes:
    """Return the bytes of an .npy file of the array."""
    array = np.asarray(array, order="C")
    numbers: Any = array.reshape(-1).view(np.uint8)
    return b"".join((npy_header(array), memoryview(numbers)))


def fields_of(content: RecordDict) -> dict[str, Any]:
    """Return the entries of all config and metric records; raise Rejected if a name occurs in two."""
    records: list[Any] = [*content.config_records.values(), *content.metric_records.values()]
    return {k: v for k, v in merge_records(records).items() if not k.startswith(_PACKED)}


def arrays_of(content: RecordDict) -> dict[str, EncodedArray]:
    """Return the arrays of all array records, and the packed ones, not decoded; take the former out of the records.

    Raise Rejected if a name occurs twice.
    """
    records: Any = content.array_records.values()
    try:
        arrays = {
            k: EncodedArray(str(a.dtype), tuple(a.shape), str(a.stype), a.data)
            for k, a in merge_records(records).items()
        }
    finally:
        remove_arrays(content)
    packed = [
        {
            k.removeprefix(_PACKED): encoded_npy(v)
            for k, v in record.items()
            if k.startswith(_PACKED) and type(v) is bytes
        }
        for record in content.config_records.values()
    ]
    return merge_records([arrays, *packed])


def remove_arrays(content: RecordDict) -> None:
    """Take the arrays out of the records: records refer to each other in a circle, and are freed late."""
    for record in content.array_records.values():
        record.clear()


def numpy_arrays(content: RecordDict) -> dict[str, Array]:
    """Return the arrays of a message of the server as views of its bytes, and take them out of the message.

    They are freed with the last of the arrays returned.
    """
    return {name: view_npy(a.data) for name, a in arrays_of(content).items()}


def error_text(code: int) -> str:
    """Return what an error code of Flower means."""
    return _ERRORS.get(code, f"error {code}")


class FlowerGrid(SingleLinkGrid):
    """A grid over Flower's own, in the thread of the driver: for Flower's simulation engine, which has no link.

    Its calls wait for Flower. transport.background has the grid of a real federation.
    """

    def __init__(self, grid: Grid, run: str):
        self._grid, self.run = grid, run
        self._keeps_messages = hasattr(grid, "state")  # Flower's simulation engine hands on the messages themselves

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def nodes(self) -> dict[int, str]:
        with _flower_errors():
            if not hasattr(self._grid, "get_nodes"):
                return dict.fromkeys(self._grid.get_node_ids(), "")
            return {n.node_id: n.last_activated_at for n in self._grid.get_nodes()}

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        from flwr.app import Message

        messages = [
            Message(
                to_records(r.fields, r.arrays, r.records, is_packed=r.is_packed),
                dst_node_id=r.node,
                message_type=r.kind,
                ttl=r.ttl,
            )
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
        why, detail = error_text(error.code), failure_text(error.reason or "")
        return ReplyMessage(about.reply_to_message_id, about.src_node_id, {}, {}, why, detail)
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
