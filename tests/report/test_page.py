from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tarry.record.result import Result
from tarry.report import page, summarize, write_page

Make = Callable[..., Result]
VOID = {"meta", "br", "hr", "img", "link", "input"}
NAMESPACES = re.compile(r'xmlns(:xlink)?="http://www\.w3\.org/[^"]*"')


class Reader(HTMLParser):
    """Checks that tags close in order; keeps attributes and the text of every element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def made(results: list[Result]) -> str:
    return page(results, summarize(results), title="Digits", settings={"lr": "0.05"}, command="tarry run")


@pytest.fixture(scope="module")
def html(two_methods: list[Result]) -> str:
    return made(two_methods)


def test_the_page_is_one_balanced_document_with_all_its_parts(html: str) -> None:
    reader = read(html)
    assert html.startswith("<!doctype html>")
    assert [text for tag, text in reader.texts if tag in ("h1", "h2")] == [
        "Digits",
        "Significance",
        "Accuracy over virtual time",
        "Accuracy over updates",
        "Staleness",
        "Every run",
        "Settings",
        "Run it again",
    ]
    assert [tag for tag, _ in reader.tags].count("svg") == 3
    assert [tag for tag, _ in reader.tags].count("table") == 3
    assert ("code", "tarry run") in reader.texts
    assert {("th", "lr"), ("td", "0.05")} <= set(reader.texts)


def test_the_page_loads_nothing_from_anywhere(html: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|javascript:", NAMESPACES.sub("", html))
    assert set(re.findall(r"url\((.)", html)) == {"#"}
    for _, attributes in read(html).tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (attributes.get(name) or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_ids_are_unique_on_the_page(html: str) -> None:
    ids = [a["id"] for _, a in read(html).tags if "id" in a]
    assert ids
    assert len(ids) == len(set(ids))


def test_everything_handed_in_is_escaped(make: Make) -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=y>"
    runs = [make(evil, 0, {0: 0.1, 9: 0.5}, task=evil, version=evil, weights_sha256=evil)]
    html = page(runs, summarize(runs), title=evil, settings={evil: evil}, command=evil)
    reader = read(html)
    assert not {"script", "img"} & {tag for tag, _ in reader.tags}
    assert {("title", evil), ("h1", evil), ("th", evil), ("td", evil), ("code", evil)} <= set(reader.texts)


def test_every_run_is_listed_with_its_fingerprint(html: str, two_methods: list[Result]) -> None:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td>(\d)</td><td>([^<]*)</td>.*<td>(\w{12})</td></tr>', html)
    assert rows == [
        (r.label, str(r.seed), f"{100 * (r.final_accuracy or 0):.1f} %", "0123456789ab") for r in two_methods
    ]


def test_the_best_is_marked_and_what_was_seen_is_said(html: str) -> None:
    assert html.count('<td class="best">') == 2
    assert '<td class="best">75.0 ± 4.2</td>' in html
    said = [text for tag, text in read(html).texts if tag == "li"]
    assert said[0].startswith("orthofl ended with the highest accuracy, 75.0 % (sd 4.2 points over 2 seeds)")
    assert said[1].startswith("orthofl reached the target of 57.0 % first")


def test_each_picture_comes_with_how_to_read_it(html: str) -> None:
    tags = [tag for tag, _ in read(html).tags]
    for i in (i for i, tag in enumerate(tags) if tag == "svg"):
        assert tags[i - 3 : i] == ["h2", "p", "div"]


def test_bands_are_explained_only_where_there_are_some(html: str, two_methods: list[Result]) -> None:
    assert "The band is" in html
    assert "The band is" not in made(two_methods[:2])


def test_a_task_without_accuracy_makes_a_page_about_its_loss(make: Make) -> None:
    runs = [make("a", 0, {0: None}, curve=[(0.0, 0, None, 2.0), (9.0, 9, None, 1.0)], final_loss=1.0)]
    html = made(runs)
    assert "<h2>Loss over virtual time</h2>" in html
    assert "lower is better" in html
    assert "target" not in html.partition("</style>")[2]


def test_what_the_runs_remark_and_what_was_left_out_is_on_the_page(make: Make) -> None:
    runs = [make("a", 0, {0: 0.1, 9: 0.5}, warnings=["--x <1> changes nothing"])]
    html = page(runs, summarize(runs), title="t", settings={}, notices=["b is left out: why"])
    assert "<h2>Notices</h2>" in html
    said = [text for tag, text in read(html).texts if tag == "li"]
    assert said[-2:] == ["b is left out: why", "a: --x <1> changes nothing"]


def test_settings_and_command_may_be_left_out(two_methods: list[Result]) -> None:
    html = page(two_methods, summarize(two_methods), title="t", settings={})
    assert "Settings" not in html
    assert "<pre>" not in html


def test_both_colour_schemes_and_small_screens_are_provided_for(html: str) -> None:
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_long_labels_wrap_and_sizes_have_units(make: Make) -> None:
    html = made([make("a", 0, {0: 0.1, 9: 0.5}, bytes_up=980, bytes_down=12_345, peak_server_bytes=4_500)])
    assert re.search(r"tbody th[^{]*{[^}]*overflow-wrap: anywhere", html)
    assert '<td>980 B up <span class="secondary">12.3 kB down</span></td>' in html
    assert "<td>4.5 kB</td>" in html


def test_write_page_makes_the_folder_and_writes_the_page(two_methods: list[Result], tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    summary = summarize(two_methods)
    write_page(path, two_methods, summary, title="é", settings={"a": "b"}, command="c")
    assert path.read_text(encoding="utf-8") == page(two_methods, summary, title="é", settings={"a": "b"}, command="c")


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_a_missing_number_is_a_dash(make: Make, bad: float | None) -> None:
    runs = [make("a", 0, {0: 0.1, 9: 0.5}), make("b", 0, {0: 0.1, 9: 0.5}, final_accuracy=bad, final_loss=bad)]
    html = made(runs)
    assert '<th scope="row">b</th><td>0</td><td>–</td><td>–</td>' in html
    assert "nan" not in html.partition("</style>")[2]


def test_a_federations_time_is_the_wall_clocks(two_methods: list[Result]) -> None:
    real = [replace(r, clock="wall", virtual_time=40.0 if r.method == "fedavg" else 30.0) for r in two_methods]
    html = page(real, summarize(real), title="a federation", settings={})
    assert "<h2>Accuracy over wall-clock time</h2>" in html
    assert "wall-clock time until the first evaluation at or above it" in html
    assert "virtual" not in html
    assert "simulated" not in html
    all_runs = two_methods + [replace(r, seed=r.seed + 2) for r in real]
    both = page(all_runs, summarize(all_runs), title="both", settings={})
    assert "<h2>Accuracy over time</h2>" in both
