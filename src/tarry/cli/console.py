"""Console output of the commands: lines, errors, progress bars, the result of a run. rich is imported late."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ..core.errors import StorageError, WorkerDied
from ..core.printable import printable
from ..runs.signals import Interrupted, handled
from .own_process import is_own_process

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.text import Text

    from ..config.spec import Spec
    from ..record.result import Result
    from ..runs.run import Progress

__all__ = [
    "PatientAttempts",
    "comparison_progress",
    "console",
    "is_terminal",
    "on_interrupt",
    "print_error",
    "print_lines",
    "print_parts",
    "print_result",
    "progress_bars",
    "run_progress",
    "styled",
    "way_to_resume",
]

#: a text, or a text and its style
StyledText = str | tuple[str, str]


@cache
def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output, or of standard error."""
    from rich.console import Console

    return Console(stderr=stderr, emoji=False)


def print_error(text: str) -> None:
    """Print each line of an error message on standard error, after `error:`."""
    for line in text.split("\n"):
        if line:
            console(stderr=True).print(styled(("error:", "bold red"), f" {line}"), soft_wrap=True)


def print_lines(texts: Iterable[str]) -> None:
    """Print texts, one on each line."""
    for text in texts:
        print_parts(text)


def print_parts(*parts: StyledText) -> None:
    """Print the parts of one line without wrapping it."""
    console().print(styled(*parts), soft_wrap=True)


def styled(*parts: StyledText) -> Text:
    """Return texts, or pairs of a text and its style, in a row. Their brackets are no markup, control characters are
    shown as escapes; a part may have several lines.
    """
    from rich.text import Text

    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(printable(text, keep="\n\t"), style)
    return line


@contextmanager
def on_interrupt(way_out: str | Callable[[], str]) -> Iterator[None]:
    """Print `way_out` when a signal ends the work inside, and append it to the error when worker processes die.

    The exit code is 128 plus the number of the signal.
    """
    try:
        with handled(child=is_own_process()):  # the first process passes signals on
            yield
    except Interrupted as e:
        print_error(f"interrupted{'' if e.number == signal.SIGINT else f' by {e.name}'}; {_text(way_out)}")
        raise SystemExit(128 + e.number) from e
    except KeyboardInterrupt:
        print_error(f"interrupted; {_text(way_out)}")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process without a message
        raise
    except WorkerDied as e:
        raise WorkerDied(f"{e}; {_text(way_out)}") from e


class PatientAttempts:
    """Calls of a function by a command that stays: a StorageError is printed once, and the next call tries again."""

    def __init__(self) -> None:
        self._printed = ""

    def __call__(self, work: Callable[[], None]) -> None:
        """Call the function."""
        try:
            work()
            self._printed = ""
        except StorageError as e:
            if str(e) != self._printed:
                self._printed = str(e)
                print_error(f"{e}; the command waits")


def _text(way_out: str | Callable[[], str]) -> str:
    return way_out if isinstance(way_out, str) else way_out()


def way_to_resume(out: Path | None) -> str:
    """Return how to continue a run with this folder."""
    if out is None:
        return "nothing of it is saved: it had no --out"
    if not (out / "spec.toml").is_file():
        return "it had not begun; the same command begins it"
    return f"`tarry resume {quote(str(out))}` resumes it"


def is_terminal() -> bool:
    """Return whether standard error is a terminal, where progress bars are drawn."""
    return console(stderr=True).is_terminal


def progress_bars() -> Bars:
    """Return progress bars on standard error that disappear at the end."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console(stderr=True),
        transient=True,
    )


def _note(progress: Progress) -> str:
    """Return the text beside the bar of a run."""
    if progress.personalized is not None:
        return f"personalizing, {progress.personalized:.0%} of the clients"
    score = "" if progress.score is None else f", {progress.metric.text(progress.score)}"
    return f"virtual {progress.time:,.0f} s, {progress.updates:,} updates{score}"


@contextmanager
def run_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of one run: a bar on a terminal, a line for every tenth elsewhere."""
    if not is_terminal():
        yield _print_tenths(name)
        return
    with progress_bars() as bars:
        task = bars.add_task(printable(name), total=1.0, note="")
        yield lambda progress: bars.update(task, completed=progress.fraction, note=_note(progress))


@contextmanager
def comparison_progress(specs: list[Spec]) -> Iterator[Callable[[int, Spec, Progress], None]]:
    """Show the progress of a comparison: one bar for all runs on a terminal, a line for every tenth elsewhere."""
    from ..report.formatting import pluralize
    from ..runs.run import Progress

    done = dict.fromkeys(range(len(specs)), 0.0)
    if not is_terminal():
        print_tenths = _print_tenths(pluralize(len(specs), "run"))

        def update(index: int, _: Spec, progress: Progress) -> None:
            done[index] = progress.fraction
            print_tenths(Progress(sum(done.values()) / len(specs), progress.time, progress.updates, None))

        yield update
        return
    with progress_bars() as bars:
        task = bars.add_task(pluralize(len(specs), "run"), total=float(len(specs)), note="")

        def update_bar(index: int, spec: Spec, progress: Progress) -> None:
            done[index] = progress.fraction
            bars.update(task, completed=sum(done.values()), note=f"{printable(spec.label)}, seed {spec.seed}")

        yield update_bar


def _print_tenths(name: str) -> Callable[[Progress], None]:
    """Return a callback that prints a line for every tenth of the run and of the personalization after it."""
    printed = {"": 0, "personalized ": 0}

    def update(progress: Progress) -> None:
        personalizes = progress.personalized is not None
        what, share = ("personalized ", progress.personalized or 0.0) if personalizes else ("", progress.fraction)
        if int(share * 10) > printed[what]:
            printed[what] = int(share * 10)
            console(stderr=True).print(styled(f"{name}: {what}{printed[what] * 10}%"))

    return update


def _personal_lines(result: Result) -> list[str]:
    """Return a line with the score on the clients' own classes, if the run personalized."""
    found = result.personalization
    if found is None or found["after"]["mean"] is None:
        return []
    after, before, epochs = found["after"], found["before"]["mean"], found["epochs"]
    tuned = f"after {epochs} {'epoch' if epochs == 1 else 'epochs'} of fine-tuning" if epochs else "without fine-tuning"
    rejected = f"; {found['rejected']:,} did not stay finite" if found["rejected"] else ""
    over = f"mean ± sd over {found['clients']:,} clients, each on its own classes"
    return [
        f"personal {found.get('metric', 'accuracy')} {after['mean']:.4f} ± {after['sd']:.4f} {tuned} ({over}),"
        f" {before:.4f} before{rejected}"
    ]


def _score_text(result: Result) -> str:
    """Return the metrics at the end, the score first."""
    final, names = result.final_metrics, [m.name for m in result.metrics or (result.metric,)]
    found = [f"{name} {value:.4f}" for name in names if (value := final.get(name)) is not None]
    text = ", ".join(found) or "no score"
    if result.validation_metrics is None:
        return text
    score = result.validation_metrics.get(result.metric.name)
    on = "test" if result.test_metrics else "validation"
    return f"{on} {text}" + (f", validation {score:.4f}" if on == "test" and score is not None else "")


def _stop_lines(result: Result) -> list[str]:
    """Return why a run with --patience stopped, and when its best evaluation was."""
    from ..report.formatting import pluralize

    stop = result.early_stopping
    if stop is None:
        return []
    why = f"no better validation score in {pluralize(stop['patience'], 'evaluation')}"
    reason = why if stop["stop_reason"] == "patience" else stop["stop_reason"]
    return [f"stopped: {reason}; the weights are those of the best evaluation, at {stop['best_time']:,.6g} s"]


def print_result(result: Result) -> None:
    """Print the result of one run in a few lines."""
    from ..report.diagnostics_data import in_short
    from ..report.formatting import format_bytes, pluralize

    clock = "virtual s" if result.clock == "virtual" else "s"
    score = _score_text(result)
    s = result.staleness
    print_parts(
        (result.label, "bold"),
        f" on {result.task}, seed {result.seed}: {score} after "
        f"{result.virtual_time:,.6g} {clock}, {pluralize(result.updates, 'update')}, "
        f"{pluralize(result.rounds, 'server step')}",
    )
    print_parts(
        f"  staleness mean {s.mean:.1f}, p95 {s.p95:g}, max {s.max:g}; {format_bytes(result.bytes_up)} up, "
        f"{format_bytes(result.bytes_down)} down, server at most {format_bytes(result.peak_server_bytes)}; "
        f"{result.lost} lost, {result.rejected} rejected; {result.wall_s:.1f} s"
    )
    notes = [result.executor_info, *_stop_lines(result), *_personal_lines(result), *result.warnings, *in_short(result)]
    print_lines(f"  {line}" for line in notes if line)
    print_lines([f"  weights sha256 {result.weights_sha256}"])
    if result.out is not None:
        print_lines([f"  in {result.out}"])
