"""Verdicts on the claims of a paper: each claim is checked against our numbers.

    best             better than each of `than` in each column
    above, below     larger (smaller) than each of `than`, or than `value`, by at least `by`; than a value also by
                     more than the measure `beyond`, such as half an interval
    near             at most `by` away from each of `than`, or from `value`
    rises, falls     from each column (or row, along = "rows") to the next, in the given order; a step back of up to
                     `slack` is allowed, and from the first to the last it must be more than `by`
    lead             the lead of the rows over `than` (means of both; of times, the ratio) is larger in the first column
                     than in each other; with along = "rows" rows and `than` are pairs, and the first pair leads most
    steadier         the range over the columns is smaller than that of each of `than`

With `relative`, `by` is per cent of the other side. With `mean`, above and below compare means over all columns; while
some have not been run, that is not settled. A claim may be about a measure that is not shown in a table.

All compare means over seeds; two rows are compared over the seeds of both. Claims on the accuracy are judged on its
mean over the last tenth of the run. A comparison is settled if it holds, or fails, by more than the spread of both
sides, the root of the sum of their squared standard deviations (of the paper's for a row with one seed), and if the
last tenth has five evaluations. A claim fails if a settled comparison fails; it shows if all comparisons hold and are
settled; otherwise it is not settled. A verdict is based on the runs that exist and names the missing ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from statistics import fmean

from .experiment import Claim
from .measures import TO_TARGET, Stat, stat, tail_evaluations
from .tables import Findings, TableGrid

__all__ = ["Verdict", "judge", "verdicts"]

_MOST = 3  # counterexamples that a verdict names
_FEW = 5  # evaluations that the last tenth of a run needs


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: whether it holds (None: its runs are missing, or `is_settled` is false).

    `whole`: all its runs exist; `full`: all its runs have the paper's size.
    """

    claim: Claim
    holds: bool | None
    words: str
    whole: bool = True
    is_settled: bool = True
    full: bool = True


@dataclass(frozen=True)
class _ClaimSides:
    """Result of a comparison: whether it is as claimed, its text, and whether the difference is below the spread."""

    holds: bool
    words: str
    close: bool = False
    doubt: str = "within the spread"


def verdicts(found: Findings) -> list[Verdict]:
    return [judge(claim, found) for claim in found.experiment.claims]


def judge(claim: Claim, found: Findings) -> Verdict:
    """Return the verdict of our numbers on a claim."""
    grid = found.grids["tail" if claim.measure == "accuracy" and "tail" in found.grids else claim.measure]
    columns = claim.columns or tuple(found.columns)
    there = [c for c in columns if c in found.current and any(_has(grid, row, c) for row in claim.rows)]
    seen = list(_comparisons(claim, found, grid, there))
    if not seen:
        return Verdict(claim, None, "not run yet.")
    missing = [found.columns.get(c, c) for c in columns if c not in there] + _rows_missing(claim, found, grid, there)
    so_far = f" Not run: {_list(missing)}." if missing else ""
    full = all(found.sizes.get(c, ("full", ""))[0] == "full" for c in there)
    against = [s for s in seen if not s.holds and not s.close]
    if against:
        part = f" ({len(against)} of {len(seen)} comparisons)" if len(against) < len(seen) else ""
        return Verdict(claim, False, f"does not show here{part}: {_some(against)}.{so_far}", not missing, full=full)
    close = [s for s in seen if s.close]
    if close:
        part = f" ({len(close)} of {len(seen)} comparisons)" if len(close) < len(seen) else ""
        why = "; ".join(dict.fromkeys(s.doubt for s in close))
        words = f"not settled{part}, {why}: {_some(close)}.{so_far}"
        return Verdict(claim, None, words, not missing, is_settled=False, full=full)
    return Verdict(claim, True, f"shows {'so far' if missing else 'here'}.{so_far}", not missing, full=full)


def _has(grid: TableGrid, row: str, column: str) -> bool:
    """Return whether there are runs with the measure; older runs did not store every number."""
    there = grid.stat(row, column)
    return there is not None and (there.mean is not None or grid.name in TO_TARGET)


def _some(sides: Sequence[_ClaimSides]) -> str:
    more = f"; and {len(sides) - _MOST} more" if len(sides) > _MOST else ""
    return "; ".join(s.words for s in sides[:_MOST]) + more


def _rows_missing(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> list[str]:
    """Return the rows of the claim that were not run in some of the columns."""
    wanted, out = set(found.experiment.grid()), []
    for row in (*claim.rows, *_others(claim, found)):
        lacking = [c for c in columns if not _has(grid, row, c) and (row, c) in wanted]
        if lacking:
            where = "" if len(lacking) == len(columns) else f" ({_list([found.columns.get(c, c) for c in lacking])})"
            out.append(found.rows.get(row, row) + where)
    return out


def _others(claim: Claim, found: Findings) -> Sequence[str]:
    """Return the rows that a claim compares with: those it names, else all others."""
    if claim.value is not None or claim.check in ("rises", "falls"):
        return ()
    return claim.than or [r for r in found.rows if r not in claim.rows]


def _comparisons(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    if claim.check in ("rises", "falls"):
        yield from _trends(claim, found, grid, columns)
        return
    if claim.check == "lead":
        yield from _leads(claim, found, grid, columns)
        return
    if claim.check == "steadier":
        yield from _ranges(claim, found, grid, columns)
        return
    if claim.mean:
        yield from _means(claim, found, grid, columns)
        return
    for column in columns:
        for row in claim.rows:
            if not _has(grid, row, column):
                continue
            if claim.value is not None:
                yield _with_number(claim, found, grid, (row, column))
                continue
            for other in _others(claim, found):
                if other != row and _has(grid, other, column):
                    yield _pair(claim, found, grid, (row, other, column))


def _pair(claim: Claim, found: Findings, grid: TableGrid, where: tuple[str, str, str]) -> _ClaimSides:
    row, other, column = where
    a, b = _of_both(grid, where)
    place = found.columns.get(column, column)
    if a.mean is None or b.mean is None:  # some seed did not reach the target
        lacking = row if a.mean is None else other
        holds = a.mean is not None and claim.check in ("best", "below") and grid.measure.better == "low"
        return _ClaimSides(
            holds, f"{place}: {found.rows.get(lacking, lacking)} does not reach the target with every seed"
        )
    texts = [f"{found.rows.get(r, r)} {grid.measure.text(m)}" for r, m in ((row, a.mean), (other, b.mean))]
    words = f"{place}: {texts[0]}, {texts[1]}"
    spread = hypot(_sd(found, grid, (row, column), a), _sd(found, grid, (other, column), b))
    ahead = _ahead(claim, grid, a.mean, b.mean)
    return _side(found, grid, ((row, other), column), _is_so(claim, ahead), words, abs(ahead) < spread)


def _side(
    found: Findings, grid: TableGrid, where: tuple[tuple[str, ...], str], holds: bool, words: str, close: bool
) -> _ClaimSides:
    """Return a comparison; it is not settled if a run of it has too few evaluations in its last tenth."""
    rows, column = where
    runs = [e for r in rows for e in found.runs.get(column, {}).get(r, {}).values()]
    if grid.name == "tail" and any(tail_evaluations(e) < _FEW for e in runs):
        return _ClaimSides(holds, words, True, "fewer than five evaluations in the last tenth")
    return _ClaimSides(holds, words, close)


def _sd(found: Findings, grid: TableGrid, where: tuple[str, str], side: Stat) -> float:
    """Return the spread over seeds; with one seed the one that the paper prints, if it does."""
    if side.sd is not None:
        return side.sd
    return found.paper_sd("accuracy" if grid.name == "tail" else grid.name, *where) or 0.0


def _of_both(grid: TableGrid, where: tuple[str, str, str]) -> tuple[Stat, Stat]:
    """Return the statistics of both rows over the seeds that both have, if there are any."""
    row, other, column = where
    first, second = (grid.values[r][column] for r in (row, other))
    both = first.keys() & second.keys()
    a, b = (stat({s: v for s, v in side.items() if s in both or not both}) for side in (first, second))
    return a, b


def _with_number(claim: Claim, found: Findings, grid: TableGrid, where: tuple[str, str]) -> _ClaimSides:
    row, column = where
    place, name = found.columns.get(column, column), found.rows.get(row, row)
    mean = grid.mean(row, column)
    assert claim.value is not None
    if mean is None:
        return _ClaimSides(False, f"{place}: {name} does not reach the target with every seed")
    words = f"{place}: {name} {grid.measure.text(mean)} against {grid.measure.text(claim.value)}"
    ahead, found_stat = _ahead(claim, grid, mean, claim.value), grid.stat(row, column)
    assert found_stat is not None
    holds, spread = _is_so(claim, ahead), _sd(found, grid, (row, column), found_stat)
    if claim.beyond is not None:
        other = found.grids[claim.beyond]
        margin = other.mean(row, column)
        holds = holds and margin is not None and abs(mean - claim.value) > margin
        words += "" if margin is None else f", {other.measure.title} {other.measure.text(margin)}"
        return _ClaimSides(holds, words)
    return _side(found, grid, ((row,), column), holds, words, abs(ahead) < spread)


def _ahead(claim: Claim, grid: TableGrid, a: float, b: float) -> float:
    """Return by how much a comparison is as claimed; negative: by how much it is not."""
    if claim.check == "near":
        return claim.by - abs(a - b)
    up = grid.measure.better != "low" if claim.check == "best" else claim.check == "above"
    return (a - b if up else b - a) - (abs(b) * claim.by / 100 if claim.relative else claim.by)


def _is_so(claim: Claim, ahead: float) -> bool:
    return ahead >= 0 if claim.by or claim.check == "near" else ahead > 0


def _means(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    """Yield a comparison for each row: its mean over the columns with that of the others, or with the value."""
    others = _others(claim, found)
    for row in claim.rows:
        both = [c for c in columns if all(grid.mean(r, c) is not None for r in (row, *others))]
        if not both:
            continue
        a = fmean(_mean_of(grid, (row,), c) for c in both)
        b = fmean(_mean_of(grid, others, c) for c in both) if claim.value is None else claim.value
        words = f"{found.rows.get(row, row)} {grid.measure.text(a)} on average, against {grid.measure.text(b)}"
        sides = (*((row, c, 1.0) for c in both), *((r, c, 1.0 / len(others)) for r in others for c in both))
        spread = hypot(*(w * _spread(found, grid, r, c) for r, c, w in sides)) / len(both)
        ahead = _ahead(claim, grid, a, b)
        words += f" (over {_list([found.columns.get(c, c) for c in both])})"
        if len(both) < len(claim.columns or found.columns):
            yield _ClaimSides(_is_so(claim, ahead), words, True, "some columns have not been run")
        else:
            yield _ClaimSides(_is_so(claim, ahead), words, abs(ahead) < spread)


def _leads(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    """Yield a comparison of the first lead with each other one."""
    pairs: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = []
    if claim.along == "rows":
        for column in columns:
            named = zip(claim.rows, claim.than, strict=False)
            pairs = [(found.rows.get(r, r), (r,), (o,), column) for r, o in named]
            yield from _compare_leads(found, grid, pairs)
        return
    wanted = [c for c in claim.columns or columns if c in columns]
    if claim.columns and wanted[:1] != [claim.columns[0]]:
        return  # the first one has not been run
    pairs = [(found.columns.get(c, c), claim.rows, tuple(_others(claim, found)), c) for c in wanted]
    yield from _compare_leads(found, grid, pairs)


def _compare_leads(
    found: Findings, grid: TableGrid, pairs: Sequence[tuple[str, tuple[str, ...], tuple[str, ...], str]]
) -> Iterator[_ClaimSides]:
    leads: list[tuple[str, float, float]] = []
    for title, rows, others, column in pairs:
        if any(grid.mean(r, column) is None for r in (*rows, *others)):
            if not leads:
                return
            continue
        a, b = _mean_of(grid, rows, column), _mean_of(grid, others, column)
        spreads = [_spread(found, grid, r, column) / len(s) for s in (rows, others) for r in s]
        if grid.name == "time":
            leads.append((title, b / a, hypot(*spreads) / a))
        else:
            leads.append((title, b - a if grid.measure.better == "low" else a - b, hypot(*spreads)))
    for title, lead, spread in leads[1:]:
        first, most, first_spread = leads[0]
        words = f"{first}: ahead by {grid.measure.text(most)}, {title} by {grid.measure.text(lead)}"
        yield _ClaimSides(most > lead, words, abs(most - lead) < hypot(first_spread, spread))


def _ranges(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    """Yield a comparison of the ranges of two rows, over the columns that both have, two at least."""
    for row in claim.rows:
        for other in _others(claim, found):
            both = [c for c in columns if all(grid.mean(r, c) is not None for r in (row, other))]
            if len(both) < 2:
                continue
            ranges, spreads = [], list[float]()
            for r in (row, other):
                at = sorted(both, key=lambda c, r=r: _mean_of(grid, (r,), c))  # type: ignore[misc]
                ranges.append(_mean_of(grid, (r,), at[-1]) - _mean_of(grid, (r,), at[0]))
                spreads += [_spread(found, grid, r, c) for c in (at[0], at[-1])]
            texts = [
                f"{found.rows.get(r, r)} {grid.measure.text(x)}" for r, x in zip((row, other), ranges, strict=True)
            ]
            words = f"range over {_list([found.columns.get(c, c) for c in both])}: {texts[0]}, {texts[1]}"
            close = abs(ranges[1] - ranges[0]) < hypot(*spreads)
            yield _ClaimSides(ranges[0] < ranges[1], words, close)


def _mean_of(grid: TableGrid, rows: Sequence[str], column: str) -> float:
    return fmean(mean for row in rows if (mean := grid.mean(row, column)) is not None)


def _spread(found: Findings, grid: TableGrid, row: str, column: str) -> float:
    there = grid.stat(row, column)
    return 0.0 if there is None else _sd(found, grid, (row, column), there)


def _trends(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    if claim.along == "rows":
        for column in columns:
            stats = [(found.rows.get(r, r), grid.stat(r, column)) for r in claim.rows]
            yield from _trend(claim, grid, found.columns.get(column, column), stats)
        return
    for row in claim.rows:
        stats = [(found.columns.get(c, c), grid.stat(row, c)) for c in columns]
        yield from _trend(claim, grid, found.rows.get(row, row), stats)


def _trend(
    claim: Claim, grid: TableGrid, row_title: str, stats: Sequence[tuple[str, Stat | None]]
) -> Iterator[_ClaimSides]:
    """Yield the comparison of one line if it has at least two points."""
    known = [(name, s) for name, s in stats if s is not None and s.mean is not None]
    there = [(name, s.mean) for name, s in known if s.mean is not None]
    if len(there) < 2:
        return
    sign = 1.0 if claim.check == "rises" else -1.0
    steps = [sign * (b - a) for (_, a), (_, b) in pairwise(there)]
    whole = sign * (there[-1][1] - there[0][1])
    words = f"{row_title}: " + ", ".join(f"{name} {grid.measure.text(m)}" for name, m in there)
    ahead = min(whole - claim.by, min(steps) + claim.slack)
    spread = max(hypot(a.sd or 0.0, b.sd or 0.0) for (_, a), (_, b) in pairwise(known))
    yield _ClaimSides(whole > claim.by and min(steps) >= -claim.slack, words, abs(ahead) < spread)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
