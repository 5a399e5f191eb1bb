"""The work of `tarry reproduce` and `python -m tarry.reproduce`: check the flags, run, print the tables.

The typer command draws progress bars; `main` here prints lines and needs torch and numpy only.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time as clock
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from ..core.errors import BadInput, DamagedFile, TarryError, near
from ..core.printable import printable
from ..report.formatting import duration
from ..runs.signals import Interrupted, handled
from ..vector.process import tune_malloc
from . import catalog, listing, queue
from .claims import verdicts
from .experiment import Experiment
from .figures import draw
from .jobs import Tell
from .options import SIZES, ReproduceFlags, ReproduceOptions, argument_parser, seed_numbers
from .running import Report, ShowReport, default_device, run_all
from .significance import tests
from .tables import Findings, findings, plain_table, run_warnings

__all__ = ["check_options", "main", "print_progress", "render", "run_command", "select_experiments"]

_EVERY = 30.0  # seconds between lines of progress


def select_experiments(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of the names; the name of a paper stands for all of its experiments."""
    known = catalog.names()
    papers = {n.partition("/")[0] for n in known}
    wanted = [n for name in names for n in (known if name == "all" else [name])]
    wanted = [
        n for name in wanted for n in ([k for k in known if k.startswith(f"{name}/")] if name in papers else [name])
    ]
    problems, out = list[str](), list[Experiment]()
    for name in dict.fromkeys(wanted):
        try:
            out.append(catalog.find(name))
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(problems)
    return out


def check_options(experiments: Sequence[Experiment], given: ReproduceFlags, command: str = "") -> ReproduceOptions:
    """Return the flags checked against the experiments; raise BadInput with all problems."""
    problems = _range_problems(given)
    numbers = None
    try:
        numbers = None if given.seeds is None else seed_numbers(given.seeds)
    except BadInput as e:
        problems += e.problems
    columns = _parse_names("--only", given.only, "column", {c for e in experiments for c in e.columns}, problems)
    rows = _parse_names("--rows", given.rows, "row", {r for e in experiments for r in e.rows}, problems)
    here = default_device()
    if given.device not in (None, "cpu", here):
        problems.append(f"--device {given.device}: there is no such device here; cpu always is")
    if problems:
        raise BadInput(problems)
    return ReproduceOptions(
        size="quick" if given.quick else given.size or "full",
        columns=columns,
        rows=rows,
        seeds=numbers,
        workers=given.workers,
        within=given.within,
        stop=given.stop,
        device=given.device or here,
        executor=given.executor,
        precision=given.precision,
        compile=given.compile,
        out=given.out,
        results=given.results,
        keep=given.keep,
        command=command,
    )


def _range_problems(given: ReproduceFlags) -> list[str]:
    problems = []
    if given.size is not None and given.size not in SIZES:
        problems.append(f"--size {given.size}: wants one of {', '.join(SIZES)}")
    if given.quick and given.size not in (None, "quick"):
        problems.append(f"--quick --size {given.size}: give one of the two")
    if given.workers < 1:
        problems.append(f"--workers {given.workers}: must be 1 or more")
    for flag, minutes in (("within", given.within), ("stop", given.stop)):
        if minutes is not None and not minutes > 0:
            problems.append(f"--{flag} {minutes:g}: wants minutes, above 0")
    if given.queue:
        others: dict[str, object] = {
            "NAME": given.names,
            "--only": given.only,
            "--rows": given.rows,
            "--seeds": given.seeds,
        }
        others |= {"--size": given.size, "--quick": given.quick, "--show": given.show, "--page": given.page}
        problems += [f"--queue: leave out {flag}; the queue says it" for flag, value in others.items() if value]
    return problems


def _parse_names(
    flag: str, text: str | None, what: str, known: Collection[str], problems: list[str]
) -> tuple[str, ...]:
    """Return the names in a comma-separated flag; unknown ones are added to the problems."""
    names = tuple(n.strip() for n in text.split(",")) if text else ()
    problems += [f"{flag} {n}: there is no such {what}.{near(n, known)}" for n in names if n not in known]
    return names


def run_command(
    given: ReproduceFlags,
    command: str,
    tell: Tell,
    progress: Callable[[], AbstractContextManager[ShowReport]],
) -> list[str]:
    """Do what the flags say and print through `tell`; return a text for each failure."""
    if given.queue:
        return _run_queue(given, command, tell, progress)
    if given.list or not (given.names or given.page or given.show):
        for line in listing.lines(results=given.results):
            tell(line)
        return []
    failed: list[str] = []
    if given.names or given.show:
        experiments = select_experiments(given.names or ["all"])
        options = check_options(experiments, given, command)
        if given.show:
            for line in _render_all(given.names or [], experiments, options):
                tell(line)
        else:
            with progress() as show:
                failed = _reproduce_all(experiments, options, show, tell)
    if given.page:
        from .page import write_page  # imports matplotlib

        tell(f"page: {write_page(results=given.results, quick=given.quick or given.size == 'quick')}")
    return failed


def _run_queue(
    given: ReproduceFlags, command: str, tell: Tell, progress: Callable[[], AbstractContextManager[ShowReport]]
) -> list[str]:
    """Run the queue, or list it; return a text for each failure."""
    options, entries = check_options([], given, command), queue.read_queue()
    if given.list:
        for line in queue.lines(entries, results=given.results):
            tell(line)
        return []
    experiments = list({e.experiment.name: e.experiment for e in entries}.values())
    with progress() as show:
        return run_all(experiments, options, show, tell, queue=queue.with_options(entries, options))


def _reproduce_all(
    experiments: Sequence[Experiment], options: ReproduceOptions, show: ShowReport, tell: Tell
) -> list[str]:
    """Run the experiments together and print the tables of each when its last run ends; return the failures."""

    def print_tables(experiment: Experiment) -> None:
        for line in render(experiment, options):
            tell(line)

    return run_all(experiments, options, show, tell, print_tables)


def _render_all(names: Sequence[str], experiments: Sequence[Experiment], options: ReproduceOptions) -> list[str]:
    """Return the tables of the experiments; if none is named, of those with results."""
    kinds = (True,) if options.size == "quick" else (False, True)

    def has_results(e: Experiment) -> bool:
        return any(listing.any_results(e, quick=quick, results=options.results) for quick in kinds)

    lines = [line for e in experiments if names or has_results(e) for line in render(e, options)]
    return lines or ["no results yet; `--list` shows what can be run"]


def render(experiment: Experiment, options: ReproduceOptions) -> list[str]:
    """Return the results of an experiment as lines: tables with the paper's numbers, tests, claims, the plot."""
    quick = options.size == "quick"
    store = catalog.results(experiment.runs_of, quick=quick, folder=options.results)
    found = findings(experiment, store, quick=quick)
    if not found.there:
        others = listing.any_results(experiment, quick=not quick, results=options.results)
        where = "others: --show without --quick" if quick else "quick ones: --show --quick"
        return [f"{experiment.name}: no {'quick ' * quick}results yet" + (f"; {where}" if others else "")]
    lines = [f"{experiment.where}: {experiment.title} (in brackets the paper's, and how far ours is from it)"]
    for name in experiment.measures:
        lines += ["", *plain_table(found, name)]
    lines += [""]
    lines += [f"{found.heading(c)}: {changed}" for c, (_, changed) in found.sizes.items() if changed]
    lines += run_warnings(found)
    lines += [
        f"{found.rows[r.hero]} above {found.rows[r.rival]}: signed-rank test over {r.pairs} pairs, "
        f"p {r.p:.2g}, {r.corrected:.2g} by Holm: {r.words}"
        for r in tests(found)
    ]
    lines += [f"the paper: {v.claim.say}: {v.words}" for v in verdicts(found)]
    lines += [str(note) for note in (found.study or {}).get("notes", [])]  # type: ignore[attr-defined]
    return [*lines, *_draw(found, options.out), f"results: {store.path}"]


def _draw(found: Findings, folder: Path) -> list[str]:
    """Draw the plot of the experiment, if it has one; return where it is, or why it could not be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = draw(found, folder / f"{found.experiment.name.replace('/', '-')}.svg")
    except (BadInput, DamagedFile) as e:
        return [f"no picture: {e}"]
    return [] if path is None else [f"picture: {path}"]


def print_progress() -> ShowReport:
    """Return a callback that prints a line on standard error for every run that ends, and one every 30 s."""
    last = clock.monotonic()

    def show(report: Report) -> None:
        nonlocal last
        if not report.text and clock.monotonic() - last < _EVERY:
            return
        last = clock.monotonic()
        left = "" if report.left is None else f"; about {duration(report.left)} left"
        text = report.text or f"{report.share:.0%} ({report.now})"
        _print_error(f"[{report.done}/{report.total}] {text}{left}")

    return show


def _print(text: str, file: TextIO | None = None) -> None:
    print(printable(text, keep="\n\t"), file=file or sys.stdout, flush=True)


def _print_error(text: str) -> None:
    _print(text, sys.stderr)


@contextmanager
def _printed_progress() -> Iterator[ShowReport]:
    yield print_progress()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m tarry.reproduce`; return 0 if all is done, 1 if runs failed, 2 for an error in the flags."""
    tune_malloc()
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = ReproduceFlags(**vars(argument_parser("python -m tarry.reproduce").parse_args(words)))
    command = shlex.join(["python", "-m", "tarry.reproduce", *words])
    try:
        with handled():
            failed = run_command(given, command, _print, _printed_progress)
    except TarryError as e:
        for line in str(e).splitlines():
            _print_error(f"error: {line}")
        return 2
    except KeyboardInterrupt as e:
        _print_error("interrupted; the same command resumes")
        return 128 + (e.number if isinstance(e, Interrupted) else signal.SIGINT)
    for text in failed:
        _print_error(f"failed: {text}")
    return 1 if failed else 0
