"""A network in memory whose nodes run a Flower app in this process: Flower's messages and client apps, no servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from tarry.deploy.grid import _to_reply, to_records
from tarry.deploy.wire import ReplyMessage, Request, SingleLinkGrid
from tests.helpers.fake_grid import Clock

__all__ = ["AppGrid", "answer"]


def answer(app: ClientApp, request: Request, context: Context) -> ReplyMessage:
    """Return the reply of an app to a request. An exception of the app becomes an error as Flower reports it."""
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 1
    content = to_records(request.fields, request.arrays, request.records)
    message = Message(content, dst_node_id=request.node, message_type=request.kind, ttl=request.ttl)
    try:
        reply = app(message, context)
    except Exception as e:
        reply = Message(Error(2, f"{type(e)}:<'{e}'>"), reply_to=message)
    return _to_reply(reply)


class AppGrid(SingleLinkGrid):
    """Nodes 100, 101 ... that run one app; each message takes a second of the clock."""

    def __init__(self, app: ClientApp, n: int, run_config: dict[str, Any], clock: Clock | None = None):
        self.clock, self.run, self.app = clock or Clock(), "1", app
        self.here = list(range(100, 100 + n))
        self.change: Callable[[Request, ReplyMessage], ReplyMessage] = lambda _, reply: reply
        self.node_config: Callable[[int], dict[str, Any]] = lambda node: {}
        self._n, self._config = n, run_config
        self._due: dict[str, tuple[float, ReplyMessage]] = {}
        self._count = 0

    def nodes(self) -> dict[int, str]:
        return dict.fromkeys(self.here, "")

    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        ids: list[str | None] = []
        for r in requests:
            self._count += 1
            place = {"partition-id": r.node % 100 % self._n, "num-partitions": self._n, **self.node_config(r.node)}
            context = Context(1, r.node, place, RecordDict(), self._config)
            reply = self.change(r, answer(self.app, r, context))._replace(request=f"r{self._count}", node=r.node)
            if r.node not in self.here:
                ids.append(None)
                continue
            self._due[reply.request] = (self.clock() + 1.0 + 0.1 * (r.node % 7), reply)
            ids.append(reply.request)
        return ids

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        ready = [i for i in ids if i in self._due and self._due[i][0] <= self.clock()]
        return [self._due.pop(i)[1] for i in ready]
