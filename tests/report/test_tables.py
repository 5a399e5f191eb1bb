from __future__ import annotations

import json
from collections.abc import Callable
from math import inf, nan, sqrt
from pathlib import Path

import pytest

from tarry.core.errors import BadInput
from tarry.record.result import Result, Staleness
from tarry.report import markdown, mean_curve, plain_table, summarize, to_json

Make = Callable[..., Result]


def test_summary_of_two_methods_over_two_seeds_is_the_one_worked_out_by_hand(two_methods: list[Result]) -> None:
    s = summarize(two_methods)
    assert (s.task, s.seeds, s.baseline, s.metric.name) == ("digits", (0, 1), "fedavg", "accuracy")
    assert s.target == pytest.approx(0.95 * 0.60)
    fedavg, orthofl = s.rows
    assert (fedavg.label, orthofl.label) == ("fedavg", "orthofl")
    assert (fedavg.accuracy, fedavg.score_sd) == pytest.approx((0.60, 0.04 / sqrt(2)))
    assert (orthofl.accuracy, orthofl.score_sd) == pytest.approx((0.75, 0.06 / sqrt(2)))
    assert (orthofl.loss, orthofl.loss_sd) == pytest.approx((0.25, 0.06 / sqrt(2)))
    assert (fedavg.time_to_target, fedavg.reached, fedavg.runs, fedavg.relative_time) == (25, 2, 2, 1)
    assert (orthofl.time_to_target, orthofl.relative_time) == (7.5, 0.3)


def test_other_columns_are_means_and_the_largest_where_it_says_so(make: Make) -> None:
    one = make("a", 0, {1: 0.5}, staleness=Staleness(1.0, 3, 9), updates=10, rounds=5, lost=1)
    two = make(
        "a",
        1,
        {2: 0.5},
        staleness=Staleness(2.0, 5, 7),
        updates=20,
        rounds=6,
        rejected=3,
        bytes_up=4_000_000,
        bytes_down=1_000_000,
        peak_server_bytes=9_000_000,
    )
    (row,) = summarize([one, two]).rows
    assert (row.staleness_mean, row.staleness_p95, row.staleness_max) == (1.5, 4, 9)
    assert (row.updates, row.rounds, row.lost, row.rejected, row.virtual_time) == (15, 5.5, 0.5, 1.5, 1.5)
    assert (row.mb_up, row.mb_down, row.peak_server_mb) == (3, 2, 9)


def test_rows_stand_in_the_order_their_labels_first_appear(make: Make) -> None:
    labels = ["z", "a", "m", "a", "z"]
    s = summarize([make(label, i, {1: 0.5}) for i, label in enumerate(labels)])
    assert [r.label for r in s.rows] == ["z", "a", "m"]


def test_a_spread_needs_two_runs(make: Make) -> None:
    (row,) = summarize([make("a", 0, {1: 0.5})]).rows
    assert row.accuracy == 0.5
    assert row.score_sd is None
    assert row.loss_sd is None


def test_relative_time_is_given_only_when_every_seed_reached_the_target(make: Make) -> None:
    base = [make("fedavg", s, {0: 0.1, 10: 0.6}) for s in (0, 1)]
    patchy = [make("patchy", 0, {0: 0.1, 4: 0.9}), make("patchy", 1, {0: 0.1, 4: 0.5})]
    s = summarize(base + patchy)
    assert s.target == pytest.approx(0.57)
    assert (s.rows[1].reached, s.rows[1].time_to_target, s.rows[1].relative_time) == (1, 4, None)


def test_no_relative_times_when_a_seed_of_the_baseline_missed_the_target(make: Make) -> None:
    base = [make("fedavg", 0, {0: 0.1, 10: 0.9}), make("fedavg", 1, {0: 0.1, 10: 0.5})]
    s = summarize([*base, make("other", 0, {0: 0.1, 4: 0.8})])
    assert s.target == pytest.approx(0.95 * 0.7)
    assert [r.reached for r in s.rows] == [1, 1]
    assert [r.relative_time for r in s.rows] == [None, None]


def test_a_method_that_learnt_nothing_sets_no_target(make: Make) -> None:
    """0.95 × 0.105 lies below the commonest class, 0.95 × 0.12 below the untrained model."""
    stuck = make("stuck", 0, {0: 0.1, 10: 0.105}, majority_accuracy=0.102)
    lucky = make("lucky", 1, {0: 0.115, 10: 0.12}, majority_accuracy=0.102)
    s = summarize([stuck, lucky, make("slow", 0, {0: 0.1, 10: 0.2}), make("fast", 0, {0: 0.1, 5: 0.6})])
    assert s.trivial_score == 0.115
    assert s.target == pytest.approx(0.95 * 0.2)
    assert [r.reached for r in s.rows] == [0, 0, 1, 1]


def test_a_target_that_the_runs_were_given_is_the_target(make: Make) -> None:
    curves: dict[str, dict[float, float | None]] = {"fedavg": {0: 0.1, 10: 0.4, 20: 0.7}, "slow": {0: 0.1, 30: 0.6}}
    s = summarize([make(label, 0, curve, target=0.7) for label, curve in curves.items()])
    assert (s.target, s.has_given_target) == (0.7, True)
    assert [(r.reached, r.time_to_target) for r in s.rows] == [(1, 20), (0, None)]
    text = markdown(s)
    assert "Target: 70.0 % accuracy, as given by --target." in text
    assert "lowest final accuracy" not in text
    assert "not reached" in text


@pytest.mark.parametrize("targets", [(0.7, 0.5), (0.7, None)])
def test_runs_without_a_common_target_get_the_usual_one(make: Make, targets: tuple[float | None, ...]) -> None:
    s = summarize([make(str(i), 0, {0: 0.1, 10: 0.6}, target=t) for i, t in enumerate(targets)])
    assert (s.target, s.has_given_target) == (pytest.approx(0.57), False)


def test_where_nothing_was_learnt_there_is_no_target(make: Make) -> None:
    s = summarize([make("fedavg", 0, {0: 0.5, 10: 0.4}), make("other", 0, {0: 0.3, 10: 0.5})])
    assert (s.trivial_score, s.target) == (0.5, None)
    assert [r.time_to_target for r in s.rows] == [None, None]


def test_a_run_that_was_first_tested_after_it_had_begun_tells_nothing_of_the_untrained_model(make: Make) -> None:
    assert summarize([make("a", 0, {5: 0.5, 10: 0.4})]).trivial_score == 0


def test_without_fedavg_times_are_absolute_only(make: Make) -> None:
    s = summarize([make("a", 0, {0: 0.1, 25: 0.6}), make("b", 0, {0: 0.1, 10: 0.6})])
    assert s.baseline is None
    assert [r.time_to_target for r in s.rows] == [25, 10]
    assert [r.relative_time for r in s.rows] == [None, None]


def test_a_baseline_that_is_asked_for_and_not_there_is_refused_with_the_names_there_are(
    two_methods: list[Result],
) -> None:
    with pytest.raises(BadInput, match=r"--baseline nosuch: no run here .* Known: fedavg, orthofl\."):
        summarize(two_methods, baseline="nosuch")


def test_a_baseline_may_be_a_label_and_a_method_stands_for_its_first(make: Make) -> None:
    runs = [make(label, 0, {0: 0.1, 10: 0.6}) for label in ("b(x=1)", "b(x=2)", "fedavg")]
    asked = {name: summarize(runs, baseline=name).baseline for name in ("b(x=2)", "b", "fedavg")}
    assert asked == {"b(x=2)": "b(x=2)", "b": "b(x=1)", "fedavg": "fedavg"}


def test_the_baseline_is_found_by_method_and_named_by_label(make: Make) -> None:
    s = summarize([make("orthofl", 0, {10: 0.6}), make("fedavg(lr=0.1)", 0, {40: 0.6})])
    assert s.baseline == "fedavg(lr=0.1)"
    assert [r.relative_time for r in s.rows] == [0.25, 1]


def test_fraction_moves_the_target(two_methods: list[Result]) -> None:
    s = summarize(two_methods, fraction=0.5)
    assert s.target == pytest.approx(0.3)
    assert [r.time_to_target for r in s.rows] == [10, 5]


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5, nan])
def test_a_fraction_outside_0_to_1_is_refused_by_name(two_methods: list[Result], fraction: float) -> None:
    with pytest.raises(BadInput, match="--fraction"):
        summarize(two_methods, fraction=fraction)


def test_a_task_without_accuracy_keeps_its_loss(make: Make) -> None:
    runs = [make("fedavg", s, {0: None, 10: None}, final_loss=loss) for s, loss in ((0, 0.2), (1, 0.4))]
    s = summarize(runs)
    assert (s.target, s.metric.name, s.has_targets) == (None, "loss", False)
    (row,) = s.rows
    assert (row.accuracy, row.time_to_target, row.relative_time) == (None, None, None)
    assert (row.loss, row.loss_sd) == pytest.approx((0.3, 0.2 / sqrt(2)))


@pytest.mark.parametrize("bad", [None, nan, inf])
def test_one_diverged_seed_leaves_no_mean_loss_behind(make: Make, bad: float | None) -> None:
    (row,) = summarize([make("a", 0, {1: 0.5}), make("a", 1, {1: 0.1}, final_loss=bad)]).rows
    assert (row.loss, row.loss_sd) == (None, None)
    assert row.accuracy == pytest.approx(0.3)


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(BadInput, match="nothing to compare"):
        summarize([])


def test_runs_of_two_tasks_are_refused(make: Make) -> None:
    with pytest.raises(BadInput, match="digits, mnist"):
        summarize([make("a", 0, {1: 0.5}), make("a", 1, {1: 0.5}, task="mnist")])


def test_the_same_label_and_seed_twice_is_refused_with_both_folders(make: Make) -> None:
    runs = [make("a", 3, {1: 0.5}, out=Path(name)) for name in ("one", "two")]
    with pytest.raises(BadInput, match=r"a with seed 3 is there twice \(one and two\)"):
        summarize(runs)


def test_mean_curve_holds_each_seeds_last_value_on_the_union_of_times(make: Make) -> None:
    runs = [make("a", 0, {0: 0.1, 10: 0.5, 20: 0.7}), make("a", 1, {0: 0.3, 15: 0.5})]
    x, mean, sd = mean_curve(runs)
    assert x == [0, 10, 15, 20]
    assert mean == pytest.approx([0.2, 0.4, 0.5, 0.6])
    assert sd == pytest.approx([sqrt(0.02), sqrt(0.02), 0, sqrt(0.02)])


def test_mean_curve_over_updates_and_of_the_loss(make: Make) -> None:
    runs = [make("a", 0, {0: 0.1, 1: 0.5}), make("a", 1, {0: 0.3, 2: 0.9})]
    x, mean, _ = mean_curve(runs, over="updates", of="loss")
    assert x == [0, 10, 20]
    assert mean == pytest.approx([0.8, 0.6, 0.3])


def test_mean_curve_of_one_run_is_the_run(make: Make) -> None:
    assert mean_curve([make("a", 0, {0: 0.25, 10: 0.5})]) == ([0, 10], [0.25, 0.5], None)


def test_mean_curve_begins_when_every_run_has_a_value_and_skips_missing_ones(make: Make) -> None:
    runs = [make("a", 0, {0: 0.2, 10: None, 20: 0.6}), make("a", 1, {5: 0.4, 20: 0.8})]
    x, mean, _ = mean_curve(runs)
    assert x == [5, 20]
    assert mean == pytest.approx([0.3, 0.7])


def test_of_two_evaluations_at_one_moment_the_last_counts(make: Make) -> None:
    run = make("a", 0, {0: 0.1}, curve=[(0.0, 0, 0.1, 1.0), (5.0, 5, 0.2, 1.0), (5.0, 6, 0.4, 1.0)])
    assert mean_curve([run]) == ([0, 5], [0.1, 0.4], None)


def test_mean_curve_without_evaluations_is_empty(make: Make) -> None:
    assert mean_curve([make("a", 0, {0: None})]) == ([], [], None)


def test_json_holds_every_number(two_methods: list[Result]) -> None:
    plain = json.loads(to_json(summarize(two_methods)))
    assert plain["baseline"] == "fedavg"
    assert plain["seeds"] == [0, 1]
    assert plain["rows"][1]["relative_time"] == 0.3
    assert plain["rows"][1]["peak_server_mb"] == 4


def test_markdown_is_a_table_with_the_best_in_bold(two_methods: list[Result]) -> None:
    lines = markdown(summarize(two_methods)).splitlines()
    assert lines[:4] == [
        "| method | accuracy % | time to target | staleness mean / max | updates |",
        "|---|---:|---:|---:|---:|",
        "| fedavg | 60.0 ± 2.8 | 1× (25 s) | 1.0 / 4 | 300 |",
        "| orthofl | **75.0 ± 4.2** | **0.30× (7.5 s)** | 1.0 / 4 | 300 |",
    ]
    assert lines[5].startswith("Target: 57.0 % accuracy, 95 % of the lowest final accuracy here (fedavg).")


def test_the_plain_table_has_aligned_columns_and_the_legend(two_methods: list[Result]) -> None:
    lines = plain_table(summarize(two_methods)).splitlines()
    assert lines[:4] == [
        "method   accuracy %  time to target  staleness mean / max  updates",
        "------------------------------------------------------------------",
        "fedavg   60.0 ± 2.8        1×  25 s               1.0 / 4      300",
        "orthofl  75.0 ± 4.2    0.30×  7.5 s               1.0 / 4      300",
    ]
    assert lines[4].startswith("Target: 57.0 % accuracy, 95 % of the lowest final accuracy here (fedavg).")


def test_the_best_label_has_the_highest_accuracy_or_the_lowest_loss(two_methods: list[Result], make: Make) -> None:
    assert summarize(two_methods).best == "orthofl"
    runs = [make("a", 0, {1: None}, final_loss=0.5), make("b", 0, {1: None}, final_loss=0.25)]
    assert summarize(runs).best == "b"
    assert summarize([make("a", 0, {1: None}, final_loss=None)]).best is None


def test_markdown_shows_the_loss_when_there_is_no_accuracy(make: Make) -> None:
    runs = [make("a", 0, {1: None}, final_loss=0.5), make("b", 0, {1: None}, final_loss=0.25)]
    lines = markdown(summarize(runs)).splitlines()
    assert lines[0] == "| method | loss | staleness mean / max | updates |"
    assert lines[3] == "| b | **0.2500** | 1.0 / 4 | 10 |"
    assert len(lines) == 4


def test_markdown_cells_cannot_be_broken_by_a_label(make: Make) -> None:
    lines = markdown(summarize([make("a|b\n<i>*", 0, {1: 0.5})])).splitlines()
    assert lines[2].startswith(r"| a\|b \<i\>\* | 50.0 |")
