"""`tarry demo`: the main job on the embedded digits, in under two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..runs.compare import specs_of
from .compare import run_and_show

__all__ = ["DEMO", "demo"]

#: ten clients with Raspberry-Pi delays, each holding mostly one or two of the ten digits
DEMO = {
    "task": "digits",
    "clients": 10,
    "partition": "dirichlet:alpha=0.1",
    "delay": "orthofl-rpi",
    "time": 15000.0,
    "epochs": 5,
    "batch": 32,
    "lr": 0.1,
}
METHODS = ("fedavg", "fedasync", "fedbuff:buffer=3", "orthofl")


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the record and the page")] = Path("tarry-demo"),
    seeds: Annotated[int, typer.Option("--seeds", help="how many seeds")] = 3,
    workers: Annotated[int, typer.Option("--workers", help="runs at a time")] = 2,
) -> None:
    """FedAvg, FedAsync, FedBuff and OrthoFL on handwritten digits under Raspberry-Pi delays; needs no download."""
    run_and_show(specs_of(METHODS, range(seeds), dict(DEMO)), out=out, workers=workers, title="tarry demo")
