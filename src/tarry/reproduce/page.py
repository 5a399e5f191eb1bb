"""docs/results.md: every experiment's numbers beside the paper's, its tests, claims and picture, made from the results.

Nothing is written that no run produced: a cell without a run is a dash, an experiment without any is listed as not run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..core.errors import BadInput
from ..core.printable import markdown_text
from ..record.storage import write_atomic
from . import catalog
from .claims import Verdict, verdicts
from .commands import commands
from .experiment import Experiment, Target
from .figures import draw
from .measures import TO_TARGET
from .significance import tests
from .store import EARLIER
from .tables import NONE, Findings, difference, findings, format_seeds, ours, run_warnings

__all__ = ["PAPERS", "markdown", "write_page"]

#: paper → heading, in the order of the page
PAPERS = {
    "orthofl": "OrthoFL: Orthogonal Calibration for Asynchronous Federated Learning",
    "asyncmanifold": "AsyncManifold: Aggregation on Learnable Manifolds for Asynchronous Federated Optimization",
    "fedsol": "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
    "fedogd": "Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent",
    "fedecho": "FedEcho: Stragglers Can Contribute More: Uncertainty-Aware Distillation for Asynchronous FL",
}
_INTRO = """# Results

The tables and figures of the papers, run with tarry. This page is made from `{files}` by
`{command}`; `tarry reproduce NAME` runs one of them, `tarry reproduce --list` shows all. The settings and
the paper's numbers are in `experiments/<paper>/<table>.toml`. Under each heading stand the commands that make what is
shown there; with nothing but a name, all of it is run at the paper's size and with all of its seeds.

In a cell stands what our runs gave (mean ± standard deviation over seeds), below it what the paper printed and how far
ours is from it. The best of our means in a column is bold. A dash: not run. What is said of a claim is about means over
the seeds that were run, as many as a column's heading says: with one seed it is one run against another. A run that is
repeated on another kind of machine, or with clients trained together that were trained one by one, differs in rounding,
and rounding grows: expect a few tenths of a point at the end of a run that swings little, and more where it swings.

Claims are counted in this table. 5 (1 so far): for 1 of these 5, some of what it is about has not been run yet. Open:
nothing has been run that it could be seen on.
"""


def write_page(*, results: Path | None = None, quick: bool = False) -> Path:
    """Write results.md and results/*.svg to the folder of the results, or to the docs of the checkout.

    The files of quick runs are results-quick.md and results-quick/*.svg.
    """
    docs = results or catalog.page_folder()
    called = "results-quick" if quick else "results"
    pictures = docs / called
    pictures.mkdir(parents=True, exist_ok=True)
    found = list(_all(results, quick=quick))
    drawn: dict[str, str] = {}
    for f in found:
        name = f.experiment.name.replace("/", "-")
        picture = draw(f, pictures / f"{name}.svg") if f.there else None
        if picture is not None:
            drawn[f.experiment.name] = f"{called}/{picture.name}"
    for old in pictures.glob("*.svg"):
        if f"{called}/{old.name}" not in drawn.values():
            old.unlink()
    path = docs / f"{called}.md"
    write_atomic(path, (_intro(results, quick=quick) + markdown(found, drawn)).encode())
    return path


def _all(results: Path | None, *, quick: bool) -> Iterator[Findings]:
    experiments, problems = [], list[str]()
    for name in catalog.names():
        try:
            experiments.append(catalog.find(name))
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(problems)
    order = list(PAPERS)
    experiments.sort(key=lambda e: order.index(_paper(e)) if _paper(e) in order else len(order))
    for experiment in experiments:
        yield findings(experiment, catalog.results(experiment.runs_of, quick=quick, folder=results), quick=quick)


def _paper(experiment: Experiment) -> str:
    return experiment.name.partition("/")[0]


def _intro(results: Path | None, *, quick: bool) -> str:
    files = f"{results or 'experiments'}/<paper>/results/*{'-quick' if quick else ''}.json"
    where = "" if results is None else f" --results {shlex.quote(str(results))}"
    return _INTRO.format(files=files, command=f"tarry reproduce --page{' --quick' if quick else ''}{where}") + "\n"


def markdown(found: Sequence[Findings], pictures: Mapping[str, str]) -> str:
    """Return the page without its introduction; `pictures` are by experiment."""
    judged = {f.experiment.name: verdicts(f) for f in found if f.there}
    parts = [_overview(found, judged)]
    paper = ""
    for f in found:
        if _paper(f.experiment) != paper:
            paper = _paper(f.experiment)
            parts.append(f"## {PAPERS.get(paper, paper)}\n")
        parts += _section(f, judged.get(f.experiment.name, []), pictures.get(f.experiment.name))
    return "\n".join(parts)


def _overview(found: Sequence[Findings], judged: Mapping[str, Sequence[Verdict]]) -> str:
    lines = ["| experiment | | run | claims that show | that do not | open |", "|---|---|---|---:|---:|---:|"]
    for f in found:
        e = f.experiment
        about = judged.get(e.name, [])
        counts = [_number([v for v in about if v.holds is which]) if f.there else NONE for which in (True, False, None)]
        run = _how_much(f) if f.there else "not run"
        link = f"[{e.name}](#{_anchor(_heading(e))})"
        lines.append(f"| {link} | {markdown_text(e.title)} | {run} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def _number(verdicts: Sequence[Verdict]) -> str:
    """Return the number of verdicts, and how many are not final: `3 (1 so far)`."""
    so_far = sum(not v.whole for v in verdicts)
    return f"{len(verdicts)}" + (f" ({so_far} so far)" if so_far else "")


def _how_much(f: Findings) -> str:
    sizes = " and ".join(sorted({size for size, _ in f.sizes.values()}))
    seeds = [n for c in f.columns for n in f.seeds(c)]
    few, many = min(seeds, default=0), max(seeds, default=0)
    how_many = format_seeds(many) if few == many else f"{few} to {format_seeds(many)}"
    if f.study is not None:
        return f"{sizes}, {how_many}"
    cells = sum(len(rows) for rows in f.runs.values())
    wanted = sum(1 for _ in f.experiment.grid())
    return f"{sizes}, {'all' if cells == wanted else f'{cells} of {wanted}'} cells, {how_many}"


def _heading(experiment: Experiment) -> str:
    return f"{experiment.where}: {experiment.title}"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    characters = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return characters.replace(" ", "-")


def _section(f: Findings, judged: Sequence[Verdict], picture: str | None) -> list[str]:
    e = f.experiment
    how = "\n".join(["```", *commands(f), "```"])
    parts = [f"### {markdown_text(_heading(e))}\n", f"{how}\n", f"{markdown_text(e.words)}\n"]
    if e.uses is not None:
        other = catalog.find(e.uses)
        parts.append(f"Settings, and where they are not the paper's: [{e.uses}](#{_anchor(_heading(other))}).\n")
    if e.deviations:
        parts.append("Where our setting is not the paper's:\n")
        parts.append("\n".join(f"- {markdown_text(d)}" for d in e.deviations) + "\n")
    if not f.there:
        return [*parts, "**Not run.**\n"]
    parts += [_smaller(f)] if _smaller(f) else []
    parts += [table for name in e.measures if (table := _table(f, name))]
    if warnings := run_warnings(f):
        parts.append("Said by runs:\n\n" + "\n".join(f"- {markdown_text(line)}" for line in warnings) + "\n")
    if any(m in TO_TARGET and m not in e.own_measures for m in e.measures):
        aims = dict.fromkeys(_target(e, e.target_at(size)) for size, _ in f.sizes.values())
        parts += (
            [*aims]
            if len(aims) < 2
            else [_target(e, e.target_at(size), size) for size in sorted({s for s, _ in f.sizes.values()})]
        )
    parts += [_tests(f)] if e.test is not None else []
    if judged:
        parts.append("What the paper claims:\n")
        parts.append("\n".join(f"- {markdown_text(v.claim.say)}: {_mark(v)}" for v in judged) + "\n")
    if picture is not None:
        parts.append(f"![{markdown_text(e.title)}]({picture})\n")
    notes = f.study.get("notes", []) if f.study is not None else []
    parts += [f"- {markdown_text(str(n))}" for n in notes] + ([""] if notes else [])  # type: ignore[attr-defined]
    return [*parts, _provenance(f)]


def _mark(verdict: Verdict) -> str:
    words = markdown_text(verdict.words)
    for begin in ("shows here", "shows so far", "does not show here", "not run yet"):
        if words.startswith(begin):
            return f"**{begin}**{words[len(begin) :]}"
    return words


def _smaller(f: Findings) -> str:
    """Return a list of the columns that were not run at the full size."""
    by_size: dict[str, list[str]] = {}
    for column, (size, changed) in f.sizes.items():
        if changed:
            line = f"- {markdown_text(f.columns[column])}: {markdown_text(changed)}"
            by_size.setdefault(size, []).append(line)
    heads = {EARLIER: "Run with earlier settings, since corrected; no claim is judged on these columns:"}
    return "\n".join(
        heads.get(size, f"Run at a {size} size:") + "\n\n" + "\n".join(dict.fromkeys(lines)) + "\n"
        for size, lines in by_size.items()
    )


def _table(f: Findings, name: str) -> str:
    grid = f.grids[name]
    columns = [
        c
        for c in f.columns
        if any(c in there for there in grid.values.values()) or any(f.paper(name, r, c) is not None for r in f.rows)
    ]
    if not columns:
        return ""
    lines = [
        f"| {markdown_text(grid.measure.heading)} | " + " | ".join(markdown_text(f.heading(c)) for c in columns) + " |"
    ]
    lines.append("|---|" + "---:|" * len(columns))
    for row, title in f.rows.items():
        cells = [_cell(f, name, row, c) for c in columns]
        if any(c != NONE for c in cells):
            lines.append(f"| {markdown_text(title)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _cell(f: Findings, name: str, row: str, column: str) -> str:
    grid = f.grids[name]
    text, mean = ours(grid, row, column), grid.mean(row, column)
    if mean is not None and mean == grid.best(column):
        text = f"**{text}**"
    found = grid.stat(row, column)
    most = max((s.seeds for r in f.rows if (s := grid.stat(r, column)) is not None), default=0)
    if found is not None and found.seeds < most:
        text += f" ({found.seeds} of {most} seeds)"
    printed = f.paper(name, row, column)
    if printed is None:
        return text
    paper = grid.measure.text(printed, f.paper_sd(name, row, column))
    far = difference(grid, row, column, printed)
    return f"{text}<br>paper {paper}" + (f", {far}" if far else "")


def _target(experiment: Experiment, target: Target, size: str = "") -> str:
    """Return a sentence on the target of the times."""
    if target.accuracy is not None:
        aim = f"{target.accuracy:g} % accuracy"
    elif target.loss is not None:
        aim = f"a loss of {target.loss:g}"
    else:
        target_text = "the lowest final accuracy" if target.row is None else f"{experiment.rows[target.row].title}'s"
        aim = f"{target.share:.0%} of {target_text}, of the same column and seed, where all rows have that seed"
        if target.row is None:
            aim += " (rows for which this is not above what needs no learning are left out)"
    base = experiment.rows.get(experiment.baseline or "")
    relative = f"; times are relative to {markdown_text(base.title)}'s with the same seed" if base is not None else ""
    at = f" at the {size} size" if size else ""
    return f"The target{at} is {aim}: what counts is the first evaluation that meets it{relative}.\n"


def _tests(f: Findings) -> str:
    outcomes = tests(f)
    if not outcomes:
        return ""
    lines = ["| one-sided signed-rank test | pairs | p | p, Holm | |", "|---|---:|---:|---:|---|"]
    for o in outcomes:
        names = f"{markdown_text(f.rows[o.hero])} above {markdown_text(f.rows[o.rival])}"
        lines.append(f"| {names} | {o.pairs} | {o.p:.2g} | {o.corrected:.2g} | {o.words} |")
    return "\n".join(lines) + "\n"


def _provenance(f: Findings) -> str:
    seeds = sorted({seed for rows in f.runs.values() for runs in rows.values() for seed in runs})
    machines = dict.fromkeys(f"{m['device']} (torch {m['torch']})" for m in f.made)
    dates = sorted({m["date"] for m in f.made})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
    which = f"Seeds {', '.join(map(str, seeds))}; " if seeds else ""
    seconds = sum(
        e.numbers.get("wall") or 0.0 for rows in f.runs.values() for runs in rows.values() for e in runs.values()
    )
    hours = f", {seconds / 3600:.2g} h of computing" if seconds else ""
    return f"{which}{markdown_text(', '.join(machines))}, {when}{hours}.\n"
