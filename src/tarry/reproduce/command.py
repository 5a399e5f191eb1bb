"""The command without its looks: flags to what is asked for, running, and what is printed afterwards.

`tarry reproduce` draws bars and `python -m tarry.reproduce` prints lines; both do this.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time as clock
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TextIO

from ..core.errors import BadInput, TarryError, near
from ..vector.process import tune_malloc
from . import catalog as shelf
from . import listing
from .claims import verdicts
from .experiment import SIZES, Experiment
from .figures import draw
from .jobs import Asked, Tell
from .running import Report, Show, default_device, run_all
from .significance import tests
from .tables import Findings, findings, plain_table, said_by_runs

__all__ = ["asked", "chosen", "duration", "main", "plain_show", "reproduce_all", "seed_numbers", "told", "told_all"]

_EVERY = 30.0  # seconds between lines that say how far it is


def seed_numbers(text: str) -> tuple[int, ...]:
    """'3' → 0, 1, 2; '5-7' → 5, 6, 7; '0,4' → 0, 4; '2,' → 2."""
    try:
        if text.isdigit():
            numbers = list(range(int(text)))
        else:
            numbers = []
            for part in text.removesuffix(",").split(","):
                first, dash, last = part.partition("-")
                if dash and int(last) < int(first):
                    raise BadInput(f"--seeds {text}: {part} runs backwards; say {last}-{first}")
                numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        numbers = []
    if not numbers:
        raise BadInput(f"--seeds {text}: wants how many (3), or which (5-7 or 0,4)")
    return tuple(dict.fromkeys(numbers))


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments of names; a paper's name stands for all of its."""
    known = shelf.names()
    papers = {n.partition("/")[0] for n in known}
    wanted = [n for name in names for n in (known if name == "all" else [name])]
    wanted = [
        n for name in wanted for n in ([k for k in known if k.startswith(f"{name}/")] if name in papers else [name])
    ]
    problems, out = list[str](), list[Experiment]()
    for name in dict.fromkeys(wanted):
        try:
            out.append(shelf.find(name))
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(problems)
    return out


def asked(
    experiments: Sequence[Experiment],
    *,
    size: str | None = None,
    quick: bool = False,
    only: str | None = None,
    rows: str | None = None,
    seeds: str | None = None,
    workers: int = 1,
    within: float | None = None,
    device: str | None = None,
    executor: str | None = None,
    precision: str | None = None,
    compile: bool = False,
    out: Path = Path("runs"),
    results: Path | None = None,
    keep: bool = False,
    command: str = "",
) -> Asked:
    """What the flags say, checked against the experiments; all problems at once."""
    problems = []
    if size is not None and size not in SIZES:
        problems.append(f"--size {size}: wants one of {', '.join(SIZES)}")
    if quick and size not in (None, "quick"):
        problems.append(f"--quick --size {size}: give one of the two")
    if workers < 1:
        problems.append(f"--workers {workers}: must be 1 or more")
    if within is not None and not within > 0:
        problems.append(f"--within {within:g}: wants minutes, above 0")
    numbers = None
    try:
        numbers = None if seeds is None else seed_numbers(seeds)
    except BadInput as e:
        problems += e.problems
    columns = _names("--only", only, "column", {c for e in experiments for c in e.columns}, problems)
    wanted = _names("--rows", rows, "row", {r for e in experiments for r in e.rows}, problems)
    here = default_device()
    if device not in (None, "cpu", here):
        problems.append(f"--device {device}: there is no such device here; cpu always is")
    if problems:
        raise BadInput(problems)
    return Asked(
        size="quick" if quick else size or "full",
        columns=columns,
        rows=wanted,
        seeds=numbers,
        workers=workers,
        within=within,
        device=device or here,
        executor=executor,
        precision=precision,
        compile=compile,
        out=out,
        results=results,
        keep=keep,
        command=command,
    )


def _names(flag: str, text: str | None, what: str, known: Collection[str], problems: list[str]) -> tuple[str, ...]:
    names = tuple(n.strip() for n in text.split(",")) if text else ()
    problems += [f"{flag} {n}: there is no such {what}.{near(n, known)}" for n in names if n not in known]
    return names


def reproduce_all(experiments: Sequence[Experiment], what: Asked, show: Show, tell: Tell) -> list[str]:
    """Run them together; the tables of each are told when nothing is left to run for it. What failed comes back."""

    def ended(experiment: Experiment) -> None:
        for line in told(experiment, what):
            tell(line)

    return run_all(experiments, what, show, tell, ended)


def told_all(names: Sequence[str], experiments: Sequence[Experiment], what: Asked) -> list[str]:
    """The tables of the experiments; where none is named, those of which nothing is there are left out."""
    kinds = (True,) if what.size == "quick" else (False, True)

    def there(e: Experiment) -> bool:
        return any(listing.any_results(e, quick=quick, results=what.results) for quick in kinds)

    lines = [line for e in experiments if names or there(e) for line in told(e, what)]
    return lines or ["no results yet; `--list` shows what can be run"]


def told(experiment: Experiment, what: Asked) -> list[str]:
    """The tables of an experiment's results beside the paper's numbers, tests, what its claims come to, a picture."""
    quick = what.size == "quick"
    store = shelf.results(experiment.runs_of, quick=quick, folder=what.results)
    found = findings(experiment, store, quick=quick)
    if not found.there:
        others = listing.any_results(experiment, quick=not quick, results=what.results)
        where = "others: --show without --quick" if quick else "quick ones: --show --quick"
        return [f"{experiment.name}: no {'quick ' * quick}results yet" + (f"; {where}" if others else "")]
    lines = [f"{experiment.where}: {experiment.title} (in brackets the paper's, and how far ours is from it)"]
    for name in experiment.measures:
        lines += ["", *plain_table(found, name)]
    lines += [""]
    lines += [f"{found.heading(c)}: {changed}" for c, (_, changed) in found.sizes.items() if changed]
    lines += said_by_runs(found)
    lines += [
        f"{found.rows[o.hero]} above {found.rows[o.rival]}: signed-rank test over {o.pairs} pairs, "
        f"p {o.p:.2g}, {o.corrected:.2g} by Holm: {o.words}"
        for o in tests(found)
    ]
    lines += [f"the paper: {v.claim.say}: {v.words}" for v in verdicts(found)]
    lines += [str(note) for note in (found.study or {}).get("notes", [])]  # type: ignore[attr-defined]
    return [*lines, *_picture(found, what.out), f"results: {store.path}"]


def _picture(found: Findings, folder: Path) -> list[str]:
    """Where it was drawn, if the experiment has one and there is something to draw with."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = draw(found, folder / f"{found.experiment.name.replace('/', '-')}.svg")
    except BadInput as e:
        return [f"no picture: {e}"]
    return [] if path is None else [f"picture: {path}"]


def duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def plain_show() -> Show:
    """Lines on standard error: one for every run that ends, and now and then how far it is."""
    last = clock.monotonic()

    def show(report: Report) -> None:
        nonlocal last
        if not report.text and clock.monotonic() - last < _EVERY:
            return
        last = clock.monotonic()
        left = "" if report.left is None else f"; about {duration(report.left)} left"
        text = report.text or f"{report.share:.0%} ({report.now})"
        _say(f"[{report.done}/{report.total}] {text}{left}", sys.stderr)

    return show


def _say(text: str, where: TextIO | None = None) -> None:
    print(text, file=where or sys.stdout, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tarry.reproduce", description="The papers' tables and figures, from our runs."
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="paper/table (orthofl/table2), a paper, or all")
    add("--list", action="store_true", help="show all, with what each needs and whether results are in")
    add("--page", action="store_true", help="write docs/results.md and its pictures; --quick: results-quick.md")
    add(
        "--show",
        action="store_true",
        help="print the tables of the results that are there, of all or NAMEs; run nothing",
    )
    add("--quick", action="store_true", help="minutes on two cores, one seed; kept apart, with --show and --page too")
    add("--size", choices=SIZES, help="the paper's, the reduced one where that takes too long, or quick")
    add("--only", metavar="COLUMNS", help="these columns alone: mnist,cifar10")
    add("--rows", metavar="ROWS", help="these rows alone: fedavg,orthofl")
    add("--seeds", metavar="SEEDS", help="how many (3), or which (5-7 or 0,4)")
    add("--workers", type=int, default=1, help="runs at a time, on a GPU too")
    add("--within", type=float, metavar="MINUTES", help="begin no run after so many minutes; the same command goes on")
    add("--device", choices=("cpu", "cuda"), help="cuda if it is there")
    add("--executor", choices=("inline", "batched", "auto"), help="how a run trains its clients; auto on a GPU")
    add("--precision", choices=("float32", "tf32", "bf16"), help="of products on a GPU; float32")
    add("--compile", action="store_true", help="have torch.compile make the steps; pays in runs of minutes")
    add("--out", type=Path, default=Path("runs"), help="where runs work, and go on from when interrupted")
    add("--results", type=Path, help="a folder for results in place of the experiments' own")
    add("--keep", action="store_true", help="keep the folders of runs that are done")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tarry.reproduce`: torch and numpy are enough. 0: done; 1: some runs failed; 2: a mistake."""
    tune_malloc()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        failed = _do(vars(_parser().parse_args(words)), shlex.join(["python", "-m", "tarry.reproduce", *words]))
    except TarryError as e:
        for line in str(e).splitlines():
            _say(f"error: {line}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on", sys.stderr)
        return 130
    for text in failed:
        _say(f"failed: {text}", sys.stderr)
    return 1 if failed else 0


def _do(given: dict[str, Any], command: str) -> list[str]:
    """What the flags ask for; what failed comes back."""
    names, listed, page, only_show = (given.pop(k) for k in ("names", "list", "page", "show"))
    if listed or not (names or page or only_show):
        for line in listing.lines(results=given["results"]):
            _say(line)
        return []
    failed = list[str]()
    if names or only_show:
        experiments = chosen(names or ["all"])
        what = asked(experiments, **given, command=command)
        if only_show:
            for line in told_all(names, experiments, what):
                _say(line)
        else:
            failed = reproduce_all(experiments, what, plain_show(), _say)
    if page:
        from .page import write_page  # matplotlib

        quick = given["quick"] or given["size"] == "quick"
        _say(f"page: {write_page(results=given['results'], quick=quick)}")
    return failed
