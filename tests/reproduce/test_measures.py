"""Numbers that are kept of runs, and what tables make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from tarry.core.errors import BadInput
from tarry.core.metric import CurvePoint
from tarry.record.result import Result, Staleness
from tarry.reproduce.experiment import Experiment
from tarry.reproduce.measures import MEASURES, StoredRun, by_seed, stat, to_entry
from tarry.reproduce.tables import difference, run_warnings

Table = Callable[..., Experiment]
Point = tuple[float, int, float | None, float | None]


def result(curve: Sequence[Point], **more: object) -> Result:
    last, points = curve[-1], [CurvePoint(t, u, a, loss, {"accuracy": a, "loss": loss}) for t, u, a, loss in curve]
    fields = {
        "method": "m", "label": "m", "task": "t", "seed": 0, "n_clients": 2, "virtual_time": last[0],
        "updates": last[1], "rounds": last[1] // 2, "final_accuracy": last[2], "final_loss": last[3],
        "curve": points, "staleness": Staleness(1.5, 3, 4), "lost": 0, "rejected": 0,
        "weights_sha256": "ab", "wall_s": 2.0, "bytes_up": 4_000_000, "bytes_down": 0, "peak_server_bytes": 0,
        "version": "0", "majority_accuracy": 0.1,
    }  # fmt: skip
    return Result(**{**fields, **more})  # type: ignore[arg-type]


def entry(accuracies: Sequence[float], step: float = 10.0) -> StoredRun:
    """Evaluated every `step` seconds, a update a second."""
    curve: list[Point] = [(i * step, int(i * step), a, 1 - a) for i, a in enumerate(accuracies)]
    return to_entry(result(curve), 60, {})


@pytest.mark.parametrize(
    ("mean", "said"), [(0.2992, "+0.00×"), (0.3002, "+0.00×"), (0.24, "−0.06×"), (0.36, "+0.06×"), (None, "")]
)
def test_a_difference_has_the_digits_of_its_measure(mean: float | None, said: str) -> None:
    grid = SimpleNamespace(measure=MEASURES["time"], mean=lambda *_: mean)
    assert difference(grid, "a", "b", 0.3) == said  # type: ignore[arg-type]


def test_numbers_of_a_run_are_final_tail_best_and_swing() -> None:
    e = entry([0.1, 0.9, 0.5, 0.7, 0.8, 0.7, 0.9, 0.8, 0.7, 0.6, 0.8])
    assert e.numbers["accuracy"] == 80
    assert e.numbers["tail"] == pytest.approx(70)  # of the evaluations at 90 and 100 s
    assert e.numbers["best"] == 90
    assert e.numbers["swing"] == pytest.approx((20 + 10 + 10 + 10 + 20) / 5)
    assert e.numbers["bytes"] == 4
    assert (e.numbers["staleness"], e.numbers["rounds"], e.numbers["majority_accuracy"]) == (1.5, 50, 10)


def test_what_is_no_number_is_none() -> None:
    e = to_entry(result([(0.0, 0, 0.1, 2.0), (10.0, 5, math.nan, math.inf)]), 60, {})
    assert e.numbers["accuracy"] is None
    assert e.numbers["loss"] is None
    assert e.curve["accuracy"] == [10.0, None]
    assert e.curve["loss"] == [2, None]


def test_personal_and_variance_are_kept_where_the_run_has_them() -> None:
    e = to_entry(
        result(
            [(0.0, 0, 0.5, 1.0)],
            personalization={"after": {"mean": 0.9, "sd": 0.05}, "before": {"mean": 0.6, "sd": 0.1}},
            diagnostics={
                "by_speed": {
                    "variance": 1e-4,
                    "variance_test": 1e-3,
                    "active": {"accuracy": 0.7, "test_accuracy": 0.5},
                    "stragglers": {"accuracy": 0.6, "test_accuracy": 0.4},
                }
            },
        ),
        60,
        {},
    )
    assert (e.numbers["personal"], e.numbers["personal_before"]) == (90, 60)
    assert e.numbers["personal_spread"] == 5
    assert [e.numbers[n] for n in ("variance_test", "active_test", "stragglers_test")] == [1e-3, 50, 40]
    assert (e.numbers["variance"], e.numbers["active"], e.numbers["stragglers"]) == (1e-4, 70, 60)


def test_a_curve_is_thinned_evenly_with_both_ends() -> None:
    e = to_entry(result([(float(i), i, i / 1000, 1.0) for i in range(1001)]), 11, {})
    assert e.curve["time"] == [0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]
    assert e.curve["accuracy"][3] == 30.0


def test_time_is_until_95_per_cent_of_the_lowest_over_the_baselines(table: Table) -> None:
    e = table()
    runs = {"fedavg": {0: entry([0.1, 0.3, 0.5, 0.77, 0.8])}, "orthofl": {0: entry([0.1, 0.8, 0.9, 0.9, 0.9])}}
    # target 0.95 · 80 = 76: at 30 s and at 10 s
    assert by_seed(e, "time", runs) == {"fedavg": {0: 1.0}, "orthofl": {0: pytest.approx(1 / 3)}}
    assert by_seed(e, "speedup", runs) == {"fedavg": {0: 1.0}, "orthofl": {0: pytest.approx(3.0)}}
    assert by_seed(e, "time_to", runs)["fedavg"] == {0: 30}
    assert by_seed(e, "updates_to", runs)["orthofl"] == {0: 10}
    assert by_seed(e, "bytes_to", runs)["orthofl"] == {0: pytest.approx(1.0)}  # a quarter of 4 MB
    assert by_seed(e, "rounds_to", runs)["orthofl"] == {0: pytest.approx(5.0)}


def test_a_row_that_learnt_nothing_sets_no_target(table: Table) -> None:
    runs = {"fedavg": {0: entry([0.1, 0.5, 0.8])}, "orthofl": {0: entry([0.1, 0.1, 0.1])}}
    found = by_seed(table(), "time_to", runs)  # chance is 10 %
    assert found == {"fedavg": {0: 20}, "orthofl": {0: None}}


@pytest.mark.parametrize(
    ("target", "took"), [("accuracy = 55.0", 10), ("loss = 0.25", 20), ('row = "orthofl"\nshare = 0.5', 10)]
)
def test_other_targets(table: Table, target: str, took: float) -> None:
    e = table(("[settings]\n", f"[target]\n{target}\n[settings]\n"))
    runs = {"fedavg": {0: entry([0.1, 0.6, 0.8])}, "orthofl": {0: entry([0.9, 0.9, 0.9])}}
    assert by_seed(e, "time_to", runs)["fedavg"] == {0: took}


def test_seeds_are_compared_with_the_same_seed(table: Table) -> None:
    runs = {
        "fedavg": {0: entry([0.1, 0.1, 0.8]), 1: entry([0.1, 0.8, 0.8])},
        "orthofl": {0: entry([0.1, 0.8, 0.8]), 2: entry([0.1, 0.8, 0.8])},
    }
    assert by_seed(table(), "time", runs)["orthofl"] == {0: 0.5}
    assert by_seed(table(), "updates_to", runs)["fedavg"].keys() == {0}  # the target would be another one's with seed 1
    own = table(("[rows.fedavg]", "[target]\naccuracy = 50.0\n[rows.fedavg]"))
    assert by_seed(own, "updates_to", runs)["fedavg"].keys() == {0, 1}


def test_a_size_may_have_a_target_of_its_own(table: Table) -> None:
    runs = {"fedavg": {0: entry([0.1, 0.3, 0.8])}, "orthofl": {0: entry([0.1, 0.8, 0.8])}}
    own = table(("[rows.fedavg]", "[target]\naccuracy = 50.0\n[target.reduced]\naccuracy = 20.0\n[rows.fedavg]"))
    at = {size: by_seed(own, "time_to", runs, size)["fedavg"][0] for size in ("full", "reduced")}
    assert at["reduced"] < at["full"]  # type: ignore[operator]
    assert by_seed(own, "time_to", runs)["fedavg"][0] == at["full"]


def test_a_column_may_have_a_target_of_its_own(table: Table) -> None:
    runs = {"fedavg": {0: entry([0.1, 0.3, 0.8])}, "orthofl": {0: entry([0.1, 0.8, 0.8])}}
    own = table(("[rows.fedavg]", "[target]\naccuracy = { a = 20.0 }\n[rows.fedavg]"))
    found = by_seed(own, "time_to", runs, "full", "a")["fedavg"][0]
    other = by_seed(own, "time_to", runs, "full", "b")["fedavg"][0]
    assert found is not None
    assert other is not None
    assert found < other  # 95 % of the lowest final accuracy, 76 %
    with pytest.raises(BadInput, match=r"target\.accuracy\.nowhere"):
        table(("[rows.fedavg]", "[target]\naccuracy = { nowhere = 20.0 }\n[rows.fedavg]"))


def test_mean_and_sample_deviation_over_seeds() -> None:
    s = stat({0: 1.0, 1: 2.0, 2: 6.0})
    assert (s.mean, s.sd, s.seeds) == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert stat({0: 1.0}).sd is None
    assert stat({0: 1.0, 1: None}).mean is None
    assert stat({0: 1.0, 1: None}).there == 1


def test_numbers_are_written_as_people_read_them() -> None:
    assert MEASURES["accuracy"].text(92.24, 1.06) == "92.2 ± 1.1"
    assert MEASURES["time"].text(0.184) == "0.18×"
    assert MEASURES["variance"].text(9.552e-5) == "9.55e-05"
    assert MEASURES["updates"].text(1234.0) == "1,234"
    assert MEASURES["accuracy"].text(91.0, 0.02) == "91.0 ± 0.0"
    assert MEASURES["accuracy"].text(0.02, 0.01) == "2.00e-02 ± 1.00e-02"


def test_what_many_runs_say_is_said_once() -> None:
    few, many = ("odd",), ("cifar100.npz: 20,000 of 50,000 training examples", "--beta changes nothing")
    runs = {"a": {"x": {s: SimpleNamespace(warnings=many if s else (*many, *few)) for s in range(4)}}}
    found = SimpleNamespace(rows={"x": "X"}, columns={"a": "A"}, runs=runs)
    assert run_warnings(found) == [f"4 runs: {many[0]}", "X, A, seed 0: odd"]  # type: ignore[arg-type]
