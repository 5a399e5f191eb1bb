"""`tarry compare`: several methods, several seeds, one table and one page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import BadInput
from ..reproduce.options import seed_numbers
from . import console
from .flags import gather, with_settings
from .own_process import in_own_process

if TYPE_CHECKING:
    from ..config.spec import Spec
    from ..runs.comparison import Comparison
    from ..runs.tuning.tuned_file import TunedSettings

__all__ = ["compare", "reject_method_parameters", "run_and_show"]

DEFAULT = ("fedavg", "fedasync", "fedbuff", "orthofl")
FOLDER = Path("tarry-compare")


@with_settings(leave_out=("method", "seed", "workers", "axes"))
def compare(
    context: typer.Context,
    given: dict[str, Any],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Add a method, in the form all, fedbuff:buffer=3, orthofl+local=fedsol or file.py:factory",
            show_default=", ".join(DEFAULT),
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Run this many seeds (3), or these (0, 5-7 or 0,4)")] = "0-2",
    spec: Annotated[
        Path | None,
        typer.Option(
            "--spec",
            help="Read settings and methods = [...] from this TOML file; flags take precedence",
            show_default="none",
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--tuned",
            help="Give every method the tuned settings of this file, which `tarry tune` wrote",
            show_default="none",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Write all runs to this folder, or resume the comparison in it")
    ] = FOLDER,
    workers: Annotated[int, typer.Option("--workers", help="Run this many runs at a time")] = 2,
) -> None:
    """Compare methods on the same data, first weights and delays; write a table and a page with plots.

    A number or a choice may have several values, --lr 0.1,0.05: then every combination is run.
    """
    from ..runs.specs import specs_of
    from ..runs.tuning.tuned_file import read_tuned
    from ..runs.tuning.tuned_specs import tuned_specs

    reject_method_parameters(context)
    merged = gather(given, context, spec)
    written = merged.pop("methods", None) or [merged.pop("method", None)]
    skipped: list[str] = []
    numbers = (0,) if seeds == "0" else seed_numbers(seeds)
    methods = method or [m for m in written if m] or None
    record = None if tuned is None else read_tuned(tuned)
    if record is None:
        specs = specs_of(methods or DEFAULT, numbers, merged, skipped)
    else:
        specs = tuned_specs(record, methods, numbers, merged)
    console.print_lines(skipped)
    try:
        run_and_show(specs, out=out, workers=workers, title="Comparison", notices=skipped, tuned=record)
    except BadInput as e:
        if out != FOLDER:
            raise
        flag = f"--out {out}"
        raise BadInput([p.replace(f"{flag}:", f"{flag} (the default folder):", 1) for p in e.problems]) from e


def reject_method_parameters(context: typer.Context) -> None:
    """Raise BadInput for `--method.NAME value`, which does not say of which method."""
    if without_method := [word for word in context.args if word.startswith("--method.")]:
        word = without_method[0]
        raise BadInput(f"{word}: which method? In a comparison say --method NAME:{word[9:]}=VALUE")


def run_and_show(
    specs: list[Spec],
    *,
    out: Path,
    workers: int,
    title: str,
    notices: Sequence[str] = (),
    tuned: TunedSettings | None = None,
) -> Comparison:
    """Run the specs, print the table and write the page, which shows `notices` and those of the runs."""
    from ..report.formatting import warning_lines
    from ..report.page import write_page
    from ..report.terminal import table
    from ..runs.compare import compare_specs

    command = shlex.join(["tarry", *sys.argv[1:]])
    go_on = f"the same command resumes with what is in {out}: {command}"
    from_here = f"cd {shlex.quote(os.getcwd())} && {command}"
    with console.on_interrupt(go_on):
        if specs[0].executor == "ray":
            in_own_process(specs[0].address)
        with console.comparison_progress(specs) as progress:
            comparison = compare_specs(
                specs, out=out, workers=workers, progress=progress, command=from_here, tuned=tuned
            )
    summary, path = comparison.summary, out / "report.html"
    console.print_lines(comparison.reused)
    console.console().print(table(summary))
    console.print_lines(comparison.notes)
    console.print_lines(warning_lines(comparison))
    settings = _shared_settings(specs)
    notices = [*([comparison.tuned] if comparison.tuned else []), *notices]
    write_page(path, comparison, summary, title=title, settings=settings, command=command, notices=notices)
    console.print_lines([f"page with pictures: {path.resolve()}"])
    return comparison


def _shared_settings(specs: list[Spec]) -> dict[str, str]:
    """Return the settings that all specs share."""
    first, *others = ({k: str(v) for k, v in vars(s).items() if v is not None} for s in specs)
    return {k: v for k, v in first.items() if k not in ("method", "seed") and all(o.get(k) == v for o in others)}
