"""Client apps out of a warm process: instead of a fresh Python for every message, a fork of one that has torch loaded.

    python -m tarry.deploy.fork_server --runtime-api-address 127.0.0.1:9094 [--runtime-api-address ...]

It stands in the place of `flower-superexec` for SuperNodes that run with --isolation process, and asks them for tasks
over the same interface. Every message still has a process of its own, which ends with it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from .polling import hasten

__all__ = ["main"]

_POLL = 0.05  # seconds between questions, to one node after the other: many nodes are not asked more in all


def main(given: list[str] | None = None) -> None:
    """Serve tasks until the parent is gone, or somebody ends it."""
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
                running.add(_forked(address, token, args.root_certificates))
            for pid in list(running):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    running.discard(pid)
            time.sleep(_POLL)


def _load() -> None:
    """What every message needs, once; no threads, which a fork would lose."""
    import flwr.supernode.runtime.run_clientapp
    import torch

    import tarry.deploy.client_app
    import tarry.deploy.private_data
    from tarry.deploy.config import read
    from tarry.runs.build import build_run

    assert flwr.supernode.runtime.run_clientapp
    assert tarry.deploy.client_app
    torch.set_num_threads(1)
    hasten()
    build_run(read({"task": "digits"}).spec)  # what is looked up once is looked up now


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
    once.max_tries = 1  # one node that is down must not keep the others waiting
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=_certificates(root),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=once,
    )


def _token(link: Any) -> str | None:
    """The next task's, if there is one."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    try:
        told = link.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    except httpx.HTTPError:
        return None
    return str(told.token) if told.HasField("task") and told.token else None


def _forked(address: str, token: str, root: str | None) -> int:
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
        os._exit(code)  # never back into the parent's loop


if __name__ == "__main__":
    main()
