"""docs/benchmarks.md from benchmarks/results/*.json: a table for each file, with the machine and the command.

    python benchmarks/page.py [--results benchmarks/results] [--out docs/benchmarks.md]

A results file is an object: "what" was measured, the "command", the machine and versions, and "rows", each an object of
column → value; a row with an "error" was left out of the measurement, and the page says why.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = {
    "updates_per_s": "updates/s",
    "bare_updates_per_s": "bare loop, updates/s",
    "ratio": "of the bare loop",
    "start_up_s": "start-up, s",
    "peak_mb": "memory, MB",
    "samples": "samples a client",
}
HEAD = """# Benchmarks

Written by `make bench` (`benchmarks/page.py`) from `benchmarks/results/`; not by hand. Ratios are within one run on one
machine, so that they can be compared with those of another machine; speeds cannot.
"""
NOTES = {
    "peers": "LeNet5 (44,190 weights), 100 clients, batch 20, one local epoch of SGD, 10 clients a round or in flight,"
    " torch on one thread a process. The bare loop is the same training in plain PyTorch, in the same process, turn"
    " about with the peer; what trains in two processes may be faster. Start-up: from the start of the process to the"
    " first update, or round. Memory: the most that the process and its children hold, what they share counted once."
}


def text(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A column for every key, in the order they first come; columns of numbers are set to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numbers = {c for c in columns if all(is_number(row[c]) for row in rows if row.get(c) is not None)}
    return [
        "| " + " | ".join(HEADINGS.get(c, c.replace("_", " ")) for c in columns) + " |",
        "|" + "|".join("---:" if c in numbers else "---" for c in columns) + "|",
        *("| " + " | ".join(text(row.get(c)) for c in columns) + " |" for row in rows),
    ]


def left_out(row: dict[str, Any]) -> str:
    who = ", ".join(
        f"{HEADINGS.get(k, k)} {v}" if is_number(v) else str(v) for k, v in row.items() if k != "error" and v
    )
    return f"- Left out: {who}: {text(row['error'])}"


def section(name: str, found: dict[str, Any]) -> list[str]:
    """What one results file says."""
    rows = found["rows"]
    about = {k: v for k, v in found.items() if k not in ("what", "command", "rows") and not isinstance(v, dict | list)}
    lines = [f"## {found.get('what', name)}", ""]
    if "command" in found:
        lines += [f"    {found['command']}", ""]
    lines += ["; ".join(f"{k.replace('_', ' ')}: {text(v)}" for k, v in about.items()) + ".", ""] if about else []
    lines += [NOTES[name], ""] if name in NOTES else []
    measured = [row for row in rows if "error" not in row]
    lines += [*table(measured), ""] if measured else []
    failed = [left_out(row) for row in rows if "error" in row]
    return [*lines, *failed, ""] if failed else lines


def page(results: Path) -> str:
    lines = [HEAD]
    for path in sorted(results.glob("*.json")):
        lines += section(path.stem, json.loads(path.read_text()))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    options = parser.parse_args()
    options.out.write_text(page(options.results))


if __name__ == "__main__":
    main()
