"""Client as a Flower app: `clientapp = "tarry.deploy.client_app:app"` in a pyproject.toml; settings: its run config.

Options of a node (--node-config of its SuperNode):

    partition-id=3           the client's index; by default the first that is free
    name="st-mary"           the client's name; by default from its index, or its machine
    home="/var/lib/tarry"    folder of its key and its client memory; by default ~/.tarry/NAME
    data="/srv/tarry"        folder of its data sets (TARRY_DATA)
    device="cuda"            the device it trains on; by default cpu

Every message is handled in a process of its own, so each handler imports only what it needs.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from .client.client_store import ClientStore
    from .client.worker import Worker

__all__ = ["app"]

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Answer with the client's name and key."""
    from .client.worker import prove_identity
    from .grid import fields_of, to_records

    place = context.node_config.get("partition-id")
    words = prove_identity(
        _client_store(context),
        fields_of(message.content),
        node=context.node_id,
        name=_name(context),
        place=None if place is None else int(place),
    )
    return Message(to_records(words, {}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one visit."""
    from .grid import fields_of, is_packed, numpy_arrays, to_records

    words, arrays = _worker(context).train(fields_of(message.content), numpy_arrays(message.content))
    return Message(to_records(words, arrays, is_packed=is_packed(message.content)), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the weights on this client's own examples."""
    from .grid import fields_of, numpy_arrays, to_records

    words = _worker(context).evaluate(fields_of(message.content), numpy_arrays(message.content))
    return Message(to_records(words, {}), reply_to=message)


def _name(context: Context) -> str:
    place = context.node_config.get("partition-id")
    given = context.node_config.get("name", socket.gethostname() if place is None else f"client {place}")
    return str(given)


def _client_store(context: Context) -> ClientStore:
    from .client.client_store import ClientStore

    own = re.sub(r"[^A-Za-z0-9.-]+", "-", _name(context))
    return ClientStore(Path(str(context.node_config.get("home", Path.home() / ".tarry" / own))))


def _worker(context: Context) -> Worker:
    import torch

    from ..runs.build import build_run
    from .client.worker import Worker
    from .config import read_config
    from .private_data import plan_with_own_data

    torch.set_num_threads(1)
    if "data" in context.node_config:  # where this machine's examples are
        os.environ["TARRY_DATA"] = str(context.node_config["data"])
    own = {"device": str(context.node_config["device"])} if "device" in context.node_config else {}
    setting = read_config({**context.run_config, **own})
    made = plan_with_own_data(setting) if setting.options.data == "own" else build_run(setting.spec)
    sleeps = made.delay if setting.sleeps else None
    return Worker(made.take_bound(), made.method.local, made.work, setting.spec.seed, _client_store(context), sleeps)
