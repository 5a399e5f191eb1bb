"""Results files of benchmarks: benchmarks/results/NAME.json, with the machine, the versions and the command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def write(name: str, what: str, rows: list[dict[str, Any]], *, args: list[str] | None = None) -> Path:
    """Write one table. A run on a GPU has "gpu" in its name, so that it does not replace the one on a CPU."""
    given = sys.argv[1:] if args is None else args
    record = {
        "what": what,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *given]),
        **machine(),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def measure_in_process(measure: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own, so that its memory is not counted for the next one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *args).result()


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    here = {"machine": platform.machine(), "cpu": _processor(), "cores": _cores(), "gpu": gpu}
    return {
        **{k: v for k, v in here.items() if v is not None},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "commit": _commit(),
    }


def _processor() -> str | None:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str | None:
    completed = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=RESULTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return completed.stdout.strip() or None
