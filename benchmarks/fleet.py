"""Load of a federation: its updates per second, delays and requests with light nodes, and the SuperLink alone.

    python benchmarks/fleet.py [--nodes 10,50,200] [--seconds 60] [--visit 1.0] [--method fedasync] [--links 1]
                               [--database] [--replay] [--ramp 5]

The nodes are stubs in one process a link (fleet_stub.py), with a model of 610 parameters and visits of a scripted time:
client c's visits last between half and one and a half times `--visit`. Then fresh SuperLinks without tarry get the same
kinds of requests from as many stubs that do not pause, and the rows state which part of their rate tarry reached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from fleet_alone import rate_alone
from fleet_faults import FAULTS
from fleet_stub import StubLog, StubNode, cpu_seconds, run_nodes

from record import write
from tarry.config.spec import Spec
from tarry.deploy.config import read_config
from tarry.deploy.local.local_federation import LocalFederation
from tarry.record.rows import read_rows
from tarry.runs.build import build_run

LIGHT = {"task": "digits:hidden=8", "epochs": 1, "eval-every": 60.0, "stop-within": 2.0}


class WithoutNodes(LocalFederation):
    """A federation whose nodes are elsewhere."""

    def _start_node(self, *_: Any) -> None:
        pass

    def _warm(self, *_: Any) -> None:
        pass


def visit_seconds(client: int, visit: int, mean: float) -> float:
    """Return the scripted time of a visit."""
    return mean * random.Random(client * 100_003 + visit).uniform(0.5, 1.5)


def stub(config: dict[str, Any]) -> None:
    """Run the nodes of one link in this process until SIGTERM; write what they did."""
    made = build_run(Spec.of({**config["spec"]}))
    worker_parts = (made.bound(), made.method.local, made.work, made.spec.seed)
    from tarry.deploy.client.client_store import ClientStore
    from tarry.deploy.client.worker import Worker

    log, homes = StubLog(), Path(config["homes"])
    nodes = []
    for place in config["places"]:
        worker = Worker(*worker_parts, ClientStore(homes / str(place)))
        kind = FAULTS.get(config["faults"].get(str(place), ""), StubNode)
        nodes.append(
            kind("127.0.0.1", config["port"], place, homes / str(place), worker,
                     lambda visit, place=place: visit_seconds(place, visit, config["visit"]), log)
        )  # fmt: skip

    middle: Counter[str] = Counter()

    async def main() -> None:
        running = asyncio.create_task(run_nodes(nodes, ramp=config["ramp"]))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, running.cancel)
        loop.add_signal_handler(signal.SIGUSR1, lambda: middle.update(log.requests))
        try:
            await running
        except asyncio.CancelledError:
            pass
        finally:
            counts = {k: v - middle[k] for k, v in log.requests.items()}
            Path(config["out"]).write_text(json.dumps({"requests": counts, "pushed": log.pushed}))

    asyncio.run(main())


def measured(nodes: int, o: argparse.Namespace) -> dict[str, Any]:
    """Run a federation of `nodes` stubs for some seconds; return what it did."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-bench-"))
    local = WithoutNodes(folder / "out")
    config = {**LIGHT, "method": o.method, "clients": nodes, "time": 36000.0}
    local.prepare(nodes, config, tls=False, memory=not o.database, links=o.links)
    stubs: list[subprocess.Popen[bytes]] = []
    try:
        local.up()
        began = time.time()
        stubs = [start_stub(local, i, range(i, nodes, o.links), o, folder) for i in range(o.links)]
        row = _watched(local, nodes, o.seconds, began, stubs)
    finally:
        for process in stubs:
            process.terminate()
        for process in stubs:
            process.wait(20)
        local.down(within=10.0)
    try:
        logs = [json.loads((folder / f"stub-{i}.json").read_text()) for i in range(o.links)]
        row |= _summary(local, logs, began, nodes, o.seconds, row["requests"])
        if o.replay:
            row["replay_is_equal"] = _replay(local)
        return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_stub(
    local: LocalFederation,
    link: int,
    places: Iterable[int],
    o: argparse.Namespace,
    folder: Path,
    faults: Mapping[int, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the process of a link's nodes; `faults` names what is wrong with some of them (fleet_faults.py)."""
    setting = read_config(local.setup.config)
    config = {
        "spec": {
            k: v for k, v in vars(setting.spec).items() if k in ("task", "clients", "epochs", "seed", "lr", "batch")
        },
        "port": local.setup.link_ports[link],
        "places": list(places),
        "faults": {str(place): fault for place, fault in (faults or {}).items()},
        "homes": str(folder / "homes"),
        "visit": o.visit,
        "ramp": o.ramp,
        "out": str(folder / f"stub-{link}.json"),
    }
    config["spec"]["method"], config["spec"]["task"] = o.method, LIGHT["task"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, "--stub", json.dumps(config)], env=environment)


def _processes(local: LocalFederation) -> dict[str, int]:
    links = {
        name: p.pid for name in local.processes.names() if name.startswith("link") and (p := local.processes[name])
    }
    server = local.folder / "server.json"
    return {**links, **({"server": json.loads(server.read_text())["pid"]} if server.is_file() else {})}


def _mib(pid: int) -> float:
    line = next(w for w in Path(f"/proc/{pid}/status").read_text().splitlines() if w.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _server_requests(local: LocalFederation) -> dict[str, int]:
    requests: dict[str, int] = json.loads((local.folder / "status.json").read_text()).get("requests", {})
    return requests


def _watched(local: LocalFederation, nodes: int, seconds: float, began: float, stubs: list[Any]) -> dict[str, Any]:
    """Wait; return the CPU and the requests in the second half, and the memory at three points, of each process."""
    memory: dict[str, list[float]] = {}
    requests: dict[str, int] = {}
    cpu: dict[str, float] = {}
    for part in (0.5, 0.75, 1.0):
        time.sleep(max(0.0, began + part * seconds - time.time()))
        now = {**_processes(local), **{f"nodes-{i}" if i else "nodes": p.pid for i, p in enumerate(stubs)}}
        for name, pid in now.items():
            memory.setdefault(name, []).append(round(_mib(pid), 1))
            if part == 0.5:
                cpu[name] = -cpu_seconds(pid)
            elif part == 1.0 and name in cpu:
                cpu[name] = (cpu[name] + cpu_seconds(pid)) / (seconds / 2)
        if part == 0.5:
            requests = _server_requests(local)
            for process in stubs:
                process.send_signal(signal.SIGUSR1)
    requests = {k: v - requests.get(k, 0) for k, v in _server_requests(local).items()}
    cpu = {k: round(v, 3) for k, v in cpu.items()}
    return {"nodes": nodes, "cpu": cpu, "memory_mib": memory, "requests": requests}


def _summary(
    local: LocalFederation,
    logs: list[dict[str, Any]],
    began: float,
    nodes: int,
    seconds: float,
    server: dict[str, int],
) -> dict[str, Any]:
    rows = list(read_rows(local.folder / "journal.jsonl"))
    zero = next(r["began"] for r in rows if r["op"] == "begin")
    client = {h[0]: h[1] for r in rows if r["op"] == "close" for h in r["handouts"]}
    came = [(r["number"], r["t"] + zero) for r in rows if r["op"] == "update" if r["t"] + zero <= began + seconds]
    first: dict[int, float] = {}
    for number, at in came:
        first.setdefault(client[number], at - began)
    pushed = {int(k): v for log in logs for k, v in log["pushed"].items()}
    delays = sorted(at - pushed[number] for number, at in came if number in pushed)
    late = [at for _, at in came if at >= began + seconds / 2]
    gaps = [b - a for a, b in zip([at for _, at in came], [at for _, at in came][1:], strict=False)]
    requests: Counter[str] = Counter({f"server: {k}": v for k, v in server.items()})
    for log in logs:
        requests.update({f"node: {k}": v for k, v in log["requests"].items()})
    lost = Counter(r["why"] for r in rows if r["op"] in ("lost", "rejected"))
    total = sum(v for k, v in requests.items() if not k.endswith("not there yet"))
    return {
        "updates": len(came),
        "updates_per_s": len(late) / (seconds / 2),
        "took_part": len(first),
        "all_took_part_after_s": round(max(first.values()), 1) if len(first) == nodes else None,
        "accepted_after_s": round(median(delays), 3) if delays else None,
        "accepted_after_p99_s": round(delays[int(0.99 * (len(delays) - 1))], 3) if delays else None,
        "longest_stall_s": round(max(gaps), 2) if gaps else None,
        "lost": dict(lost),
        "requests_per_s": round(total / (seconds / 2), 1),
        "requests_per_update": round(total / max(1, len(late)), 2),
        "requests": {k: round(v / max(1, len(late)), 2) for k, v in sorted(requests.items())},
    }


def _replay(local: LocalFederation) -> bool:
    from tarry.runs.replay import replay

    return replay(local.folder).first_difference is None


def main() -> None:
    if sys.argv[1:2] == ["--stub"]:
        stub(json.loads(sys.argv[2]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the federation is taken down
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="10,50,200", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--visit", type=float, default=1.0, help="mean seconds of a visit")
    parser.add_argument("--method", default="fedasync", help="fedasync: two tickets a client; orthofl: one")
    parser.add_argument("--links", type=int, default=1)
    parser.add_argument("--ramp", type=float, default=2.0, help="seconds within which the nodes begin")
    parser.add_argument("--database", action="store_true", help="the SuperLinks keep their state in a file")
    parser.add_argument("--replay", action="store_true", help="replay the record, and state whether it is equal")
    parser.add_argument("--no-alone", action="store_true", help="do not measure the SuperLink alone")
    parser.add_argument("--name", default="fleet", help="name of the file of results")
    o = parser.parse_args()
    rows = []
    for nodes in o.nodes:
        row = {"links": o.links, "visit_s": o.visit, "method": o.method, "database": o.database, **measured(nodes, o)}
        if not o.no_alone:
            alone = rate_alone(min(nodes, 64), links=o.links, database=o.database, seconds=min(20.0, o.seconds))
            per_cpu = row["requests_per_s"] / sum(v for k, v in row["cpu"].items() if k.startswith("link"))
            row["alone"] = {k: round(v, 2) for k, v in alone.items()}
            row["share_of_alone"] = round(row["requests_per_s"] / alone["requests_per_s"], 3)
            row["share_of_alone_per_cpu_second"] = round(per_cpu / alone["requests_per_cpu_s"], 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    kinds = sorted({kind for row in rows for kind in row["requests"]})
    write(o.name, "Load: light nodes over Flower's Fleet protocol, and the SuperLink alone", [_flat(r) for r in rows])
    write(
        f"{o.name}-requests",
        "Requests to the SuperLink for each update, by kind",
        [{"request": kind, **{f"{r['nodes']} nodes": r["requests"].get(kind, 0.0) for r in rows}} for kind in kinds],
    )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: memory in the middle and at the end, the reasons of losses in one text."""
    out = {k: v for k, v in row.items() if not isinstance(v, dict)}
    out |= {f"{name.replace('-', ' ')} cpu": share for name, share in row["cpu"].items()}
    for name, sizes in row["memory_mib"].items():
        out |= {f"{name.replace('-', ' ')} MiB, middle": sizes[0], f"{name.replace('-', ' ')} MiB, end": sizes[-1]}
    out["lost"] = ", ".join(f"{count} {why}" for why, count in row["lost"].items()) or "0"
    return out | {f"alone: {k.replace('_', ' ')}": v for k, v in row.get("alone", {}).items()}


if __name__ == "__main__":
    main()
