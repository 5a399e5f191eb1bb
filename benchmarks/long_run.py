"""Cost of a long run: memory, checkpoints, resuming and watching, as slopes over a million updates.

    python benchmarks/long_run.py [--updates 1000000] [--segments 10]

A small model (650 weights) of 20 clients is trained by FedAsync in a folder, with diagnostics and a checkpoint every
second. The run is stopped by SIGTERM after each segment and resumed in a new process. A row describes one segment:
the memory of its process after a tenth of the segment and at its end, checkpoints (median), the time from the start of
`resume` to the first event, the time in which `tarry watch` reads the whole log and then 100 new rows, and the time of
`tarry verify`. The last row gives the slopes: the change over a million updates, from a least-squares line.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import torch
from torch import nn

import tarry
from record import measure_in_process, write
from tarry.cli.watch import LogReader
from tarry.record import checkpoint
from tarry.record.rows import encode_row, read_events
from tarry.runs.signals import Interrupted, handled
from tarry.tasks import tasks
from tarry.vector.process import tune_malloc

CLIENTS, EACH, BATCH = 20, 20, 20


def make_task() -> tarry.Task:
    x, y = tasks.build("digits").train
    at = torch.randint(len(x), (CLIENTS, EACH), generator=torch.Generator().manual_seed(0))
    data = list(zip(x[at].unbind(), y[at].unbind(), strict=True))
    model, loss = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.functional.cross_entropy
    return tarry.Task("digits", model=model, loss=loss, clients=data, test=(x[:100], y[:100]))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Observer:
    """A listener that measures a segment, and ends it by a signal after `end` updates."""

    def __init__(self, begin: int, end: int, last: int) -> None:
        self.early, self.end, self.last = begin + (end - begin) // 10, end, last
        self.began, self.first_event, self.first_mb = time.perf_counter(), 0.0, 0.0
        self.finished = 0.0

    def __call__(self, event: tarry.Event) -> None:
        self.first_event = self.first_event or time.perf_counter()
        if event.kind != "arrival":
            return
        if event.updates == self.early:
            self.first_mb = resident_mb()
        if event.updates == self.end:
            self.finished = time.perf_counter()
            if self.end < self.last:
                os.kill(os.getpid(), signal.SIGTERM)


def segment(folder: Path, begin: int, end: int, last: int) -> dict[str, Any]:
    """Train from `begin` to `end` updates and return the measurements."""
    torch.set_num_threads(1)
    tune_malloc()
    seconds: list[float] = []
    plain = checkpoint.Checkpoints.save

    def timed(*args: Any) -> Path:
        start = time.perf_counter()
        path = plain(*args)
        seconds.append(time.perf_counter() - start)
        return path

    checkpoint.Checkpoints.save = timed
    task, observer = make_task(), Observer(begin, end, last)
    observer.began = time.perf_counter()
    try:
        with handled():
            if begin:
                tarry.resume(folder, task=task, callbacks=[observer])
            else:
                tarry.run(
                    "fedasync", task, updates=last, eval_every=last / 20, steps=1, batch=BATCH, delay="exponential",
                    out=folder, callbacks=[observer], diagnose=True, checkpoint_every=1.0,
                )  # fmt: skip
    except Interrupted:
        pass
    log, files = folder / "events.jsonl", sorted((folder / "checkpoints").glob("*.safetensors"))
    return {
        "updates": end,
        "log_mb": log.stat().st_size / 1e6,
        "updates_per_s": (end - begin) / (observer.finished - observer.first_event),
        "memory_early_mb": observer.first_mb,
        "memory_end_mb": resident_mb(),
        "checkpoints": len(seconds),
        "checkpoint_ms": 1e3 * median(seconds),
        "checkpoint_kb": files[-1].stat().st_size / 1e3,
        "resume_s": observer.first_event - observer.began if begin else None,
    }


def watch(log: Path) -> tuple[float, float]:
    """Return the milliseconds of a first look at a log, and those of a refresh after 100 more rows."""
    reader, start = LogReader(log), time.perf_counter()
    reader.read()
    first = time.perf_counter() - start
    rows, before = [row for row, _ in zip(read_events(log), range(100), strict=False)], log.stat().st_size
    mark = reader._mark
    with log.open("ab") as f:
        for row in rows:
            line, mark = encode_row(row, mark)
            f.write(line)
    start = time.perf_counter()
    reader.read()
    refresh = time.perf_counter() - start
    with log.open("ab") as f:
        f.truncate(before)
    return 1e3 * first, 1e3 * refresh


def verify(folder: Path) -> float:
    """Return the seconds of `tarry verify`; the folder must be consistent."""
    start = time.perf_counter()
    assert tarry.verify(folder).ok
    return time.perf_counter() - start


def slopes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the slope of every measurement, per million updates."""
    found: dict[str, Any] = {"updates": "slope per million"}
    for name in rows[0]:
        points = [(row["updates"] / 1e6, row[name]) for row in rows if row[name] is not None]
        if name != "updates" and len(points) > 1:
            found[name] = linear_regression(*zip(*points, strict=True)).slope
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--segments", type=int, default=10)
    o = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, size = Path(scratch, "run"), o.updates // o.segments
        for k in range(o.segments):
            row = measure_in_process(segment, folder, k * size, (k + 1) * size, o.segments * size)
            row["watch_first_ms"], row["watch_refresh_ms"] = measure_in_process(watch, folder / "events.jsonl")
            row["verify_s"] = measure_in_process(verify, folder)
            rows.append(row)
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    rows.append(slopes(rows))
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()})
    write("long-run", "A run of many updates in segments: memory, checkpoints, resuming, watching", rows)


if __name__ == "__main__":
    main()
