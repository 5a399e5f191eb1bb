from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.record.result import Result
from tarry.report import key_findings, summarize
from tarry.report.formatting import TableCell, duration, format_bytes, grid, target_in_words, warning_lines

Make = Callable[..., Result]


def texts(results: list[Result], column: int) -> list[TableCell]:
    return [row[column] for row in grid(summarize(results))[1]]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (7.5, "7.5 s"),
        (119, "119 s"),
        (120, "2 min"),
        (750, "12.5 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (86400 * 3, "3 days"),
        (86400 * 1234, "1,234 days"),
    ],
)
def test_durations_come_in_the_unit_that_reads_well(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (0, "0 B"),
        (980, "980 B"),
        (999.9, "1.0 kB"),
        (12_345, "12.3 kB"),
        (99_960, "100 kB"),
        (999_700, "1.0 MB"),
        (4_500_000, "4.5 MB"),
        (1_234_000_000_000, "1,234 GB"),
    ],
)
def test_sizes_come_in_the_unit_that_reads_well(n: float, said: str) -> None:
    assert format_bytes(n) == said


def test_best_and_first_are_named_with_their_spread(two_methods: list[Result]) -> None:
    assert key_findings(summarize(two_methods)) == [
        "orthofl ended with the highest accuracy, 75.0 % (sd 4.2 points over 2 seeds); "
        "next came fedavg with 60.0 % (sd 2.8 points over 2 seeds).",
        "orthofl reached the target of 57.0 % first, after 7.5 s of virtual time (mean over seeds): "
        "0.30× the time of fedavg.",
    ]


def test_a_lead_smaller_than_the_spread_is_not_called_settled(make: Make) -> None:
    runs = [make("a", 0, {9: 0.6}), make("a", 1, {9: 0.7}), make("b", 0, {9: 0.62}), make("b", 1, {9: 0.7})]
    assert "the order is not settled" in key_findings(summarize(runs))[0]


def test_with_one_seed_chance_is_mentioned(make: Make) -> None:
    said = key_findings(summarize([make("a", 0, {9: 0.6}), make("b", 0, {9: 0.7})]))[0]
    assert said.startswith("b ended with the highest accuracy, 70.0 %; next came a with 60.0 %.")
    assert "chance" in said


def test_equal_methods_share_the_first_place(make: Make) -> None:
    said = key_findings(summarize([make("a", 0, {9: 0.6}), make("b", 0, {9: 0.6}), make("c", 0, {9: 0.5})]))
    assert said[0] == "a and b ended with the highest accuracy, each 60.0 %."
    assert said[1] == "All methods reached the target of 47.5 % equally fast, after 9 s of virtual time."


def test_a_long_list_of_methods_is_cut_short(make: Make) -> None:
    said = key_findings(summarize([make(f"m{i}", 0, {9: 0.6}) for i in range(10)]))[0]
    assert said.startswith("m0, m1, m2, m3, m4, m5 and 4 others ended with the highest accuracy")


def test_a_method_that_missed_the_target_is_named(make: Make) -> None:
    runs = [
        make("a", 0, {0: 0.1, 9: 0.6}),
        make("a", 1, {0: 0.1, 9: 0.6}),
        make("b", 0, {0: 0.1, 9: 0.9}),
        make("b", 1, {0: 0.1, 9: 0.4}),
    ]
    assert key_findings(summarize(runs))[-1] == "b reached the target in 1 of its 2 runs."
    assert texts(runs, 2) == [TableCell("9 s", best=True), TableCell("1 of 2 runs", "9 s")]


def test_a_method_without_a_score_did_not_reach_the_target(make: Make) -> None:
    runs = [make("a", 0, {9: 0.6}), make("b", 0, {9: None})]
    assert key_findings(summarize(runs))[-1] == "b did not reach the target."
    assert texts(runs, 1) == [TableCell("60.0", best=True), TableCell("–")]
    assert texts(runs, 2)[1] == TableCell("not reached")


def test_when_no_method_always_reached_the_target_that_is_said_once(make: Make) -> None:
    runs = [make("a", 0, {9: 0.9}), make("a", 1, {9: 0.3})]
    assert key_findings(summarize(runs))[1:] == ["No method reached the target of 57.0 % in all of its runs."]


def test_runs_of_unequal_length_are_pointed_out(make: Make) -> None:
    said = key_findings(summarize([make("a", 0, {10: 0.6}), make("b", 0, {40: 0.7})]))[-1]
    assert said.startswith("The methods did not run for the same virtual time (10 s to 40 s)")


def test_without_accuracy_the_lowest_loss_is_named(make: Make) -> None:
    runs = [make("a", 0, {9: None}, final_loss=0.5), make("b", 0, {9: None}, final_loss=0.25)]
    (said,) = key_findings(summarize(runs))
    assert said.startswith("b ended with the lowest loss, 0.2500; next came a with 0.5000.")


def test_one_method_alone_is_compared_with_nothing(make: Make) -> None:
    runs = [make("a", 0, {0: 0.1, 9: 0.6})]
    assert key_findings(summarize(runs)) == [
        "a ended with accuracy 60.0 %.",
        "a reached the target of 57.0 % after 9 s of virtual time.",
    ]
    assert not any(cell.best for cell in grid(summarize(runs))[1][0])


def test_the_target_is_explained_with_the_method_that_set_it(two_methods: list[Result]) -> None:
    said = target_in_words(summarize(two_methods))
    assert "57.0 % accuracy, 95 % of the lowest final accuracy here (fedavg)" in said
    assert said.endswith("relative to fedavg (1×).")
    assert "relative" not in target_in_words(summarize([r for r in two_methods if r.method != "fedavg"]))


def test_methods_that_learnt_nothing_are_named_beside_the_target(make: Make) -> None:
    runs = [make("stuck", 0, {0: 0.1, 9: 0.1}), make("b", 0, {0: 0.1, 9: 0.6}), make("c", 0, {0: 0.1, 9: 0.9})]
    said = target_in_words(summarize(runs))
    assert said.startswith("Target: 57.0 % accuracy, 95 % of the lowest final accuracy of a method that learned (b).")
    assert "stuck did not: 95 % of the accuracy is no more than 10.0 %, which needs no learning." in said
    alone = summarize(runs[:1])
    assert target_in_words(alone).startswith("No target: no method ended with an accuracy of which 95 % lies above")
    assert [c.text for c in texts(runs[:1], 2)] == ["–"]
    assert key_findings(alone) == ["stuck ended with accuracy 10.0 %."]


def test_a_remark_is_told_once_with_the_methods_it_is_about(make: Make) -> None:
    said = {"a": ["so", "thus"], "b": ["so"], "c": []}
    runs = [make(label, seed, {9: 0.6}, warnings=said[label]) for label in said for seed in (0, 1)]
    assert warning_lines(runs) == ["a, b: so", "a: thus"]


def test_how_clients_were_trained_where_there_was_a_choice_is_told_once_for_all_it_holds_for(make: Make) -> None:
    no, yes = "clients are not trained together: {}", "clients are trained together (a stack): a step is {}"
    told = {
        "a": [no.format("dropout"), no.format("dropout")],
        "b": [yes.format("3.1 times as fast as alone"), yes.format("10.0 times as fast as alone")],
        "c": [yes.format("4.2 times as fast as alone"), no.format("dropout")],
        "d": ["", ""],
        "e": [no.format("a client's update differs by 3e-05 of its size"), ""],
    }
    runs = [make(label, seed, {9: 0.6}, executor_info=told[label][seed]) for label in told for seed in (0, 1)]
    assert warning_lines(runs) == [
        "a, c: clients are not trained together: dropout",
        "b, c: clients are trained together (a stack): a step is 3.1 to 10.0 times as fast as alone",
        "e: clients are not trained together: a client's update differs by 3e-05 of its size",
    ]


@pytest.mark.parametrize(("seconds", "said"), [(3, "0.03×"), (39, "0.39×"), (109, "1.09×"), (1234, "12.3×")])
def test_relative_times_read_as_in_the_paper(make: Make, seconds: float, said: str) -> None:
    runs = [make("fedavg", 0, {100: 0.6}), make("b", 0, {seconds: 0.6})]
    assert [c.text for c in texts(runs, 2)] == ["1×", said]
