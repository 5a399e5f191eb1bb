"""Fork server for client apps: every message gets a fork of a process that has torch and the app loaded.

    python -m tarry.deploy.fork_server --runtime-api-address 127.0.0.1:9094 [--runtime-api-address ...]

It replaces `flower-superexec` for SuperNodes that run with --isolation process, and polls them for tasks over the same
interface. Every message has a process of its own, which ends with it. The app is imported once (loaded_app.py).
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from typing import Any, NamedTuple

from .chunks import join_chunks_once
from .client_processes import certificates, guard_client_apps
from .loaded_app import AppPool
from .polling import shorten_polling

__all__ = ["SWITCH", "main"]

SWITCH = "TARRY_PRELOAD"  # environment variable: 0 has apps imported for every message, as Flower does
_POLL = 0.05  # seconds between polls of one node after the other; the rate does not grow with the number of nodes


class _AcquiredTask(NamedTuple):
    token: str
    app: str  # hash of its archive; empty if the SuperNode does not say


def main(given: list[str] | None = None) -> None:
    """Serve tasks until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime-api-address", action="append", required=True, dest="addresses")
    parser.add_argument("--root-certificates")
    args = parser.parse_args(given)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s tarry %(message)s")
    _load()
    links = {address: _link(address, args.root_certificates) for address in args.addresses}
    pool, preloads = AppPool(args.root_certificates), os.environ.get(SWITCH) != "0"
    while True:
        for address, link in links.items():
            task = _next_task(link)
            if task is not None:
                pool.start(address, task.token, task.app if preloads else "")
            pool.poll()
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
    guard_client_apps()
    shorten_polling()
    join_chunks_once()
    return_freed_memory()
    build_run(read_config({"task": "digits"}).spec)  # fill the caches of registries and imports


def _link(address: str, root: str | None) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    once = make_simple_http_retry_invoker()
    once.max_tries = 1  # a node that is down must not delay the others
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=certificates(root),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=once,
    )


def _next_task(link: Any) -> _AcquiredTask | None:
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    try:
        found = link.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    except httpx.HTTPError:
        return None
    if not found.HasField("task") or not found.token:
        return None
    return _AcquiredTask(str(found.token), str(getattr(found.task, "fab_hash", "")))


if __name__ == "__main__":
    main()
