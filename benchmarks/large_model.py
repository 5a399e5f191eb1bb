"""A federation with a large model: bytes, seconds and memory of every process, and the functions that take the time.

    python benchmarks/large_model.py [--sizes 1M,11M,100M] [--updates 6] [--method fedasync] [--profile]

Two nodes on this machine train an MLP on the digits. Memory is the peak of a process (VmHWM). `models` is that peak
less the peak of the same process with a tiny model, in models: the copies that the process held at once.
The rows `Flower alone` are the copies that Flower itself makes of a message, in a process that does nothing else.
`--profile` samples every process with py-spy (pip install py-spy) and writes the functions of tarry and Flower that
were at work most often to another table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from large_task import n_weights

from record import measure_in_process, write
from tarry.deploy.chunks import join_chunks_once
from tarry.deploy.local.local_federation import LocalFederation
from tarry.record.rows import read_rows

BASE = "1k"
WIDTH = {BASE: 8, "1M": 490, "11M": 1_649, "100M": 4_990}
SETTINGS = {"clients": 2, "epochs": 1, "batch": 20, "stop-within": 5.0, "in-flight": 1}
_EVERY = 0.02  # seconds between two looks at the memory of the processes
_RATE = 25  # samples of the profiler per second


class Memory(threading.Thread):
    """The peak of each kind of process of a federation, and what the server app has written to disk."""

    def __init__(self, local: LocalFederation):
        super().__init__(daemon=True)
        self._local, self._end = local, threading.Event()
        self.peaks, self.written = dict[str, int](), 0

    def run(self) -> None:
        while not self._end.wait(_EVERY):
            for pid, name in processes(self._local).items():
                self.peaks[name] = max(self.peaks.get(name, 0), peak(pid))
                if name == "server app":
                    self.written = max(self.written, written(pid))

    def close(self) -> None:
        self._end.set()
        self.join()


def processes(local: LocalFederation) -> dict[int, str]:
    """Return the processes of a federation by id, with the names of their kinds."""
    names = {"link": "SuperLink", "node-0": "SuperNode", "node-1": "SuperNode", "warm": "fork server"}
    found = {p.pid: name for key, name in names.items() if (p := local.processes[key]) is not None}
    server = local.folder / "server.json"
    try:
        found[json.loads(server.read_text())["pid"]] = "server app"
        forks = next(pid for pid, name in found.items() if name == "fork server")
    except (OSError, ValueError, StopIteration):
        return found
    return {**found, **dict.fromkeys(_descendants(forks), "client app")}


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have: an app is loaded, and then forked."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(below for child in children for below in _descendants(child))]


def peak(pid: int) -> int:
    """Return the most bytes that a process has had in memory; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def written(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes:")))


def measured(size: str, method: str, updates: int, *, profile: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a federation to its end; return its row, with the peaks of its processes, and the rows of its profile."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-large-"))
    local = LocalFederation(folder / "out")
    task = {"task.name": f"{Path(__file__).with_name('large_task.py')}:wide", "task.width": WIDTH[size]}
    local.prepare(2, {**SETTINGS, **task, "method": method, "updates": updates}, tls=False, memory=True)
    memory, profiler = Memory(local), None
    try:
        local.up()
        memory.start()
        until = time.monotonic() + 300
        while not (local.folder / "server.json").is_file() and time.monotonic() < until:
            time.sleep(0.1)
        profiler = Profiler(local, folder / "profiles") if profile else None
        while not (local.folder / "result.json").is_file() and time.monotonic() < until + 250 * updates:
            time.sleep(0.2)
        memory.close()
        samples = [] if profiler is None else profiler.rows(size)
        return {**_summary(local, size, method), "peaks": memory.peaks, "written": memory.written}, samples
    finally:
        if profiler is not None:
            profiler.close()
        local.down(within=10.0)
        shutil.rmtree(folder, ignore_errors=True)


def _summary(local: LocalFederation, size: str, method: str) -> dict[str, Any]:
    rows = list(read_rows(local.folder / "journal.jsonl"))
    sent = {h[0]: r["t"] for r in rows if r["op"] == "close" for h in r["handouts"]}
    came = [r for r in rows if r["op"] == "update"]
    status = json.loads((local.folder / "status.json").read_text())
    return {
        "size": size,
        "method": method,
        "updates": len(came),
        "lost": status["lost"],
        "visit_s": median(r["t"] - sent[r["number"]] for r in came),
        "training_s": median(r["train_seconds"] for r in came),
        "bytes": status["bytes_up"] + status["bytes_down"],
    }


class Profiler:
    """py-spy on every process of a federation, with the client apps that the fork server starts."""

    def __init__(self, local: LocalFederation, folder: Path):
        folder.mkdir()
        self._folder, self._spies = folder, list[subprocess.Popen[bytes]]()
        program = str(Path(sys.executable).parent / "py-spy")
        for pid, name in processes(local).items():
            if name == "client app":
                continue
            out, more = folder / f"{pid} {name}", ["--subprocesses"] if name == "fork server" else []
            command = [program, "record", "-p", str(pid), "-d", "100000", "-r", str(_RATE), "-f", "raw",
                       "--full-filenames", "--nonblocking", *more, "-o", str(out)]  # fmt: skip
            self._spies.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def rows(self, size: str) -> list[dict[str, Any]]:
        """End the profilers; return the functions at work most often, by process."""
        self.close()
        seen: dict[str, Counter[str]] = {}
        for path in sorted(self._folder.iterdir()):
            name = path.name.partition(" ")[2].replace("fork server", "client app")
            for line in path.read_text().splitlines():
                stack, _, count = line.rpartition(" ")
                seen.setdefault(name, Counter())[_place(stack)] += int(count)
        return [
            {"size": size, "process": name, "function": place, "seconds": count / _RATE, "share": count / found.total()}
            for name, found in seen.items()
            for place, count in found.most_common(6)
        ]

    def close(self) -> None:
        for spy in self._spies:
            if spy.poll() is None:
                spy.send_signal(signal.SIGINT)
        for spy in self._spies:
            spy.wait(timeout=60)


def _place(stack: str) -> str:
    """Return the innermost function of tarry or Flower in a stack."""
    for frame in reversed(stack.split(";")):
        for package in ("tarry", "flwr"):
            if f"/{package}/" in frame:
                function, _, file = frame.partition(" (")
                return f"{function}, {package}/{file.rpartition(f'/{package}/')[2].rpartition(':')[0]}"
    return "other"


def flower_alone(size: str) -> list[dict[str, Any]]:
    """Return the most copies of a message that Flower holds at once, when it sends and when it receives one."""
    return [
        {"size": size, "process": f"Flower alone, {what}", "models": measure_in_process(_flower, WIDTH[size], what)}
        for what in ("sending", "receiving", "receiving, with join_chunks_once")
    ]


def _flower(width: int, what: str) -> float:
    from flwr.app import Array, ArrayRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects

    if what.endswith("once"):
        assert join_chunks_once()
    numbers = np.ones(n_weights(width), np.float32) * np.arange(n_weights(width), dtype=np.float32)
    message = RecordDict({"arrays": ArrayRecord({"weights": Array(numbers)})})
    size = numbers.nbytes
    del numbers
    with no_object_id_recompute():
        head, objects = message.object_id, get_all_nested_objects(message)
        contents: dict[str, bytes] = {}
        if what == "sending":
            before = _reset_peak() - size  # the message itself is a copy
            push_objects(objects, lambda _, content: time.sleep(len(content) / 1e8))
            return (peak(os.getpid()) - before) / size
        contents = {name: o.deflate() for name, o in objects.items()}
    objects.clear()
    del message
    before = _reset_peak() - size
    received = inflate_object_from_contents(head, contents)
    assert received is not None
    return (peak(os.getpid()) - before) / size


def _reset_peak() -> int:
    """Make the peak of this process what it has in memory now; return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak(os.getpid())


def table(found: dict[str, dict[str, Any]], alone: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each size and process."""
    rows: list[dict[str, Any]] = []
    for size, row in found.items():
        base, model = found[BASE]["peaks"], 4 * n_weights(WIDTH[size])
        for name, bytes_ in row["peaks"].items():
            rows.append({"size": size, "process": name, "peak_mb": round(bytes_ / 1e6)})
            if size != BASE:
                rows[-1]["models"] = round((bytes_ - base.get(name, 0)) / model, 2)
            if name == "server app":
                keys = ("method", "updates", "lost", "visit_s", "training_s")
                rows[-1].update({k: row[k] for k in keys})
                rows[-1]["sent_and_received_mb"] = round(row["bytes"] / 1e6)
                rows[-1]["written_mb"] = round(row["written"] / 1e6)
        rows += [{**r, "models": round(r["models"], 2)} for r in alone if r["size"] == size]
    return rows


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the federation is taken down
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1M,11M,100M")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--method", default="fedasync")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--name", default="large-model")
    o = parser.parse_args()
    found, samples, alone = {}, list[dict[str, Any]](), list[dict[str, Any]]()
    for size in [BASE, *o.sizes.split(",")]:
        found[size], profile = measured(size, o.method, o.updates, profile=o.profile and size != BASE)
        samples += profile
        alone += flower_alone(size) if size != BASE else []
        print(json.dumps(found[size]), flush=True)
        write(o.name, "A federation with a large model, two nodes on one machine: peak memory, seconds and bytes",
              table(found, alone))  # fmt: skip
        if samples:
            write(f"{o.name}-profile", "What a federation with a large model spends its processor time on", samples)


if __name__ == "__main__":
    main()
