"""Verdicts on the claims of a paper: each claim is checked against our numbers.

    best             better than each of `than` in each column
    above, below     larger (smaller) than each of `than`, or than `value`, by at least `by`; than a value also by
                     more than the measure `beyond`, such as half an interval
    near             at most `by` away from each of `than`, or from `value`
    rises, falls     from each column (or row, along = "rows") to the next, in the given order; a step back of up to
                     `slack` is allowed, and from the first to the last it must be more than `by`

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

from .experiment import Claim
from .measures import Stat, stat, tail_evaluations
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
    there = [c for c in columns if c in found.current and any(grid.stat(row, c) is not None for row in claim.rows)]
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


def _some(sides: Sequence[_ClaimSides]) -> str:
    more = f"; and {len(sides) - _MOST} more" if len(sides) > _MOST else ""
    return "; ".join(s.words for s in sides[:_MOST]) + more


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
    return (a - b if up else b - a) - claim.by


def _is_so(claim: Claim, ahead: float) -> bool:
    return ahead >= 0 if claim.by or claim.check == "near" else ahead > 0


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
