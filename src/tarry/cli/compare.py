"""`tarry compare`: several methods, several seeds, one table and one page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config.spec import Spec
from ..core.errors import BadInput
from ..report.formatting import remarked
from ..report.page import write_page
from ..report.terminal import table
from ..reproduce.command import seed_numbers
from ..runs.compare import Comparison, compare_specs, specs_of
from . import console as show
from .flags import gather, with_settings

__all__ = ["compare", "run_and_show"]

DEFAULT = ("fedavg", "fedasync", "fedbuff", "orthofl")
FOLDER = Path("tarry-compare")


@with_settings(leave_out=("method", "seed", "workers"))
def compare(
    context: typer.Context,
    given: dict[str, Any],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="once for each: all, fedbuff:buffer=3, orthofl+local=fedsol, file.py:factory"),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="how many (3), or which (0, 5-7 or 0,4)")] = "0-2",
    spec: Annotated[
        Path | None, typer.Option("--spec", help="TOML file with settings and methods = [...]; flags win")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="folder; a comparison begun there goes on")] = FOLDER,
    workers: Annotated[int, typer.Option("--workers", help="runs at a time")] = 2,
) -> None:
    """Compare methods fairly: same data, same first weights, same delays; a table and a page with pictures."""
    if astray := [word for word in context.args if word.startswith("--method.")]:
        raise BadInput(f"{astray[0]}: which method? In a comparison say --method NAME:{astray[0][9:]}=VALUE")
    merged = gather(given, context, spec)
    written = merged.pop("methods", None) or [merged.pop("method", None)]
    left_out: list[str] = []
    numbers = (0,) if seeds == "0" else seed_numbers(seeds)
    specs = specs_of(method or [m for m in written if m] or DEFAULT, numbers, merged, left_out)
    show.lines(left_out)
    try:
        run_and_show(specs, out=out, workers=workers, title="Comparison", remarks=left_out)
    except BadInput as e:
        if out != FOLDER:
            raise
        flag = f"--out {out}"
        raise BadInput([p.replace(f"{flag}:", f"{flag} (the default folder):", 1) for p in e.problems]) from e


def run_and_show(specs: list[Spec], *, out: Path, workers: int, title: str, remarks: Sequence[str] = ()) -> Comparison:
    """Run the specs, print the table, leave the page; `remarks` stand on it beside the runs' own."""
    command = shlex.join(["tarry", *sys.argv[1:]])
    with show.stoppable(f"the same command goes on with what is in {out}: {command}"), show.many(specs) as progress:
        from_here = f"cd {shlex.quote(os.getcwd())} && {command}"
        comparison = compare_specs(specs, out=out, workers=workers, progress=progress, command=from_here)
    results, summary, path = comparison.results, comparison.summary, out / "report.html"
    show.lines(comparison.found)
    show.console.print(table(summary))
    show.lines(remarked(results))
    settings = _settings(specs)
    write_page(path, results, summary, title=title, settings=settings, command=command, remarks=remarks)
    show.lines([f"page with pictures: {path.resolve()}"])
    return comparison


def _settings(specs: list[Spec]) -> dict[str, str]:
    """What is the same for all of them."""
    first, *others = ({k: str(v) for k, v in vars(s).items() if v is not None} for s in specs)
    return {k: v for k, v in first.items() if k not in ("method", "seed") and all(o.get(k) == v for o in others)}
