"""Client apps that fail: with their own exceptions, without a reply, with their whole process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from tarry.deploy.client_processes import ClientProcesses, _how_it_ended, guard_client_apps
from tarry.deploy.loaded_app import AppPool
from tarry.deploy.local.local_federation import LocalFederation
from tarry.record.rows import read_rows
from tests.helpers.processes import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(ClientApp, "__call__", ClientApp.__call__)
    guard_client_apps()
    guard_client_apps()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(RecordDict(), dst_node_id=1, message_type="train", ttl=9.0)

    def call(handler):
        app = ClientApp()
        app.train()(handler)
        return app(message, Context(1, 1, {}, RecordDict(), {}))

    return call


def test_a_handler_without_a_message_and_one_that_exits_raise_errors_that_flower_reports(guarded):
    with pytest.raises(TypeError, match="the handler of 'train' returned NoneType"):
        guarded(lambda message, context: None)
    with pytest.raises(RuntimeError, match=r"ended its process \(SystemExit: 4\)"):
        guarded(lambda message, context: sys.exit(4))
    with pytest.raises(ZeroDivisionError):
        guarded(lambda message, context: 1 / 0)
    assert guarded(lambda message, context: Message(RecordDict(), reply_to=message)).has_content()


def test_the_end_of_a_process_is_told_in_words():
    assert _how_it_ended(3) == "its process ended with status 3 and without a reply"
    assert _how_it_ended(-9) == "its process was ended by SIGKILL"
    assert _how_it_ended(-64) in ("its process was ended by signal 64", "its process was ended by SIGRTMAX")


def _installed(home, code):
    """An app as Flower installs it, with this code; the hash of its archive."""
    folder = home / "apps" / "me.one.1.0.0.abcdef12"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "__init__.py").touch()
    (folder / "one" / "client.py").write_text(dedent(code))
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "one"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n[tool.flwr.app]\npublisher = "me"\n'
        '[tool.flwr.app.components]\nserverapp = "one.client:app"\nclientapp = "one.client:app"\n'
    )
    return "abcdef1234567890"


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"


@pytest.mark.parametrize(
    ("more", "loads"), [("", True), ("import not_there", False), ("raise SystemExit(3)", False), (THREAD, False)]
)
def test_an_app_is_imported_once_and_one_that_cannot_be_kept_loaded_is_not(more, loads, monkeypatch, tmp_path):
    imports, visits = tmp_path / "imports", tmp_path / "visits"
    code = f"""
        import os
        from flwr.clientapp import ClientApp
        with open({str(imports)!r}, "a") as f:
            f.write("x")
        app = ClientApp()
    """
    app = _installed(tmp_path, dedent(code) + dedent(more) + "\n")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))

    def start(self, address, token):
        with visits.open("a") as f:
            f.write(f"{os.getpid()} {'one.client' in sys.modules} {address} {token}\n")

    monkeypatch.setattr(ClientProcesses, "start", start)
    pool = AppPool(None)
    try:
        pool.start("here", "t0", "0" * 16)
        pool.start("here", "t1", app)

        def lines():
            pool.poll()
            return visits.read_text().splitlines()

        wait_until(lambda: len(lines()) == 2)
        pool.start("there", "t2", app)
        wait_until(lambda: len(lines()) == 3)
    finally:
        pool.close()
    started = [line.split() for line in lines()]
    assert [line[2:] for line in started] == [["here", "t0"], ["here", "t1"], ["there", "t2"]]
    assert [line[1] for line in started] == ["False", str(loads), str(loads)], "an unknown app is started from here"
    assert [int(line[0]) == os.getpid() for line in started] == [True, not loads, not loads]
    assert imports.read_text() == "x"


FAILING = '''
    """Client 1 fails in another way at each of its first visits."""
    import os, signal, sys
    from pathlib import Path
    from own_client import client_app as honest
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] == 0:
            return honest.train(message, context)
        counter = Path(str(context.node_config["home"])) / "visits"
        count = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (count + 1))
        if count == 0:
            return None
        if count == 1:
            raise ValueError("no data of today")
        if count == 2:
            os._exit(3)
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if count == 4:
            sys.exit(4)
        return honest.train(message, context)
'''


@pytest.mark.federation
def test_every_failure_of_an_app_is_named_and_its_node_works_again(tmp_path):
    import shutil

    app = tmp_path / "failing"
    shutil.copytree(EXAMPLES / "own_client", app)
    (app / "own_client" / "failing.py").write_text(dedent(FAILING).lstrip())
    text = (app / "pyproject.toml").read_text().replace("own_client.client_app:app", "own_client.failing:app")
    text = text.replace("clients = 3", "clients = 2").replace("updates = 24", "time = 900.0\nin-flight = 1")
    (app / "pyproject.toml").write_text(text)
    local = LocalFederation(tmp_path / "out", lambda line: None)
    local.prepare(2, {}, tls=False, app=app)
    try:
        local.up()
        status = local.folder / "status.json"

        def updates_of_the_failing_one():
            if not status.is_file():
                return 0
            clients = json.loads(status.read_text())["clients"]
            return sum(c["updates"] for c in clients if c["failed"])

        wait_until(lambda: updates_of_the_failing_one() >= 1, lambda: status.read_text())
    finally:
        local.down(within=5.0)
    rows = [r for r in read_rows(local.folder / "journal.jsonl") if r["op"] == "lost"]
    assert [(r["why"], r["detail"]) for r in rows[:5]] == [
        ("its app raised an error", "TypeError: the handler of 'train' returned NoneType"),
        ("its app raised an error", "ValueError: no data of today"),
        ("its app was killed", "its process ended with status 3 and without a reply"),
        ("its app was killed", "its process was ended by SIGKILL"),
        ("its app raised an error", "RuntimeError: the client app ended its process (SystemExit: 4)"),
    ]
