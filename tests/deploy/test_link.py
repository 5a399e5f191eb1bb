"""Other machines reach the interface for nodes, and no other. A quicker SuperLink answers as Flower's does."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.superlink import main as superlink
from flwr.superlink.routers.control import middlewares
from flwr.superlink.routers.fleet import node_auth
from starlette.responses import Response

from tarry.deploy import link
from tarry.deploy.link import MessagesByNode, NodesOnly, SkippedLayer


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
    monkeypatch.delattr(superlink, "create_app")
    with pytest.raises(SystemExit, match="this version of Flower is not known"):
        link.main()


def status(app, path: str) -> int:
    """The status of the app's answer to an empty message."""

    async def post() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return (await client.post(path, headers={"content-type": "application/protobuf"})).status_code

    return asyncio.run(post())


@pytest.fixture
def quick():
    """The app of Flower's SuperLink, whose requests skip layers."""
    app = superlink.create_app()
    assert link.quicken(app)
    return app


def skipped(app) -> dict[str, tuple[str, ...]]:
    """The layers of an app that some requests skip, and the paths of these requests."""
    parts = [m.args for m in app.user_middleware if m.cls is SkippedLayer]
    return {layer.cls.__name__: paths for layer, paths in parts}


def test_nodes_skip_the_layers_of_the_control_interface_and_are_still_authenticated(quick):
    found = skipped(quick)
    assert {name for name in found if name.startswith("Control")} >= {
        "ControlAuthenticationMiddleware",
        "ControlLicenseMiddleware",
    }
    assert found["NodeAuthMiddleware"] == ("/v1/runtime/",)
    assert not any(path.startswith("/v1/control") for paths in found.values() for path in paths)
    assert status(quick, "/v1/fleet/pull-messages") == 401


def marked(layer: type, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a layer of Flower answer all requests that reach it."""

    async def dispatch(*_):
        return Response(status_code=status, media_type="application/json")

    monkeypatch.setattr(layer, "dispatch", dispatch)


@pytest.mark.parametrize(
    ("path", "expected"), [("/v1/control/list-runs", 418), ("/health/live", 418), ("/v1/fleet/pull-messages", 401)]
)
def test_all_other_requests_pass_the_authentication_of_accounts(quick, monkeypatch, path, expected):
    marked(middlewares.ControlAuthenticationMiddleware, 418, monkeypatch)
    assert status(quick, path) == expected


@pytest.mark.parametrize(("path", "expected"), [("/v1/fleet/pull-messages", 418), ("/v1/runtime/get-nodes", 401)])
def test_requests_of_nodes_alone_pass_their_authentication(quick, monkeypatch, path, expected):
    marked(node_auth.NodeAuthMiddleware, 418, monkeypatch)
    assert status(quick, path) == expected


@pytest.mark.parametrize("trouble", ["version", "switch"])
def test_an_unknown_version_stays_as_it_is_and_the_log_says_so(monkeypatch, caplog, trouble):
    caplog.set_level(logging.WARNING, logger="tarry")
    monkeypatch.setattr(logging.getLogger("tarry"), "propagate", True)
    if trouble == "version":
        monkeypatch.setattr(link, "version", lambda _: "1.99.0")
    else:
        monkeypatch.setenv(link.SWITCH, "0")
    app = superlink.create_app()
    assert not link.quicken(app)
    assert skipped(app) == {}
    assert type(app.state.linkstate_factory.state().message_ins_store) is dict
    assert "as Flower made it" in caplog.text


def test_an_event_log_and_traces_keep_their_layers(monkeypatch):
    monkeypatch.setenv("FLWR_TRACING_ENABLED", "1")
    app = superlink.create_app()
    app.state.fleet_event_log_plugin = object()
    link.skip_layers(app)
    found = skipped(app)
    assert found["FleetEventLogMiddleware"] == ("/v1/runtime/",)
    assert found.get("RuntimeTracingMiddleware", ("/v1/fleet/",)) == ("/v1/fleet/",)  # flwr 1.42 has none


def message(node: int, id: str) -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node, run_id=1, delivered_at="", message_id=id))


def test_a_node_gets_its_messages_in_the_order_that_flower_gives_them(quick, monkeypatch):
    """Both states get the same messages; each node asks, and some messages are deleted in between."""
    monkeypatch.setattr(InMemoryLinkState, "_check_stored_messages", lambda *_: None)
    states = [app.state.linkstate_factory.state() for app in (superlink.create_app(), quick)]
    assert [type(state.message_ins_store) for state in states] == [dict, MessagesByNode]
    generator, sent, found = random.Random(0), 0, 0
    for _ in range(300):
        node, limit = generator.randrange(5), generator.choice([1, 2, None])
        if generator.random() < 0.5:
            sent += 1
            for state in states:
                state.message_ins_store[str(sent)] = message(node, str(sent))
        elif generator.random() < 0.3 and states[0].message_ins_store:
            gone = generator.choice(sorted(states[0].message_ins_store))
            for state in states:
                state.delete_messages({gone})
        else:
            got = [[m.metadata.message_id for m in s.get_message_ins(node_id=node, limit=limit)] for s in states]
            assert got[0] == got[1]
            found += len(got[0])
    assert found > 50
    assert list(states[0].message_ins_store) == list(states[1].message_ins_store.keys())
    assert states[1].num_message_ins() == len(states[0].message_ins_store)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library that makes the tables
def test_a_database_finds_messages_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_DATABASE", str(tmp_path / "link.db"))
    app = superlink.create_app()
    assert link.quicken(app)
    assert not hasattr(app.state.linkstate_factory.state(), "message_ins_store")
