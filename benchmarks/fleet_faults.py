"""Nodes that behave badly, for benchmarks/slow_clients.py."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet_stub import Connection, StubLog, StubNode
from flwr.proto import message_pb2

from tarry.deploy.client.worker import Worker

_SLOWER = 30.0  # a slow node's visits last so many times longer
_TRICKLE = 64.0  # bytes per second; a reply has about 3 kB
_AWAY = 5.0  # seconds until a node that died is started again
_FLOODS = 2  # connections of a flooding node


class TricklingNode(StubNode):
    """It announces its replies and uploads them byte by byte."""

    async def _upload(self, part: Any) -> None:
        slow = Connection(*self._connection.address, self._log.requests)
        slow.rate = _TRICKLE
        await self._call("push-object", part, message_pb2.PushObjectResponse, slow)
        slow.close()


class Died(Exception):
    """The process of a node has ended."""


class DyingNode(StubNode):
    """It dies in the middle of each upload of an update, and is started again with another key and the same home."""

    async def _upload(self, part: Any) -> None:
        if len(part.object_content) > _SMALL:
            raise Died
        await super()._upload(part)

    async def run(self) -> None:
        while True:
            try:
                await super().run()
            except Died:
                self._connection.close()
                await asyncio.sleep(_AWAY)
                self._new_key()


_SMALL = 1500  # bytes; the answer to a request for the identity has fewer, an update more


class FloodingNode(StubNode):
    """It takes part as others do; besides, it repeats what it sends without a pause, over connections of their own."""

    async def _call(self, path: str, request: Any, answer: Any, connection: Connection | None = None) -> Any:
        if connection is None and path in ("push-messages", "push-object"):
            self._repeated[path] = (request, answer)
        return await super()._call(path, request, answer, connection)

    async def run(self) -> None:
        self._repeated: dict[str, tuple[Any, Any]] = {}
        floods = [asyncio.create_task(self._flood()) for _ in range(_FLOODS)]
        try:
            await super().run()
        finally:
            for flood in floods:
                flood.cancel()

    async def _flood(self) -> None:
        other = Connection(*self._connection.address, self._log.floods)
        while True:
            await asyncio.sleep(0.01)
            for path, (request, answer) in list(self._repeated.items()):
                with suppress(RuntimeError):  # the link rejects it
                    await self._call(path, request, answer, other)


def slow_node(host: str, port: int, place: int, home: Path, worker: Worker, seconds: Any, log: StubLog) -> StubNode:
    """Return a node whose visits last much longer."""
    return StubNode(host, port, place, home, worker, lambda visit: _SLOWER * seconds(visit), log)


#: by name; each takes the arguments of StubNode
FAULTS = {"slow": slow_node, "trickling": TricklingNode, "dying": DyingNode, "flooding": FloodingNode}
