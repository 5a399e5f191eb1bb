"""Plots as SVG text, for a file or inside a page.

Text is not converted to paths, the ink is `currentColor` (the color of the page), the background is transparent, ids
begin with the name of the plot, and the same runs give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from math import inf
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal
from xml.dom import minidom

from ..core.metric import LOSS, Metric
from ..core.optional_import import optional_import
from ..core.printable import printable
from ..record.result import Result
from .formatting import count, time_unit
from .tables import Curve, Summary, by_label, mean_curve, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = [
    "INK",
    "TEXT",
    "score_over_time",
    "score_over_updates",
    "clean_texts",
    "draw_curve",
    "legend",
    "line_style",
    "metric_over_time",
    "render",
    "rescale",
    "staleness_bars",
]

# Okabe and Ito's colors for color-blind readers, without black and yellow, which vanish on a dark or a light page.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES: tuple[Any, ...] = ("solid", (0, (4, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
_MARKERS = ("", "o", "^", "s", "D", "v", "P")
INK = "#010203"  # replaced by currentColor in the SVG
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_WIDTH, _HEIGHT, TEXT = 7.2, 3.9, 9.5  # inches, inches, points
_WRAP = 28  # characters of a label on a line
_BAND: Any = {"alpha": 0.18, "linewidth": 0}
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may hold a dollar sign
    "font.size": TEXT,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def score_over_time(results: Sequence[Result], summary: Summary) -> str:
    """Return the plot of the test score (accuracy, or another first metric) over time: mean ± one sd over seeds."""
    unit, length = time_unit(max((p.time for r in results for p in r.curve), default=0.0))
    return render(
        "over-time",
        f"Test {summary.metric.name} over {summary.clock}",
        lambda figure: _curves(figure, results, summary, over="time", scale=length, xlabel=f"{summary.clock} ({unit})"),
    )


def metric_over_time(results: Sequence[Result], summary: Summary, metric: Metric) -> str:
    """Return the same plot of another metric, without a target."""
    shown = replace(summary, metric=metric, target=None)
    unit, length = time_unit(max((p.time for r in results for p in r.curve), default=0.0))
    return render(
        re.sub(r"[^a-z0-9]+", "-", f"{metric.name}-over-time".lower()),
        f"Test {metric.name} over {summary.clock}",
        lambda figure: _curves(figure, results, shown, over="time", scale=length, xlabel=f"{summary.clock} ({unit})"),
    )


def score_over_updates(results: Sequence[Result], summary: Summary) -> str:
    """Return the same plot over the number of accepted updates."""
    return render(
        "over-updates",
        f"Test {summary.metric.name} over updates",
        lambda figure: _curves(figure, results, summary, over="updates", scale=1.0, xlabel="updates received"),
    )


def staleness_bars(results: Sequence[Result]) -> str:
    """Return the plot of mean staleness, its 95 % quantile and its maximum."""
    return render("staleness", "Staleness of updates by method", lambda figure: _bars(figure, results))


def _curves(
    figure: Figure,
    results: Sequence[Result],
    summary: Summary,
    *,
    over: Literal["time", "updates"],
    scale: float,
    xlabel: str,
) -> None:
    axes = figure.add_subplot()
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel)
    metric, scale_y = summary.metric, 100.0 if summary.metric.is_share else 1.0
    axes.set_ylabel(f"{summary.scored_on} {metric.name}" + (f" ({metric.unit})" if metric.unit else ""))
    curves = {}
    for i, (label, runs) in enumerate(by_label(results).items()):
        curve = mean_curve(runs, over=over, of=metric.name)
        if curve.x:
            curves[label] = rescale(curve, scale, scale_y)
            draw_curve(axes, curves[label], i, steps=over == "updates" and len(runs) > 1)
    if not curves:
        axes.text(0.5, 0.5, "no evaluations were recorded", ha="center", transform=axes.transAxes)
        return
    axes.margins(x=0.01)
    if metric.name != LOSS.name:
        _limit(axes, metric, summary.target, scale_y)
    target = None if summary.target is None else (scale_y * summary.target, f"target {metric.number(summary.target)}")
    _name(figure, axes, curves, target)


def _limit(axes: Axes, metric: Metric, target: float | None, scale: float) -> None:
    """Set the limits of the axis of scores: the target's line is inside, and a share ends at 100 %."""
    low, high = axes.get_ylim()
    if target is not None:  # its line and its label must be inside
        room = 1.0 if metric.is_share else 0.02 * (high - low)
        low, high = min(low, scale * target - room), max(high, scale * target + room)
    axes.set_ylim(*((max(low, -1.0), min(high, 101.0)) if metric.is_share else (low, high)))


def rescale(curve: Curve, x: float, y: float) -> Curve:
    """Return the curve with its x divided by x, and its y multiplied by y."""
    sd = None if curve.sd is None else [y * v for v in curve.sd]
    return Curve([v / x for v in curve.x], [y * v for v in curve.mean], sd)


def line_style(index: int) -> dict[str, Any]:
    """Return color, dashes and markers of the method with this index, the same in every plot of a comparison."""
    index, color = divmod(index, len(_COLORS))
    index, dashes = divmod(index, len(_DASHES))
    marks: Any = {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4, "markevery": 0.12} if index else {}
    return {"color": _COLORS[color], "linestyle": _DASHES[dashes], "linewidth": 1.7, **marks}


def draw_curve(axes: Axes, curve: Curve, index: int, *, steps: bool = False, **style: Any) -> None:
    """Draw a curve and its band; `steps` for means over seeds that are evaluated at different numbers of updates."""
    way: Any = "steps-post" if steps else "default"
    dot = {"marker": "o", "markersize": 3.5} if len(curve.x) == 1 else {}  # a single point has no visible line
    (line,) = axes.plot(curve.x, curve.mean, drawstyle=way, **{**line_style(index), **dot, **style})
    if curve.sd is not None:
        low = [m - s for m, s in zip(curve.mean, curve.sd, strict=True)]
        high = [m + s for m, s in zip(curve.mean, curve.sd, strict=True)]
        axes.fill_between(curve.x, low, high, color=line.get_color(), **_BAND, step="post" if steps else None)


def _name(figure: Figure, axes: Axes, curves: dict[str, Curve], target: tuple[float, str] | None) -> None:
    """Label the ends of the lines if they are apart and end together, else draw a legend below."""
    names, ends = list(curves), [(c.x[-1], c.mean[-1]) for c in curves.values()]
    last = max(x for x, _ in ends)
    together = all(x >= 0.98 * last for x, _ in ends)
    if target is not None:
        axes.axhline(target[0], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        names.append(target[1])
        ends.append((last, target[0]))
    longest, lines = max(map(len, names)), list(axes.get_lines())
    low, high = axes.get_ylim()
    shifts = _shifts([y / (high - low) * 0.8 * _HEIGHT * 72 for _, y in ends])  # in points, roughly
    if together and longest <= 24 and max(shifts) <= 0.8 * TEXT:
        for name, end, line, shift in zip(names, ends, lines, shifts, strict=True):
            if name in curves:
                axes.plot(*end, marker="o", markersize=4, color=line.get_color(), clip_on=False)
            _beside(axes, name, (last, end[1]), shift=shift)
        return
    legend(figure, lines, names)


def legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    """Draw a legend below the plot, which grows with its rows."""
    columns = max(1, min(5, int(_WIDTH * 72 / (0.55 * TEXT * max(map(len, names)) + 35))))
    figure.set_figheight(figure.get_figheight() + 0.2 * ((len(names) - 1) // columns))
    figure.legend(lines, names, loc="outside lower center", ncols=columns, handlelength=2.6)


def _shifts(heights: Sequence[float]) -> list[float]:
    """Return how far up each label moves so that neighbors are a line apart."""
    shifts, free = [0.0] * len(heights), -inf
    for i in sorted(range(len(heights)), key=lambda i: heights[i]):
        shifts[i] = max(0.0, free - heights[i])
        free = heights[i] + shifts[i] + 1.25 * TEXT
    return shifts


def _beside(axes: Axes, text: str, point: tuple[float, float], *, shift: float = 0.0, size: float = TEXT) -> None:
    away = (6.0, shift)  # points
    axes.annotate(text, point, xytext=away, textcoords="offset points", va="center", size=size, annotation_clip=False)


def _bars(figure: Figure, results: Sequence[Result]) -> None:
    rows = summarize(results).rows
    names = [fill(printable(r.label), _WRAP) for r in rows]
    tallest = max(n.count("\n") for n in names)
    figure.set_figheight(max(1.6, 0.9 + (0.42 + 0.12 * tallest) * len(rows)))  # smaller plots have no room for a bar
    axes = figure.add_subplot()
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    at = range(len(rows))
    colors = [_COLORS[i % len(_COLORS)] for i in at]
    axes.barh(at, [r.staleness_p95 for r in rows], height=0.62, color=colors, alpha=0.35, linewidth=0)
    axes.barh(at, [r.staleness_mean for r in rows], height=0.3, color=colors, linewidth=0)
    ends = [max(r.staleness_p95, r.staleness_mean) for r in rows]
    labels = [
        f"mean {r.staleness_mean:.1f} · 95 % ≤ {count(r.staleness_p95)} · max {count(r.staleness_max)}" for r in rows
    ]
    for y, (end, text) in enumerate(zip(ends, labels, strict=True)):
        _beside(axes, text, (end, y), size=TEXT - 1)
    widest = max(len(line) for n in names for line in n.splitlines())
    width = _WIDTH * 72 - 0.62 * TEXT * widest - 25  # of the axes, in points, roughly
    room = 0.55 * (TEXT - 1) * max(map(len, labels)) + 12  # for the text beside the longest bar
    axes.set_xlim(0, (max(ends) or 1.0) * width / (width - room))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(at, names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("staleness (server steps since the weights were handed out)")


def render(name: str, title: str, draw: Callable[[Figure], None]) -> str:
    """Return the SVG of `draw`; `name` begins its ids, `title` is its text for screen readers."""
    with optional_import("matplotlib"):
        import matplotlib
        from matplotlib.figure import Figure

    out = StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # independent of the user's settings
        matplotlib.rcParams.update(_STYLE)
        matplotlib.rcParams["svg.hashsalt"] = f"tarry-{name}"
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        draw(figure)
        clean_texts(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _svg_element(out.getvalue(), name, title)


def clean_texts(figure: Figure) -> None:
    """Replace control characters in the texts of a figure, but for those of ticks, which are made when it is drawn."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(printable(text.get_text(), keep="\n"))


def _svg_element(svg: str, name: str, title: str) -> str:
    """Return the SVG element alone, with ids that are unique in a page."""
    root = minidom.parseString(svg).documentElement
    assert root is not None
    for tag in ("metadata", "style"):  # a style element would apply to the whole page
        for node in list(root.getElementsByTagName(tag)):
            assert node.parentNode is not None
            node.parentNode.removeChild(node)
    for node in root.getElementsByTagName("*"):
        for key, value in list(node.attributes.items()):
            node.setAttribute(key, _attribute(key, value, name))
    for key, value in (("role", "img"), ("aria-label", printable(title)), ("style", "stroke-linejoin: round")):
        root.setAttribute(key, value)
    return root.toxml() + "\n"


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "xlink:href":
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    if key == "style":
        value = re.sub(r"font-family: [^;]*", f"font-family: {_FONTS}", value)
        value = re.sub(r"font: ([\d.]+px) [^;]*", rf"font: \1 {_FONTS}", value)
        return value.replace(INK, "currentColor")
    return value
