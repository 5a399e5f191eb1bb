"""Verdicts on the claims of a paper: each claim is checked against our numbers.

    best             better than each of `than` in each column
    above, below     larger (smaller) than each of `than`, or than `value`, by at least `by`; than a value also by
                     more than the measure `beyond`, such as half an interval
    near             at most `by` away from each of `than`, or from `value`
    rises, falls     from each column (or row, along = "rows") to the next, in the given order; a step back of up to
                     `slack` is allowed, and from the first to the last it must be more than `by`

All compare means over seeds; two rows are compared over the seeds of both. A verdict is based on the runs that exist
and names the missing ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot

from .experiment import Claim
from .measures import Stat, stat
from .tables import Findings, TableGrid

__all__ = ["Verdict", "judge", "verdicts"]

_MOST = 3  # counterexamples that a verdict names


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: whether it holds (None: its runs are missing); `whole`: all its runs exist."""

    claim: Claim
    holds: bool | None
    words: str
    whole: bool = True


@dataclass(frozen=True)
class _ClaimSides:
    """Result of a comparison: whether it is as claimed, its text, and whether the difference is below the spread."""

    holds: bool
    words: str
    close: bool = False


def verdicts(found: Findings) -> list[Verdict]:
    return [judge(claim, found) for claim in found.experiment.claims]


def judge(claim: Claim, found: Findings) -> Verdict:
    """Return the verdict of our numbers on a claim."""
    grid = found.grids[claim.measure]
    columns = claim.columns or tuple(found.columns)
    there = [c for c in columns if c in found.current and any(grid.stat(row, c) is not None for row in claim.rows)]
    seen = list(_comparisons(claim, found, grid, there))
    if not seen:
        return Verdict(claim, None, "not run yet.")
    missing = [found.columns.get(c, c) for c in columns if c not in there] + _rows_missing(claim, found, grid, there)
    so_far = f" Not run: {_list(missing)}." if missing else ""
    against = [s for s in seen if not s.holds]
    if against:
        more = f"; and {len(against) - _MOST} more" if len(against) > _MOST else ""
        named = "; ".join(s.words for s in against[:_MOST])
        part = f" ({len(against)} of {len(seen)} comparisons)" if len(against) < len(seen) else ""
        return Verdict(claim, False, f"does not show here{part}: {named}{more}.{so_far}", not missing)
    close = [s for s in seen if s.close]
    doubt = f" By less than the spread between seeds: {'; '.join(s.words for s in close[:_MOST])}." if close else ""
    return Verdict(claim, True, f"shows {'so far' if missing else 'here'}.{doubt}{so_far}", not missing)


def _rows_missing(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> list[str]:
    """Return the rows of the claim that were not run in some of the columns."""
    wanted, out = set(found.experiment.grid()), []
    for row in (*claim.rows, *_others(claim, found)):
        lacking = [c for c in columns if grid.stat(row, c) is None and (row, c) in wanted]
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
    for column in columns:
        for row in claim.rows:
            if grid.stat(row, column) is None:
                continue
            if claim.value is not None:
                yield _with_number(claim, found, grid, (row, column))
                continue
            for other in _others(claim, found):
                if other != row and grid.stat(other, column) is not None:
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
    spread = hypot(a.sd or 0.0, b.sd or 0.0)
    return _ClaimSides(
        _holds(claim, grid, a.mean, b.mean), words, claim.check != "near" and abs(a.mean - b.mean) < spread
    )


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
    holds = _holds(claim, grid, mean, claim.value)
    if claim.beyond is not None:
        other = found.grids[claim.beyond]
        margin = other.mean(row, column)
        holds = holds and margin is not None and abs(mean - claim.value) > margin
        words += "" if margin is None else f", {other.measure.title} {other.measure.text(margin)}"
    return _ClaimSides(holds, words)


def _holds(claim: Claim, grid: TableGrid, a: float, b: float) -> bool:
    if claim.check == "near":
        return abs(a - b) <= claim.by
    up = grid.measure.better != "low" if claim.check == "best" else claim.check == "above"
    ahead = a - b if up else b - a
    return ahead >= claim.by if claim.by else ahead > 0


def _trends(claim: Claim, found: Findings, grid: TableGrid, columns: Sequence[str]) -> Iterator[_ClaimSides]:
    if claim.along == "rows":
        for column in columns:
            means = [(found.rows.get(r, r), grid.mean(r, column)) for r in claim.rows]
            yield from _trend(claim, grid, found.columns.get(column, column), means)
        return
    for row in claim.rows:
        means = [(found.columns.get(c, c), grid.mean(row, c)) for c in columns]
        yield from _trend(claim, grid, found.rows.get(row, row), means)


def _trend(
    claim: Claim, grid: TableGrid, row_title: str, means: Sequence[tuple[str, float | None]]
) -> Iterator[_ClaimSides]:
    """Yield the comparison of one line if it has at least two points."""
    there = [(name, m) for name, m in means if m is not None]
    if len(there) < 2:
        return
    sign = 1.0 if claim.check == "rises" else -1.0
    steps = [sign * (b - a) for (_, a), (_, b) in pairwise(there)]
    whole = sign * (there[-1][1] - there[0][1])
    words = f"{row_title}: " + ", ".join(f"{name} {grid.measure.text(m)}" for name, m in there)
    yield _ClaimSides(whole > claim.by and min(steps) >= -claim.slack, words)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
