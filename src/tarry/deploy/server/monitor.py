"""Monitor: the HTTP endpoint of a server, for Prometheus and for probes.

    /metrics    the metrics (metrics.py)
    /healthz    200 while the server's thread works or waits for a disk; else 503
    /readyz     200 while the server accepts updates; 503 with the reason before it has begun, while the link does not
                answer, and while files cannot be written

It listens on the loopback interface unless `metrics-host` names another address. It has neither encryption nor
authentication, and answers nothing but GET requests for these three paths. A bounded number of threads answer.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from ...core.errors import BadInput
from .metrics import Snapshot, exposition, take_snapshot

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["ServerMonitor", "monitoring"]

log = logging.getLogger("tarry")
_MAX_REQUESTS = 8  # answered at a time; more are refused
_TIMEOUT = 5.0  # seconds that a request may take
_DEAD_AFTER = 600.0  # seconds without a sign of the server's thread; a large model may be evaluated for minutes


class ServerMonitor:
    """State of a server that other threads may read. Without an endpoint it costs nothing."""

    def __init__(self, *, is_served: bool, clock: Callable[[], float] = time.monotonic):
        self._is_served, self._clock = is_served, clock
        self._seen = clock()
        self._snapshot: Snapshot | None = None
        self._waits_for, self._link_problem = "", ""

    def update(self, driver: Driver) -> None:
        """Note the state of a driver that works; called from its thread."""
        if self._is_served:
            self._snapshot, self._link_problem = take_snapshot(driver), driver.link_problem
            self._waits_for, self._seen = "", self._clock()

    def pause(self, reason: str) -> None:
        """Note that the server waits until files can be written."""
        self._waits_for, self._seen = reason, self._clock()

    def read(self) -> tuple[Snapshot | None, str]:
        return self._snapshot, self._waits_for

    def why_not_alive(self) -> str:
        """Return why the process should be restarted, "" if it should not."""
        silent = self._clock() - self._seen
        return f"the server's thread shows no sign of life since {silent:.0f} s" if silent > _DEAD_AFTER else ""

    def why_not_ready(self) -> str:
        """Return why the server accepts no updates at present, "" if it does."""
        if self._snapshot is None and not self._waits_for:
            return "the server has not begun"
        return self.why_not_alive() or self._waits_for or self._link_problem


@contextmanager
def monitoring(host: str, port: int | None) -> Iterator[ServerMonitor]:
    """Serve a monitor over HTTP; without a port, nothing listens. Raise BadInput if the port cannot be used."""
    monitor = ServerMonitor(is_served=port is not None)
    if port is None:
        yield monitor
        return
    server = _listen(host, port, monitor)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics at http://%s:%d/metrics", host, server.server_address[1])
    try:
        yield monitor
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection early or send nothing."""


def _listen(host: str, port: int, monitor: ServerMonitor) -> _MetricsServer:
    metrics = exposition(monitor.read)

    class Handler(BaseHTTPRequestHandler):
        """The three paths."""

        timeout = _TIMEOUT
        server_version, sys_version = "tarry", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(HTTPStatus.OK, metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif path in ("/healthz", "/readyz"):
                problem = monitor.why_not_alive() if path == "/healthz" else monitor.why_not_ready()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                self._answer(status, f"{problem or 'ok'}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"/metrics, /healthz and /readyz are here\n", "text/plain")

        def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    try:
        return _MetricsServer((host, port), Handler)
    except OSError as e:
        raise BadInput(
            f"metrics-port = {port}, metrics-host = {host}: it cannot be used ({e.strerror or e}); use another"
        ) from e
