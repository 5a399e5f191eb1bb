"""`tarry demo`: four methods on the digits that come with tarry, in under two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DEMO", "demo"]

#: ten clients with Raspberry Pi delays, each with mostly one or two of the ten digits
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
_BEGINNING = (
    "Ten simulated clients as slow as Raspberry Pis learn handwritten digits together, with one method that waits for"
    " all of them and three that do not."
)
#: what to do after the demo: another run, and your own method
NEXT = (
    "tarry run --method fedasync --clients 10 --time 5000 --out runs/first",
    "tarry new method mine",
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Write the runs and the page to this folder")] = Path("tarry-demo"),
    seeds: Annotated[int, typer.Option("--seeds", help="Run this many seeds")] = 3,
    workers: Annotated[int, typer.Option("--workers", help="Run this many runs at a time")] = 2,
) -> None:
    """Compare four methods on handwritten digits under Raspberry Pi delays, without any download."""
    from ..runs.specs import specs_of
    from . import console
    from .compare import run_and_show

    console.print_lines([_BEGINNING])
    run_and_show(specs_of(METHODS, range(seeds), dict(DEMO)), out=out, workers=workers, title="tarry demo")
    console.print_lines(["try next:", *(f"    {command}" for command in NEXT)])
