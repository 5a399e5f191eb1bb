"""Speed of this tree relative to an earlier commit: both run the same benchmarks, in turns.

    python benchmarks/versions.py [--reference 6bb0e11] [--repeats 5] [--only overhead,server,engine,batched]

The reference is unpacked into a temporary folder. Each repeat runs a benchmark with the reference and with this tree,
directly after each other, in alternating order. A row compares the medians of the two: `ratio` is the rate now divided
by the rate before, so 1 means equal and less than 1 means slower; `lowest` and `highest` are those of single repeats.
benchmarks/results/versions.json is written after each benchmark. Rates are those that the benchmarks report relative
to a bare loop or to a plain copy in the same process; events per second are relative to a bare heap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

from record import write

ROOT = Path(__file__).resolve().parent.parent
#: arguments, the results file, the keys that name a row, and the measured key; a leading "/" means that less is faster
BENCHMARKS: dict[str, tuple[list[str], str, tuple[str, ...], str]] = {
    "overhead": (["--rounds", "3", "--samples", "60"], "overhead", ("samples",), "ratio"),
    "server": (["--rounds", "7", "--name", "versions-server"], "versions-server", ("method", "threads"), "/copies"),
    "engine": (["--visits", "40000"], "engine", ("what",), "events_per_s"),
    "batched": (
        ["--lanes", "1", "--size", "0", "--rounds", "5", "--only", "mlp", "--name", "versions-batched"],
        "versions-batched",
        ("row", "lanes"),
        "ratio",
    ),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", default="6bb0e11", help="the commit to compare with")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each benchmark in each tree")
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="benchmarks, separated by commas")
    return parser.parse_args()


def unpack(commit: str, folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def copy_worktree(folder: Path) -> Path:
    """Copy the tracked files of this tree, so that results that the benchmarks write do not replace the stored ones."""
    names = subprocess.run(["git", "ls-files", "-z", "src", "benchmarks"], cwd=ROOT, capture_output=True, check=True)
    for name in names.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def measure(tree: Path, name: str) -> dict[str, float]:
    """Run a benchmark in a tree and return its rates by row; more is faster."""
    arguments, file, keys, metric = BENCHMARKS[name]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(tree / "benchmarks" / f"{name}.py"), *arguments]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tree / "benchmarks" / "results" / f"{file}.json").read_text())["rows"]
    rates, seen = {}, Counter[str]()
    for row in rows:
        label = " ".join(str(row[k]) for k in keys)
        seen[label] += 1  # rows with equal labels are compared in their order
        rates[f"{label} {seen[label]}"] = 1 / row[metric[1:]] if metric.startswith("/") else row[metric]
    if name == "engine":  # the last row is the bare heap
        *engine, heap = rates
        return {key: rates[key] / rates[heap] for key in engine}
    return rates


def titles(tree: Path, name: str) -> list[str]:
    """Return a title for each row: its texts, and the numbers that name it."""
    _, file, keys, _ = BENCHMARKS[name]
    rows = json.loads((tree / "benchmarks" / "results" / f"{file}.json").read_text())["rows"]
    named = [{k: v for k, v in row.items() if isinstance(v, str) or k in keys} for row in rows]
    return [" ".join(dict.fromkeys(map(str, texts.values()))) for texts in named]


def main() -> None:
    o = options()
    with tempfile.TemporaryDirectory() as scratch:
        before, now = unpack(o.reference, Path(scratch, "before")), copy_worktree(Path(scratch, "now"))
        table: list[dict[str, Any]] = []
        for name in o.only.split(","):
            rates: dict[Path, list[dict[str, float]]] = {before: [], now: []}
            for repeat in range(o.repeats):
                for tree in (before, now) if repeat % 2 == 0 else (now, before):
                    rates[tree].append(measure(tree, name))
            for key, title in zip(rates[now][0], titles(now, name), strict=False):
                if key not in rates[before][0]:
                    continue  # a row that the reference does not have
                old, new = (median(r[key] for r in rates[tree]) for tree in (before, now))
                row = {"benchmark": name, "row": title, "before": old, "now": new}
                pairs = [n[key] / b[key] for b, n in zip(rates[before], rates[now], strict=True)]
                table.append({**row, "ratio": new / old, "lowest": min(pairs), "highest": max(pairs)})
                print(f"{name:10}{row['row']:66}{old:10.4f}{new:10.4f}{new / old:8.3f}", flush=True)
            write(
                "versions",
                f"Rates of this tree relative to commit {o.reference}, {o.repeats} runs of each in turns",
                table,
            )


if __name__ == "__main__":
    main()
