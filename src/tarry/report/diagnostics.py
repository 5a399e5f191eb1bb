"""Plots of the diagnostics of runs made with --diagnose, each with a text on how to read it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.printable import printable
from ..record.result import Result
from .diagnostics_data import (
    mean_of,
    names,
    over_time,
    participation,
    points,
    runs_with_diagnostics,
    spread,
    stretch,
    validation,
    visit_time,
)
from .formatting import count, duration, time_unit
from .plots import INK, TEXT, draw_curve, legend, line_style, render, rescale
from .tables import Curve, by_label, clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "pictures"]

Limits = tuple[float | None, float | None]
_ANY: Limits = (None, None)
_COUNT: Limits = (0.0, None)
_PERCENT: Limits = (-3.0, 103.0)  # room for a line at either end


class _Lines(NamedTuple):
    """Title of a series, factor of its values, and limits of its axis."""

    title: str
    factor: float = 1.0
    limits: Limits = _ANY


_KNOWN = {
    "drift": _Lines("Norm of the concurrent change of the model", limits=_COUNT),
    "past_globals": _Lines("Global models that clients in flight started from (number)", limits=_COUNT),
    "conflict": _Lines("Local steps that conflicted with the other group (%)", 100.0, _PERCENT),
    "proximal": _Lines("Proximal loss on the clients"),
    "cosine_proximal": _Lines("Cosine of local steps' gradient with the proximal one"),
    "curve_loss": _Lines("Loss on the learned curve"),
    "line_loss": _Lines("Loss on the straight line"),
    "entropy": _Lines("Teacher entropy (0 = certain, 1 = uniform)"),
    "alpha": _Lines("Weight of the teacher's distribution against its top class (α)"),
    "teachers": _Lines("Clients in the teacher ensemble (number)", limits=_COUNT),
    "phase": _Lines("Trusted quantity (0 displacement, 1 both, 2 position)", limits=(-0.1, 2.1)),
    "statistic": _Lines("The statistic that decides the switch (0 to 1)"),
    "corrected": _Lines("Local steps that were corrected (%)", 100.0, _PERCENT),
    "active": _Lines("Remembered clients that changed the step (number)", limits=_COUNT),
    "remembered": _Lines("Remembered clients (number)", limits=_COUNT),
}
_BOTH = "Loss on the learned curve (solid) and on the straight line (dotted)"
_FOLLOWED = 6  # clients whose validation is drawn
_BARS, _IN_ALL = 40, 160  # largest numbers of clients, and of bars, that are drawn as bars
_NAMED = 32  # layers up to which each has a name
_SMALL = TEXT - 1
_ZERO: Any = {"color": INK, "linewidth": 0.9}
_EQUAL: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 3))}


class Picture(NamedTuple):
    """A plot: heading, SVG, and a text on how to read it."""

    title: str
    svg: str
    reading: str


@dataclass(frozen=True)
class _Panel:
    """Curves by the index of their method in the comparison; `dotted` ones share its color."""

    title: str
    curves: Mapping[int, Curve]
    dotted: Mapping[int, Curve] = field(default_factory=dict)
    zero: bool = False
    limits: Limits = _ANY


@dataclass(frozen=True)
class _DiagnosedRuns:
    """Runs with diagnostics and labels, by the index of their method, which determines its color in every plot."""

    labels: dict[int, str]
    runs: dict[int, list[Result]]

    @property
    def all(self) -> list[Result]:
        return [r for runs in self.runs.values() for r in runs]

    @property
    def clock(self) -> tuple[str, float]:
        return time_unit(max(r.virtual_time for r in self.all))

    def whole_time(self, every: Sequence[Axes]) -> None:
        """Set the same time range in all panels."""
        end = max(r.virtual_time for r in self.all) / self.clock[1]
        for axes in every:
            axes.set_xlim(-0.02 * end, 1.02 * end or 1.0)

    def over_time(self, name: str, factor: float = 1.0) -> dict[int, Curve]:
        width, (_, second) = stretch(self.all), self.clock
        return _present({i: rescale(over_time(runs, name, width), second, factor) for i, runs in self.runs.items()})

    def by_layer(self, name: str, factor: float = 1.0) -> dict[int, Curve]:
        """Return means over the run by layer, for models with as many layers as the first."""
        found = _present({i: spread([m for r in runs if (m := mean_of(r, name))]) for i, runs in self.runs.items()})
        n = len(next(iter(found.values())).x) if found else 0
        return {i: rescale(c, 1.0, factor) for i, c in found.items() if len(c.x) == n}


def pictures(results: Sequence[Result]) -> list[Picture]:
    """Return all plots that the diagnostics of these runs allow."""
    noted, places = runs_with_diagnostics(results), enumerate(by_label(results))
    labels = {i: label for i, label in places if label in noted}
    book = _DiagnosedRuns(labels, {i: noted[label] for i, label in labels.items()})
    makers = (_alignment, _layers, _series, _validation, _participation) if labels else ()
    return [picture for make in makers if (picture := make(book)) is not None]


def _alignment(book: _DiagnosedRuns) -> Picture | None:
    panels = [
        _Panel("Cosine of an update with the concurrent change", book.over_time("cosine"), zero=True),
        _Panel("Updates that oppose it (%)", book.over_time("opposed", 100.0), limits=_PERCENT),
    ]
    return _in_panels(
        book,
        panels,
        name="alignment",
        title="Updates and the concurrent change of the model",
        x=f"{clock(book.all)} ({book.clock[0]})",
        after=book.whole_time,
        reading="An update above the zero line has the direction of the change that the global model made while its "
        "client trained, one near the line is orthogonal to it, and one below opposes it; the second panel shows how "
        "often.",
    )


def _layers(book: _DiagnosedRuns) -> Picture | None:
    panels = [
        _Panel("Cosine of an update with the concurrent change", book.by_layer("cosine_by_layer"), zero=True),
        _Panel("Share that a projection would remove (%)", book.by_layer("removed_by_layer", 100.0), limits=_COUNT),
    ]
    n = max((len(c.x) for p in panels for c in p.curves.values()), default=0)
    shown, at = _layer_names(book, n), range(1, n + 1, max(1, ceil(n / _NAMED)))
    turned: Any = {"rotation": 55, "ha": "right", "rotation_mode": "anchor", "fontsize": _SMALL - 1} if n > 6 else {}

    def name_layers(every: Sequence[Axes]) -> None:
        for axes in every:
            axes.set_xlim(0.5, n + 0.5)
            axes.set_xticks(at, [""] * len(at))
        every[-1].set_xticks(at, [shown[i - 1] for i in at], **turned)
        if turned:
            _grow(every[-1], 0.05 * max(map(len, shown)))

    return _in_panels(
        book,
        panels,
        name="layers",
        title="Layer by layer",
        x="layers, from the input to the output",
        columns=1,
        after=name_layers,
        style={"marker": "o", "markersize": 3} if n <= _NAMED else {},
        reading="Means over the run: below the zero line of the first panel, updates undo the concurrent change in "
        "that layer; the second panel shows how much of an update is removed if it is made orthogonal to that change.",
    )


def _layer_names(book: _DiagnosedRuns, n: int) -> list[str]:
    """Return short names of the layers, or numbers if the record has no name for each."""
    named = next((found for r in book.all if len(found := (r.diagnostics or {}).get("layers") or []) == n), None)
    if named is None:
        return [str(i + 1) for i in range(n)]
    parts, shared = [str(name).split(".") for name in named], 0
    while n > 1 and all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    return [_short(p[shared:]) for p in parts]


def _short(parts: Sequence[str]) -> str:
    """Return a short name; long names keep the beginning of each part, as it has the number of the block."""
    parts = [{"weight": "w", "bias": "b"}.get(part, part) for part in parts]
    short = ".".join(parts if sum(map(len, parts)) <= 14 else [part[:5] for part in parts])
    return short if len(short) <= 24 else f"{short[:11]}…{short[-12:]}"


def _series(book: _DiagnosedRuns) -> Picture | None:
    found = names(book.all)
    both = {"curve_loss", "line_loss"} <= set(found)
    order = [n for n in _KNOWN if n in found] + [n for n in found if n not in _KNOWN]
    panels = []
    for name in order:
        title, factor, limits = _KNOWN.get(name) or _Lines(_own_title(book, name))
        if both and name == "curve_loss":
            panels.append(_Panel(_BOTH, book.over_time(name), dotted=book.over_time("line_loss")))
        elif not both or name != "line_loss":
            zero = name == "cosine_proximal"
            panels.append(_Panel(title, book.over_time(name, factor), zero=zero, limits=limits))
    return _in_panels(
        book,
        panels,
        name="series",
        title="Other measurements over time",
        x=f"{clock(book.all)} ({book.clock[0]})",
        after=book.whole_time,
        reading="Each panel shows one quantity, measured when updates arrive, in the unit of its title, for the "
        "methods that report it.",
    )


def _own_title(book: _DiagnosedRuns, name: str) -> str:
    several = any(len(p.values) > 1 for r in book.all for p in points(r, name))
    return f"{name} (mean of its values)" if several else name


def _validation(book: _DiagnosedRuns) -> Picture | None:
    first = {i: min(runs, key=lambda r: r.seed) for i, runs in book.runs.items()}
    found = {i: own for i, run in first.items() if (own := validation(run))}
    seeds = ", ".join(map(str, sorted({first[i].seed for i in found})))
    followed = list(dict.fromkeys(client for own in found.values() for client in own))[:_FOLLOWED]
    panels = []
    for client in followed:
        curves = {i: rescale(own[client], 1.0, 100.0) for i, own in found.items() if client in own}
        seconds = visit_time(first[min(curves)], client)
        pace = "" if seconds is None else f", {duration(seconds)} a visit"
        panels.append(_Panel(f"client {client}{pace}", curves, limits=_PERCENT))
    return _in_panels(
        book,
        panels,
        name="validation",
        title="Accuracy on clients' own mix of classes (%)",
        x="updates received",
        after=_whole_numbers,
        reading="The weights that a client gets are scored on test examples with the client's own mix of classes: a "
        f"line that falls shows that the global model has forgotten classes of this client (seed {seeds}).",
    )


def _participation(book: _DiagnosedRuns) -> Picture | None:
    found = _present({i: spread([s for r in runs if (s := participation(r))]) for i, runs in book.runs.items()})
    if not found:
        return None
    curves = {i: rescale(c, 1.0, 100.0) for i, c in found.items()}
    n = max(len(c.x) for c in curves.values())
    bars = n <= _BARS and n * len(curves) <= _IN_ALL

    def draw(figure: Figure) -> None:
        (axes,) = _axes(figure, 1, columns=1)
        for k, (i, curve) in enumerate(curves.items()):
            if bars:
                _bar(axes, curve, i, (k, len(curves)))
            else:
                draw_curve(axes, curve, i)
        for each in sorted({len(c.x) for c in curves.values()}):
            axes.axhline(100 / each, **_EQUAL)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("share of updates (%)")
        _whole_numbers([axes])
        axes.set_xlabel(f"clients, from the fastest (1) to the slowest ({n})")
        _legend(figure, book, curves, {f"equal share, {count(100 / n)} %": _EQUAL})

    title = "Participation of the clients"
    reading = (
        "Clients are sorted from the shortest visits to the longest, and the dashed line is the share of each if all "
        "arrived equally often: the steeper the fall, the more the fast clients dominate."
    )
    return Picture(title, render("participation", title, draw), reading)


def _bar(axes: Axes, curve: Curve, index: int, place: tuple[int, int]) -> None:
    """Draw the bars of one method, the k-th of m in each group."""
    k, m = place
    width = 0.8 / m
    at = [x + width * (k - (m - 1) / 2) for x in curve.x]
    color = line_style(index)["color"]
    axes.bar(at, curve.mean, width=width, color=color, linewidth=0)
    if curve.sd is not None:
        axes.errorbar(at, curve.mean, yerr=curve.sd, fmt="none", ecolor=INK, elinewidth=0.8, alpha=0.5)


def _in_panels(
    book: _DiagnosedRuns,
    panels: Sequence[_Panel],
    *,
    name: str,
    title: str,
    x: str,
    reading: str,
    columns: int | None = None,
    after: Callable[[Sequence[Axes]], None] | None = None,
    style: Mapping[str, Any] | None = None,
) -> Picture | None:
    """Return small panels with one legend; None if there is nothing to draw."""
    filled = [p for p in panels if p.curves]
    if not filled:
        return None
    wide = columns or (len(filled) if len(filled) < 3 else 2 if len(filled) == 4 else 3)

    def draw(figure: Figure) -> None:
        every = _axes(figure, len(filled), columns=wide)
        for axes, panel in zip(every, filled, strict=True):
            axes.set_title("\n".join(_lines(panel.title, 104 // wide)), loc="left", fontsize=_SMALL)
            for i, curve in panel.curves.items():
                draw_curve(axes, curve, i, **(style or {}))
            for i, curve in panel.dotted.items():
                draw_curve(axes, curve, i, linestyle=(0, (1, 1.2)))
            if panel.zero:
                axes.axhline(0, **_ZERO)
            axes.set_ylim(*panel.limits)
        if after is not None:
            after(every)
        for axes in every[-wide:]:
            axes.set_xlabel(x, fontsize=_SMALL)
        _legend(figure, book, {i for p in filled for i in p.curves})

    return Picture(title, render(name, title, draw), reading)


def _axes(figure: Figure, n: int, *, columns: int) -> list[Axes]:
    rows = ceil(n / columns)
    figure.set_figheight(0.8 + rows * (2.3 if rows == 1 else 1.75))
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(n)]
    for axes in every:
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=_SMALL)
        axes.locator_params(nbins=5 if columns > 1 else 9, axis="x")
        axes.locator_params(nbins=5, axis="y")
    return every


def _grow(axes: Axes, inches: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + inches)


def _whole_numbers(every: Sequence[Axes]) -> None:
    for axes in every:
        axes.locator_params(axis="x", integer=True)


def _legend(
    figure: Figure, book: _DiagnosedRuns, shown: Collection[int], others: Mapping[str, Any] | None = None
) -> None:
    from matplotlib.lines import Line2D

    styles = {label: line_style(i) for i, label in book.labels.items() if i in shown} | dict(others or {})
    legend(figure, [Line2D([], [], **style) for style in styles.values()], list(styles))


def _lines(text: str, width: int) -> list[str]:
    """Return the text in at most three lines; names of a user's method may hold any character."""
    return wrap(printable(text), width, max_lines=3, placeholder="…") or ["?"]


def _present(curves: Mapping[int, Curve]) -> dict[int, Curve]:
    return {i: c for i, c in curves.items() if c.x}
