"""Tests of the rows of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tarry.core.errors import BadInput
from tarry.record.result import Result
from tarry.report.significance import significance, significance_json

Make = Callable[..., Result]


def runs(make: Make, finals: dict[str, list[float]]) -> list[Result]:
    return [make(label, seed, {10: a}) for label, values in finals.items() for seed, a in enumerate(values)]


TEN = [0.50 + 0.01 * i for i in range(10)]


def test_every_two_rows_are_compared_over_their_seeds(make: Make) -> None:
    better = [a + 0.1 + 0.001 * i for i, a in enumerate(TEN)]
    noisy = [a + (0.05 if i % 2 else -0.04) + 0.001 * i for i, a in enumerate(TEN)]
    found = significance(runs(make, {"a": TEN, "b": better, "c": noisy}))
    assert (found.seeds, found.best, len(found.tests)) == (10, "b", 3)
    pairs = {(t.label, t.other): t for t in found.tests}
    assert set(pairs) == {("b", "a"), ("c", "a"), ("b", "c")}
    won = pairs["b", "a"]
    assert (won.pairs, won.p, won.significant) == (10, 2 / 1024, True)
    assert won.corrected == pytest.approx(6 / 1024)
    assert won.difference == pytest.approx(0.1045)
    assert won.low < won.difference < won.high
    open_test = pairs["c", "a"]
    assert not open_test.significant
    assert open_test.pairs_needed is not None
    assert open_test.pairs_needed > 10
    text = " ".join(found.sentences())
    assert "b is significantly better than" in text
    assert "Of the other pairs, 0 of 1 differ significantly." in text


def test_too_few_seeds_are_one_sentence_that_says_how_many_are_needed(make: Make) -> None:
    (line,) = significance(runs(make, {"a": [0.1, 0.2], "b": [0.3, 0.4], "c": [0.5, 0.6]})).sentences()
    assert line.startswith("With 2 seeds no difference can be significant: with n pairs p cannot be below 2^-n = 0.25")
    assert "0.5 two-sided" in line
    assert "from 7 seeds on" in line  # 2 / 2^7 < 0.05 / 3
    (line,) = significance(runs(make, {"a": [0.1], "b": [0.3]})).sentences()
    assert line.startswith("With one seed no difference")
    assert significance(runs(make, {"a": [0.1, 0.2]})).sentences() == []


def test_one_row_may_be_tested_against_the_others(make: Make) -> None:
    found = significance(runs(make, {"a": TEN[:5], "b": [a + 0.1 for a in TEN[:5]]}), hero="b")
    (test,) = found.tests
    assert (test.label, test.other, test.p, test.significant) == ("b", "a", 1 / 32, True)
    (worse,) = significance(runs(make, {"a": TEN[:5], "b": [a + 0.1 for a in TEN[:5]]}), hero="a").tests
    assert (worse.label, worse.p, worse.significant) == ("a", 1.0, False)
    with pytest.raises(BadInput, match="--hero c: no run here has this label"):
        significance(runs(make, {"a": TEN}), hero="c")


def test_lower_losses_are_better_and_missing_scores_make_no_pair(make: Make) -> None:
    low = [make("low", s, {10: None}, final_loss=0.1 + 0.01 * s) for s in range(7)]
    high = [make("high", s, {10: None}, final_loss=0.5 + 0.02 * s) for s in range(6)]
    low, high = ([_with_loss(run) for run in of] for of in (low, high))
    (test,) = significance([*low, *high]).tests
    assert (test.label, test.other, test.pairs) == ("low", "high", 6)


def _with_loss(run: Result) -> Result:
    return Result(**{**run.__dict__, "curve": []})


def test_many_rows_are_not_compared_two_by_two(make: Make) -> None:
    finals = {f"m{i}": TEN for i in range(21)}
    found = significance(runs(make, finals))
    assert found.tests == ()
    assert "21 rows are too many" in found.sentences()[0]
    assert len(significance(runs(make, finals), hero="m0").tests) == 20


def test_the_record_has_every_number(make: Make) -> None:
    found = significance(runs(make, {"a": TEN, "b": [a + 0.1 for a in TEN]}))
    record = json.loads(significance_json(found))
    assert (record["metric"], record["seeds"], record["tests"][0]["p"]) == ("accuracy", 10, found.tests[0].p)
    frame = found.to_frame()
    assert frame.loc[0, "label"] == "b"
    assert "significantly better" in found._repr_html_()
