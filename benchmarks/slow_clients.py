"""What one bad node out of four costs the others: their updates per second, of a run without it.

    python benchmarks/slow_clients.py [--windows 5] [--seconds 12] [--visit 1.0] [--only flooding]

Clients 0 to 2 have visits of a scripted time (half to one and a half times `--visit`). The fourth node is not there, or
is slow (visits thirty times as long), trickles its uploads, dies in the middle of each, or floods the SuperLink with
repeated replies (fleet_faults.py). The rates of the three are medians of windows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from fleet import LIGHT, WithoutNodes, start_stub
from fleet_faults import FAULTS

from record import write
from tarry.record.rows import read_rows

_NODES, _BAD = 4, 3
_SETTLE = 10.0  # seconds from the first update of all others to the first window


def measured(fault: str | None, o: argparse.Namespace) -> dict[str, Any]:
    """Run a federation with a fault; return the updates per second of the others, and what became of the fourth."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-bench-"))
    local = WithoutNodes(folder / "out")
    config = {**LIGHT, "method": "orthofl", "clients": _NODES, "time": 36000.0}
    local.prepare(_NODES, config, tls=False, memory=True)
    stub = None
    try:
        local.up()
        places = range(_NODES) if fault else [c for c in range(_NODES) if c != _BAD]
        stub = start_stub(local, 0, places, o, folder, {_BAD: fault} if fault else {})
        while not {c for c, _ in _updates(local)} >= set(range(_NODES)) - {_BAD}:
            time.sleep(0.2)
        time.sleep(_SETTLE)
        began = time.time()
        time.sleep(o.windows * o.seconds)
        return _row(fault, local, began, o)
    finally:
        if stub is not None:
            stub.terminate()
            stub.wait(20)
        local.down(within=10.0)
        shutil.rmtree(folder, ignore_errors=True)


def _updates(local: WithoutNodes) -> list[tuple[int, float]]:
    """Return the client and the time of each update."""
    path = local.folder / "journal.jsonl"
    rows = list(read_rows(path)) if path.is_file() else []
    zero = next((r["began"] for r in rows if r["op"] == "begin"), 0.0)
    client = {h[0]: h[1] for r in rows if r["op"] == "close" for h in r["handouts"]}
    return [(client[r["number"]], r["t"] + zero) for r in rows if r["op"] == "update"]


def _row(fault: str | None, local: WithoutNodes, began: float, o: argparse.Namespace) -> dict[str, Any]:
    updates = _updates(local)
    windows = [
        sum(c != _BAD and 0 <= at - began - i * o.seconds < o.seconds for c, at in updates) / o.seconds
        for i in range(o.windows)
    ]
    lost = Counter(r["why"] for r in read_rows(local.folder / "journal.jsonl") if r["op"] in ("lost", "rejected"))
    return {
        "fourth_node": fault or "none",
        "updates_per_s": median(windows),
        "windows": ", ".join(f"{w:.2f}" for w in windows),
        "updates_of_the_fourth": sum(c == _BAD for c, _ in updates),
        "lost": ", ".join(f"{count} {why}" for why, count in lost.items()) or "0",
    }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the federation is taken down
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a window")
    parser.add_argument("--visit", type=float, default=1.0, help="mean seconds of a visit")
    parser.add_argument("--only", default=list(FAULTS), type=lambda s: s.split(","), help="faults")
    o = parser.parse_args()
    o.links, o.ramp, o.method = 1, 0.0, "orthofl"
    rows = [measured(None, o)]
    for fault in (name for name in FAULTS if name in o.only):
        row = measured(fault, o)
        rows.append({**row, "ratio": row["updates_per_s"] / rows[0]["updates_per_s"], "bar": 0.9})
        print(json.dumps(rows[-1]), flush=True)
    write("slow-clients", "Updates per second of three nodes beside a bad fourth one", rows)


if __name__ == "__main__":
    main()
