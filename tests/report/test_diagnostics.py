from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

import tarry
from tarry.cli.console import print_result
from tarry.record.result import Result
from tarry.report import diagnostics, page, summarize
from tarry.report.diagnostics import Picture, pictures
from tarry.report.diagnostics_data import (
    in_short,
    mean_of,
    names,
    over_time,
    participation,
    points,
    sentences,
    speed_grid,
    stretch,
    validation,
)
from tarry.report.tables import Curve
from tests.helpers.svg import words

Make = Callable[..., Result]
TITLES = [
    "Updates and the concurrent change of the model",
    "Layer by layer",
    "Other measurements over time",
    "Accuracy on clients' own mix of classes (%)",
    "Participation of the clients",
]


def notes(cosine: float = 0.5, **others: Any) -> dict[str, Any]:
    """Four stretches of 10 s with 10 updates each; two layers, three clients."""
    times = (5.0, 15.0, 25.0, 35.0)
    series = {
        "cosine": [[t, cosine, 10] for t in times],
        "cosine_by_layer": [[t, [cosine, -cosine], 10] for t in times],
        "removed_by_layer": [[t, [abs(cosine), abs(cosine)], 10] for t in times],
        "opposed": [[t, 0.25, 10] for t in times],
        "drift": [[t, t / 5, 10] for t in times],
    }
    return {
        "every": 10.0,
        "series": {**series, **others.pop("series", {})},
        "participation": {"0": 10, "1": 20, "2": 10},
        "seconds": {"0": 3.0, "1": 1.0, "2": 2.0},
        "validation": {"0": [[0, 0.1, 2.0], [1, 0.6, 1.0]], "1": [[0, 0.2, 2.0], [1, None, None], [2, 0.7, 1.0]]},
        "layers": ["net.1.weight", "net.2.bias"],
        "by_speed": {
            "accuracy": 0.5,
            "active": {"clients": 2, "accuracy": 0.6},
            "stragglers": {"clients": 1, "accuracy": 0.3},
            "variance": 0.025,
        },
        **others,
    }


def run(make: Make, label: str, seed: int, found: dict[str, Any] | None, **others: Any) -> Result:
    return make(label, seed, {0: 0.1, 40: 0.5}, **{"n_clients": 3, "diagnostics": found, **others})


@pytest.fixture(scope="module")
def two(two_methods: list[Result]) -> list[Result]:
    """Over two seeds: a's cosine is 0.5 and 0.3, b's −0.2 and 0."""
    cosines = {("a", 0): 0.5, ("a", 1): 0.3, ("b", 0): -0.2, ("b", 1): 0.0}
    base = replace(two_methods[0], n_clients=3, virtual_time=40.0, updates=400)
    return [replace(base, label=label, seed=seed, diagnostics=notes(c)) for (label, seed), c in cosines.items()]


@pytest.fixture(scope="module")
def shown(two: list[Result]) -> list[Picture]:
    return pictures(two)


@pytest.fixture(scope="module")
def html(two: list[Result]) -> str:
    return body(two)


def body(results: list[Result]) -> str:
    return page(results, summarize(results), title="t", settings={}).partition("</style>")[2]


def one(results: list[Result], title: str) -> Picture:
    """A single picture: the notes that the others are made from are taken away."""
    parts = {
        TITLES[0]: ({"cosine", "opposed"}, set()),
        TITLES[1]: ({"cosine_by_layer", "removed_by_layer"}, {"layers"}),
        TITLES[2]: (None, set()),
        TITLES[3]: (set(), {"validation", "seconds"}),
        TITLES[4]: (set(), {"participation", "seconds"}),
    }
    wanted, others = parts[title]
    apart = {"cosine", "opposed", "cosine_by_layer", "removed_by_layer"}

    def reduced(found: dict[str, Any]) -> dict[str, Any]:
        series = {k: v for k, v in found["series"].items() if (k in wanted if wanted is not None else k not in apart)}
        return {"every": found["every"], "series": series, **{k: v for k, v in found.items() if k in others}}

    (picture,) = pictures([replace(r, diagnostics=r.diagnostics and reduced(r.diagnostics)) for r in results])
    assert picture.title == title
    return picture


class Drawn:
    """The curves as they were handed to the plotter: by panel title, then by the method's place."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.panels: dict[str, list[tuple[int, Curve]]] = {}
        draw = diagnostics.draw_curve

        def keep(axes: Any, curve: Curve, index: int, **style: Any) -> None:
            title = axes.get_title(loc="left").replace("\n", " ")
            self.panels.setdefault(title, []).append((index, curve))
            draw(axes, curve, index, **style)

        patch.setattr(diagnostics, "draw_curve", keep)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


# the section


def test_the_section_stands_between_the_pictures_and_the_runs_and_every_picture_says_how_to_read_it(html: str) -> None:
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", html)
    at = headings.index("What happened on the way")
    assert headings[at - 1] == "Staleness"
    assert headings[at + 1 : -1] == ["Fast and slow clients", *(t.replace("'", "&#x27;") for t in TITLES)]
    assert headings[-1] == "Every run"
    told = re.findall(r'<h3>[^<]*</h3>\n<p>([^<]*)</p>\n<div class="wide"><svg', html)
    assert len(told) == len(set(told)) == len(TITLES)
    assert all(text.count(". ") == 0 and text.endswith(".") and len(text) > 60 for text in told)
    assert "A point over time is a mean over 10 s of virtual time." in html
    assert "bands and thin bars one standard deviation" in html


def test_ids_are_unique_and_ink_follows_the_page(html: str, shown: list[Picture]) -> None:
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) > 100
    for picture in shown:
        root = ElementTree.fromstring(picture.svg)
        assert (root.attrib["role"], root.attrib["aria-label"]) == ("img", picture.title)
        assert "currentColor" in picture.svg
        assert "#010203" not in picture.svg


def test_the_same_runs_give_the_same_bytes(shown: list[Picture], two: list[Result]) -> None:
    assert pictures(two) == shown


def test_without_notes_there_is_no_section(make: Make) -> None:
    runs = [run(make, "a", 0, None)]
    assert pictures(runs) == []
    assert "What happened on the way" not in body(runs)


def test_methods_keep_the_colour_of_their_place_though_others_noted_nothing(
    make: Make, two: list[Result], drawn: Drawn
) -> None:
    runs = [run(make, "silent", 0, None), *two]
    assert "silent" not in words(one(runs, TITLES[0]).svg)
    assert {i for curves in drawn.panels.values() for i, _ in curves} == {1, 2}
    assert sentences(runs)[-1] == "No diagnostics of silent: run with --diagnose to have them."


# updates and what the others did


def test_cosines_and_opposition_are_drawn_over_time_as_means_over_seeds(two: list[Result], drawn: Drawn) -> None:
    picture = one(two, TITLES[0])
    (a, cosine_a), (b, cosine_b) = drawn.panels["Cosine of an update with the concurrent change"][:2]
    assert (a, b) == (0, 1)
    assert cosine_a.x == [5.0, 15.0, 25.0, 35.0]
    assert cosine_a.mean == pytest.approx([0.4] * 4)
    assert cosine_a.sd == pytest.approx([0.02**0.5] * 4)
    assert cosine_b.mean == pytest.approx([-0.1] * 4)
    assert drawn.panels["Updates that oppose it (%)"][0][1].mean == [25.0] * 4
    assert {"a", "b", "virtual time (s)"} <= set(words(picture.svg))
    assert "zero line" in picture.reading
    assert len(re.findall(r"stroke: currentColor; stroke-width: 0.9\b", picture.svg)) == 1


def test_what_was_seen_is_said_with_its_share(two: list[Result]) -> None:
    assert sentences(two) == [
        "Mean cosine of an update with the concurrent change of the model (and the share of updates that oppose it): "
        "a 0.400 (25.0 %), b −0.100 (25.0 %)."
    ]


def test_a_mean_over_the_run_counts_updates_not_stretches(make: Make) -> None:
    r = run(make, "a", 0, {"series": {"cosine": [[5, 0.2, 1], [15, 0.6, 3]]}})
    assert mean_of(r, "cosine") == [pytest.approx(0.5)]
    assert mean_of(r, "nothing") == []


def test_stretches_grow_until_a_mean_is_over_enough_updates(make: Make) -> None:
    def width(updates: int) -> float:
        return stretch([run(make, "a", 0, {"every": 10.0}, virtual_time=500.0, updates=updates)])

    assert width(400) == 10.0  # 8 in each of 50
    assert width(200) == 20.0
    assert width(10) == 40.0  # 12 stretches are left
    assert width(0) == 40.0


def test_stretches_are_joined_by_their_counts_and_seeds_by_interpolation(make: Make) -> None:
    first = run(make, "a", 0, {"series": {"s": [[5, 1.0, 1], [15, 4.0, 2], [25, 5.0, 1]]}})
    second = run(make, "a", 1, {"series": {"s": [[25, 3.0, 1], [45, 7.0, 1]]}})
    assert over_time([first], "s", 20.0) == Curve([10.0, 30.0], [3.0, 5.0], None)
    both = over_time([first, second], "s", 10.0)
    assert both.x == [25.0, 45.0]  # from where both have begun
    assert both.mean == [4.0, 6.0]  # the first holds its last value
    assert both.sd == pytest.approx([2**0.5, 2**0.5])


# layer by layer


def test_layers_stand_in_model_order_with_short_names(two: list[Result], drawn: Drawn) -> None:
    shown = words(one(two, TITLES[1]).svg)
    assert shown.index("1.w") < shown.index("2.b")  # what all begin with is left out
    assert drawn.panels["Cosine of an update with the concurrent change"][0][1].mean == pytest.approx([0.4, -0.4])
    assert drawn.panels["Share that a projection would remove (%)"][0][1].mean == pytest.approx([40.0, 40.0])


def test_of_many_layers_some_are_named_and_none_at_length(make: Make) -> None:
    layers = [f"transformer.layers.{i}.attention.projection.weight" for i in range(100)]
    found = notes(series={"cosine_by_layer": [[5.0, [0.1] * 100, 10]], "removed_by_layer": []}, layers=layers)
    shown = [w for w in words(one([run(make, "a", 0, found)], TITLES[1]).svg) if w.endswith(".w")]
    assert shown == [f"{i}.atten.proje.w" for i in range(0, 100, 4)]


@pytest.mark.parametrize("layers", [None, ["only-one"]])
def test_layers_without_names_are_counted(make: Make, layers: list[str] | None) -> None:
    assert {"1", "2"} <= set(words(one([run(make, "a", 0, notes(layers=layers))], TITLES[1]).svg))


def test_a_model_of_one_layer_is_drawn(make: Make) -> None:
    series = {"cosine_by_layer": [[5.0, 0.3, 10]], "removed_by_layer": [[5.0, 0.3, 10]]}
    picture = one([run(make, "a", 0, notes(series=series, layers=["a.weight"]))], TITLES[1])
    assert "a.w" in words(picture.svg)


# the methods' own series


def test_known_series_have_plain_titles_and_others_their_own_names(make: Make, drawn: Drawn) -> None:
    own = {"conflict": [[5.0, 0.3, 10]], "my_series": [[5.0, 7.0, 10]], "pairs": [[5.0, [1.0, 3.0], 10]]}
    runs = [run(make, "a", 0, notes(series=own)), run(make, "b", 0, notes())]
    said = " ".join(words(one(runs, TITLES[2]).svg))
    for title in ("Norm of the concurrent change of the model", "my_series", "pairs (mean of its values)"):
        assert title in said
    assert drawn.panels["Local steps that conflicted with the other group (%)"] == [(0, Curve([5.0], [30.0], None))]
    assert drawn.panels["pairs (mean of its values)"][0][1].mean == [2.0]
    assert [i for i, _ in drawn.panels["Norm of the concurrent change of the model"]] == [0, 1]
    assert names(runs) == ["drift", "conflict", "my_series", "pairs"]


def test_the_losses_of_a_curve_share_a_panel_and_their_ratio_is_said(make: Make, drawn: Drawn) -> None:
    own = {"line_loss": [[5.0, 2.2, 10]], "curve_loss": [[5.0, 2.0, 10]]}
    runs = [run(make, "asynccurve", 0, notes(series=own))]
    one(runs, TITLES[2])
    both = drawn.panels["Loss on the learned curve (solid) and on the straight line (dotted)"]
    assert [c.mean for _, c in both] == [[2.0], [2.2]]
    assert "Loss on the straight line" not in drawn.panels
    said = "asynccurve: Q = loss on the line / loss on the curve = 1.1000; the curve was the better way."
    assert said in sentences(runs)


def phases(*means: float) -> dict[str, Any]:
    return notes(series={"phase": [[60.0 * (i + 1), mean, 5] for i, mean in enumerate(means)]})


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([phases(0, 0, 1)], "m did not switch: it trusted displacement to the end."),
        ([phases(0, 0.5, 1.5, 2)], "m switched from displacement to position after about 3 min."),
        (
            [phases(0, 0, 0, 2), phases(0, 2, 2, 2)],
            "m switched from displacement to position after about 3 min (mean over seeds).",
        ),
        (
            [phases(0, 0, 0, 0), phases(0, 0, 2, 0)],
            "m switched from displacement to position in 1 of 2 runs after about 3 min, and later back.",
        ),
    ],
)
def test_when_orthodyn_switched_is_said(make: Make, seeds: list[dict[str, Any]], said: str) -> None:
    assert sentences([run(make, "m", i, found) for i, found in enumerate(seeds)])[-1] == said


# validation


def test_validation_has_a_panel_a_client_with_the_first_seed_of_each_method(make: Make, drawn: Drawn) -> None:
    later = notes(validation={"0": [[0, 0.9, 1.0]]})
    runs = [run(make, "a", 4, later), run(make, "a", 3, notes()), run(make, "b", 3, notes())]
    picture = one(runs, TITLES[3])
    assert "(seed 3)" in picture.reading
    assert drawn.panels["client 0, 3 s a visit"][0] == (0, Curve([0, 1], [10.0, 60.0], None))
    assert drawn.panels["client 1, 1 s a visit"][1] == (
        1,
        Curve([0, 2], [20.0, 70.0], None),
    )  # what is None is left out


def test_at_most_six_clients_are_followed(make: Make) -> None:
    many = {str(c): [[0, 0.1, 1.0], [1, 0.2, 1.0]] for c in range(12)}
    shown = [w for w in words(one([run(make, "a", 0, notes(validation=many))], TITLES[3]).svg) if "client " in w]
    assert [w.partition(",")[0] for w in shown] == [f"client {c}" for c in range(6)]


def test_validation_without_accuracy_is_left_out(make: Make) -> None:
    r = run(make, "a", 0, notes(validation={"0": [[0, None, 2.0]], "1": []}))
    assert validation(r) == {}


# who took part


def test_shares_run_from_the_fastest_client_to_those_never_seen(make: Make) -> None:
    assert participation(run(make, "a", 0, notes(), n_clients=5)) == [0.5, 0.25, 0.25, 0.0, 0.0]
    lazy = notes(participation={"2": 4}, seconds={"0": 3.0, "2": 9.0})
    assert participation(run(make, "a", 0, lazy, n_clients=2)) == [0.0, 1.0]


def test_few_clients_have_bars_and_many_a_line(make: Make, two: list[Result], drawn: Drawn) -> None:
    few = one(two, TITLES[4])
    assert {"a", "b", "share of updates (%)", "equal share, 33.3 %"} <= set(words(few.svg))
    assert "clients, from the fastest (1) to the slowest (3)" in words(few.svg)
    assert "" not in drawn.panels
    crowd = {str(c): 1 for c in range(41)}
    many = run(make, "a", 0, notes(participation=crowd, seconds={}), n_clients=41)
    assert "equal share, 2.4 %" in words(one([many], TITLES[4]).svg)
    assert drawn.panels[""][0][1].mean == pytest.approx([100 / 41] * 41)


def test_one_client_has_all_of_it(make: Make) -> None:
    alone = notes(participation={"0": 4}, seconds={"0": 1.0})
    assert "equal share, 100 %" in words(one([run(make, "a", 0, alone, n_clients=1)], TITLES[4]).svg)


# fast and slow clients


def test_accuracy_by_speed_is_a_table_of_means_with_the_best_marked(make: Make, two: list[Result]) -> None:
    other = {"accuracy": 0.9, "active": {"accuracy": 0.5}, "stragglers": {"accuracy": None}, "variance": None}
    found = speed_grid([*two, run(make, "a", 2, notes(by_speed={**notes()["by_speed"], "variance": 0.001}))])
    assert found is not None
    headings, rows = found
    assert headings[1:] == ("test accuracy %", "active clients' examples %", "stragglers' examples %", "variance")
    assert [[c.text for c in row] for row in rows] == [
        ["a", "50.0", "60.0", "30.0", "0.017"],
        ["b", "50.0", "60.0", "30.0", "0.025"],
    ]
    assert [row[-1].best for row in rows] == [True, False]
    mixed = speed_grid([*two, run(make, "c", 0, notes(by_speed=other)), run(make, "d", 0, notes(by_speed=None))])
    assert mixed is not None
    assert [c.text for c in mixed[1][-1]] == ["c", "90.0", "50.0", "–", "–"]
    assert [row[1].best for row in mixed[1]] == [False, False, True]


def test_without_an_accuracy_there_is_no_such_table(make: Make) -> None:
    runs = [run(make, "a", 0, notes(by_speed=None)), run(make, "b", 0, notes(by_speed={"accuracy": None}))]
    assert speed_grid(runs) is None


# whatever a record holds


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"every": None, "series": None, "participation": None, "seconds": None, "validation": None, "layers": None},
        {"series": {"cosine": [], "opposed": None, "mine": [[5.0, None, 3]], "none": [[5.0, 1.0, 0]]}},
        {"series": {"cosine": [[5.0, float("nan"), 3]], "cosine_by_layer": [[5.0, [0.1, None], 3]]}},
        {"every": float("inf"), "series": {"cosine": [[float("nan"), 0.1, 3]]}, "participation": {"0": 0}},
    ],
)
def test_notes_without_anything_to_show_show_nothing(make: Make, found: dict[str, Any]) -> None:
    runs = [run(make, "a", 0, found), run(make, "b", 0, None)]
    assert (pictures(runs), speed_grid(runs), in_short(runs[0])) == ([], None, [])


def test_what_is_not_a_number_is_never_drawn(make: Make, drawn: Drawn) -> None:
    bad = float("nan")
    found = notes(
        series={
            "cosine": [[5.0, 0.1, 3], [15.0, bad, 3], [25.0, None, 3], [35.0, 0.3, 3]],
            "cosine_by_layer": [[5.0, [0.1, 0.2], 3], [15.0, [0.1], 3], [25.0, [bad, 0.1], 3]],
            "mine": [[5.0, float("inf"), 3], [15.0, 2.0, 3]],
        },
        validation={"0": [[0, bad, 1.0], [1, 0.5, 1.0]]},
        participation={"0": 4, "1": bad},
        by_speed={"accuracy": bad, "active": None},
    )
    runs = [run(make, "a", 0, found)]
    assert points(runs[0], "cosine_by_layer") == [(5.0, [0.1, 0.2], 3)]
    assert not re.search(r"\b(nan|inf)\b", "".join(p.svg for p in pictures(runs)), re.IGNORECASE)
    assert speed_grid(runs) is None
    assert all(v == v and abs(v) < 1e9 for curves in drawn.panels.values() for _, c in curves for v in c.mean)
    assert drawn.panels["Cosine of an update with the concurrent change"][0][1].x == [5.0, 35.0]


def test_notes_without_a_clock_are_one_point(make: Make, drawn: Drawn) -> None:
    runs = [run(make, "a", 0, {"every": 0.0, "series": {"cosine": [[0.0, 0.4, 9]]}}, virtual_time=0.0)]
    assert [p.title for p in pictures(runs)] == TITLES[:1]
    assert drawn.panels["Cosine of an update with the concurrent change"] == [(0, Curve([0.0], [0.4], None))]
    assert stretch(runs) == 0.0


def test_everything_handed_in_is_escaped(make: Make) -> None:
    evil = "<script>x</script>\"'&$x_1$"
    found = notes(
        series={evil: [[5.0, 1.0, 3]], "bell\x07": [[5.0, 1.0, 3]]},
        layers=[evil, f"b.{evil}"],
        validation={evil: [[0, 0.1, 1.0], [1, 0.2, 1.0]]},
    )
    runs = [run(make, evil, 0, found)]
    html = body(runs)
    assert "<script" not in html
    svgs = [words(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert all(evil in said for said in svgs)  # the label
    assert any(f"client {evil}" in said for said in svgs)
    assert any("bell\\x07" in said for said in svgs)


# the terminal


def test_a_run_with_notes_says_them_in_three_lines(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    r = run(make, "a", 0, notes(-0.25, series={"conflict": [[5.0, 0.1, 3], [15.0, 0.125, 3]], "[b]": [[5.0, 2, 1]]}))
    assert in_short(r) == [
        "mean cosine of an update with the concurrent change of the model -0.250, 25.0 % of updates oppose it",
        "at the end conflict 0.125, [b] 2",
        "accuracy 50.0 % on the test set, 60.0 % on active clients' examples, 30.0 % on stragglers'; variance 0.025",
    ]
    print_result(r)
    said = capsys.readouterr().out
    assert all(f"  {line}\n" in said for line in in_short(r))


def test_a_run_without_notes_says_nothing_of_them(make: Make) -> None:
    assert in_short(run(make, "a", 0, None)) == []


# a run as it is recorded


def test_a_diagnosed_run_has_all_pictures() -> None:
    r = tarry.run("orthodyn", "digits", clients=4, epochs=1, updates=40, diagnose=True)
    shown = pictures([r])
    assert [p.title for p in shown] == TITLES
    assert {"1.w", "1.b", "3.w", "3.b"} <= set(words(shown[1].svg))
    assert "The statistic that decides the switch (0 to 1)" in " ".join(words(shown[2].svg))
    assert in_short(r)[1].startswith("at the end phase ")
