"""Other machines reach the interface for nodes, and no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tarry.deploy import link
from tarry.deploy.link import NodesOnly


def answer(path: str, client: str | None, server: str = "192.0.2.1", kind: str = "http") -> str:
    """ "passed", or the status of the answer."""
    sent = []

    async def app(scope, receive, send):
        sent.append({"type": "passed"})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "server": (server, 8000), "client": None if client is None else (client, 5)}
    asyncio.run(NodesOnly(app)(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize(
    ("path", "client", "expected"),
    [
        ("/v1/fleet/pull-messages", "198.51.100.7", "passed"),
        ("/v1/control/start-run", "127.0.0.1", "passed"),
        ("/v1/control/start-run", "::1", "passed"),
        ("/v1/control/start-run", "192.0.2.1", "passed"),
        ("/v1/control/start-run", "198.51.100.7", 403),
        ("/v1/control/start-run", "::ffff:198.51.100.7", 403),
        ("/v1/control/start-run", "", 403),
        ("/v1/control/start-run", None, 403),
        ("/v1/control/register-node", "198.51.100.7", 403),
        ("/v1/runtime/acquire-task", "198.51.100.7", 403),
        ("//v1/fleet/../control/start-run", "198.51.100.7", 403),
        ("/docs", "198.51.100.7", 403),
    ],
)
def test_other_machines_use_the_interface_for_nodes_alone(path, client, expected):
    assert answer(path, client) == expected


def test_sockets_of_other_machines_are_closed():
    assert answer("/v1/control/x", "198.51.100.7", kind="websocket") == "websocket.close"


def test_the_programs_of_flower_get_the_middleware(tmp_path):
    """The app that flower-superlink serves has it as its outermost layer."""
    code = (
        "import sys, uvicorn; from tarry.deploy import link\n"
        "def run(app, **_):\n"
        "    print('layers', [m.cls.__name__ for m in app.user_middleware][0], flush=True); raise SystemExit(0)\n"
        "uvicorn.run = run\n"
        "sys.argv = ['flower-superlink', '--insecure', '--isolation', 'process']\n"
        "link.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "layers NodesOnly" in done.stdout, done.stderr


def test_an_unknown_flower_is_not_served_unprotected(monkeypatch):
    from flwr.superlink import main

    monkeypatch.delattr(main, "create_app")
    with pytest.raises(SystemExit, match="this version of Flower is not known"):
        link.main()
