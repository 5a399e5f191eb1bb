"""`tarry run`: one method on one task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import console
from .flags import gather, with_settings
from .own_process import in_own_process

__all__ = ["run"]


@with_settings()
def run(
    context: typer.Context,
    given: dict[str, Any],
    spec: Annotated[
        Path | None,
        typer.Option("--spec", help="Read settings from this TOML file; flags take precedence", show_default="none"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the record of the run to this new folder", show_default="none")
    ] = None,
) -> None:
    """Run one method on one task under the virtual clock.

    Parameters of the method, task, delay and partition go as --method.NAME value, --delay.NAME value and so on.
    """
    from ..config.spec import Spec
    from ..runs.run import run_spec

    resolved = Spec.of_expanded(gather(given, context, spec))
    with console.on_interrupt(lambda: console.way_to_resume(out)):
        if resolved.executor == "ray":
            in_own_process(resolved.address)
        with console.run_progress(resolved.label) as progress:
            result = run_spec(resolved, out=out, progress=progress)
    console.print_result(result)
