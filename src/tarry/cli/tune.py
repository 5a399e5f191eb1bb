"""`tarry tune`: the same number of trials for every method, and the best settings of each in a file."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..core.errors import BadInput
from ..reproduce.options import seed_numbers
from . import console
from .compare import DEFAULT, reject_method_parameters
from .flags import gather, with_settings
from .own_process import in_own_process

if TYPE_CHECKING:
    from ..config.spec import Spec
    from ..runs.run import Progress
    from ..runs.tuning.study import TuningStudy
    from ..runs.tuning.tuning import Tuning

__all__ = ["tune"]

FOLDER = Path("tarry-tune")
_MOST_SEEDS = 100  # of a trial
_EVERY = 10.0  # seconds between two lines of progress where no bar is drawn


@with_settings(leave_out=("method", "seed", "workers", "axes"))
def tune(
    context: typer.Context,
    given: dict[str, Any],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Tune this method, in the form all, fedbuff:buffer=3, orthofl+local=fedsol or file.py:factory",
            show_default=", ".join(DEFAULT),
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="Give every method this many trials")] = 12,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds",
            help="Run each trial with so many seeds from 1000 on (2), or with these (2000-2002 or 2000,); no "
            "comparison of the tuned settings may use them",
        ),
    ] = "2",
    search: Annotated[
        Literal["random", "grid", "optuna"], typer.Option("--search", help="Choose the trials in this way")
    ] = "random",
    space: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="NAME=VALUES",
            help="Change the search space: lr=0.001..1:log, epochs=1..10:int or method.mu=0.01,0.1,1",
            show_default="those of the methods",
        ),
    ] = None,
    search_seed: Annotated[int, typer.Option("--search-seed", help="Draw the trials with this seed")] = 0,
    spec: Annotated[
        Path | None,
        typer.Option(
            "--spec",
            help="Read settings and methods = [...] from this TOML file; flags take precedence",
            show_default="none",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Write the study to this folder, or resume the one in it")
    ] = FOLDER,
    workers: Annotated[int, typer.Option("--workers", help="Run this many runs at a time")] = 2,
) -> None:
    """Tune the settings of methods on validation data, with the same number of trials for each.

    `tarry compare --tuned OUT/tuned.toml` compares the methods with the settings that were found.
    """
    from ..runs.tuning.study import make_study, run_study

    reject_method_parameters(context)
    merged = gather(given, context, spec)
    written = merged.pop("methods", None) or [merged.pop("method", None)]
    methods = method or [m for m in written if m] or DEFAULT
    skipped: list[str] = []
    dimensions = _dimensions(space or ())
    study = make_study(methods, merged, trials, _tuning_seeds(seeds), search, dimensions, search_seed, skipped)
    console.print_lines([*skipped, *_spaces(study)])
    command = shlex.join(["tarry", *sys.argv[1:]])
    with console.on_interrupt(f"the same command resumes with what is in {out}: {command}"):
        if (first := study.methods[0].spec).executor == "ray":
            in_own_process(first.address)
        with _progress(study.n_runs) as show:
            from_here = f"cd {shlex.quote(os.getcwd())} && {command}"
            tuning = run_study(study, out=out, workers=workers, progress=show, command=command, from_here=from_here)
    _print(tuning, out)


def _tuning_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that --seeds names; a number stands for so many from 1000 on."""
    numbers = seed_numbers(text)
    if len(numbers) > _MOST_SEEDS:
        raise BadInput(f"--seeds {text}: {len(numbers):,} seeds for each trial; name fewer (`{text},` is one seed)")
    return tuple(1000 + n for n in numbers) if text.isdigit() else numbers


def _dimensions(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of --space by name."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise BadInput([f"--space {text}: wants NAME=VALUES, as in lr=0.001..1:log" for text in wrong])
    pairs = [text.partition("=") for text in texts]
    return {name.strip().replace("-", "_"): values.strip() for name, _, values in pairs}


def _spaces(study: TuningStudy) -> list[str]:
    """Return a line with the space of each method."""
    return [f"{m.spec.label}: {'  '.join(f'{name} {d}' for name, d in m.space.items())}" for m in study.methods]


def _print(tuning: Tuning, out: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from ..core.printable import printable
    from ..runs.tuning.tuned_file import TUNED

    headings, rows = tuning.grid()
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell.text)) for cell in row))
    console.console().print(table)
    path = shlex.quote(str(out / TUNED))
    console.print_lines([*tuning.sentences(), f"tuned settings: {out / TUNED}", f"next: tarry compare --tuned {path}"])


@contextmanager
def _progress(n_runs: int) -> Iterator[Any]:
    """Show the progress of a study: a bar with the time left on a terminal, a line now and then elsewhere."""
    from ..core.printable import printable
    from ..report.formatting import duration

    done: dict[int, float] = {}
    if console.is_terminal():
        with console.progress_bars() as bars:
            task = bars.add_task(f"{n_runs:,} runs", total=float(n_runs), note="")

            def move(index: int, spec: Spec, progress: Progress) -> None:
                done[index] = progress.fraction
                bars.update(task, completed=sum(done.values()), note=f"{printable(spec.label)}, seed {spec.seed}")

            yield move
        return
    began = shown = time.monotonic()
    found: list[float] = []  # what was done when the first run of this process moved

    def line(index: int, spec: Spec, progress: Progress) -> None:
        nonlocal shown
        if progress.fraction < 1 and not found:
            found.append(sum(done.values()))
        done[index] = progress.fraction
        now, total = time.monotonic(), sum(done.values())
        made = total - (found[0] if found else 0.0)
        if now - shown < _EVERY or made <= 0:
            return
        shown = now
        left = duration((now - began) * (n_runs - total) / made)
        finished = sum(fraction == 1 for fraction in done.values())
        text = f"{finished} of {n_runs} runs ({spec.label}, seed {spec.seed}), ETA {left}"
        console.console(stderr=True).print(console.styled(text), soft_wrap=True)

    yield line
