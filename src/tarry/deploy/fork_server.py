"""Fork server for client apps: every message gets a fork of a process that has torch loaded, not a new Python.

    python -m tarry.deploy.fork_server --runtime-api-address 127.0.0.1:9094 [--runtime-api-address ...]

It replaces `flower-superexec` for SuperNodes that run with --isolation process, and polls them for tasks over the same
interface. Every message has a process of its own, which ends with it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from .chunks import join_chunks_once
from .polling import shorten_polling

__all__ = ["main"]

_POLL = 0.05  # seconds between polls of one node after the other; the rate does not grow with the number of nodes


def main(given: list[str] | None = None) -> None:
    """Serve tasks until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime-api-address", action="append", required=True, dest="addresses")
    parser.add_argument("--root-certificates")
    args = parser.parse_args(given)
    _load()
    links = {address: _link(address, args.root_certificates) for address in args.addresses}
    running: set[int] = set()
    while True:
        for address, link in links.items():
            token = _token(link)
            if token is not None:
                running.add(_fork_client_app(address, token, args.root_certificates))
            for pid in list(running):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    running.discard(pid)
            time.sleep(_POLL)


def _load() -> None:
    """Import what every message needs; start no threads, which a fork would lose."""
    import flwr.supernode.runtime.run_clientapp
    import torch

    import tarry.deploy.client_app
    import tarry.deploy.private_data
    from tarry.deploy.config import read_config
    from tarry.runs.build import build_run
    from tarry.vector.process import return_freed_memory

    assert flwr.supernode.runtime.run_clientapp
    assert tarry.deploy.client_app
    torch.set_num_threads(1)
    shorten_polling()
    join_chunks_once()
    return_freed_memory()
    build_run(read_config({"task": "digits"}).spec)  # fill the caches of registries and imports


def _certificates(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as f:
        return f.read()


def _link(address: str, root: str | None) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    once = make_simple_http_retry_invoker()
    once.max_tries = 1  # a node that is down must not delay the others
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=_certificates(root),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=once,
    )


def _token(link: Any) -> str | None:
    """The token of the next task; None if there is none."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    try:
        task = link.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    except httpx.HTTPError:
        return None
    return str(task.token) if task.HasField("task") and task.token else None


def _fork_client_app(address: str, token: str, root: str | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    code = 1
    try:
        run_clientapp(
            runtime_api_address=address,
            token=token,
            insecure=root is None,
            certificates=_certificates(root),
            parent_pid=parent,
            runtime_dependency_install=False,
        )
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the child never returns into the parent's loop


if __name__ == "__main__":
    main()
