"""Flower's grid as the driver sees it, and Flower's messages as words and arrays: all that knows Flower's records.

Pinned to the version of the extra `flower`: its wire protocol is what is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .wire import Array, Blob, Letter, Over, Return, Unreachable, Word

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

__all__ = ["FlowerGrid", "arrays_of", "packed", "words_of"]

#: what Flower's error codes mean for a ticket
_ERRORS = {
    1: "its app cannot be loaded",
    2: "its app raised an error",
    3: "the message was gone",
    4: "the message ran out of time",
    5: "its node is not there",
    6: "a mod refused it",
    7: "its node does not trust the app",
    8: "its app was killed",
}


def packed(words: Mapping[str, Word], arrays: Mapping[str, Array]) -> RecordDict:
    """Words and arrays as Flower's records: `config` and `arrays`."""
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    content: dict[str, Any] = {"config": ConfigRecord(dict(words))}
    if arrays:
        content["arrays"] = ArrayRecord({name: FlowerArray(a) for name, a in arrays.items()})
    return RecordDict(content)


def words_of(content: RecordDict) -> dict[str, Any]:
    """What any of the records of words and numbers say."""
    records: list[Any] = [*content.config_records.values(), *content.metric_records.values()]
    return {k: v for record in records for k, v in record.items()}


def arrays_of(content: RecordDict) -> dict[str, Blob]:
    """The arrays of all records, unopened."""
    records: Any = content.array_records.values()
    found = [(k, a) for record in records for k, a in record.items()]
    return {k: Blob(str(a.dtype), tuple(a.shape), str(a.stype), a.data) for k, a in found}


class FlowerGrid:
    """Messages by Flower."""

    def __init__(self, grid: Grid, run: str):
        self._grid, self.run = grid, run

    def nodes(self) -> dict[int, str]:
        with _told():
            if not hasattr(self._grid, "get_nodes"):
                return dict.fromkeys(self._grid.get_node_ids(), "")
            return {n.node_id: n.last_activated_at for n in self._grid.get_nodes()}

    def push(self, letters: Sequence[Letter]) -> list[str | None]:
        from flwr.app import Message

        made = [Message(packed(x.words, x.arrays), dst_node_id=x.node, message_type=x.kind, ttl=x.ttl) for x in letters]
        with _told():
            ids = list(self._grid.push_messages(made))
        return [i or None for i in ids] if ids else [None] * len(letters)

    def pull(self, ids: Iterable[str]) -> list[Return]:
        with _told():
            return [_returned(m) for m in self._grid.pull_messages(list(ids))]


def _returned(message: Message) -> Return:
    about = message.metadata
    if message.has_error():
        error = message.error
        why = _ERRORS.get(error.code, f"error {error.code}")
        return Return(about.reply_to_message_id, about.src_node_id, {}, {}, error=why)
    if not message.has_content():
        return Return(about.reply_to_message_id, about.src_node_id, {}, {}, error="an answer without content")
    content = message.content
    return Return(about.reply_to_message_id, about.src_node_id, words_of(content), arrays_of(content))


class _told:
    """What Flower raises, in the driver's words."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import httpx
        from flwr.supercore.run import RunNotRunningException

        if isinstance(error, RunNotRunningException):
            raise Over("Flower has ended the run") from error
        if isinstance(error, httpx.HTTPError | ConnectionError):
            raise Unreachable(str(error) or type(error).__name__) from error
        if isinstance(error, ValueError | KeyError | TypeError):  # one node's nonsense must not end it for all
            raise Unreachable(f"a message cannot be read: {error}") from error
