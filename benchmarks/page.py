"""The page docs/benchmarks.md, from benchmarks/results/*.json: goals and what was reached, then a table per file.

    python benchmarks/page.py [--results benchmarks/results] [--out docs/benchmarks.md]

A results file is an object: "what" was measured, the "command", the machine and versions, and "rows", each an object of
column → value. A row with an "error" was not measured, and the page says why. A row's "bar" is the lowest ratio that is
wanted, "at_most" the highest. A yes/no column that is the same in all rows of a file is written once, above the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
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
    "copies": "in copies",
    "copies_quartiles": "quartiles",
    "copies_strict": "no second reading counted",
}
HEAD = """# Benchmarks

`benchmarks/page.py` writes this page from `benchmarks/results/`. `make bench` and, with a GPU, `make bench-gpu` write
the results. Each table names its machine, date and commit. Ratios are within one run on one machine, so ratios of
different machines can be compared. Speeds cannot. On the H200, the speed of the bare loop varies from one process to
the next (440 to 620 steps of LeNet5 or the CNN per second, 76 and 91 of ResNet18), and the ratios vary with it.
"""
ORDER = (
    "startup",
    "overhead",
    "cpu",
    "gpu",
    "peers",
    "server",
    "local",
    "scale",
    "engine",
    "long",
    "verify",
    "cache",
    "ray",
    "federation",
    "fleet",
    "slow",
    "large",
)
RATIOS = ("ratio", "copies", "of plain SGD", "seconds")  # the columns that a bar is for
MODELS = {"mlp": "digits' MLP, batch 32", "lenet5": "LeNet5", "cnn": "McMahan's CNN, batch 50", "resnet18": "ResNet18"}
NOTES = {
    "long-run": "Each row is a segment of one run, in a process of its own; the last row has the slopes, per million"
    " updates. Memory, the time of a checkpoint, the start of `resume` and a refresh of `watch` do not grow with the"
    " log. The size of a checkpoint varies with the bins of the diagnostics, of which there are 256 to 512. Only the"
    " first look of `watch` reads the whole log, and `verify` does.",
    "fleet": "Each node is a stub in one process for each link: it speaks Flower's Fleet protocol, trains 610 weights,"
    " and holds each visit for a scripted time. CPU, requests and updates/s are those of the second half of the run."
    " `accepted after` is the time from the end of a reply's upload to its row in the journal. `share of alone` is the"
    " part of the requests per second that SuperLinks without tarry answer in the same run; `per cpu second` is"
    " the same for each second of their CPU, which does not depend on what else the machine does.",
    "fleet-without-quick-link": "The same with `TARRY_QUICK_LINK=0` in the environment: a SuperLink as Flower made it.",
    "slow-clients": "Rates are medians of the windows, which are listed. A window's count varies by one update or two.",
    "peers": "LeNet5 (44,190 weights), 100 clients, batch 20, one local epoch of SGD, 10 clients per round or in"
    " flight, one torch thread per process. The bare loop is the same training in plain PyTorch, in the same process,"
    " in turns with the peer. A peer that trains in two processes may be faster than it. Start-up is the time from"
    " the start of the process to the first update, or round: the shorter one of two runs. Memory is the peak of"
    " the process and its children, with shared memory counted once, in a run without the bare loop.",
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
    """Return a table with a column for each key, in order of appearance; columns of numbers are right-aligned."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numbers = {c for c in columns if all(is_number(row[c]) for row in rows if row.get(c) is not None)}
    return [
        "| " + " | ".join(HEADINGS.get(c, c.replace("_", " ")) for c in columns) + " |",
        "|" + "|".join("---:" if c in numbers else "---" for c in columns) + "|",
        *("| " + " | ".join(text(row.get(c)) for c in columns) + " |" for row in rows),
    ]


def skipped_line(row: dict[str, Any]) -> str:
    who = ", ".join(
        f"{HEADINGS.get(k, k)} {v}" if is_number(v) else str(v) for k, v in row.items() if k != "error" and v
    )
    return f"- Left out: {who}: {text(row['error'])}"


def title(name: str, found: dict[str, Any]) -> str:
    """Return what was measured; for files of the same kind also the models, the device and the options."""
    what = found.get("what", name)
    models = dict.fromkeys(row["row"].partition("-")[0] for row in found["rows"] if "row" in row)
    if not models:
        return str(what)
    options = [name for name, yes in same(found["rows"]).items() if yes]
    device = "GPU" if "gpu" in found else "processor"
    return f"{what}: {', '.join(models)} on a {device}{''.join(', ' + option for option in options)}"


def same(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the yes/no columns that are the same in all rows."""
    flags = dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, bool))
    answers = {k: {row.get(k) for row in rows if "error" not in row} for k in flags}
    return {k.replace("_", " "): next(iter(values)) for k, values in answers.items() if len(values) == 1}


def section(name: str, found: dict[str, Any]) -> list[str]:
    """Return the section of one results file."""
    rows, options = found["rows"], same(found["rows"])
    about = {k: v for k, v in found.items() if k not in ("what", "command", "rows") and not isinstance(v, dict | list)}
    lines = [f"## {title(name, found)}", ""]
    if "command" in found:
        lines += [f"    {found['command']}", ""]
    about = {"file": f"{name}.json", **about}
    header = {**about, **options}
    lines += ["; ".join(f"{k.replace('_', ' ')}: {text(v)}" for k, v in header.items()) + ".", ""] if header else []
    lines += [NOTES[name], ""] if name in NOTES else []
    shown = [{k: v for k, v in row.items() if k.replace("_", " ") not in options} for row in rows]
    measured = [row for row in shown if "error" not in row]
    lines += [*table(measured), ""] if measured else []
    failed = [skipped_line(row) for row in shown if "error" in row]
    return [*lines, *failed, ""] if failed else lines


def called(name: str, row: dict[str, Any]) -> str:
    """Return a name for a row with a bar."""
    if "row" not in row:
        key = next(k for k, v in row.items() if isinstance(v, str))
        more = [f"{row[k]} {HEADINGS.get(k, k)}" for k in ("threads", "samples") if k in row]
        return ", ".join([f"{name}: {row[key]}", *more])
    model, n, *rest = row["row"].split("-")
    return ", ".join([MODELS.get(model, model), f"{n} in flight", *rest])


def goals(files: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each bar with the best result for it, over all configurations."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for name, found in files.items():
        for row in found["rows"]:
            least, most = row.get("bar"), row.get("at_most")
            if "error" in row or (least is None and most is None):
                continue
            reached = next(row[k] for k in RATIOS if k in row)
            where = found.get("gpu") or found.get("cpu") or found.get("machine")
            goal = {
                "what": called(name, row), "on": where, "reached": float(reached),
                "wanted": f"≥ {text(least)}" if least is not None else f"≤ {text(most)}",
                "met": reached >= least if least is not None else reached <= most,
            }  # fmt: skip
            before = best.setdefault((goal["what"], str(where)), goal)
            if (before["reached"] < reached) is (least is not None):
                best[goal["what"], str(where)] = goal
    yield from best.values()


def page(results: Path) -> str:
    def place(path: Path) -> tuple[int, str]:
        kind = path.stem.partition("-")[0]
        return ORDER.index(kind) if kind in ORDER else len(ORDER), path.stem

    paths = sorted(results.glob("*.json"), key=place)
    files = {path.stem: json.loads(path.read_text()) for path in paths}
    lines = [HEAD]
    if reached := list(goals(files)):
        lines += ["## Goals, and the best result for each", "", *table(reached), ""]
    for name, found in files.items():
        lines += section(name, found)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    options = parser.parse_args()
    options.out.write_text(page(options.results))


if __name__ == "__main__":
    main()
