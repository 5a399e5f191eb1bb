"""Measured seconds of a function, and the name of the machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

__all__ = ["machine", "seconds"]


def machine(device: str) -> str:
    """Return the name of the graphics card, or of the processor with the number of threads."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(row.partition(":")[2].strip() for row in lines if row.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def seconds(work: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """The median of so many goes at each, in turn, so that slow minutes affect all alike; the first is not counted."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for go in range(repeats + 1):
        for name, do in work.items():
            _settle(device)
            began = perf_counter()
            do()
            _settle(device)
            if go:
                times[name].append(perf_counter() - began)
    return {name: median(all_) for name, all_ in times.items()}


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
