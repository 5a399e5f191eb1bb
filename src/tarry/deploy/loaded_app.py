"""A process that has a Flower app's client loaded, and forks for every message: its imports happen once, not per visit.

An app is known by the hash of its archive. One with other code gets a process of its own, so that no module of the one
is taken for the other's. An app that does not import, or that starts threads when it is imported, is not kept loaded:
a fork would lose its threads.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

from .client_processes import ClientProcesses

__all__ = ["AppPool"]

log = logging.getLogger("tarry")
_MOST = 3  # apps that are kept loaded
_POLL = 0.02  # seconds between looks at the processes of a loaded app
_LINE = 1 << 16  # bytes of a command: an address and a token


class AppPool:
    """Starts client apps: as forks of a process that has loaded them, where there is one."""

    def __init__(self, root_certificates: str | None):
        self._root, self._own = root_certificates, ClientProcesses(root_certificates)
        self._apps: dict[str, _LoadedApp] = {}

    def start(self, address: str, token: str, app: str) -> None:
        """Start a process for the task of this token, of the app with this hash."""
        loaded = self._apps.get(app) or self._load(app)
        if loaded is None or not loaded.send(address, token):
            self._own.start(address, token)

    def poll(self) -> None:
        """See which processes have ended, and which apps are loaded by now; start what waited for them."""
        self._own.reap()
        for app in self._apps.values():
            for address, token in app.poll():
                self._own.start(address, token)

    def _load(self, app: str) -> _LoadedApp | None:
        """Begin to load an app; None if it is not installed, as before its first message."""
        folder = _folder_of(app)
        if folder is None:
            return None
        while len(self._apps) >= _MOST:
            self._apps.pop(next(iter(self._apps))).close()
        self._apps[app] = _LoadedApp(folder, self._root, [a.socket for a in self._apps.values()])
        return self._apps[app]

    def close(self) -> None:
        for app in self._apps.values():
            app.close()


class _LoadedApp:
    """The fork server's side: commands go over a socket; the first byte that comes back says whether it is loaded."""

    def __init__(self, folder: Path, root: str | None, others: list[socket.socket]):
        self.socket, theirs = socket.socketpair()
        self._state, self._waiting = "loading", list[tuple[str, str]]()
        self._pid = os.fork()
        if self._pid:
            theirs.close()
            self.socket.setblocking(False)
            return
        try:
            for other in [self.socket, *others]:
                other.close()
            _serve(folder, theirs, root)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def send(self, address: str, token: str) -> bool:
        """Have it start a process, at once or when it is loaded; return False if it cannot."""
        if self._state == "loading":
            self._waiting.append((address, token))
        return self._state == "loading" or (self._state == "loaded" and self._command(address, token))

    def _command(self, address: str, token: str) -> bool:
        try:
            self.socket.sendall((json.dumps([address, token]) + "\n").encode())
        except OSError:
            self._state = "failed"
        return self._state == "loaded"

    def poll(self) -> list[tuple[str, str]]:
        """Return the tasks that it cannot start."""
        if self._state == "loading":
            try:
                self._state = "loaded" if self.socket.recv(1) == b"y" else "failed"
            except BlockingIOError:
                return []
            except OSError:
                self._state = "failed"
            waiting, self._waiting = self._waiting, []
            return [task for task in waiting if self._state == "failed" or not self._command(*task)]
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._state, self._pid = "failed", 0
        return []

    def close(self) -> None:
        """Let it end when its processes have ended."""
        self.socket.close()


def _folder_of(app: str) -> Path | None:
    from flwr.supercore.utils import get_flwr_home

    found = sorted((get_flwr_home() / "apps").glob(f"*.{app[:8]}")) if app else []
    return found[0] if len(found) == 1 else None


def _serve(folder: Path, commands: socket.socket, root: str | None) -> None:
    """Load the app of a folder and start a process for every command, until the socket is closed."""
    loaded = _import(folder)
    commands.sendall(b"y" if loaded else b"n")
    if not loaded:
        return
    processes, closed, rest = ClientProcesses(root), False, b""
    commands.setblocking(False)
    while not closed or len(processes):
        try:
            got = b"" if closed else commands.recv(_LINE)
            closed = closed or not got
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                processes.start(*json.loads(line))
        except BlockingIOError:
            pass
        processes.reap()
        time.sleep(_POLL)


def _import(folder: Path) -> bool:
    """Import the client app of a folder as Flower does; return whether forks of this process may use it."""
    from flwr.clientapp.client_app import LoadClientAppError
    from flwr.common.config import get_project_config
    from flwr.supercore.object_ref import load_app

    began = threading.active_count()
    try:
        config = get_project_config(folder)
        load_app(config["tool"]["flwr"]["app"]["components"]["clientapp"], LoadClientAppError, folder)
    except Exception as e:
        log.warning("%s is not kept loaded: %s: %s", folder.name, type(e).__name__, e)
        return False
    if threading.active_count() > began:
        log.warning("%s is not kept loaded: importing it starts threads", folder.name)
        return False
    return True
