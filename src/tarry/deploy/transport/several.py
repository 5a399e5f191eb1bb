"""SeveralLinks: one MessageGrid over several links. Each node belongs to one link.

The number of a node is that of its link in the high bits and Flower's own number in the low 64 bits. So the nodes of
the first link keep Flower's numbers, and a record does not depend on whether links were added later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from ..wire import NODE_BITS, MessageGrid, ReplyMessage, Request, RunEnded, flower_node

__all__ = ["SeveralLinks"]

_Value = TypeVar("_Value")


class SeveralLinks:
    """Links by their index. The run of the first one is that of the federation.

    A further link that ends its run has no nodes from then on; the end of the first one ends the run.
    """

    def __init__(self, grids: Sequence[MessageGrid]):
        self._grids = list(grids)
        self._ended: set[int] = set()

    @property
    def run(self) -> str:
        return self._grids[0].run

    def run_of(self, node: int) -> str:
        index = node >> NODE_BITS
        return self._grids[index].run_of(flower_node(node)) if index < len(self._grids) else ""

    def nodes(self) -> dict[int, str]:
        out: dict[int, str] = {}
        for i, grid in enumerate(self._grids):
            nodes: dict[int, str] = self._alive(i, grid.nodes, {})
            out.update({i << NODE_BITS | node: began for node, began in nodes.items()})
        return out

    def has_room(self, node: int) -> bool:
        index = node >> NODE_BITS
        return index < len(self._grids) and self._grids[index].has_room(flower_node(node))

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        ids: list[str | None] = []
        for request in requests:
            index = request.node >> NODE_BITS
            if index >= len(self._grids) or index in self._ended:
                ids.append(None)
                continue
            own = request._replace(node=flower_node(request.node))
            sent: list[str | None] = self._alive(index, partial(self._grids[index].push, [own]), [None])
            ids.append(None if sent[0] is None else self._id(index, sent[0]))
        return ids

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        by_link = defaultdict[int, list[str]](list)
        for id in ids:
            index, own = self._own(id)
            by_link[index].append(own)
        out: list[ReplyMessage] = []
        for i, grid in enumerate(self._grids):
            replies: list[ReplyMessage] = self._alive(i, partial(grid.pull, by_link[i]), [])
            out += [r._replace(request=self._id(i, r.request), node=i << NODE_BITS | r.node) for r in replies]
        return out

    def holds(self, request: str) -> bool:
        index, own = self._own(request)
        return index < len(self._grids) and self._grids[index].holds(own)

    def delay(self, node: int) -> float:
        index = node >> NODE_BITS
        return self._grids[index].delay(flower_node(node)) if index < len(self._grids) else 0.0

    def stalls(self) -> dict[str, float]:
        return {run: seconds for grid in self._grids for run, seconds in grid.stalls().items()}

    def wait(self, seconds: float) -> None:
        """Wait until a link has something new; all of them set the same event."""
        self._grids[0].wait(seconds)

    def requests_sent(self) -> dict[str, int]:
        out: dict[str, int] = defaultdict(int)
        for grid in self._grids:
            for kind, count in grid.requests_sent().items():
                out[kind] += count
        return dict(out)

    def links_without_run(self) -> list[int]:
        return [i for i, grid in enumerate(self._grids) if i in self._ended or grid.links_without_run()]

    def close(self) -> None:
        for grid in self._grids:
            grid.close()

    def _alive(self, index: int, call: Callable[[], _Value], default: _Value) -> _Value:
        """Call a link; remember that a further one has ended its run."""
        if index in self._ended:
            return default
        try:
            return call()
        except RunEnded:
            if index == 0:
                raise
            self._ended.add(index)
            return default

    @staticmethod
    def _id(index: int, id: str) -> str:
        return f"{index}/{id}" if index else id

    @staticmethod
    def _own(id: str) -> tuple[int, str]:
        index, slash, own = id.partition("/")
        return (int(index), own) if slash else (0, id)
