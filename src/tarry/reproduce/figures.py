"""Pictures like the papers': accuracy over time by column, bars, sweeps, and the curves of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..core.errors import DamagedFile, TarryError, first_line
from ..core.printable import printable
from ..report.formatting import time_unit
from ..report.plots import INK, TEXT, draw_curve, legend, line_style, render
from ..report.tables import Curve, held_mean
from .experiment import Figure as Kind
from .measures import StoredRun
from .tables import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "mean_curve"]

_GREY = "#768390"  # legible on light and dark pages: an <img> does not inherit the color of the page
_BANDS = 4  # lines up to which bands of one standard deviation are drawn
_SMALL = TEXT - 1
_WRAP = 24  # characters of a name along a panel's height
Panels = Mapping[str, Mapping[str, Curve]]


def draw(found: Findings, path: Path) -> Path | None:
    """Write the plot of an experiment as SVG; return None if it has no plot or no data for one."""
    try:
        return _draw(found, path)
    except TarryError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as e:
        if found.study is None:
            raise
        what = f"the stored study of {found.experiment.name} does not fit its picture"
        raise DamagedFile(f"{what} ({type(e).__name__}: {first_line(e)}); delete its results to run it again") from e


def _draw(found: Findings, path: Path) -> Path | None:
    kind, title = found.experiment.figure, f"{found.experiment.where}: {found.experiment.title}"
    if found.study is not None and found.experiment.study is not None:
        module = import_module(f"{__package__}.studies.{found.experiment.study}")
        if hasattr(module, "draw"):
            module.draw(found.study, path)
            return path if path.is_file() else None
        svg = _of_study(found, path.stem, title)
    elif kind is None:
        return None
    elif kind.kind == "curves":
        svg = _in_panels(
            _curves(found, kind), path.stem, title, *_axes_of(found, kind), order=list(found.rows.values())
        )
    elif kind.kind == "bars":
        svg = _bars(found, kind, path.stem, title)
    else:
        svg = _sweep(found, kind, path.stem, title)
    if svg is None:
        return None
    path.write_text(svg.replace("currentColor", _GREY))
    return path


# Curves


def mean_curve(entries: Sequence[StoredRun], over: str, of: str) -> Curve:
    """Return the mean curve of stored runs, as `report.tables.mean_curve` does for results."""
    pairs = (zip(e.curve[over], e.curve[of], strict=True) for e in entries)
    return held_mean([[(x, y) for x, y in run if x is not None and y is not None] for run in pairs])


def _curves(found: Findings, kind: Kind) -> Panels:
    unit = _clock(found)[1] if kind.over == "time" and not kind.x else 1.0
    panels = {}
    for column, rows in found.runs.items():
        lines = {}
        for row in found.rows:
            if row in rows:
                c = mean_curve(list(rows[row].values()), kind.over, kind.of)
                lines[found.rows[row]] = Curve([x / unit for x in c.x], c.mean, c.sd)
        panels[found.columns[column]] = lines
    return panels


def _clock(found: Findings) -> tuple[str, float]:
    times = [e.curve["time"] for rows in found.runs.values() for s in rows.values() for e in s.values()]
    return time_unit(max((column[-1] or 0.0 for column in times if column), default=0.0))


def _axes_of(found: Findings, kind: Kind) -> tuple[str, str]:
    x = f"virtual time ({_clock(found)[0]})" if kind.over == "time" else "updates received"
    return kind.x or x, "test accuracy (%)" if kind.of == "accuracy" else "test loss"


def _of_study(found: Findings, name: str, title: str) -> str | None:
    assert found.study is not None
    given: Any = found.study.get("curves") or {}
    axes: Any = found.study.get("axes") or {}
    panels = {
        panel: {line: Curve(list(c["x"]), list(c["y"]), c.get("sd")) for line, c in lines.items()}
        for panel, lines in given.items()
    }
    if not panels:
        return _sweep(found, found.experiment.figure, name, title) if found.experiment.figure is not None else None
    return _in_panels(panels, name, title, axes.get("x", ""), axes.get("y", ""))


def _in_panels(
    panels: Panels, name: str, title: str, x: str, y: str, *, order: Sequence[str] = (), log: bool = False
) -> str | None:
    """Return panels with one legend; the style of a line depends on its place in `order`."""
    filled = {k: {n: c for n, c in lines.items() if c.x} for k, lines in panels.items()}
    filled = {k: lines for k, lines in filled.items() if any(len(c.x) > 1 for c in lines.values())}
    names = list(dict.fromkeys([*order, *(n for lines in filled.values() for n in lines)]))
    there = [n for n in names if any(n in lines for lines in filled.values())]
    if not there:
        return None
    wide = {4: 2, 8: 4}.get(len(filled), min(3, len(filled)))

    def paint(figure: Figure) -> None:
        every = _grid(figure, len(filled), wide)
        for i, (axes, (panel, lines)) in enumerate(zip(every, filled.items(), strict=True)):
            axes.set_title(panel, loc="left", fontsize=_SMALL)
            for line in lines:
                c = lines[line]
                band = c if len(there) <= _BANDS else Curve(c.x, c.mean, None)
                marks: Any = {"marker": "o", "markersize": 3} if len(c.x) <= 12 else {}
                draw_curve(axes, band, names.index(line), **marks)
            if log:
                _log_scale(axes, sorted({at for c in lines.values() for at in c.x}))
            if i % wide == 0:
                axes.set_ylabel(fill(y, _WRAP), fontsize=_SMALL)
            if i >= len(filled) - wide:
                axes.set_xlabel(x, fontsize=_SMALL)
        _legend(figure, there, names)

    return render(name, title, paint)


def _grid(figure: Figure, n: int, wide: int) -> list[Axes]:
    tall = ceil(n / wide)
    figure.set_figheight(max(2.6, 2.3 * tall) + 0.3 if n > 1 else 3.9)
    every: list[Axes] = []
    for i in range(n):
        axes = figure.add_subplot(tall, wide, i + 1)
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=_SMALL)
        every.append(axes)
    return every


def _log_scale(axes: Axes, places: Sequence[float]) -> None:
    axes.set_xscale("log")
    labels = [f"{at:g}" for at in places]  # the default ones use mathematical markup, which is switched off
    axes.set_xticks(places, labels)
    axes.minorticks_off()


def _legend(figure: Figure, there: Sequence[str], names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **{k: v for k, v in line_style(names.index(n)).items() if k != "markevery"}) for n in there]
    legend(figure, lines, list(there))


# Bars and sweeps


def _panels_of(found: Findings, kind: Kind) -> dict[str, list[str]]:
    """Return the columns (or rows) by their panel; one panel if none is declared."""
    sides = found.experiment.columns if kind.along == "columns" else found.experiment.rows
    titles = found.columns if kind.along == "columns" else found.rows
    out: dict[str, list[str]] = {}
    for name in titles:
        out.setdefault(sides[name].panel if name in sides else "", []).append(name)
    return out


def _sweep(found: Findings, kind: Kind, name: str, title: str) -> str | None:
    """Return a plot with a line for each row over the columns, or for each column over the rows."""
    grid = found.grids[kind.measure or found.experiment.measures[0]]
    across = kind.along == "columns"
    sides = found.experiment.columns if across else found.experiment.rows
    others = found.rows if across else found.columns
    panels: dict[str, dict[str, Curve]] = {}
    for panel, places in _panels_of(found, kind).items():
        for other, label in others.items():
            xs, ys, sds = list[float](), list[float](), list[float]()
            for i, place in enumerate(places):
                s = grid.stat(other, place) if across else grid.stat(place, other)
                if s is not None and s.mean is not None:
                    at = sides[place].at if place in sides else None
                    xs.append(float(i) if at is None else at)
                    ys.append(s.mean)
                    sds.append(s.sd or 0.0)
            if xs:
                panels.setdefault(panel, {})[label] = Curve(xs, ys, sds if any(sds) else None)
    return _in_panels(panels, name, title, kind.x, grid.measure.heading, order=list(others.values()), log=kind.log)


def _bars(found: Findings, kind: Kind, name: str, title: str) -> str | None:
    """Return a plot with a group of bars for each column; error bars are one standard deviation."""
    grid = found.grids[kind.measure or found.experiment.measures[0]]
    columns = [c for c in found.columns if any(grid.mean(r, c) is not None for r in found.rows)]
    rows = [r for r in found.rows if any(grid.mean(r, c) is not None for c in columns)]
    if not columns:
        return None
    names = [found.rows[r] for r in found.rows]

    def paint(figure: Figure) -> None:
        (axes,) = _grid(figure, 1, 1)
        width = 0.8 / len(rows)
        for k, row in enumerate(rows):
            for i, column in enumerate(columns):
                s = grid.stat(row, column)
                if s is None or s.mean is None:
                    continue
                at = i + width * (k - (len(rows) - 1) / 2)
                axes.bar(at, s.mean, width=0.9 * width, color=_fill(names.index(found.rows[row])), linewidth=0)
                if s.sd is not None:
                    axes.errorbar(at, s.mean, yerr=s.sd, fmt="none", ecolor=INK, elinewidth=0.8)
        axes.set_xticks(range(len(columns)), [printable(found.columns[c]) for c in columns], fontsize=_SMALL)
        axes.set_xlabel(kind.x, fontsize=_SMALL)
        axes.set_ylabel(fill(grid.measure.heading, _WRAP), fontsize=_SMALL)
        axes.grid(False, axis="x")
        _patches(figure, [found.rows[r] for r in rows], names)

    return render(name, title, paint)


def _fill(index: int) -> Any:
    """Return the color of a place, lighter after the first round of colors."""
    from matplotlib.colors import to_rgba

    return to_rgba(line_style(index)["color"], 1.0 if index < 6 else 0.5)


def _patches(figure: Figure, there: Sequence[str], names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    made = [Line2D([], [], marker="s", linestyle="none", markersize=7, color=_fill(names.index(n))) for n in there]
    legend(figure, made, list(there))
