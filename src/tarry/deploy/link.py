"""A SuperLink that only nodes use from other machines; the arguments are those of `flower-superlink`.

    python -m tarry.deploy.link --host 0.0.0.0 --port 8000 ...

Flower serves three interfaces at one port: Fleet for nodes, Runtime for the processes of apps, and Control, with which
anyone may start an app, that is, run code on this machine, or register a node. Neither TLS nor --enable-supernode-auth
protects the last two. Here they answer to this machine alone; others get status 403.

Run as a file it imports nothing but Flower.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

__all__ = ["NodesOnly", "main"]

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
_FOR_NODES = "/v1/fleet/"


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
        app.add_middleware(NodesOnly)
        return app

    setattr(superlink, "create_app", create_app)  # noqa: B010 - a module's function
    flower_superlink()


if __name__ == "__main__":
    if sys.path[0] == str(Path(__file__).parent):
        sys.path.pop(0)  # a file's folder is not for imports
    main()
