"""Overhead of an update over Flower, and the number of nodes that one server can hold: light clients on one machine.

    python benchmarks/federation.py [--nodes 2,8,20] [--seconds 60]
    python benchmarks/federation.py --compare [--nodes 2,8]

The second command compares what tarry changes in Flower, with an app of its own: all of it, without the shorter
intervals, without the quicker SuperLink, without an app that is kept loaded, and a new Python process for every message
(flower-superexec).

Clients train a tiny model for milliseconds, so the path of a message is measured: SuperLink, SuperNode, a process of
its own, and back. With one ticket in flight a client waits for all of it; with two, half of it is hidden.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from record import write
from tarry.deploy import fork_server, link, polling
from tarry.deploy.local.local_federation import LocalFederation
from tarry.record.rows import read_rows

LIGHT = {"task": "digits:limit=400,hidden=8", "epochs": 1, "eval-every": 30.0, "stop-within": 2.0}
METHODS = {"orthofl": 1, "fedasync": 2}  # tickets in flight


APP = Path(__file__).parents[1] / "examples" / "flower" / "own_client"
VARIANTS = {
    "all": {},
    "Flower's intervals": {polling.SWITCH: "0"},
    "Flower's SuperLink": {link.SWITCH: "0"},
    "app imported for every message": {fork_server.SWITCH: "0"},
    "flower-superexec": {},
}


class WithSuperExec(LocalFederation):
    """A federation whose nodes have Flower's own executor."""

    def _warm(self, s: Any) -> None:
        for i, port in enumerate(s.ports[1:]):
            command = ["flower-superexec", "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
            self.processes.start("warm" if i == 0 else f"warm-{i}", command)


def compared(variant: str, nodes: int, seconds: float) -> dict[str, Any]:
    """Run the example app with a variant of tarry's changes to Flower."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-bench-"))
    app = folder / "app"
    shutil.copytree(APP, app)
    text = (app / "pyproject.toml").read_text().replace("updates = 24", "time = 36000.0\nin-flight = 1")
    (app / "pyproject.toml").write_text(text.replace("clients = 3", f"clients = {nodes}"))
    os.environ.update(VARIANTS[variant])
    kind = WithSuperExec if variant == "flower-superexec" else LocalFederation
    try:
        local = kind(folder / "out")
        local.prepare(nodes, {}, tls=False, app=app, memory=True)
        return {"variant": variant, "nodes": nodes, **_measured(local, nodes, seconds)}
    finally:
        for name in VARIANTS[variant]:
            os.environ.pop(name)
        shutil.rmtree(folder, ignore_errors=True)


def measured(nodes: int, method: str, seconds: float) -> dict[str, Any]:
    """Run a federation of `nodes` nodes, for some seconds after all of them have work."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-bench-"))
    local = LocalFederation(folder / "out")
    local.prepare(nodes, {**LIGHT, "method": method, "clients": nodes, "time": 36000.0}, tls=False, memory=True)
    try:
        return {"method": method, "nodes": nodes, **_measured(local, nodes, seconds)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(local: LocalFederation, nodes: int, seconds: float) -> dict[str, Any]:
    began = time.monotonic()
    try:
        local.up()
        while len(_clients(local)) < nodes:
            time.sleep(0.5)
            if time.monotonic() - began > 600:
                break
        ready = time.monotonic() - began
        first = _last(local)
        time.sleep(seconds)
        return {"ready_s": ready, **_summary(local, first)}
    finally:
        local.down(within=10.0)


def _rows(local: LocalFederation) -> list[dict[str, Any]]:
    path = local.folder / "journal.jsonl"
    return list(read_rows(path)) if path.is_file() else []


def _clients(local: LocalFederation) -> set[int]:
    """Return the clients that have returned an update."""
    who = {h[0]: h[1] for r in _rows(local) if r["op"] == "close" for h in r["handouts"]}
    return {who[r["number"]] for r in _rows(local) if r["op"] == "update"}


def _last(local: LocalFederation) -> float:
    return max((r["t"] for r in _rows(local) if r["op"] == "update"), default=0.0)


def _summary(local: LocalFederation, first: float) -> dict[str, Any]:
    rows = _rows(local)
    sent = {h[0]: (r["t"], h[1]) for r in rows if r["op"] == "close" for h in r["handouts"]}
    came = [r for r in rows if r["op"] == "update" and r["t"] > first]
    visits = [r["t"] - sent[r["number"]][0] for r in came]
    status = json.loads((local.folder / "status.json").read_text())
    if not came:
        return {"updates": 0, "clients": 0}
    span = came[-1]["t"] - first
    training = median(r["train_seconds"] or 0.0 for r in came)  # apps that do not use tarry do not tell
    clients = len({sent[r["number"]][1] for r in came})
    return {
        "clients": clients,
        "updates": len(came),
        "updates_per_s": len(came) / span,
        "visit_s": median(visits),
        "training_s": training,
        "overhead_s": clients * span / len(came) - training,
        "lost": status["lost"],
    }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the federation is taken down
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,8,20", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--compare", action="store_true", help="compare tarry's changes to Flower, one by one")
    o = parser.parse_args()
    if o.compare:
        rows = [compared(variant, nodes, o.seconds) for nodes in o.nodes for variant in VARIANTS]
        print(json.dumps(rows, indent=1))
        write("federation-flower", "An app over Flower, with and without what tarry changes in Flower", rows)
        return
    rows = []
    for nodes in o.nodes:
        for method, tickets in METHODS.items():
            row = {"tickets": tickets, **measured(nodes, method, o.seconds)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    write(
        "federation",
        "Updates over Flower, light clients on one machine: a client's time an update beside training",
        rows,
    )


if __name__ == "__main__":
    main()
