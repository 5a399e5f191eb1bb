from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib
import pytest

from tarry.core.errors import BadInput
from tarry.record.result import Result
from tarry.report import score_over_time, score_over_updates, staleness_bars, summarize
from tarry.report.plots import line_style
from tests.helpers.svg import SVG, words

Make = Callable[..., Result]


def drawn(results: list[Result]) -> list[str]:
    s = summarize(results)
    return [score_over_time(results, s), score_over_updates(results, s), staleness_bars(results)]


def ids(svg: str) -> list[str]:
    return [e.attrib["id"] for e in ElementTree.fromstring(svg).iter() if "id" in e.attrib]


@pytest.fixture(scope="module")
def pictures(two_methods: list[Result]) -> list[str]:
    return drawn(two_methods)


def test_pictures_are_whole_svg_documents_with_text_as_text(pictures: list[str]) -> None:
    for svg in pictures:
        root = ElementTree.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert root.attrib["role"] == "img"
        assert {"fedavg", "orthofl"} <= set(words(svg))


def test_the_axes_say_what_they_measure(pictures: list[str]) -> None:
    time, updates, staleness = map(words, pictures)
    assert {"virtual time (s)", "test accuracy (%)", "target 57.0 %"} <= set(time)
    assert {"updates received", "test accuracy (%)"} <= set(updates)
    assert "mean 1.0 · 95 % ≤ 2 · max 4" in staleness


@pytest.mark.parametrize(("end", "unit"), [(100, "s"), (1000, "min"), (20_000, "h"), (500_000, "days")])
def test_time_is_in_the_unit_of_its_range(make: Make, end: float, unit: str) -> None:
    runs = [make("a", 0, {0: 0.1, end: 0.5})]
    assert f"virtual time ({unit})" in words(score_over_time(runs, summarize(runs)))


def test_the_same_runs_give_the_same_bytes(pictures: list[str], two_methods: list[Result]) -> None:
    assert drawn(two_methods) == pictures


def test_no_id_is_used_twice_in_or_between_pictures(pictures: list[str]) -> None:
    every = [i for svg in pictures for i in ids(svg)]
    assert len(every) > 30
    assert len(every) == len(set(every))


def test_references_point_at_ids_that_are_there(pictures: list[str]) -> None:
    for svg in pictures:
        there, used = set(ids(svg)), set()
        for e in ElementTree.fromstring(svg).iter():
            href, clip = e.attrib.get("{http://www.w3.org/1999/xlink}href"), e.attrib.get("clip-path")
            used |= {href[1:]} if href else set()
            used |= {clip.removeprefix("url(#").removesuffix(")")} if clip else set()
        assert used
        assert used <= there


def test_ink_follows_the_page_and_nothing_reaches_out_of_the_picture(pictures: list[str]) -> None:
    for svg in pictures:
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "fill: #ffffff" not in svg
        assert "<style" not in svg
        assert "<metadata" not in svg


def test_lines_that_end_apart_are_named_at_their_ends_and_others_in_a_legend(make: Make) -> None:
    def picture(high: float) -> list[str]:
        runs = [make("a", 0, {0: 0.1, 9: 0.5}), make("b", 0, {0: 0.1, 9: high})]
        return ids(score_over_time(runs, summarize(runs)))

    assert not any("legend" in i for i in picture(0.9))
    assert any("legend" in i for i in picture(0.505))


def test_a_band_is_drawn_for_several_seeds_only(pictures: list[str], two_methods: list[Result]) -> None:
    several, one = pictures[0], score_over_time(two_methods[:2], summarize(two_methods[:2]))
    assert "FillBetween" in several or "PolyCollection" in several
    assert "FillBetween" not in one
    assert "PolyCollection" not in one


def test_a_task_without_accuracy_is_drawn_by_its_loss(make: Make) -> None:
    runs = [make("a", 0, {0: None}, curve=[(0.0, 0, None, 2.0), (9.0, 9, None, 1.0)], final_loss=1.0)]
    said = words(score_over_time(runs, summarize(runs)))
    assert "test loss" in said
    assert not any("target" in w for w in said)


def test_runs_without_evaluations_are_drawn_as_such(make: Make) -> None:
    runs = [make("a", 0, {0: None}, curve=[])]
    for svg in drawn(runs)[:2]:
        assert "no evaluations were recorded" in words(svg)


def test_labels_are_shown_as_they_are(make: Make) -> None:
    hostile = '<b>&"$x_1$'
    runs = [make(hostile, 0, {0: 0.1, 9: 0.5}), make("_b", 0, {0: 0.1, 9: 0.505})]
    for svg in drawn(runs):
        assert {hostile, "_b"} <= set(words(svg))


def test_many_methods_differ_by_colour_or_dashes(make: Make) -> None:
    runs = [make(f"m{i}", 0, {0: 0.1, 9: 0.5 + 0.01 * i}) for i in range(8)]
    root = ElementTree.fromstring(score_over_time(runs, summarize(runs)))
    legend = next(e for e in root.iter() if e.attrib.get("id", "").endswith("legend_1"))
    strokes = [s for e in legend.iter(f"{SVG}path") if "stroke:" in (s := e.attrib.get("style", ""))]
    assert len(strokes) == len(set(strokes)) == 9  # with the target


def test_as_many_methods_as_there_are_have_a_look_each() -> None:
    assert len({str(line_style(i)) for i in range(100)}) == 100
    assert line_style(3) == {"color": "#CC79A7", "linestyle": "solid", "linewidth": 1.7}


def test_marks_are_drawn_on_lines_and_in_the_legend(make: Make) -> None:
    runs = [make(f"m{i}", 0, {0: 0.1, 3: 0.4, 9: 0.5 + 0.01 * i}) for i in range(30)]
    root = ElementTree.fromstring(score_over_time(runs, summarize(runs)))
    legend = next(e for e in root.iter() if e.attrib.get("id", "").endswith("legend_1"))
    in_legend = sum(1 for _ in legend.iter(f"{SVG}use"))
    assert in_legend == 6  # the first 24 need none
    assert sum(1 for _ in root.iter(f"{SVG}use")) > in_legend + 6


def test_drawing_leaves_no_setting_behind(two_methods: list[Result]) -> None:
    before = dict(matplotlib.rcParams)
    drawn(two_methods)
    assert dict(matplotlib.rcParams) == before


def test_a_persons_own_settings_do_not_change_the_picture(pictures: list[str], two_methods: list[Result]) -> None:
    with matplotlib.rc_context({"font.size": 20, "axes.grid": True, "svg.fonttype": "path"}):
        assert drawn(two_methods) == pictures


def test_a_missing_matplotlib_is_said_with_the_way_out(
    two_methods: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match="pip install matplotlib"):
        staleness_bars(two_methods)


def test_the_room_imports_without_matplotlib_and_rich() -> None:
    program = "import sys; sys.modules['matplotlib'] = sys.modules['rich'] = None; import tarry.report"
    subprocess.run([sys.executable, "-c", program], check=True)
