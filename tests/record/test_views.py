"""What a notebook shows of a result, a comparison, a method and a task."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any
from xml.dom import minidom

import pytest
from matplotlib.figure import Figure

import tarry

DIGITS = {"name": "digits", "limit": 200}
SMALL: dict[str, Any] = {"clients": 3, "epochs": 1, "time": 1000}


@pytest.fixture(scope="module")
def result() -> tarry.Result:
    return tarry.run("orthofl", DIGITS, seed=1, **SMALL)


@pytest.fixture(scope="module")
def comparison() -> tarry.Comparison:
    return tarry.compare(["fedavg", "fedbuff:buffer=3"], DIGITS, seeds=[0, 1], **SMALL)


class Cells(HTMLParser):
    """The texts of a page, and the names of its elements."""

    def __init__(self, html: str):
        super().__init__()
        self.texts, self.names = list[str](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def axes() -> Any:
    return Figure().add_subplot()


def test_a_frame_has_a_row_for_each_evaluation(result: tarry.Result) -> None:
    frame = result.to_frame()
    assert [tuple(row) for row in frame.itertuples(index=False)] == [tuple(point)[:4] for point in result.curve]


def test_a_frame_has_a_row_for_each_event(tmp_path) -> None:
    run = tarry.run("fedasync", DIGITS, out=tmp_path / "r", **SMALL)
    frame = run.to_frame("events")
    assert (frame.kind == "arrival").sum() == run.updates
    with pytest.raises(tarry.BadInput, match="must be evaluations or events"):
        run.to_frame("rows")  # type: ignore[arg-type]


def test_the_events_of_a_run_without_a_folder_are_refused(result: tarry.Result) -> None:
    with pytest.raises(tarry.BadInput, match="there is no event log"):
        result.to_frame("events")


@pytest.mark.parametrize("x", ["time", "updates"])
@pytest.mark.parametrize("y", ["accuracy", "loss"])
def test_a_curve_is_drawn_on_given_axes(result: tarry.Result, x: Any, y: Any) -> None:
    given = axes()
    assert result.plot(x, y, ax=given, color="black") is given
    (line,) = given.lines
    assert list(line.get_xdata()) == [getattr(point, x) for point in result.curve]
    assert list(line.get_ydata()) == [getattr(point, y) for point in result.curve]
    assert (line.get_label(), line.get_color()) == ("orthofl", "black")


def test_a_wrong_axis_is_named_as_a_keyword(result: tarry.Result, comparison: tarry.Comparison) -> None:
    for plot in (result.plot, comparison.plot):
        with pytest.raises(tarry.BadInput, match="x='rounds': must be time or updates"):
            plot(x="rounds", ax=axes())  # type: ignore[arg-type]


def test_a_result_is_shown_as_a_table_and_a_curve(result: tarry.Result) -> None:
    html = result._repr_html_()
    shown = Cells(html)
    assert f"{result.final_accuracy:.4f}" in shown.texts
    assert {"table", "svg"} <= set(shown.names)
    minidom.parseString(html[html.index("<svg") : html.index("</svg>") + 6])
    assert "currentColor" in html, "the ink is the page's, dark or light"
    assert html == result._repr_html_()


def test_names_are_no_markup(result: tarry.Result) -> None:
    hostile = replace(result, label="<script>a()</script>", task="\x1b[2J", warnings=["<b>w</b>"])
    shown = Cells(hostile._repr_html_())
    assert "script" not in shown.names
    assert "b" in shown.names, "the label is bold"
    assert "\x1b" not in "".join(shown.texts)


def test_a_result_without_evaluations_has_a_table_alone(result: tarry.Result) -> None:
    shown = Cells(replace(result, curve=(), final_accuracy=None, final_loss=None)._repr_html_())
    assert "svg" not in shown.names
    assert "none" in shown.texts


def test_a_comparison_has_a_row_for_each_run_and_for_each_method(comparison: tarry.Comparison) -> None:
    frame = comparison.to_frame()
    assert list(zip(frame.label, frame.seed, strict=True)) == [(r.label, r.seed) for r in comparison]
    assert frame.staleness_mean.tolist() == [r.staleness.mean for r in comparison]
    means = frame.groupby("label").final_accuracy.mean()
    rows = comparison.summary.to_frame().set_index("label").accuracy
    assert means.to_dict() == pytest.approx(rows.to_dict())


def test_a_comparison_is_drawn_with_bands(comparison: tarry.Comparison) -> None:
    given = comparison.plot(y="loss", ax=axes())
    assert [line.get_label() for line in given.lines] == ["fedavg", "fedbuff:buffer=3"]
    assert len(given.collections) == 2
    assert given.get_ylabel() == "test loss"


def test_a_comparison_is_shown_as_its_table_with_the_best_in_bold(comparison: tarry.Comparison) -> None:
    html = comparison._repr_html_()
    row = next(r for r in comparison.summary.rows if r.label == comparison.best)
    assert row.accuracy is not None
    assert f"<b>{100 * row.accuracy:.1f}" in html


def test_methods_and_tasks_are_shown_as_tables() -> None:
    assert "FedSOL" in tarry.methods["fedsol"]()._repr_html_()
    assert "default" in tarry.Method("<plain>")._repr_html_()
    assert "<plain>" not in tarry.Method("<plain>")._repr_html_()
    shown = Cells(tarry.tasks["digits"](limit=100)._repr_html_()).texts
    assert {"train", "100", "test", "360", "an input", "a target", "a number, int64"} <= set(shown)


def test_a_bar_moves_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    class Bar:
        def __init__(self, total: float, desc: str, bar_format: str):
            self.total, self.desc, self.n, self.notes = total, desc, 0.0, list[str]()
            bars.append(self)

        def set_postfix_str(self, text: str) -> None:
            self.notes.append(text)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=Bar))
    run = tarry.run("fedasync", DIGITS, progress=True, **SMALL)
    tarry.compare(["fedasync"], DIGITS, seeds=[0, 1], progress=True, **SMALL)
    tarry.run("fedasync", DIGITS, **SMALL)
    tarry.run("fedasync", DIGITS, progress=False, **SMALL)
    one, both = bars
    assert (one.n, one.total, one.desc) == (1.0, 1.0, "fedasync")
    assert one.notes[-1].startswith(f"{run.updates:,} updates, accuracy 0.")
    assert (both.n, both.total, both.notes[-1]) == (2.0, 2.0, "2 of 2 runs, fedasync")


def test_a_notebook_shows_a_bar_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from tarry.runs.progress_bars import in_notebook, run_bar

    assert not in_notebook()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()
    with run_bar(False, "mine") as show:
        assert show is None
    with run_bar(None, "mine") as show:
        assert show is not None


def test_a_missing_library_is_named(result: tarry.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tarry.BadInput, match="pip install pandas"):
        result.to_frame()
