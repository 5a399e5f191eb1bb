"""What a person sees while work goes on and when it is done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..config.spec import Spec
from ..core.errors import WorkerDied
from ..record.result import Result
from ..report.diagnostics_data import in_short
from ..report.formatting import number_of, size
from ..runs.run import Progress as Step

__all__ = ["bars", "complaint", "console", "is_terminal", "lines", "many", "one", "plain", "result_lines", "stoppable"]

console = Console(emoji=False)
_errors = Console(stderr=True, emoji=False)


def complaint(text: str) -> None:
    """An error, one sentence a line, on standard error."""
    for line in text.splitlines():
        _errors.print(f"[bold red]error:[/] {plain(line)}", highlight=False, soft_wrap=True)


def plain(text: str) -> str:
    return text.replace("[", r"\[")


def lines(texts: Iterable[str]) -> None:
    """Texts as they are, a line each."""
    for text in texts:
        console.print(plain(text), soft_wrap=True, highlight=False)


@contextmanager
def stoppable(go_on: str) -> Iterator[None]:
    """Around work that Ctrl-C may end, or the loss of its processes: it says how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        complaint(f"interrupted; {go_on}")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one finds nothing to tell: it ends us, without a word
        raise
    except WorkerDied as e:
        raise WorkerDied(f"{e}; {go_on}") from e


def is_terminal() -> bool:
    return _errors.is_terminal


def bars() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=_errors,
        transient=True,
    )


def _note(step: Step) -> str:
    if step.personalised is not None:
        return f"personalising, {step.personalised:.0%} of the clients"
    accuracy = "" if step.accuracy is None else f", accuracy {step.accuracy:.3f}"
    return f"virtual {step.time:,.0f} s, {step.updates:,} updates{accuracy}"


@contextmanager
def one(name: str) -> Iterator[Callable[[Step], None]]:
    """Progress of one run: a bar on a terminal, a line every tenth elsewhere."""
    if not _errors.is_terminal:
        yield _every_tenth(name)
        return
    with bars() as shown:
        task = shown.add_task(name, total=1.0, note="")
        yield lambda step: shown.update(task, completed=step.fraction, note=_note(step))


@contextmanager
def many(specs: list[Spec]) -> Iterator[Callable[[int, Spec, Step], None]]:
    """Progress of a comparison: one bar for all of it."""
    done = dict.fromkeys(range(len(specs)), 0.0)
    if not _errors.is_terminal:
        tell = _every_tenth(number_of(len(specs), "run"))

        def update(index: int, _: Spec, step: Step) -> None:
            done[index] = step.fraction
            tell(Step(sum(done.values()) / len(specs), step.time, step.updates, None))

        yield update
        return
    with bars() as shown:
        task = shown.add_task(number_of(len(specs), "run"), total=float(len(specs)), note="")

        def show(index: int, spec: Spec, step: Step) -> None:
            done[index] = step.fraction
            shown.update(task, completed=sum(done.values()), note=f"{plain(spec.label)}, seed {spec.seed}")

        yield show


def _every_tenth(name: str) -> Callable[[Step], None]:
    shown = {"": 0, "personalised ": 0}

    def update(step: Step) -> None:
        what, share = ("", step.fraction) if step.personalised is None else ("personalised ", step.personalised)
        if int(share * 10) > shown[what]:
            shown[what] = int(share * 10)
            _errors.print(f"{name}: {what}{shown[what] * 10}%", highlight=False)

    return update


def _personal(result: Result) -> list[str]:
    """Clients' own accuracy, where it was asked for."""
    found = result.personal
    if found is None or found["after"]["mean"] is None:
        return []
    after, before, epochs = found["after"], found["before"]["mean"], found["epochs"]
    tuned = f"after {epochs} {'epoch' if epochs == 1 else 'epochs'} of fine-tuning" if epochs else "without fine-tuning"
    refused = f"; {found['refused']:,} did not stay finite" if found["refused"] else ""
    over = f"mean ± sd over {found['clients']:,} clients, each on its own classes"
    return [f"personal accuracy {after['mean']:.4f} ± {after['sd']:.4f} {tuned} ({over}), {before:.4f} before{refused}"]


def result_lines(result: Result) -> None:
    """One run's outcome in a few lines."""
    clock = "virtual s" if result.clock == "virtual" else "s"
    accuracy = "no score" if result.final_accuracy is None else f"accuracy {result.final_accuracy:.4f}"
    s = result.staleness
    console.print(
        f"[bold]{plain(result.label)}[/] on {result.task}, seed {result.seed}: {accuracy} after "
        f"{result.virtual_time:,.6g} {clock}, {number_of(result.updates, 'update')}, "
        f"{number_of(result.rounds, 'server step')}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"  staleness mean {s['mean']:.1f}, p95 {s['p95']:g}, max {s['max']:g}; {size(result.bytes_up)} up, "
        f"{size(result.bytes_down)} down, server at most {size(result.peak_server_bytes)}; "
        f"{result.lost} lost, {result.refused} refused; {result.wall_s:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    for line in [result.trained, *_personal(result), *result.remarks, *in_short(result)]:
        if not line:
            continue
        console.print(f"  {plain(line)}", highlight=False, soft_wrap=True)
    console.print(f"  weights sha256 {result.weights_sha256}", highlight=False, soft_wrap=True)
    if result.out is not None:
        console.print(f"  in {plain(str(result.out))}", highlight=False, soft_wrap=True)
