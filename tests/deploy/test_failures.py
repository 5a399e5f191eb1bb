"""Real federations that take minutes: slow nodes, kills, certificates, other people's apps. Run by -m federation."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tarry.deploy.local.tls import node_key
from tarry.record.rows import read_rows
from tarry.runs.replay import Record
from tests.helpers.federations import SMALL, honest, kill, over, reach, updates
from tests.helpers.processes import PATIENCE

pytestmark = pytest.mark.federation
EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


def test_eight_nodes_from_one_second_to_sixty(local):
    delays = json.dumps([1, 2, 4, 8, 15, 25, 40, 60])
    config = {**SMALL, "method": "orthofl", "delay.name": "scripted", "delay.durations": delays, "time": 200.0}
    local.prepare(8, {**config, "clients": 8}, tls=False)
    local.up()
    result = over(local)
    came = [
        sum(w.end is not None for (c, _), w in Record.read(local.folder).visits.items() if c == k) for k in range(8)
    ]
    assert came[0] >= 4 * came[6] > 0
    assert came == sorted(came, reverse=True)
    assert came[7] >= 2
    honest(local, result)
    assert result.final_accuracy is not None
    assert result.final_accuracy > 0.5


@pytest.mark.parametrize("victims", [["app"], ["link"], ["app", "link"], ["node-1"], ["warm"]])
def test_whatever_is_killed_the_run_goes_on(local, victims):
    local.prepare(2, {**SMALL, "method": "orthofl:placement=client", "clients": 2, "updates": 24, "deadline": 60.0},
                  tls=True)  # fmt: skip
    local.up()
    reach(local, 5)
    before = [r["number"] for r in read_rows(local.folder / "journal.jsonl") if r["op"] == "update"]
    for victim in victims:
        kill(local, victim)
    result = over(local, repair=True)
    after = [r["number"] for r in read_rows(local.folder / "journal.jsonl") if r["op"] == "update"]
    assert after[: len(before)] == before
    honest(local, result)


def test_a_link_that_wrote_nothing_down_loses_tickets_and_no_update(local):
    local.prepare(2, {**SMALL, "method": "fedasync", "clients": 2, "updates": 20, "deadline": 30.0}, tls=False,
                  memory=True)  # fmt: skip
    local.up()
    reach(local, 5)
    kill(local, "link")
    result = over(local, repair=True)
    assert result.updates == 20
    honest(local, result)


def test_a_stop_leaves_a_federation_that_is_taken_up_again(local):
    local.prepare(2, {**SMALL, "method": "fedasync", "clients": 2, "updates": 20}, tls=False)
    local.up()
    reach(local, 4)
    local.down(within=60.0)
    assert not (local.folder / "result.json").is_file()
    count = updates(local)
    assert json.loads((local.folder / "status.json").read_text())["ended"] == "stopped"
    local.up()
    result = over(local)
    assert result.updates == 20 > count
    honest(local, result)


def test_a_node_whose_key_is_not_registered_is_refused(local, tmp_path):
    local.prepare(2, {**SMALL, "method": "fedasync", "clients": 3, "updates": 10}, tls=True)
    local.up()
    reach(local, 2)
    key, _ = node_key(tmp_path, 9)
    ca, port = local.flower_dir / "tls" / "ca.crt", local.setup.ports[0]
    done = subprocess.run(
        ["flower-supernode", "--root-certificates", str(ca), "--superlink", f"localhost:{port}", "--max-retries", "1",
         "--auth-supernode-private-key", str(key), "--port", "0", "--node-config", "partition-id=2"],
        env={**os.environ, **local._environment}, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode != 0
    result = over(local)
    assert {r["place"] for r in read_rows(local.folder / "journal.jsonl") if r["op"] == "client"} == {0, 1}
    honest(local, result)


@pytest.mark.parametrize(("app", "count"), [("own_client", 24), ("pytorch_project", 24), ("legacy_client", 18)])
def test_an_app_that_knows_nothing_of_us_is_trained_asynchronously(app, count, local):
    local.prepare(3, {}, tls=False, app=EXAMPLES / app)
    local.up()
    result = over(local)
    assert result.updates == count
    assert result.final_accuracy is not None
    assert result.final_accuracy > 0.5


def test_the_example_of_an_app_of_ours_runs(local):
    local.prepare(3, {}, tls=False, app=EXAMPLES / "digits")
    local.up()
    result = over(local)
    assert result.updates == 30
    rows = [json.loads(line) for line in (local.folder / "events.jsonl").read_text().splitlines()]
    assert any(r["kind"] == "evaluate" and "client" in r for r in rows), "clients were asked, too"
    honest(local, result)


HOSTILE = '''
    """Client 1 lies, in another way every time."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord
    from flwr.clientapp import ClientApp
    from tarry.deploy import client_app as ours

    app = ClientApp()
    app.query("hello")(ours.hello)
    app.evaluate()(ours.evaluate)

    @app.train()
    def train(message, context):
        reply = ours.train(message, context)
        if context.node_config["partition-id"] != 1:
            return reply
        words, arrays = reply.content["config"], reply.content["arrays"]
        how = int(message.content["config"]["visit"]) % 10
        delta = arrays["delta"].numpy()
        if how == 0:
            words["token"] = "0" * 32
        elif how == 1:
            words["number"] = 0
            words["num-examples"] = 10**9
        elif how == 2:
            arrays["delta"] = Array(np.zeros(50_000_000 // 8, np.float64))
        elif how == 3:
            arrays["extra.more"] = Array(np.zeros(3, np.float32))
        elif how == 4:
            arrays["delta"] = Array(np.full_like(delta, 1e30))
        elif how == 5:
            reply.content["more"] = MetricRecord({"x": [0.0] * 2_000_000})
        elif how == 6:
            reply.content["more"] = ArrayRecord({"delta": Array(delta)})
        elif how == 7:
            words["train-seconds"] = 1e6
        elif how == 8:
            reply.content["more"] = ArrayRecord({f"x{k}": Array(np.zeros(1)) for k in range(500)})
        else:
            arrays["delta"] = Array(np.full_like(delta, np.nan))
        return reply
'''


def test_a_hostile_client_changes_nothing(local, tmp_path):
    app = tmp_path / "hostile"
    (app / "hostile").mkdir(parents=True)
    (app / "hostile" / "__init__.py").touch()
    (app / "hostile" / "client.py").write_text(dedent(HOSTILE).lstrip())
    config = {**SMALL, "method": "fedasync", "clients": 3, "updates": 60, "quarantine": 0.0}
    local.prepare(3, config, tls=False)
    text = (local.flower_dir / "app" / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("tarry.deploy.client_app:app", "hostile.client:app"))
    ours = json.loads((local.flower_dir / "setup.json").read_text())
    (local.flower_dir / "setup.json").write_text(
        json.dumps({**ours, "app": str(app), "config": {"out": ours["config"]["out"]}})
    )
    local.up()
    result = over(local)
    rows = list(read_rows(local.folder / "journal.jsonl"))
    who = {h[0]: h[1] for r in rows if r["op"] == "close" for h in r["handouts"]}
    assert {who[r["number"]] for r in rows if r["op"] == "update"} == {0, 2}
    status = json.loads((local.folder / "status.json").read_text())
    hostile = next(c for c in status["clients"] if c["client"] == 1)
    assert hostile["rejected"] == status["rejected"]
    assert sum(hostile["rejected"].values()) >= 2
    assert hostile["rejected"].keys() <= {
        "foreign ticket", "arrays", "norm", "malformed record", "metadata", "not finite", "examples"
    }  # fmt: skip
    honest(local, result)
