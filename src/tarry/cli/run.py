"""`tarry run`: one method on one task."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ..config.spec import Spec
from ..runs.run import run_spec
from . import console as show
from .flags import gather, with_settings

__all__ = ["run"]


@with_settings()
def run(
    context: typer.Context,
    given: dict[str, Any],
    spec: Annotated[Path | None, typer.Option("--spec", help="TOML file with settings; flags win")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="new folder for the record of the run")] = None,
) -> None:
    """Run one method on one task under the virtual clock.

    Parameters of the method, task, delay and partition go as --method.NAME value, --delay.NAME value and so on.
    """
    resolved = Spec.of_expanded(gather(given, context, spec))
    go_on = "nothing is left of it: it had no --out" if out is None else f"`tarry resume {quote(str(out))}` goes on"
    with show.stoppable(go_on), show.one(resolved.label) as progress:
        result = run_spec(resolved, out=out, progress=progress)
    show.result_lines(result)
