"""A TCP proxy between a node and its SuperLink, whose connections can be cut and slowed down."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK = 2048


class Proxy:
    """Connections to `port` go to the target. `upload_rate` limits the bytes per second towards it."""

    def __init__(self, target: int):
        self.upload_rate: float | None = None
        self.uploaded = 0
        self._target, self._cut = target, False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._cut = True
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink, is_upload in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, is_upload), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_upload: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_upload:
                    self.uploaded += len(data)
                    if self.upload_rate is not None:
                        time.sleep(len(data) / self.upload_rate)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            self._open.discard(end)
            end.close()
