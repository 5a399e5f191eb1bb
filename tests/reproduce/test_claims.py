"""Claims are held against our means, and both outcomes are said in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tarry.reproduce.claims import Verdict, judge
from tarry.reproduce.experiment import Claim, Experiment
from tarry.reproduce.measures import MEASURES, StoredRun
from tarry.reproduce.tables import Findings, TableGrid

Table = Callable[..., Experiment]
Seeds = dict[int, float | None]
NUMBERS: dict[str, dict[str, Seeds]] = {
    "fedavg": {"a": {0: 80.0, 1: 82.0}, "b": {0: 90.0, 1: 90.0}},
    "orthofl": {"a": {0: 85.0, 1: 87.0}, "b": {0: 89.0, 1: 89.0}},
    "other": {"a": {0: 81.0, 1: 81.0}},
}


def verdict(e: Experiment, claim: Claim, numbers: dict[str, dict[str, Seeds]] = NUMBERS) -> Verdict:
    grids = {m: TableGrid(m, MEASURES[m], numbers) for m in ("accuracy", "time")}
    rows = {"fedavg": "FedAvg", "orthofl": "OrthoFL", "other": "Other"}
    return judge(claim, Findings(e, rows, {"a": "A", "b": "B"}, grids, {}, {}))


def test_a_claim_that_shows_and_one_that_does_not(table: Table) -> None:
    holds = verdict(table(), Claim("x", "best", "accuracy", ("orthofl",), columns=("a",)))
    assert holds.holds is True
    assert holds.words == "shows here."
    fails = verdict(table(), Claim("x", "best", "accuracy", ("orthofl",)))
    assert fails.holds is False
    assert fails.words == "does not show here (1 of 3 comparisons): B: OrthoFL 89.0, FedAvg 90.0."


def test_lower_is_better_for_times(table: Table) -> None:
    found = verdict(table(), Claim("x", "best", "time", ("fedavg",), than=("orthofl",), columns=("a",)))
    assert found.holds is True


def test_above_by_so_much_and_than_a_number(table: Table) -> None:
    e = table()
    assert verdict(e, Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), ("a",), by=2.5)).holds is True
    assert verdict(e, Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), ("a",), by=8.0)).holds is False
    assert verdict(e, Claim("x", "below", "accuracy", ("fedavg",), (), ("a",), value=83.0)).holds is True
    found = verdict(e, Claim("x", "above", "accuracy", ("fedavg",), (), ("a",), value=83.0))
    assert found.words == "does not show here: A: FedAvg 81.0 against 83.0."


def test_near(table: Table) -> None:
    e = table()
    assert verdict(e, Claim("x", "near", "accuracy", ("fedavg",), ("other",), ("a",), by=2.0)).holds is True
    assert verdict(e, Claim("x", "near", "accuracy", ("fedavg",), ("orthofl",), by=2.0)).holds is False


@pytest.mark.parametrize(("check", "slack", "holds"), [("rises", 0.0, True), ("falls", 0.0, False)])
def test_trends_along_columns(table: Table, check: str, slack: float, holds: bool) -> None:
    assert verdict(table(), Claim("x", check, "accuracy", ("fedavg",), slack=slack)).holds is holds


def test_trends_along_rows_with_slack(table: Table) -> None:
    e, rows = table(), ("fedavg", "other", "orthofl")  # 81, 81, 86
    assert verdict(e, Claim("x", "rises", "accuracy", rows, columns=("a",), along="rows", slack=2.0)).holds is True
    back = ("orthofl", "fedavg")
    assert verdict(e, Claim("x", "rises", "accuracy", back, columns=("b",), along="rows", slack=0.0)).holds is True
    assert verdict(e, Claim("x", "rises", "accuracy", back, columns=("b",), along="rows", by=2.0)).holds is False


def test_what_has_not_been_run_is_said(table: Table) -> None:
    e = table()
    assert verdict(e, Claim("x", "best", "accuracy", ("orthofl",)), {}).holds is None
    part = {row: {"a": columns["a"]} for row, columns in NUMBERS.items()}
    assert verdict(e, Claim("x", "best", "accuracy", ("orthofl",)), part).words == "shows so far. Not run: B."


def test_rows_that_have_not_been_run_are_said(table: Table) -> None:
    e, claim = table(), Claim("x", "best", "accuracy", ("orthofl",))
    without = {"orthofl": {"a": {0: 85.0}, "b": {0: 85.0}}, "fedavg": {"a": {0: 80.0}}}
    found = verdict(e, claim, without)
    assert found.words == "shows so far. Not run: FedAvg (B)."
    assert found.whole is False
    two = Claim("x", "above", "accuracy", ("orthofl", "fedavg"), ("other",), ("a",))
    numbers = {"orthofl": {"a": {0: 85.0}}, "other": {"a": {0: 80.0}}}
    assert verdict(e, two, numbers).words == "shows so far. Not run: FedAvg."
    assert verdict(e, replace(two, rows=("orthofl",)), numbers).words == "shows here."


def test_above_by_more_than_a_margin(table: Table) -> None:
    claim = Claim("x", "above", "accuracy", ("fedavg",), columns=("a",), value=78.0)
    assert verdict(table(), claim).holds is True
    found = verdict(table(), replace(claim, beyond="time"))  # 81 is the margin there
    assert found.holds is False
    assert found.words == "does not show here: A: FedAvg 81.0 against 78.0, time to target 81.00×."
    assert verdict(table(), replace(claim, value=-1.0, beyond="time")).holds is True


@pytest.mark.parametrize("mean", [84.0, 86.0])
def test_a_difference_within_the_spread_is_not_settled_in_either_direction(table: Table, mean: float) -> None:
    numbers: dict[str, dict[str, Seeds]] = {"orthofl": {"a": {0: 80.0, 1: 90.0}}, "fedavg": {"a": {0: mean, 1: mean}}}
    found = verdict(table(), Claim("x", "best", "accuracy", ("orthofl",), columns=("a",)), numbers)
    assert (found.holds, found.is_settled) == (None, False)
    assert found.words == f"not settled, within the spread: A: OrthoFL 85.0, FedAvg {mean:.1f}."


def test_with_one_seed_the_spread_is_the_papers(table: Table) -> None:
    """The toy table prints 98.2 ± 0.3 for OrthoFL in column a."""
    claim = Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), ("a",))
    for ours, settled in ((80.2, False), (80.4, True)):
        found = verdict(table(), claim, {"orthofl": {"a": {0: ours}}, "fedavg": {"a": {0: 80.0}}})
        assert found.is_settled is settled


def test_accuracy_is_judged_on_the_last_tenth_with_five_evaluations(table: Table) -> None:
    final = TableGrid("accuracy", MEASURES["accuracy"], {"orthofl": {"a": {0: 90.0}}, "fedavg": {"a": {0: 80.0}}})
    tail = TableGrid("tail", MEASURES["tail"], {"orthofl": {"a": {0: 70.0}}, "fedavg": {"a": {0: 80.0}}})
    claim = Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), ("a",))
    for evaluations, expected in ((5, False), (4, None)):
        run = StoredRun({"tail_evaluations": evaluations}, {}, "", {})
        runs = {"a": {row: {0: run} for row in ("orthofl", "fedavg")}}
        rows = {"fedavg": "FedAvg", "orthofl": "OrthoFL"}
        found = judge(claim, Findings(table(), rows, {"a": "A"}, {"accuracy": final, "tail": tail}, runs, {}))
        assert found.holds is expected
    assert "fewer than five evaluations in the last tenth" in found.words


def test_a_target_that_is_not_reached_is_no_better(table: Table) -> None:
    numbers: dict[str, dict[str, Seeds]] = {"orthofl": {"a": {0: 0.5, 1: None}}, "fedavg": {"a": {0: 1.0, 1: 1.0}}}
    e = table()
    found = verdict(e, Claim("x", "best", "time", ("orthofl",), ("fedavg",), ("a",)), numbers)
    assert found.holds is False
    assert "OrthoFL does not reach the target with every seed" in found.words
    assert verdict(e, Claim("x", "best", "time", ("fedavg",), ("orthofl",), ("a",)), numbers).holds is True


def test_two_rows_are_compared_over_the_seeds_that_both_have(table: Table) -> None:
    numbers: dict[str, dict[str, Seeds]] = {"orthofl": {"a": {0: 80.0}}, "fedavg": {"a": {0: 79.0, 1: 99.0}}}
    found = verdict(table(), Claim("x", "best", "accuracy", ("orthofl",), columns=("a",)), numbers)
    assert found.holds is True


def without_spread(numbers: dict[str, dict[str, float]]) -> dict[str, dict[str, Seeds]]:
    return {row: {c: {0: x, 1: x} for c, x in cells.items()} for row, cells in numbers.items()}


def test_by_may_be_relative_to_the_other_side(table: Table) -> None:
    e, numbers = table(), without_spread({"fedavg": {"a": 81.0}, "orthofl": {"a": 86.0}})
    about = Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), ("a",), by=6.1, relative=True)
    assert verdict(e, about, numbers).holds is True  # 6.17 % above 81
    assert verdict(e, replace(about, by=6.2), numbers).holds is False
    less = Claim("x", "below", "accuracy", ("fedavg",), ("orthofl",), ("a",), by=5.8, relative=True)
    assert verdict(e, less, numbers).holds is True  # 5.81 % below 86
    assert verdict(e, replace(less, by=5.9), numbers).holds is False


def test_means_over_columns_are_compared(table: Table) -> None:
    e = table()
    numbers = without_spread(
        {"fedavg": {"a": 80.0, "b": 90.0}, "orthofl": {"a": 88.0, "b": 90.0}, "other": {"a": 84.0}}
    )
    claim = Claim("x", "above", "accuracy", ("orthofl",), ("fedavg",), by=3.0, mean=True)
    assert verdict(e, claim, numbers).holds is True  # 89 against 85
    lost = verdict(e, replace(claim, by=5.0), numbers)
    assert lost.holds is False
    assert "OrthoFL 89.0 on average, against 85.0 (over A and B)" in lost.words
    both = replace(claim, than=("fedavg", "other"), by=5.0)  # other has column a only: 88 against 82
    part = verdict(e, both, numbers)
    assert part.is_settled is False
    assert part.words.startswith("not settled, some columns have not been run: OrthoFL 88.0 on average, against 82.0")
    assert verdict(e, replace(both, columns=("a",)), numbers).holds is True
    assert verdict(e, replace(claim, than=(), value=89.5, by=0.0), numbers).holds is False


def test_the_lead_is_largest_in_the_first_column_or_pair_of_rows(table: Table) -> None:
    e = table()
    numbers = without_spread({"fedavg": {"a": 80.0, "b": 90.0}, "orthofl": {"a": 88.0, "b": 91.0}, "other": {"a": 1.0}})
    claim = Claim("x", "lead", "accuracy", ("orthofl",), ("fedavg",), ("a", "b"))
    assert verdict(e, claim, numbers).holds is True
    lost = verdict(e, replace(claim, columns=("b", "a")), numbers)
    assert lost.holds is False
    assert "B: ahead by 1.0, A by 8.0" in lost.words
    times = without_spread({"fedavg": {"a": 1.0}, "orthofl": {"a": 0.2}, "other": {"a": 0.5}})
    pairs = Claim("x", "lead", "time", ("orthofl", "other"), ("fedavg", "fedavg"), ("a",), along="rows")
    assert verdict(e, pairs, times).holds is True  # 5 times as fast, and twice
    assert verdict(e, replace(pairs, rows=("other", "orthofl")), times).holds is False
    assert verdict(e, replace(claim, columns=("c", "a")), numbers).holds is None  # the first column was not run


def test_the_range_over_columns_is_compared(table: Table) -> None:
    e = table()
    numbers = without_spread({"fedavg": {"a": 80.0, "b": 90.0}, "orthofl": {"a": 88.0, "b": 85.0}, "other": {"a": 1.0}})
    claim = Claim("x", "steadier", "accuracy", ("orthofl",), ("fedavg",))
    assert verdict(e, claim, numbers).holds is True  # 3 against 10
    lost = verdict(e, replace(claim, rows=("fedavg",), than=("orthofl",)), numbers)
    assert lost.holds is False
    assert "range over A and B: FedAvg 10.0, OrthoFL 3.0" in lost.words
    assert verdict(e, replace(claim, than=("other",)), numbers).holds is None  # it has one column
    noisy: dict[str, dict[str, Seeds]] = {
        "fedavg": {"a": {0: 80.0, 1: 88.0}, "b": {0: 85.0, 1: 93.0}},
        "orthofl": {"a": {0: 80.0, 1: 88.0}, "b": {0: 84.0, 1: 92.0}},
    }
    assert verdict(e, claim, noisy).is_settled is False


def test_a_number_that_older_runs_did_not_store_is_not_judged(table: Table) -> None:
    numbers: dict[str, dict[str, Seeds]] = {"fedavg": {"a": {0: None}}, "orthofl": {"a": {0: 5.0}}}
    about = Claim("x", "below", "accuracy", ("orthofl",), ("fedavg",), ("a",))
    assert verdict(table(), about, numbers).holds is None
    assert verdict(table(), replace(about, measure="time"), numbers).holds is True  # a target that was not reached
