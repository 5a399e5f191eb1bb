"""docs/results.md: every experiment's numbers beside the paper's, its tests, claims and picture, made from the results.

Nothing is written that no run produced: a cell without a run is a dash, an experiment without any is listed as not run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

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
ours is from it. The best of our means in a column is bold. A dash: not run. † A run of the cell ended at the accuracy
of the majority class, or diverged. ↓ It lost 20 points or more since its best. Columns marked "earlier settings" were
run before a setting was corrected; no claim is judged on them. A run that is repeated on another kind of machine
differs in rounding, and rounding grows: expect a few tenths of a point at the end of a run that swings little.

A claim shows if every comparison in it holds by more than the spread of both sides (with one seed, of the spread that
the paper prints), and it does not show if one fails by more. Otherwise it is not settled. Accuracy is judged on its
mean over the last tenth of a run, with five evaluations at least. Claims on runs at the paper's size are counted apart
from claims on runs of a reduced size. 5 (1 so far): for 1 of these 5, some of what it is about has not been run yet.
Open: nothing has been run that it could be seen on. The mistakes that we found in the papers are in
[errata.md](errata.md).
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
    """Return the counts of each paper, then in a folded table those of each experiment."""
    head = "| {} | runs | shows | does not | not settled | reduced size: shows | does not | not settled | open |"
    line = "|---|---|" + "---:|" * 7
    papers, experiments = [head.format("paper"), line], [head.format("experiment"), line]
    for paper in dict.fromkeys(_paper(f.experiment) for f in found):
        mine = [f for f in found if _paper(f.experiment) == paper]
        about = [v for f in mine for v in judged.get(f.experiment.name, [])]
        title = PAPERS.get(paper, paper)
        full, smaller, earlier = _runs_by_size(mine)
        run = f"{full} at full size, {smaller} reduced" + (f", {earlier} with earlier settings" if earlier else "")
        papers.append(f"| [{title.partition(':')[0]}](#{_anchor(title)}) | {run} | {_counts(about)} |")
    for f in found:
        e = f.experiment
        link = f"[{e.name}](#{_anchor(_heading(e))}) {markdown_text(e.title)}"
        counts = _counts(judged.get(e.name, [])) if f.there else " | ".join([NONE] * 7)
        experiments.append(f"| {link} | {_how_much(f) if f.there else 'not run'} | {counts} |")
    return "\n".join([*papers, "", *_folded("All experiments", "\n".join(experiments))]) + "\n"


def _runs_by_size(found: Sequence[Findings]) -> tuple[int, int, int]:
    """Return the number of runs at full size, at a reduced size, and with earlier settings; each run once."""
    seen: dict[str, set[str]] = {"full": set(), "reduced": set(), EARLIER: set()}
    for f in found:
        for column, rows in f.runs.items():
            size = f.sizes[column][0]
            seen.setdefault(size, set()).update(
                f"{e.weights_sha256}{seed}" for runs in rows.values() for seed, e in runs.items()
            )
    return len(seen["full"]), len(seen["reduced"]), len(seen[EARLIER])


def _counts(about: Sequence[Verdict]) -> str:
    """Return the numbers of claims that show, do not, are not settled, at full and reduced size, and of open ones."""
    cells = []
    for full in (True, False):
        there = [v for v in about if v.full is full and (v.holds is not None or not v.is_settled)]
        cells += [_number([v for v in there if v.holds is which]) for which in (True, False, None)]
    return " | ".join([*cells, str(sum(v.holds is None and v.is_settled for v in about))])


def _folded(title: str, text: str) -> list[str]:
    """Return a text that is shown on a click."""
    return [f"<details><summary>{title}</summary>\n", f"{text}\n", "</details>\n"]


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
        parts += _folded(
            "Where our setting is not the paper's:", "\n".join(f"- {markdown_text(d)}" for d in e.deviations)
        )
    if not f.there:
        return [*parts, "**Not run.**\n"]
    parts += [_smaller(f)] if _smaller(f) else []
    parts += [table for name in e.measures if (table := _table(f, name))]
    parts += _work(f)
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
    for begin in ("shows here", "shows so far", "does not show here", "not settled", "not run yet"):
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


def _work(f: Findings) -> list[str]:
    """Return a folded table of the server steps and updates of each cell."""
    columns = [c for c in f.columns if c in f.runs]
    if not columns:
        return []
    lines = ["| server steps / updates | " + " | ".join(markdown_text(f.columns[c]) for c in columns) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for row, title in f.rows.items():
        cells = []
        for column in columns:
            runs = f.runs[column].get(row, {}).values()
            means = [fmean(e.numbers[n] or 0 for e in runs) for n in ("rounds", "updates")] if runs else []
            cells.append(" / ".join(f"{m:,.0f}" for m in means) or NONE)
        lines.append(f"| {markdown_text(title)} | " + " | ".join(cells) + " |")
    return _folded("Server steps and updates that each row had", "\n".join(lines))


def _cell(f: Findings, name: str, row: str, column: str) -> str:
    grid = f.grids[name]
    text, mean = ours(grid, row, column), grid.mean(row, column)
    if mean is not None and mean == grid.best(column):
        text = f"**{text}**"
    text += f.marks(row, column)
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
    if target.by_column:
        each = [f"{markdown_text(experiment.columns[c].title)}: {x:g} %" for c, x in target.by_column.items()]
        aim = f"an accuracy ({', '.join(each)})"
    elif target.accuracy is not None:
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


def _at_a_time(command: str) -> int:
    """Return the number of runs that shared the device."""
    words = shlex.split(command)
    text = next((after for word, after in pairwise(words) if word == "--workers"), "1")
    return max(1, int(text)) if text.isdigit() else 1


def _provenance(f: Findings) -> str:
    seeds = sorted({seed for rows in f.runs.values() for runs in rows.values() for seed in runs})
    machines = dict.fromkeys(f"{m['device']} (torch {m['torch']})" for m in f.made)
    dates = sorted({m["date"] for m in f.made})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
    which = f"Seeds {', '.join(map(str, seeds))}; " if seeds else ""
    entries = [e for rows in f.runs.values() for runs in rows.values() for e in runs.values()]
    seconds = sum((e.numbers.get("wall") or 0.0) / _at_a_time(e.made.get("command", "")) for e in entries)
    hours = f", about {seconds / 3600:.2g} device hours" if seconds else ""
    return f"{which}{markdown_text(', '.join(machines))}, {when}{hours}.\n"
