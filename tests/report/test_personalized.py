from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tarry.record.result import Result
from tarry.report import markdown, summarize
from tarry.report.formatting import TableCell, grid, legend
from tarry.report.page import page

Make = Callable[..., Result]


def scores(after: float | None, sd: float | None, before: float | None, epochs: int = 5) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "clients": 4,
        "rejected": 0,
        "before": {"mean": before, "sd": 0.0, "per_client": []},
        "after": {"mean": after, "sd": sd, "per_client": []},
    }


@pytest.fixture
def three(make: Make) -> list[Result]:
    return [
        make("fedavg", 0, {0: 0.1, 1: 0.5}, personalization=scores(0.80, 0.10, 0.50)),
        make("fedavg", 1, {0: 0.1, 1: 0.5}, personalization=scores(0.84, 0.20, 0.54)),
        make("fedsol", 0, {0: 0.1, 1: 0.6}, personalization=scores(0.90, 0.05, 0.60)),
        make("plain", 0, {0: 0.1, 1: 0.4}),
    ]


def test_a_row_has_the_means_over_seeds_of_the_clients_mean_and_spread(three: list[Result]) -> None:
    summary = summarize(three)
    assert summary.personal_epochs == (5,)
    fedavg, fedsol, plain = summary.rows
    assert (fedavg.personal, fedavg.personal_sd, fedavg.personal_before) == pytest.approx((0.82, 0.15, 0.52))
    assert (fedsol.personal, fedsol.personal_sd, fedsol.personal_before) == (0.90, 0.05, 0.60)
    assert (plain.personal, plain.personal_sd, plain.personal_before) == (None, None, None)


def test_the_column_stands_behind_the_scores_and_the_best_is_marked(three: list[Result]) -> None:
    headings, rows = grid(summarize(three))
    assert headings[:4] == ("method", "accuracy %", "time to target", "personal %")
    assert [row[3] for row in rows] == [
        TableCell("82.0 ± 15.0", "52.0 before"),
        TableCell("90.0 ± 5.0", "60.0 before", best=True),
        TableCell("–"),
    ]
    assert "| **90.0 ± 5.0 (60.0 before)** |" in markdown(summarize(three))


def test_a_seed_without_a_score_leaves_no_mean(make: Make) -> None:
    runs = [make("a", s, {1: 0.5}, personalization=p) for s, p in enumerate([scores(0.8, 0.1, 0.5), None])]
    (row,) = summarize(runs).rows
    assert row.personal is None
    nobody = make("b", 0, {1: 0.5}, personalization=scores(None, None, None))
    assert grid(summarize([nobody]))[1][0][3] == TableCell("–")


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ((5,), "after 5 epochs of fine-tuning"),
        ((1,), "after 1 epoch of fine-tuning"),
        ((0,), "after no fine-tuning"),
        ((1, 5), "after 1 and 5 epochs of fine-tuning"),
    ],
)
def test_below_the_table_it_says_what_was_done(make: Make, epochs: tuple[int, ...], said: str) -> None:
    runs = [make(f"m{e}", 0, {1: 0.5}, personalization=scores(0.8, 0.1, 0.5, e)) for e in epochs]
    assert said in legend(summarize(runs))
    assert "standard deviation over clients" in legend(summarize(runs))


def test_nobody_asked_nothing_is_said(two_methods: list[Result]) -> None:
    summary = summarize(two_methods)
    assert summary.personal_epochs == ()
    assert "ersonal" not in legend(summary)
    assert "personal %" not in grid(summary)[0]


def test_the_page_shows_it(three: list[Result]) -> None:
    text = page(three, summarize(three), title="t", settings={})
    assert "82.0 ± 15.0" in text
    assert "after 5 epochs of fine-tuning" in text
