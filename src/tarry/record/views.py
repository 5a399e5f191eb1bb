"""Views of a result: a data frame, a plot of its curve, and the HTML that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import BadInput
from ..core.optional_import import optional_import
from ..core.printable import html_text, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from .result import CurvePoint, Result

__all__ = ["CurveX", "CurveY", "data_frame", "new_axes", "plot_curve", "result_html"]

CurveX = Literal["time", "updates"]
CurveY = Literal["accuracy", "loss"]
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


def new_axes() -> Axes:
    """Return the axes of a new figure of pyplot, which a notebook shows by itself."""
    with optional_import("matplotlib"):
        from matplotlib import pyplot

    _, axes = pyplot.subplots(layout="constrained")
    return axes


def plot_curve(result: Result, x: str, y: str, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw a run's evaluations; return the axes."""
    points = _points(result.curve, x, y)
    axes = new_axes() if ax is None else ax
    style = {"label": printable(result.label), **({"marker": "o"} if len(points) == 1 else {}), **style}
    axes.plot([point[0] for point in points], [point[1] for point in points], **style)
    axes.set_xlabel(f"{result.clock} time (s)" if x == "time" else "accepted updates")
    axes.set_ylabel(f"test {y}")
    return axes


def _points(curve: Sequence[CurvePoint], x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the evaluations that have a y."""
    for name, value, choices in (("x", x, ("time", "updates")), ("y", y, ("accuracy", "loss"))):
        if value not in choices:
            raise BadInput(f"--{name} {value}: must be {' or '.join(choices)}")
    found = [(getattr(p, x), getattr(p, y)) for p in curve]
    return [(a, nan if not isfinite(b) else b) for a, b in found if b is not None]


def result_html(result: Result) -> str:
    """Return a small table of the result with its curve, as HTML."""
    score = ("accuracy", result.final_accuracy) if result.final_accuracy is not None else ("loss", result.final_loss)
    state = "" if result.finished else " (unfinished)"
    facts = {
        "task": result.task,
        "seed": str(result.seed),
        f"final {score[0]}": "none" if score[1] is None else f"{score[1]:.4f}",
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
    return f"<div>{title}<table>{rows}</table>{notes}{_curve_svg(result, score[0])}</div>"


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
