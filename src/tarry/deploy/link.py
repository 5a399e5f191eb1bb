"""A SuperLink that only nodes use from other machines; the arguments are those of `flower-superlink`.

    python -m tarry.deploy.link --host 0.0.0.0 --port 8000 ...

Flower serves three interfaces at one port: Fleet for nodes, Runtime for the processes of apps, and Control, with which
anyone may start an app, that is, run code on this machine, or register a node. Neither TLS nor --enable-supernode-auth
protects the last two. Here they answer to this machine alone; others get status 403.

Each request passes eight or nine layers of middleware in Flower, which take most of the time of a small one. Most of
the layers concern one interface, and pass the requests of the others on as they are. Here the requests of nodes and
apps skip those, which doubles the requests per second. When a node asks for messages, Flower without a database looks
through those of all nodes. Here it looks through those of the node. Both are done for the versions of Flower whose
code is known. TARRY_QUICK_LINK=0 in the environment leaves Flower as it is.

Run as a file it imports nothing but Flower.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

__all__ = ["SWITCH", "MessagesByNode", "NodesOnly", "SkippedLayer", "main", "quicken", "skip_layers"]

log = logging.getLogger("tarry")
SWITCH = "TARRY_QUICK_LINK"
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
_FOR_NODES, _FOR_APPS = "/v1/fleet/", "/v1/runtime/"
_KNOWN_VERSIONS = ("1.41.", "1.42.")
#: layers of Flower -> the paths whose requests they pass on as they are
_IDLE_LAYERS = {
    "ControlSensitiveResponseMiddleware": (_FOR_NODES, _FOR_APPS),
    "ControlAuthenticationMiddleware": (_FOR_NODES, _FOR_APPS),
    "ControlLicenseMiddleware": (_FOR_NODES, _FOR_APPS),
    "ControlEventLogMiddleware": (_FOR_NODES, _FOR_APPS),
    "RuntimeTracingMiddleware": (_FOR_NODES,),
    "NodeAuthMiddleware": (_FOR_APPS,),
    "FleetEventLogMiddleware": (_FOR_APPS,),
}


class NodesOnly:
    """ASGI middleware that answers 403 to requests of other machines, unless they are for nodes."""

    def __init__(self, app: Application):
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith(_FOR_NODES) or _is_local(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this interface is for the server's own machine\n"})


class SkippedLayer:
    """ASGI middleware that passes requests to some paths on without a layer; `layer` describes it for Starlette."""

    def __init__(self, app: Application, layer: Any, paths: tuple[str, ...]):
        self._app, self._paths = app, paths
        self._with_layer: Application = layer.cls(app, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        skips = scope["type"] == "http" and scope["path"].startswith(self._paths)
        await (self._app if skips else self._with_layer)(scope, receive, send)


def quicken(app: Any) -> bool:
    """Have requests skip layers of Flower, and find messages by node; return whether they do."""
    found = version("flwr")
    if os.environ.get(SWITCH) == "0":
        log.warning("%s=0: the SuperLink is as Flower made it", SWITCH)
        return False
    if not found.startswith(_KNOWN_VERSIONS):
        log.warning("flwr %s is not known here: the SuperLink is as Flower made it", found)
        return False
    skip_layers(app)
    find_messages_by_node(app.state.linkstate_factory.state())
    return True


def skip_layers(app: Any) -> None:
    """Have requests of nodes and apps skip the layers of Flower that do nothing for them.

    The path of a request alone decides which interface answers it, so no request skips a layer of its own interface.
    """
    from starlette.middleware import Middleware

    idle = dict(_IDLE_LAYERS)
    if app.state.fleet_event_log_plugin is None:
        idle["FleetEventLogMiddleware"] = (_FOR_NODES, _FOR_APPS)
    if os.environ.get("FLWR_TRACING_ENABLED") != "1":
        idle["RuntimeTracingMiddleware"] = (_FOR_NODES, _FOR_APPS)
    app.user_middleware[:] = [
        Middleware(SkippedLayer, layer, idle[name]) if (name := layer.cls.__name__) in idle else layer
        for layer in app.user_middleware
    ]


class MessagesByNode(dict[str, Any]):
    """Messages by id, whose `keys` are those of the messages to one node while `only` names it."""

    def __init__(self) -> None:
        super().__init__()
        self.only: int | None = None
        self._by_node: dict[int, dict[str, None]] = {}

    def __setitem__(self, id: str, message: Any) -> None:
        super().__setitem__(id, message)
        self._by_node.setdefault(message.metadata.dst_node_id, {})[id] = None

    def __delitem__(self, id: str) -> None:
        node = self[id].metadata.dst_node_id
        super().__delitem__(id)
        del self._by_node[node][id]
        if not self._by_node[node]:
            del self._by_node[node]

    def keys(self) -> Any:
        return super().keys() if self.only is None else self._by_node.get(self.only, {}).keys()


def find_messages_by_node(state: Any) -> None:
    """Have a SuperLink that keeps its state in memory look through the messages of the node that asks."""
    if type(state).__name__ != "InMemoryLinkState" or state.message_ins_store:
        return
    look, messages = state.get_message_ins, MessagesByNode()

    def get_message_ins(node_id: int, limit: int | None, **named: Any) -> Any:
        with state.lock:
            messages.only = node_id
            try:
                return look(node_id, limit, **named)
            finally:
                messages.only = None

    state.message_ins_store, state.get_message_ins = messages, get_message_ins


def _is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine: from the loopback interface, or from the server's address."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return False
    try:
        return ip_address(client[0]).is_loopback or (server is not None and client[0] == server[0])
    except ValueError:
        return False


def main() -> None:
    """Run `flower-superlink` with its arguments."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    create = getattr(superlink, "create_app", None)
    if create is None:  # then nothing would be protected
        sys.exit("this version of Flower is not known: use the one that pip install 'tarry[flower]' installs")

    def create_app(*args: Any, **named: Any) -> Any:
        app = create(*args, **named)
        quicken(app)
        app.add_middleware(NodesOnly)
        return app

    setattr(superlink, "create_app", create_app)  # noqa: B010 - a module's function
    flower_superlink()


if __name__ == "__main__":
    if sys.path[0] == str(Path(__file__).parent):
        sys.path.pop(0)  # a file's folder is not for imports
    main()
