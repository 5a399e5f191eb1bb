"""Comparison: the runs of several methods and seeds, the table made of them, and tests of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, overload

from ..core.errors import BadInput, errors_as_keywords, near
from ..core.metric import other_metrics
from ..core.printable import html_text, markdown_text, printable
from ..core.registry import UnknownName
from ..record.result import Result
from ..record.views import CurveX, curve_rows, data_frame, metric_named, plot_curve
from ..report.page import write_page
from ..report.plots import draw_curve
from ..report.significance import Significance, significance
from ..report.tables import (
    TEXT_WIDTH,
    Summary,
    by_label,
    markdown,
    mean_curve,
    plain_table,
    table_html,
    with_axis_columns,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["SIGNIFICANCE", "Comparison"]

SIGNIFICANCE = "significance.json"


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Result]):
    """A finished comparison: a sequence of its runs, and the table made of them.

    >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
    >>> len(c), c[0].label, [run.seed for run in c["fedasync"]]
    (4, 'fedavg', [0, 1])
    >>> print(str(c).splitlines()[0])
    method    accuracy %  time to target  staleness mean / max  updates
    """

    results: tuple[Result, ...]
    summary: Summary  # a row for each method
    out: Path | None = None
    skipped: tuple[str, ...] = ()  # with `all`: the methods that do not fit the settings, and why
    reused: tuple[str, ...] = ()  # the runs that the folder held already, and what about them cannot be checked
    tuned: str = ""  # which settings were tuned, and how

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, key: int) -> Result: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Result, ...]: ...

    @overload
    def __getitem__(self, key: str) -> list[Result]: ...

    def __getitem__(self, key: int | slice | str) -> Result | tuple[Result, ...] | list[Result]:
        """Return the run at an index, or the runs of a label."""
        if not isinstance(key, str):
            return self.results[key]
        groups = by_label(self.results)
        if key not in groups:
            raise UnknownName(f"{key}: no run here has this label.{near(key, groups)}")
        return groups[key]

    @property
    def best(self) -> str | None:
        """The label with the best mean score: the highest accuracy, the lowest loss, as the metric has it.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> best = max(c.summary.rows, key=lambda row: row.score)
        >>> c.best == best.label
        True
        """
        return self.summary.best

    def to_markdown(self) -> str:
        """Return the table in Markdown, with the best value in bold.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> print(c.to_markdown().splitlines()[0])
        | method | accuracy % | time to target | staleness mean / max | updates |
        """
        return "\n".join([markdown(self.summary), *map(markdown_text, self.notes)])

    @cached_property
    def significance(self) -> Significance:
        """The paired tests of every two labels over seeds: which differences are significant.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=range(6), clients=3, updates=3)
        >>> len(c.significance.tests), c.significance.seeds
        (1, 6)
        >>> list(c.significance.to_frame().columns[:3])
        ['label', 'other', 'pairs']
        """
        return significance(self.results)

    @property
    def notes(self) -> list[str]:
        """The text below the table: what was tuned, and what the tests of significance say.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> c.notes[0].startswith("With 2 seeds no difference can be significant")
        True
        """
        return [*([self.tuned] if self.tuned else []), *self.significance.sentences()]

    def tests(self, hero: str | None = None, *, level: float = 0.05) -> Significance:
        """Return the paired tests at another level, or of one label against each other label.

        With `hero` the tests are one-sided: is it better? That is a fair question if it was asked before the runs.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=range(5), clients=3, updates=3)
        >>> [(test.label, test.other, test.pairs) for test in c.tests("fedasync").tests]
        [('fedasync', 'fedavg', 5)]
        """
        with errors_as_keywords():
            return significance(self.results, hero=hero, level=level)

    def report(self, path: str | Path) -> Path:
        """Write the page that `tarry compare` writes: an HTML file with the table and plots.

        >>> import tempfile
        >>> c = tarry.compare(["fedasync"], "digits", seeds=[0], clients=3, updates=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = c.report(f"{folder}/report.html").read_text()
        >>> "fedasync" in page
        True
        """
        path, runs = Path(path), {"runs": str(len(self))}
        write_page(path, self, self.summary, title="Comparison", settings=runs, notices=self.skipped)
        return path

    def to_frame(self, rows: Literal["runs", "evaluations"] = "runs") -> DataFrame:
        """Return a pandas data frame with a row for each run, or for each evaluation of each run.

        The row of a run has its numbers, without curves and weights.

        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> c.to_frame().groupby("label").final_accuracy.count().to_dict()
        {'fedasync': 2, 'fedavg': 2}
        >>> list(c.to_frame("evaluations").columns)
        ['label', 'seed', 'time', 'updates', 'accuracy', 'loss']
        """
        if rows not in ("runs", "evaluations"):
            raise BadInput(f"rows={rows!r}: must be runs or evaluations")
        if rows == "runs":
            return data_frame(with_axis_columns(_numbers(run)) for run in self.results)
        curves = [(run, *curve_rows(run)) for run in self.results]
        return data_frame(
            {"label": run.label, "seed": run.seed, **dict(zip(columns, row, strict=True))}
            for run, points, columns in curves
            for row in points
        )

    def plot(self, x: CurveX = "time", y: str = "score", ax: Axes | None = None) -> Axes:
        """Draw each label's mean curve, of the score or the metric y, and a band of one sd over seeds; return the axes.

        >>> from matplotlib.figure import Figure
        >>> c = tarry.compare(["fedavg", "fedasync"], "digits", seeds=[0, 1], clients=3, updates=6)
        >>> axes = c.plot(ax=Figure().add_subplot())
        >>> [text.get_text() for text in axes.get_legend().get_texts()]
        ['fedavg', 'fedasync']
        """
        with errors_as_keywords():
            axes, metric = plot_curve(self[0], x, y, ax), metric_named(self[0], y)
        axes.lines[-1].remove()  # the run gave the axes their labels
        for i, (label, runs) in enumerate(by_label(self.results).items()):
            curve = mean_curve(runs, over=x, of=metric.name)
            if curve.x:
                draw_curve(axes, curve, i, steps=x == "updates" and len(runs) > 1, label=printable(label))
        axes.legend()
        return axes

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table, with the best value in bold."""
        notes = "".join(f"<p>{html_text(line)}</p>" for line in self.notes)
        return table_html(self.summary) + notes

    def __repr__(self) -> str:
        lines = (line for text in self.notes for line in wrap(printable(text), TEXT_WIDTH))
        return "\n".join([plain_table(self.summary), *lines])


def _numbers(run: Result) -> dict[str, Any]:
    """Return the fields of a result that are numbers or words."""
    plain = {f.name: getattr(run, f.name) for f in fields(run)}
    staleness = {f"staleness_{name}": value for name, value in run.staleness._asdict().items()}
    others = {f"final_{name}": value for name, value in other_metrics(run.final_metrics).items()}
    numbers = {k: v for k, v in plain.items() if isinstance(v, int | float | str) or v is None}
    return {**numbers, **staleness, **others}
