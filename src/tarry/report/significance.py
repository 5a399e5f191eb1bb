"""Significance of differences between the rows of a comparison: paired tests over seeds, and what they allow to say.

A pair is a seed that both rows have a final score for. Every two rows are compared by a two-sided Wilcoxon signed-rank
test, or one row with all others by one-sided tests (report.statistics), with Holm's correction over all tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..core.errors import BadInput, near
from ..core.metric import Metric
from ..core.printable import html_text
from ..record.result import Result
from ..record.views import data_frame
from .formatting import TableCell, join_names, pluralize
from .statistics import Alternative, bootstrap_interval, holm, least_p, least_pairs, pairs_needed, signed_rank
from .tables import by_label, finite_or_none, metrics_of_runs

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["PairedTest", "Significance", "significance", "significance_grid", "significance_json"]

LEVEL = 0.05
POWER = 0.8
_MOST_ROWS = 20  # rows of a comparison of which every two are tested: 190 tests, which take two seconds


@dataclass(frozen=True)
class PairedTest:
    """The test of one row of a comparison against another over the seeds of both."""

    label: str  # the row with the better mean, or the one that was named
    other: str
    pairs: int
    difference: float  # mean over seeds; above 0: the first row is better
    low: float  # bootstrap interval of the mean difference
    high: float
    p: float
    corrected: float  # Holm
    significant: bool
    pairs_needed: int | None  # in all, to find a difference like this one; None: significant already, or not known


@dataclass(frozen=True, repr=False)
class Significance:
    """The tests between the rows of a comparison."""

    metric: Metric  # what is compared
    seeds: int
    alternative: Alternative
    tests: tuple[PairedTest, ...]
    best: str | None = None
    level: float = LEVEL
    omitted: str = ""  # why there are no tests, although there are several rows

    @property
    def least_p(self) -> float:
        """Return the smallest p that the number of pairs allows."""
        return least_p(max((t.pairs for t in self.tests), default=0), self.alternative)

    @property
    def needed_for_any(self) -> int:
        """Return the number of seeds below which no difference can be significant."""
        return least_pairs(self.level / max(1, len(self.tests)), self.alternative)

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row for each test."""
        return data_frame(asdict(test) for test in self.tests)

    def sentences(self) -> list[str]:
        """Return what the tests say, in a few sentences."""
        if not self.tests:
            return [self.omitted] if self.omitted else []
        if self.least_p * len(self.tests) >= self.level:
            return [self._too_few()]
        found = [t for t in self.tests if t.significant]
        rest = [t for t in self.tests if self.best not in (t.label, t.other)]
        lines = [self._about_tests(), *self._about_best()]
        if rest:
            more = sum(t.significant for t in rest)
            lines.append(f"Of the other pairs, {more} of {len(rest)} differ significantly.")
        if len(found) < len(self.tests):
            lines.append(
                f"More seeds: for a power of {100 * POWER:.0f} % at the corrected level, if differences are normal with"
                " the mean and standard deviation of these."
            )
        return lines

    def __repr__(self) -> str:
        found = sum(t.significant for t in self.tests)
        return f"Significance({found} of {pluralize(len(self.tests), 'test')} significant, {self.seeds} seeds)"

    def _repr_html_(self) -> str:
        """Return the sentences and a table of the tests, for a notebook."""
        headings, rows = significance_grid(self)
        head = "".join(f"<th>{html_text(heading)}</th>" for heading in headings)
        body = "".join(f"<tr>{''.join(f'<td>{html_text(c.text)}</td>' for c in row)}</tr>\n" for row in rows)
        text = html_text(" ".join(self.sentences()))
        return f"<p>{text}</p><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"

    def _too_few(self) -> str:
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        both = "" if self.alternative == "greater" else f" one-sided, {self.least_p:.2g} two-sided"
        least = least_p(max(t.pairs for t in self.tests), "greater")
        tests = "one test" if len(self.tests) == 1 else f"{len(self.tests)} tests with Holm's correction"
        return (
            f"With {seeds} no difference can be significant: with n pairs p cannot be below 2^-n = {least:.2g}{both}."
            f" At a level of {self.level:.2g}, {tests} can find something from {self.needed_for_any} seeds on."
        )

    def _about_tests(self) -> str:
        sides = "two-sided" if self.alternative == "two-sided" else "one-sided"
        over = "" if len(self.tests) == 1 else f", Holm's correction over {len(self.tests)} pairs"
        floor = "2^-n" if self.alternative == "greater" else "2 · 2^-n"
        return (
            f"Paired over {self.seeds} seeds: {sides} Wilcoxon signed-rank tests{over}, level {self.level:.2g}; with n"
            f" pairs p cannot be below {floor} = {self.least_p:.2g}. In brackets: 95 % bootstrap intervals of mean"
            " differences."
        )

    def _about_best(self) -> list[str]:
        with_best = [t for t in self.tests if self.best in (t.label, t.other)]
        ahead = [f"{t.other} ({self._numbers(t)})" for t in with_best if t.significant and t.label == self.best]
        behind = [f"{t.label} ({self._numbers(t)})" for t in with_best if t.significant and t.label != self.best]
        open_tests = [t for t in with_best if not t.significant]
        lines = [f"{self.best} is significantly better than {join_names(ahead)}."] if ahead else []
        lines += [f"{self.best} is significantly worse than {join_names(behind)}."] if behind else []
        if open_tests:
            others = [t.other if t.label == self.best else t.label for t in open_tests]
            named = [f"{name} ({self._numbers(t)}; {_needed(t)})" for name, t in zip(others, open_tests, strict=True)]
            lines.append(f"Not significant is the difference of {self.best} from {join_names(named)}.")
        return lines

    def _numbers(self, test: PairedTest) -> str:
        return f"{self.format_difference(test)}, p {test.corrected:.2g}"

    def format_difference(self, test: PairedTest) -> str:
        """Return the mean difference with its interval: +1.2 points [0.3, 2.1]."""
        if self.metric.is_share:
            return f"{100 * test.difference:+.1f} points [{100 * test.low:.1f}, {100 * test.high:.1f}]"
        return f"{test.difference:+.3g} [{test.low:.3g}, {test.high:.3g}]"


def _needed(test: PairedTest) -> str:
    if test.pairs_needed is None:
        return "more seeds than can be said"
    more = test.pairs_needed - test.pairs
    return f"about {more} more seeds" if more > 0 else "a few more seeds"


def significance(results: Sequence[Result], *, hero: str | None = None, level: float = LEVEL) -> Significance:
    """Return the tests of every two labels, or of `hero` against every other label."""
    metric, scores = _scores(results)
    if hero is not None and hero not in scores:
        raise BadInput(f"--hero {hero}: no run here has this label.{near(hero, scores)}")
    if not 0 < level < 1:
        raise BadInput(f"--level {level}: must be above 0 and below 1")
    seeds = len({seed for values in scores.values() for seed in values})
    means = {label: fmean(values.values()) for label, values in scores.items() if values}
    best = hero or max(means, key=means.__getitem__, default=None)
    alternative: Alternative = "two-sided" if hero is None else "greater"
    if hero is None and len(scores) > _MOST_ROWS:
        omitted = (
            f"Differences are not tested: {len(scores)} rows are too many to compare every two of them (at most"
            f" {_MOST_ROWS})."
        )
        return Significance(metric, seeds, alternative, (), best, level, omitted)
    wanted = combinations(scores, 2) if hero is None else ((hero, label) for label in scores if label != hero)
    differences = dict(_differences(wanted, scores, named=hero is not None))
    return Significance(metric, seeds, alternative, _tests(differences, alternative, level), best, level)


def _scores(results: Sequence[Result]) -> tuple[Metric, dict[str, dict[int, float]]]:
    """Return the metric that is the score, and the final scores by label and seed with a sign: higher is better."""
    metric, _ = metrics_of_runs(results)
    scores: dict[str, dict[int, float]] = {label: {} for label in by_label(results)}
    for run in results:
        if (value := finite_or_none(run.final_metrics.get(metric.name))) is not None:
            scores[run.label][run.seed] = metric.sign * value
    return metric.description, scores


def _differences(
    wanted: Iterable[tuple[str, str]], scores: Mapping[str, Mapping[int, float]], *, named: bool
) -> Iterable[tuple[tuple[str, str], list[float]]]:
    """Yield the differences over seeds by pair of labels, the better label first unless the first one is named."""
    for first, second in wanted:
        seeds = [seed for seed in scores[first] if seed in scores[second]]
        found = [scores[first][seed] - scores[second][seed] for seed in seeds]
        if found and fmean(found) < 0 and not named:
            yield (second, first), [-d for d in found]
        elif found:
            yield (first, second), found


def _tests(
    differences: Mapping[tuple[str, str], Sequence[float]], alternative: Alternative, level: float
) -> tuple[PairedTest, ...]:
    p_values = {pair: signed_rank(found, alternative) for pair, found in differences.items()}
    names = {pair: str(i) for i, pair in enumerate(p_values)}
    corrected = holm({names[pair]: p for pair, p in p_values.items()})
    is_open = {pair: corrected[names[pair]] >= level for pair in p_values}
    level_of_open = level / max(1, sum(is_open.values()))  # those found are no longer counted by Holm
    intervals = {pair: bootstrap_interval(found) for pair, found in differences.items()}
    return tuple(
        PairedTest(
            *pair,
            pairs=len(found),
            difference=fmean(found),
            low=intervals[pair][0],
            high=intervals[pair][1],
            p=p_values[pair],
            corrected=corrected[names[pair]],
            significant=not is_open[pair],
            pairs_needed=pairs_needed(found, level_of_open, alternative, power=POWER) if is_open[pair] else None,
        )
        for pair, found in differences.items()
    )


def significance_grid(found: Significance) -> tuple[tuple[str, ...], list[tuple[TableCell, ...]]]:
    """Return the headings and the rows of a table of the tests."""
    headings = ("better", "than", "by, with 95 % interval", "pairs", "p", "p by Holm", "significant", "seeds needed")
    rows: list[tuple[TableCell, ...]] = [
        (
            TableCell(t.label),
            TableCell(t.other),
            TableCell(found.format_difference(t)),
            TableCell(str(t.pairs)),
            TableCell(f"{t.p:.2g}"),
            TableCell(f"{t.corrected:.2g}", best=t.significant),
            TableCell("yes" if t.significant else "no"),
            TableCell("" if t.pairs_needed is None else str(t.pairs_needed)),
        )
        for t in found.tests
    ]
    return headings, rows


def significance_json(found: Significance) -> str:
    """Return every number unrounded, as in `significance.json`."""
    record: dict[str, Any] = {**asdict(found), "metric": found.metric.name}
    return json.dumps(record, indent=1) + "\n"
