"""Start-up of the command line: seconds of `tarry --help`, of other commands' --help, and of shell completion.

    python benchmarks/startup.py [--repeats 10]

Each row is the median of that many processes, in turns with the other rows, after one that is not counted. A Python
process that does nothing and one that imports torch are measured for comparison. A bar is the most that a row may take.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from record import write

#: what the script `tarry` does
TARRY = [sys.executable, "-c", "import sys; sys.argv[0] = 'tarry'; from tarry.cli.app import main; main()"]
#: name, command, environment, seconds that it may take at most
CASES: list[tuple[str, list[str], dict[str, str], float | None]] = [
    ("python -c pass", [sys.executable, "-c", "pass"], {}, None),
    ("python -c 'import torch'", [sys.executable, "-c", "import torch"], {}, None),
    ("tarry --help", [*TARRY, "--help"], {}, 0.4),
    ("tarry watch --help", [*TARRY, "watch", "--help"], {}, 0.4),
    ("tarry reproduce --help", [*TARRY, "reproduce", "--help"], {}, 0.4),
    ("tarry federation status --help", [*TARRY, "federation", "status", "--help"], {}, 0.4),
    ("tarry run --help", [*TARRY, "run", "--help"], {}, 0.4),
    ("completion of a command", TARRY, {"COMP_WORDS": "tarry re", "COMP_CWORD": "1"}, 0.3),
    ("completion of a flag", TARRY, {"COMP_WORDS": "tarry run --lr", "COMP_CWORD": "2"}, 0.3),
]


def seconds(command: list[str], extra: dict[str, str]) -> float:
    """Return how long a process takes."""
    completion = {"_TARRY_COMPLETE": "complete_bash"} if "COMP_WORDS" in extra else {}
    began = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **extra, **completion}, capture_output=True, check=True)
    took = time.perf_counter() - began
    assert done.stdout or command[:3] != TARRY, f"{command} {extra} printed nothing"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    took: dict[str, list[float]] = {name: [] for name, *_ in CASES}
    for number in range(options.repeats + 1):
        for name, command, extra, _ in CASES:
            once = seconds(command, extra)
            if number:
                took[name].append(once)
    rows: list[dict[str, Any]] = []
    for name, _, _, bar in CASES:
        row = {"command": name, "seconds": round(median(took[name]), 3), "slowest": round(max(took[name]), 3)}
        row |= {} if bar is None else {"at_most": bar}
        rows.append(row)
        print("  ".join(f"{k} {v}" for k, v in row.items()))
    write("startup", f"Start-up of the command line (median of {options.repeats} processes)", rows)


if __name__ == "__main__":
    main()
