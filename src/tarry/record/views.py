"""Views of a result: a data frame, a plot of its curve, and the HTML that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import BadInput
from ..core.metric import ACCURACY, LOSS, SHARE
from ..core.optional_import import optional_import
from ..core.printable import html_text, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from ..core.metric import CurvePoint, Metric
    from .result import Result

__all__ = ["CurveX", "curve_rows", "data_frame", "metric_named", "new_axes", "plot_curve", "result_html"]

CurveX = Literal["time", "updates"]
_INK = "#010203"  # replaced by the color of the page
_STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "svg.hashsalt": "tarry",
    "svg.fonttype": "none",
    "text.parse_math": False,
}


def data_frame(rows: Iterable[Mapping[str, Any] | tuple[Any, ...]], columns: Sequence[str] | None = None) -> DataFrame:
    """Return rows as a pandas data frame."""
    with optional_import("pandas"):
        from pandas import DataFrame

    return DataFrame(list(rows), columns=None if columns is None else list(columns))


def curve_rows(result: Result) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return a row for each evaluation, and the columns: time, updates, the metrics by name, the loss last."""
    names = [m.name for m in result.metrics or (result.metric,) if m.name != "loss"]
    names += [n for n in dict.fromkeys(n for p in result.curve for n in p.metrics) if n not in (*names, "loss")]
    if "accuracy" not in names and not result.metrics:
        names = ["accuracy", *names]  # the columns of a run that names no metrics
    rows = [(p.time, p.updates, *(p.metrics.get(name) for name in names), p.loss) for p in result.curve]
    return rows, ["time", "updates", *names, "loss"]


def metric_named(result: Result, name: str) -> Metric:
    """Return the metric of a run by its name, or its score; raise BadInput if it was not measured."""
    known = {m.name: m for m in (*(result.metrics or (ACCURACY,)), LOSS)}
    if name == "score":
        return result.metric
    if name not in known:
        raise BadInput(f"--y {name}: must be score, {' or '.join(known)}")
    return known[name]


def new_axes() -> Axes:
    """Return the axes of a new figure of pyplot, which a notebook shows by itself."""
    with optional_import("matplotlib"):
        from matplotlib import pyplot

    _, axes = pyplot.subplots(layout="constrained")
    return axes


def plot_curve(result: Result, x: str, y: str, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw a run's evaluations; return the axes."""
    metric = metric_named(result, y)
    points = _points(result.curve, x, metric.name)
    axes = new_axes() if ax is None else ax
    style = {"label": printable(result.label), **({"marker": "o"} if len(points) == 1 else {}), **style}
    axes.plot([point[0] for point in points], [point[1] for point in points], **style)
    axes.set_xlabel(f"{result.clock} time (s)" if x == "time" else "accepted updates")
    unit = f" ({metric.unit})" if metric.unit and not metric.is_share else ""
    axes.set_ylabel(f"{result.scored_on} {metric.name}{unit}")
    return axes


def _points(curve: Sequence[CurvePoint], x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the evaluations that have the metric y."""
    if x not in ("time", "updates"):
        raise BadInput(f"--x {x}: must be time or updates")
    found = [(getattr(p, x), p.metrics.get(y)) for p in curve]
    return [(a, nan if not isfinite(b) else b) for a, b in found if b is not None]


def _validation_rows(result: Result) -> dict[str, str]:
    """Return what a run with a validation set adds to the table of its result."""
    if result.validation_metrics is None:
        return {}
    metric, stop = result.metric, result.early_stopping
    rows = {f"{metric.name} on the validation set": _number(result.validation_metrics.get(metric.name), metric.unit)}
    return rows if stop is None else {**rows, "stopped by": str(stop["stop_reason"])}


def result_html(result: Result) -> str:
    """Return a small table of the result with its curve, as HTML."""
    metric, score = result.metric, result.final_score
    others = {f"final {m.name}": result.final_metrics.get(m.name) for m in result.metrics[1:]}
    state = "" if result.finished else " (unfinished)"
    facts = {
        "task": result.task,
        "seed": str(result.seed),
        f"final {metric.name}": _number(score, metric.unit),
        **{name: _number(value) for name, value in others.items()},
        **_validation_rows(result),
        f"{result.clock} time": f"{result.virtual_time:,.0f} s",
        "updates": f"{result.updates:,}",
        "server steps": f"{result.rounds:,}",
        "staleness": f"mean {result.staleness.mean:.1f}, max {result.staleness.max}",
        "lost, rejected": f"{result.lost:,}, {result.rejected:,}",
        "weights": result.weights_sha256[:12],
    }
    rows = "".join(f"<tr><th>{html_text(k)}</th><td>{html_text(v)}</td></tr>" for k, v in facts.items())
    warnings = "".join(f"<li>{html_text(warning)}</li>" for warning in result.warnings)
    notes = f"<ul>{warnings}</ul>" if warnings else ""
    title = f"<p><b>{html_text(result.label)}</b>{state}</p>"
    return f"<div>{title}<table>{rows}</table>{notes}{_curve_svg(result, metric.name)}</div>"


def _number(value: float | None, unit: str = "") -> str:
    text = "none" if value is None else f"{value:.4f}"
    return f"{text} {unit}" if unit not in ("", SHARE) and value is not None else text


def _curve_svg(result: Result, y: str) -> str:
    """Return the curve as an SVG element; nothing if there is none."""
    if not _points(result.curve, "time", y):
        return ""
    with optional_import("matplotlib"):
        import matplotlib
        from matplotlib.figure import Figure

    out = StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(5, 2.6), layout="constrained")
        plot_curve(result, "time", y, figure.add_subplot())
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")
