"""Tuning: the outcome of a study, with the settings that were found for every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.metric import Metric
from ...core.one_line import cut_to_width
from ...core.printable import html_text, printable
from ...record.views import data_frame
from ...report.formatting import NONE, TableCell, join_names, pluralize
from .search import Search
from .space import Space
from .trials import TuningTrial

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["MethodTrials", "Tuning"]


@dataclass(frozen=True)
class MethodTrials:
    """The trials of one method."""

    label: str  # of the method as it was given
    given: Mapping[str, Any]  # its settings: method, and the parts of a cross
    space: Space
    trials: tuple[TuningTrial, ...]

    @property
    def best(self) -> TuningTrial | None:
        """Return the trial with the highest score, the first of equal ones; None if all failed or diverged."""
        scored = [(t.score, -t.number, t) for t in self.trials if t.score is not None]
        return max(scored, key=lambda found: found[:2])[2] if scored else None

    @property
    def edges(self) -> dict[str, str]:
        """Return the dimensions whose best value is at an end of its range: "lower" or "upper"."""
        best = self.best
        found = {} if best is None else {name: d.edge(best.point[name]) for name, d in self.space.items()}
        return {name: edge for name, edge in found.items() if edge is not None}

    def count(self, status: str) -> int:
        """Return the number of trials that ended so."""
        return sum(t.status == status for t in self.trials)


@dataclass(frozen=True, repr=False)
class Tuning:
    """A finished study: the trials of every method, and the best settings.

    >>> tuning = tarry.tune(["fedavg", "fedprox"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
    >>> tuning
    Tuning(2 methods on digits, 2 trials each by random search, seeds 1000)
    >>> sorted(tuning.best["fedprox"])
    ['lr', 'method.mu']
    """

    methods: tuple[MethodTrials, ...]
    task: str
    search: Search
    trials: int
    seeds: tuple[int, ...]
    metric: Metric  # what the score is
    settings: Mapping[str, Any]  # those that all trials share
    objects: tuple[str, ...] = ()  # those of them that are Python objects
    command: str = ""
    out: Path | None = None

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The best values of every method that has a finished trial, by label.

        >>> tuning = tarry.tune(["fedasync"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
        >>> list(tuning.best["fedasync"])
        ['lr', 'method.alpha', 'method.a']
        """
        return {m.label: dict(m.best.point) for m in self.methods if m.best is not None}

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row for each trial.

        >>> tuning = tarry.tune(["fedasync"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
        >>> list(tuning.to_frame().columns)
        ['method', 'trial', 'status', 'score', 'lr', 'method.alpha', 'method.a', 'error']
        """
        return data_frame(
            {"method": m.label, "trial": t.number, "status": t.status, "score": t.score, **t.point, "error": t.error}
            for m in self.methods
            for t in m.trials
        )

    def save(self, path: str | Path) -> Path:
        """Write the tuned settings to a TOML file, which `compare` takes as `tuned`.

        >>> import tempfile
        >>> tuning = tarry.tune(["fedasync"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tuning.save(f"{folder}/tuned.toml")
        ...     c = tarry.compare(tuned=path, seeds=[0])
        >>> [(row.method, sorted(row.axes)) for row in c.summary.rows]
        [('fedasync', ['lr'])]
        """
        from .tuned_file import write_tuned

        return write_tuned(Path(path), self)

    def grid(self) -> tuple[tuple[str, ...], list[tuple[TableCell, ...]]]:
        """Return the headings and the rows of a table with the best trial of each method.

        >>> tuning = tarry.tune(["fedavg"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
        >>> tuning.grid()[0]
        ('method', 'trials', 'failed / diverged', 'best trial', 'validation accuracy %', 'best settings')
        """
        headings = (
            "method",
            "trials",
            "failed / diverged",
            "best trial",
            f"validation {self.metric.heading}",
            "best settings",
        )
        return headings, [self._row(m) for m in self.methods]

    def _row(self, method: MethodTrials) -> tuple[TableCell, ...]:
        best = method.best
        bad = f"{method.count('failed')} / {method.count('diverged')}"
        found = [method.label, str(len(method.trials)), bad]
        if best is None or best.score is None:
            return tuple(map(TableCell, [*found, NONE, NONE, "no trial finished"]))
        score = self.metric.plain(self.metric.sign * best.score)
        settings = ", ".join(f"{name}={value}" for name, value in best.point.items())
        return tuple(map(TableCell, [*found, str(best.number), score, settings]))

    def sentences(self) -> list[str]:
        """Return what the table does not show: values at the edge of a range, and methods without a finished trial.

        >>> tuning = tarry.tune(["fedavg"], "digits", trials=3, seeds=[1000], space={"lr": [0.1, 0.2]}, updates=3)
        >>> tuning.sentences()
        ['fedavg: its space has 2 points, all of them tried.']
        """
        lines = []
        for method in self.methods:
            best = method.best
            for name, edge in method.edges.items():
                assert best is not None
                lines.append(
                    f"{method.label}: the best {name}, {best.point[name]}, is at the {edge} edge of the range"
                    f" {method.space[name]}; a wider range may give a better score (--space {name}=...)."
                )
            if len(method.trials) < self.trials:
                lines.append(
                    f"{method.label}: its space has {pluralize(len(method.trials), 'point')}, all of them tried."
                )
            if errors := list(dict.fromkeys(t.error for t in method.trials if t.error)):
                more = f" (and {len(errors) - 1} other errors)" if len(errors) > 1 else ""
                lines.append(f"{method.label}: {method.count('failed')} failed: {errors[0]}{more}")
        if unfinished := [m.label for m in self.methods if m.best is None]:
            lines.append(f"{join_names(unfinished)}: no trial finished, so that there are no tuned settings.")
        return lines

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table with the best trial of each method."""
        headings, rows = self.grid()
        head = "".join(f"<th>{html_text(heading)}</th>" for heading in headings)
        body = "".join(f"<tr>{''.join(f'<td>{html_text(c.text)}</td>' for c in row)}</tr>\n" for row in rows)
        notes = "".join(f"<p>{html_text(line)}</p>" for line in self.sentences())
        return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>{notes}"

    def __repr__(self) -> str:
        """Describe the study in one line."""
        methods = pluralize(len(self.methods), "method")
        kind = {"random": "random search", "grid": "grid search", "optuna": "Optuna"}[self.search]
        seeds = _shown(self.seeds)
        text = f"Tuning({methods} on {self.task}, {pluralize(self.trials, 'trial')} each by {kind}, seeds {seeds})"
        return cut_to_width(printable(text))


def _shown(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
