"""What a run comes to, in a simulation or over the wire: its numbers, and the files that say it is over.

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
from .build import Plan
from .personalize import best_constant

__all__ = ["Tally", "finish", "summed_up"]


class Tally(Protocol):
    """What is counted on the way."""

    time: float
    updates: int
    lost: int
    refused: int
    bytes_up: int
    bytes_down: int
    staleness: Counter[int]
    curve: list[Point]
    server: Server


def summed_up(made: Plan, tally: Tally, **more: Any) -> Result:
    """The numbers as they are now; `more` is what only the caller knows: wall_s, remarks, trained, out ..."""
    server, spec = tally.server, made.spec
    accuracy, loss = tally.curve[-1][2:] if tally.curve else (None, None)
    return Result(
        method=made.method.name,
        label=spec.label,
        task=made.task.name,
        seed=spec.seed,
        n_clients=server.n_clients,
        virtual_time=tally.time,
        updates=tally.updates,
        rounds=server.version,
        final_accuracy=accuracy,
        final_loss=loss,
        curve=tally.curve,
        staleness=staleness_summary(tally.staleness),
        lost=tally.lost,
        refused=tally.refused,
        weights_sha256=sha256(server.answer),
        bytes_up=tally.bytes_up,
        bytes_down=tally.bytes_down,
        peak_server_bytes=server.ledger.peak,
        tarry=__version__,
        chance=best_constant(made.task),
        target=spec.target,
        weights=server.answer,
        **more,
    )


def finish(folder: Path, layout: Layout, result: Result) -> None:
    """Write the weights by name, then the result."""
    from safetensors.numpy import save

    assert result.weights is not None
    named = {k: v.numpy() for k, v in layout.views(result.weights.cpu()).items()}
    write_atomic(folder / "model.safetensors", save(named))
    write_atomic(folder / "result.json", result.to_json().encode())
