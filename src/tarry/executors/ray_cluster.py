"""Connections to Ray clusters: an existing one, or one on this machine that ends with the run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.errors import BadInput, WorkerDied

__all__ = ["ClusterWatch", "check", "check_capacity", "connect", "load", "one_line", "register_user_modules"]

_PATIENCE = 30  # seconds to wait for an answer of a cluster
_HEAD_TIMEOUT = 20.0  # seconds without an answer of a cluster's head, after which a run ends; Ray ends it after 60
_HEAD_INTERVAL = 2.0  # seconds between two connections to the head, and for one to be made
_TRY = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


def load() -> Any:
    """Import Ray, an optional dependency; raise BadInput where it is not installed."""
    try:
        import ray
    except ImportError:
        raise BadInput("--executor ray: Ray is not installed; pip install 'tarry[ray]'") from None
    return ray


def check(address: str | None) -> None:
    """Raise BadInput where Ray is not installed or no cluster answers at the address."""
    ray, address = load(), _resolve(address)
    if address in ("local", "auto") or ray.is_initialized():
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise BadInput(f"--address {address}: run on a machine of the cluster, and give its HOST:PORT or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as e:
        raise _no_cluster(address, str(e)) from e


def connect(address: str | None, *, cpus: int) -> Callable[[], None]:
    """Connect to the cluster at `address` (or RAY_ADDRESS), or start one here with `cpus`; return a way out.

    A process that is connected already stays so: the returned function then does nothing.
    """
    check(address)
    ray, address = load(), _resolve(address)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", here):
            raise BadInput(f"--address {address}: this process is on the Ray cluster at {here} already; leave it out")
        return lambda: None
    ours: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address == "local" else {}
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    else:
        _try(address)
    before, shown = signal.getsignal(signal.SIGTERM), _without_logs(ray)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **ours)
    except Exception as e:
        if not ours:
            raise _no_cluster(address, one_line(e)) from e
        raise BadInput(f"--executor ray: Ray does not start here: {one_line(e)}") from e
    finally:
        _restore_handler(before)

    def leave() -> None:
        ray.shutdown()
        shown()
        _restore_handler(before)

    return leave


def _without_logs(ray: Any) -> Callable[[], None]:
    """Keep Ray from printing the logs of its own processes, for which it has no setting; return a way to undo it."""
    worker = ray._private.worker
    before = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *_, **__: None

    def undo() -> None:
        worker.print_to_stdstream = before

    return undo


class ClusterWatch:
    """Raises WorkerDied in `check` when the cluster of this process has ended.

    Ray ends the whole process when it uses the object store of a raylet (Ray's process on each machine) that has ended.
    Therefore `check` is called before that. A head that does not answer may be started again by others.
    """

    def __init__(self) -> None:
        ray = load()
        self._head = str(ray.get_runtime_context().gcs_address)
        self._raylet_address = str(ray._private.worker._global_node.raylet_socket_name)
        self._raylet = self._connect_raylet()
        self._looked = self._answered = time.monotonic()

    def check(self) -> None:
        """Raise WorkerDied where the raylet of this machine has ended, or the head has been silent for long."""
        if not self._raylet_lives():
            raise WorkerDied(f"the Ray cluster at {self._head} has ended: there is no raylet on this machine any more")
        now = time.monotonic()
        if now - self._looked < _HEAD_INTERVAL:
            return
        if now - self._looked > 2 * _HEAD_INTERVAL:
            self._answered = now  # this process trained, or was stopped: nothing is known of the time between
        if self._head_answers():
            self._answered = now
        self._looked = time.monotonic()
        if self._looked - self._answered > _HEAD_TIMEOUT:
            raise WorkerDied(
                f"the Ray cluster at {self._head} has ended: its head does not answer for {_HEAD_TIMEOUT:g} s"
            )

    def close(self) -> None:
        self._raylet.close()

    def _connect_raylet(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            connection.connect(self._raylet_address)
            connection.setblocking(False)
        return connection

    def _raylet_lives(self) -> bool:
        """Return whether the connection is open, or can be made again."""
        for _ in range(2):
            try:
                if self._raylet.recv(1):
                    return True
            except BlockingIOError:
                return True
            except OSError:
                pass
            self._raylet.close()
            self._raylet = self._connect_raylet()
        return False

    def _head_answers(self) -> bool:
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_HEAD_INTERVAL).close()
        except OSError:
            return False
        return True


def _restore_handler(before: Any) -> None:
    """Restore the handler of SIGTERM: Ray's prints a stack on standard error, and Ray removes ours when it ends.

    A cluster that this process started ends with it in any case: a process of Ray sees to that.
    """
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _resolve(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or "local"


def _try(address: str) -> None:
    """Connect in another process first: Ray waits for ever for a cluster that does not answer, or ends the program."""
    command = [sys.executable, "-c", _TRY, address]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise _no_cluster(address, f"no answer in {_PATIENCE} s") from None
    if tried.returncode != 0:
        raise _no_cluster(address, _reason(tried.stderr))


def _reason(output: str) -> str:
    """Return the last line, and the last line before it about tokens: a wrong token is a common reason."""
    lines = [line.strip() for line in output.strip().splitlines()] or ["no reason given"]
    tokens = [line[-300:] for line in lines[:-1] if "token" in line.lower()]
    return "; ".join([*tokens[-1:], lines[-1]])


def _no_cluster(address: str, why: str) -> BadInput:
    return BadInput(
        f"--address {address}: there is no Ray cluster that this machine belongs to ({why}); `ray start --head` begins "
        "one, and without --address we begin one of our own"
    )


def check_capacity(gpus: float) -> None:
    """Raise BadInput where the cluster could never hold a worker of one CPU and this share of a GPU."""
    there = load().cluster_resources()
    cpus_there, gpus_there = there.get("CPU", 0), there.get("GPU", 0)
    if cpus_there < 1 or gpus_there < gpus:
        raise BadInput(
            f"--executor ray: a worker takes 1 CPU and {gpus:g} GPU (--gpus), and the whole cluster has "
            f"{cpus_there:g} and {gpus_there:g}; name another with --address"
        )


def one_line(e: BaseException) -> str:
    """Return the message of an error of Ray, in one line."""
    return " ".join(str(e).split())[:500]


def register_user_modules() -> None:
    """Pickle modules read from a file (--method file.py:factory) by value: other machines cannot import them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tarry_user_"):
            load().cloudpickle.register_pickle_by_value(module)
