"""Time of `tarry verify` for folders of 0.1 to 1 GB: a process from its start to its end.

    python benchmarks/verify.py [--repeats 3]

FedBuff trains a model of one hidden layer, one step a visit, with a checkpoint after every second. A row describes a
folder: its size, the median time of several processes, and the most that is wanted, 2 s and 1 s for every 200 MB. The
files are in the cache of the disk. The last rows train the stored visits again, and the whole run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import tarry
from record import write

LARGE, MEDIUM, SMALL = 150_000, 30_000, 64  # hidden units: models of 45 MB, 9 MB and 20 KB


def settings(hidden: int, updates: int) -> dict[str, Any]:
    task = {"name": "digits", "limit": 400, "hidden": hidden}
    return {"task": task, "clients": 6, "updates": updates, "steps": 1, "batch": 16, "checkpoint_every": 1.0}


def one_run(folder: Path, hidden: int, updates: int) -> Path:
    tarry.run("fedbuff:buffer=2", out=folder, **settings(hidden, updates))
    return folder


def interrupted_run(folder: Path) -> Path:
    """Leave a run of the large model with two checkpoints and no result."""
    last = 40

    def stop(event: tarry.Event) -> None:
        if event.updates == last:
            raise KeyboardInterrupt

    try:
        tarry.run("fedbuff:buffer=2", out=folder, callbacks=[stop], **settings(LARGE, last + 1))
    except KeyboardInterrupt:
        return folder
    raise AssertionError("it was not interrupted")


def comparison(folder: Path) -> Path:
    tarry.compare(["fedbuff:buffer=2", "fedasync"], seeds=range(3), out=folder, **settings(MEDIUM, 30))
    return folder


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def seconds(folder: Path, *more: str) -> float:
    """Return how long the command takes; the folder must be consistent."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tarry", "verify", str(folder), *more], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {
            "a small run": one_run(Path(scratch, "small"), SMALL, 40),
            "a run of 20,000 updates": one_run(Path(scratch, "long"), SMALL, 20_000),
            "a run of a 45 MB model": one_run(Path(scratch, "large"), LARGE, 40),
            "the same, not finished": interrupted_run(Path(scratch, "interrupted")),
            "a comparison: six runs of a 9 MB model": comparison(Path(scratch, "comparison")),
        }
        for name, folder in folders.items():
            took, size = median(seconds(folder) for _ in range(repeats)), megabytes(folder)
            rows.append({"folder": name, "MB": round(size), "seconds": round(took, 2), "at_most": 2 + size / 200})
            print(rows[-1], flush=True)
        for name in ("a small run", "a run of a 45 MB model"):
            for rerun in ("proofs", "all"):
                took = seconds(folders[name], "--rerun", rerun)
                rows.append({"folder": f"{name}, --rerun {rerun}", "seconds": round(took, 2)})
                print(rows[-1], flush=True)
    write("verify", "Time of `tarry verify`", rows)


if __name__ == "__main__":
    main()
