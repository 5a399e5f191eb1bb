"""FurtherLink: a SuperLink beside the one that started the app. Its connection may end and begin at any time.

The app that was submitted to the further link waits there as a task, which no process but this one takes: the server
app drives the nodes of all links. When the link has lost the run, or was started again without its state, the app has
to be submitted once more (`tarry federation keep` does this), and the next task is taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..wire import MessageGrid, ReplyMessage, Request, RunEnded, Unreachable
from .flower_link import Address, http_errors

__all__ = ["FurtherLink", "RunOnLink", "take_run"]

log = logging.getLogger("tarry")
_Value = TypeVar("_Value")
_RETRY = 2.0  # seconds between two tries to take a run
_HEARTBEAT = 15.0


class RunOnLink:
    """A run of this app on a further link, which ends without heartbeats."""

    def __init__(self, address: Address, client: Any):
        self.address, self._client = address, client

    def send_heartbeat(self) -> None:
        """Tell the link that the app runs; raise RunEnded if the link does not know the run."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        with http_errors():
            if not self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                raise RunEnded("Flower has ended the run")

    def end(self) -> None:
        """Tell the link that the app has ended."""
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        with suppress(Unreachable, RunEnded), http_errors():
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
        self._client.close()


def take_run(address: str, root_certificates: bytes | None) -> RunOnLink | None:
    """Take the run that waits on a link; return None if there is none. Raise Unreachable if it does not answer."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
    from flwr.supercore.constant import TaskType

    from .flower_link import runtime_client

    at = Address(address, "", 0, None, root_certificates, is_insecure=root_certificates is None)
    with http_errors():
        client = runtime_client(at)
        try:
            task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        finally:
            client.close()
        if not task.token:
            return None
        at = Address(address, task.token, 0, None, root_certificates, is_insecure=root_certificates is None)
        client = runtime_client(at)
        found = client.PullTaskInput(PullTaskInputRequest())
    run = Address(address, task.token, found.run.run_id, found.task_id, root_certificates, is_insecure=at.is_insecure)
    return RunOnLink(run, client)


class FurtherLink:
    """A MessageGrid over a link that is connected whenever it can be. Without a connection it has no nodes."""

    def __init__(
        self,
        address: str,
        take: Callable[[], RunOnLink | None],
        connect: Callable[[Address], MessageGrid],
        news: threading.Event,
    ):
        self.address, self._take, self._connect, self._news = address, take, connect, news
        self._grid: MessageGrid | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_connected, name=f"link {address}", daemon=True)
        self._thread.start()

    @property
    def run(self) -> str:
        grid = self._grid
        return "" if grid is None else grid.run

    def run_of(self, node: int) -> str:  # noqa: ARG002
        return self.run

    def nodes(self) -> dict[int, str]:
        return self._call(lambda grid: grid.nodes(), {})

    def has_room(self, node: int) -> bool:
        grid = self._grid
        return grid is not None and grid.has_room(node)

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        return self._call(lambda grid: grid.push(requests), [None] * len(requests))

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        return self._call(lambda grid: grid.pull(ids), [])

    def holds(self, request: str) -> bool:
        grid = self._grid
        return grid is not None and grid.holds(request)

    def delay(self, node: int) -> float:
        grid = self._grid
        return 0.0 if grid is None else grid.delay(node)

    def stalls(self) -> dict[str, float]:
        grid = self._grid
        return {} if grid is None else grid.stalls()

    def wait(self, seconds: float) -> None:
        self._news.wait(seconds)
        self._news.clear()

    def requests_sent(self) -> dict[str, int]:
        grid = self._grid
        return {} if grid is None else grid.requests_sent()

    def links_without_run(self) -> list[int]:
        return [0] if self._grid is None else []

    def close(self) -> None:
        """End the run on this link and the connection."""
        self._closed.set()
        self._thread.join(timeout=5.0)

    def _call(self, call: Callable[[MessageGrid], _Value], default: _Value) -> _Value:
        """Call the present connection; the thread ends one whose run has ended."""
        grid = self._grid
        if grid is None:
            return default
        try:
            return call(grid)
        except RunEnded:
            self._grid = None
            return default

    def _keep_connected(self) -> None:
        while not self._closed.is_set():
            try:
                run = self._take()
            except (Unreachable, RunEnded):
                run = None
            except Exception:
                log.exception("link %s: no run could be taken", self.address)
                run = None
            if run is None:
                self._closed.wait(_RETRY)
                continue
            log.info("link %s: connected, run %d", self.address, run.address.run_id)
            grid = self._grid = self._connect(run.address)
            self._news.set()
            self._stay(run, grid)
            self._grid = None
            self._news.set()
            grid.close()
            run.end()
            log.info("link %s: the connection has ended", self.address)

    def _stay(self, run: RunOnLink, grid: MessageGrid) -> None:
        """Send heartbeats until the end, or until the link does not know the run."""
        beat = 0.0
        while not self._closed.wait(0.5) and self._grid is grid:
            if time.monotonic() - beat < _HEARTBEAT:
                continue
            beat = time.monotonic()
            try:
                run.send_heartbeat()
            except RunEnded:
                return
            except Unreachable:  # it may come back, with its state
                continue
