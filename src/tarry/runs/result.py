"""The result of a run, of a simulation or a federation, and the files that mark a run as finished.

OUT/model.safetensors    the final global weights by name
OUT/result.json          written last: a run with a result is finished
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from ..core.layout import Layout
from ..core.server import Server
from ..record.result import Point, Result, sha256, staleness_summary, write_atomic
from ..version import __version__
from .build import BuiltRun
from .personalize import majority_accuracy

__all__ = ["Counters", "finish", "make_result"]


class Counters(Protocol):
    """What a simulator or a federation counts during a run."""

    time: float
    updates: int
    lost: int
    rejected: int
    bytes_up: int
    bytes_down: int
    staleness: Counter[int]
    curve: list[Point]
    server: Server


def make_result(built: BuiltRun, counters: Counters, **more: Any) -> Result:
    """Return the result so far; `more` are the fields that only the caller knows: wall_s, remarks, trained, out ..."""
    server, spec = counters.server, built.spec
    accuracy, loss = counters.curve[-1][2:] if counters.curve else (None, None)
    return Result(
        method=built.method.name,
        label=spec.label,
        task=built.task.name,
        seed=spec.seed,
        n_clients=server.n_clients,
        virtual_time=counters.time,
        updates=counters.updates,
        rounds=server.version,
        final_accuracy=accuracy,
        final_loss=loss,
        curve=counters.curve,
        staleness=staleness_summary(counters.staleness),
        lost=counters.lost,
        refused=counters.rejected,
        weights_sha256=sha256(server.answer),
        bytes_up=counters.bytes_up,
        bytes_down=counters.bytes_down,
        peak_server_bytes=server.ledger.peak,
        tarry=__version__,
        chance=majority_accuracy(built.task),
        target=spec.target,
        weights=server.answer,
        **more,
    )


def finish(folder: Path, layout: Layout, result: Result) -> None:
    """Write the weights by name, then the result: a folder with a result holds a finished run."""
    from safetensors.numpy import save

    assert result.weights is not None
    named = {k: v.numpy() for k, v in layout.views(result.weights.cpu()).items()}
    write_atomic(folder / "model.safetensors", save(named))
    write_atomic(folder / "result.json", result.to_json().encode())
