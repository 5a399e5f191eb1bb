"""Timelines written out by hand. Client c's update adds 1 to weight c, so the weights count accepted updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import tarry
from tarry.core.errors import BadInput, Diverged
from tarry.core.events import Event
from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Method
from tarry.core.server import Server
from tarry.core.tickets import LocalResult, Ticket
from tarry.delays.availability import Availability
from tarry.engine.budget import Budget
from tarry.methods import methods
from tarry.sim.simulator import Simulator
from tarry.vector import pool

OUT, IN = "hand_out", "arrival"


class Counting:
    """Training without training: each client's delta is its own unit vector."""

    def __init__(self, n: int, *, bad: Sequence[tuple[int, int]] = (), memory: bool = False):
        self.n, self.bad, self.memory = n, set(bad), memory
        self.jobs: dict[int, Ticket] = {}
        self.memories: dict[int, Mapping[str, Tensor]] = {}

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        assert ticket.number not in self.jobs
        self.jobs[ticket.number] = ticket
        self.memories[ticket.number] = memory

    def collect(self, number: int) -> LocalResult:
        t = self.jobs.pop(number)
        delta = torch.zeros(self.n)
        delta[t.client] = 1.0
        finite = (t.client, t.visit) not in self.bad
        kept = {"visits": torch.tensor(t.visit)} if self.memory else {}
        return LocalResult(delta, 1, 1, 0.25 if finite else nan, finite, {"extra": torch.zeros(3)}, kept)

    def save(self) -> None: ...

    def load(self, saved: Any) -> None: ...

    def close(self) -> None: ...


Delay = Callable[[int, int], float | None]


def scripted(durations: Sequence[float | Sequence[float | None]]) -> Delay:
    return lambda c, v: d[v % len(d)] if isinstance(d := durations[c], Sequence) else d


class Run:
    """A simulator with its events."""

    def __init__(
        self,
        durations: Sequence[float | Sequence[float | None]],
        *,
        method: Method | str = "add",
        limit: int | None = None,
        availability: dict[int, list[tuple[float, float]]] | None = None,
        fails: Sequence[tuple[int, int]] = (),
        bad: Sequence[tuple[int, int]] = (),
        evaluate: Callable[[Tensor], tuple[float | None, float]] | None = None,
        eval_every: float = inf,
        strict: bool = False,
        memory: bool = False,
        **budget: Any,
    ):
        n = len(durations)
        self.events: list[Event] = []
        self.executor = Counting(n, bad=bad, memory=memory)
        layout = Layout((Block("w", 0, n, (n,), Kind.PARAM),))
        made = Method("add") if method == "add" else methods.build(method) if isinstance(method, str) else method
        windows = None if availability is None else Availability(availability)
        self.sim = Simulator(
            Server(made, torch.zeros(n), layout=layout, n_clients=n, seed=0),
            self.executor,
            scripted(durations),
            roster=IdleClients(n, limit or n, () if windows is None else windows.absent_at_start),
            budget=Budget(**budget),
            evaluate=evaluate,
            eval_every=eval_every,
            availability=windows,
            fails=(lambda c, v: (c, v) in fails) if fails else None,
            strict=strict,
            listeners=[self.events.append],
        )

    def go(self, between: Callable[[], None] = lambda: None) -> Run:
        self.sim.run(between)
        return self

    def seen(self, *kinds: str) -> list[tuple[float, str, int]]:
        return [(e.time, e.kind, e.client) for e in self.events if not kinds or e.kind in kinds]

    def line(self, *kinds: str) -> str:
        """`0 out0 out1 | 2 in0`: the events of each instant, with their clients."""
        words = {OUT: "out", IN: "in"}
        instants = groupby(self.seen(*kinds), key=lambda e: e[0])
        return " | ".join(f"{t:g} " + " ".join(f"{words.get(k, k)}{c}" for _, k, c in es) for t, es in instants)

    @property
    def accepted_clients(self) -> list[int]:
        return [int(v) for v in self.sim.server.weights]


def test_the_whole_line_of_two_clients():
    run = Run([2.0, 3.0], time=6.0).go()
    assert run.line() == "0 out0 out1 | 2 in0 out0 | 3 in1 out1 | 4 in0 out0 | 6 in1 in0 out0 out1"  # 6: by ticket
    assert run.accepted_clients == [3, 2]
    arrivals = [e for e in run.events if e.kind == IN]
    assert [(e.ticket, e.visit, e.staleness, e.version, e.updates) for e in arrivals] == [
        (0, 0, 0, 1, 1),
        (1, 0, 1, 2, 2),
        (2, 1, 1, 3, 3),
        (3, 1, 1, 4, 4),
        (4, 2, 1, 5, 5),
    ]
    assert run.sim.time == 6.0
    assert run.sim.engine.staleness == {0: 1, 1: 4}


def test_events_carry_the_weights_after_them_and_the_length_of_visits():
    run = Run([2.0, [3.0, 1.0]], time=3.0).go()
    assert [e.seconds for e in run.events if e.kind == OUT] == [2.0, 3.0, 2.0, 1.0]
    assert [e.weights.tolist() for e in run.events if e.kind == IN] == [[1, 0], [1, 1]]
    assert [(e.stepped, e.loss) for e in run.events if e.kind == IN] == [(True, 0.25)] * 2


def test_at_one_instant_all_arrive_before_anybody_is_handed_work():
    run = Run([1.0, 1.0, 1.0], time=1.0).go()
    assert [k for t, k, _ in run.seen() if t == 1] == [IN] * 3 + [OUT] * 3
    assert {e.version for e in run.events if e.kind == OUT and e.time == 1} == {3}
    sent = [run.executor.jobs[n].sent.tolist() for n in sorted(run.executor.jobs)]
    assert sent == [[1, 1, 1]] * 3


def test_a_late_joiner_gets_work_the_moment_it_comes():
    run = Run([2.0, 2.0], availability={1: [(3.0, inf)]}, time=5.0).go()
    assert run.line() == "0 out0 | 2 in0 out0 | 3 join1 out1 | 4 in0 out0 | 5 in1 out1"
    late = next(e for e in run.events if e.kind == IN and e.client == 1)
    assert (late.visit, late.staleness) == (0, 1)


def test_the_update_of_who_leaves_while_training_is_lost_at_that_moment():
    run = Run([10.0, 3.0], availability={1: [(0.0, 4.0)]}, time=9.0).go()
    assert run.line() == "0 out0 out1 | 3 in1 out1 | 4 lost1 leave1"
    assert run.accepted_clients == [0, 1]
    assert (run.sim.engine.updates, run.sim.engine.lost) == (1, 1)
    assert [e.seconds for e in run.events if e.kind == OUT] == [10.0, 3.0, 3.0]


def test_an_update_that_is_due_at_the_very_moment_of_leaving_still_counts():
    run = Run([4.0], availability={0: [(0.0, 4.0)]}, time=9.0).go()
    assert run.line() == "0 out0 | 4 in0 leave0"
    assert run.sim.engine.lost == 0


def test_who_comes_back_goes_on_with_its_next_visit():
    run = Run([3.0], availability={0: [(0.0, 4.0), (10.0, 14.0)]}, time=20.0).go()
    assert run.line() == "0 out0 | 3 in0 out0 | 4 lost0 leave0 | 10 join0 out0 | 13 in0 out0 | 14 lost0 leave0"
    assert [e.visit for e in run.events if e.kind == OUT] == [0, 1, 2, 3]
    assert run.sim.time == 20.0


def test_who_is_idle_when_leaving_loses_nothing():
    run = Run([1.0, 1.0, 1.0], limit=1, availability={0: [(0.0, 0.5)], 1: [(0.0, 0.5)], 2: [(0.0, 0.5)]}, time=3.0).go()
    assert run.sim.engine.lost == 1
    assert run.line("leave") == "0.5 leave0 leave1 leave2"


def test_leavers_go_before_comers_arrive_at_one_moment():
    run = Run([9.0, 9.0], availability={0: [(0.0, 2.0)], 1: [(2.0, inf)]}, time=3.0).go()
    assert run.line() == "0 out0 | 2 lost0 leave0 join1 out1"


def test_a_failed_visit_takes_its_time_and_brings_nothing():
    run = Run([2.0, 5.0], fails=[(0, 1)], time=6.0).go()
    assert run.line(IN, "lost") == "2 in0 | 4 lost0 | 5 in1 | 6 in0"
    assert run.accepted_clients == [2, 1]
    assert run.sim.engine.lost == 1
    lost = next(e for e in run.events if e.kind == "lost")
    assert (lost.visit, lost.stepped, lost.updates, lost.version) == (1, False, 1, 1)


def test_nothing_is_trained_for_visits_that_will_be_lost():
    run = Run([2.0, 3.0], fails=[(0, 0)], availability={1: [(0.0, 1.0)]}, time=1.5)
    run.go()
    assert run.executor.jobs == {}


def small_task(n: int) -> tarry.Task:
    """A weight a client pulls towards its number."""
    clients = [(torch.ones(2, 1), torch.full((2, 1), float(c))) for c in range(n)]
    return tarry.Task("small", model=lambda: nn.Linear(1, 1), loss=mse_loss, clients=clients, metrics=["loss"])


def test_a_failure_rate_loses_about_that_share_and_the_same_visits_for_every_method():
    lost: dict[str, set[tuple[int, int]]] = {}
    came: dict[str, set[tuple[int, int]]] = {}
    for name in ("fedasync", "fedbuff"):
        lost[name], came[name] = set(), set()

        def listen(e: Event, name: str = name) -> None:
            if e.kind in ("lost", IN):
                (lost if e.kind == "lost" else came)[name].add((e.client, e.visit))

        task = small_task(8)
        result = tarry.run(name, task, delay=[1.0] * 8, failure_rate=0.3, time=60, epochs=1, callbacks=[listen])
        assert result.lost == len(lost[name])
        assert result.lost / (result.lost + result.updates) == pytest.approx(0.3, abs=0.07)
    assert lost["fedasync"] == lost["fedbuff"]
    assert not lost["fedasync"] & came["fedasync"]


def test_a_round_goes_on_when_a_member_is_lost():
    run = Run([1.0, 2.0, 3.0], method="fedavg", availability={0: [(0.0, 0.5)]}, rounds=2).go()
    assert run.line(OUT, IN, "lost") == "0 out0 out1 out2 | 0.5 lost0 | 2 in1 | 3 in2 out1 out2 | 5 in1 | 6 in2"
    assert run.sim.server.weights.tolist() == [0, 1, 1]  # two rounds of a mean over two


def test_a_round_goes_on_when_its_last_member_is_lost():
    run = Run([1.0, 2.0, 9.0], method="fedavg", availability={2: [(0.0, 4.0)]}, rounds=2).go()
    assert run.line(OUT, IN, "lost") == "0 out0 out1 out2 | 1 in0 | 2 in1 | 4 lost2 out0 out1 | 5 in0 | 6 in1"
    stepped = [(e.kind, e.client) for e in run.events if e.stepped]
    assert stepped == [("lost", 2), (IN, 1)]
    assert run.sim.server.weights.tolist() == [1, 1, 0]


def test_a_loss_that_completes_the_last_round_ends_the_run():
    run = Run([1.0, 2.0], method="fedavg", fails=[(1, 0)], rounds=1).go()
    assert run.sim.time == 2.0
    assert (run.sim.server.version, run.sim.engine.updates, run.sim.engine.lost) == (1, 1, 1)


def test_a_round_that_loses_everybody_is_followed_by_another():
    run = Run([1.0, 2.0], method="fedavg", fails=[(0, 0), (1, 0)], rounds=1).go()
    assert run.line(OUT) == "0 out0 out1 | 2 out0 out1"
    assert run.sim.time == 4.0
    assert run.sim.server.weights.tolist() == [0.5, 0.5]


def test_a_barrier_takes_a_fresh_cohort_of_the_concurrency_each_round():
    run = Run([1.0] * 8, method="fedavg", limit=3, rounds=20).go()
    cohorts = [tuple(c for t, _, c in run.seen(OUT) if t == r) for r in range(20)]
    assert {len(c) for c in cohorts} == {3}
    assert len(set(cohorts)) > 5
    assert {c for cohort in cohorts for c in cohort} == set(range(8))


def test_a_budget_of_updates_stops_in_the_middle_of_an_instant():
    run = Run([1.0] * 5, updates=8).go()
    assert (run.sim.engine.updates, run.sim.time) == (8, 2.0)
    assert len(run.seen(IN)) == 8
    assert run.seen(OUT)[-1][0] == 1.0  # nobody is handed work any more


def test_a_budget_of_rounds_counts_server_steps():
    run = Run([1.0] * 4, method=methods.build("fedbuff", buffer=3), rounds=3).go()
    assert (run.sim.server.version, run.sim.engine.updates, run.sim.time) == (3, 9, 3.0)


def test_lost_and_refused_visits_do_not_count_as_updates():
    run = Run([1.0], fails=[(0, 1)], bad=[(0, 2)], updates=3).go()
    assert run.line(IN, "lost", "rejected") == "1 in0 | 2 lost0 | 3 rejected0 | 4 in0 | 5 in0"


def test_a_budget_of_time_takes_what_arrives_at_its_end_and_stands_there():
    assert Run([2.0], time=6.0).go().accepted_clients == [3]
    run = Run([2.0], time=5.999).go()
    assert run.accepted_clients == [2]
    assert run.sim.time == 5.999


def test_the_first_budget_to_be_met_ends_the_run():
    assert Run([1.0], time=3.0, updates=5).go().sim.engine.updates == 3
    assert Run([1.0], time=9.0, updates=5).go().sim.time == 5.0


def total(weights: Tensor) -> dict[str, float]:
    return {"accuracy": weights.sum().item() / 10, "loss": -weights.sum().item()}


def test_the_curve_has_a_point_at_every_step_of_its_grid_and_at_the_end():
    run = Run([1.5], evaluate=total, eval_every=2.0, time=7.0).go()
    # arrivals at 1.5, 3, 4.5, 6: what arrives at an instant is seen by the evaluation of that instant
    assert [point.to_row() for point in run.sim.engine.curve] == [
        [0.0, 0, 0.0, 0.0],
        [2.0, 1, 0.1, -1.0],
        [4.0, 2, 0.2, -2.0],
        [6.0, 4, 0.4, -4.0],
        [7.0, 4, 0.4, -4.0],
    ]
    assert [(e.time, e.accuracy, e.loss) for e in run.events if e.kind == "evaluate"] == [
        (t, a, loss) for t, _, a, loss, _ in run.sim.engine.curve
    ]


def test_the_end_is_scored_once_when_the_grid_meets_it():
    run = Run([1.5], evaluate=total, eval_every=2.0, time=6.0).go()
    assert [p[0] for p in run.sim.engine.curve] == [0, 2, 4, 6]


def test_an_end_by_updates_is_scored_there():
    run = Run([1.5, 1.5], evaluate=total, eval_every=2.0, updates=3).go()
    assert run.sim.engine.curve[-1].to_row() == [3.0, 3, 0.3, -3.0]
    assert [p[0] for p in run.sim.engine.curve] == [0, 2, 3]


def test_evaluation_at_an_instant_comes_after_its_hand_outs_and_disturbs_nothing():
    scored = Run([2.0, 3.0], evaluate=total, eval_every=1.0, time=6.0).go()
    assert [k for t, k, _ in scored.seen() if t == 2] == [IN, OUT, "evaluate"]
    assert scored.line(OUT, IN) == Run([2.0, 3.0], time=6.0).go().line()


def test_weights_that_stood_still_are_not_evaluated_again():
    calls = []

    def counted(weights: Tensor) -> dict[str, float]:
        calls.append(weights)
        return total(weights)

    run = Run([4.0], evaluate=counted, eval_every=1.0, time=10.0).go()
    assert len(run.sim.engine.curve) == 11
    assert len(calls) == 3


def test_a_target_stops_at_the_first_evaluation_that_reaches_it():
    run = Run([1.0], evaluate=total, eval_every=2.5, target=0.55, time=100.0).go()
    assert run.sim.engine.curve[-1].to_row() == [7.5, 7, 0.7, -7.0]
    assert run.sim.time == 7.5
    assert run.sim.engine.updates == 7


def test_a_target_reached_at_an_instant_stops_there_and_not_before():
    run = Run([1.0], evaluate=total, eval_every=1.0, target=0.3, time=100.0).go()
    assert (run.sim.time, run.sim.engine.updates) == (3.0, 3)
    assert run.sim.engine.curve[-1][:2] == (3.0, 3)
    assert len(run.sim.engine.curve) == 4


def test_a_target_that_is_never_reached_leaves_the_other_budget():
    assert Run([1.0], evaluate=total, eval_every=1.0, target=0.9, time=4.0).go().sim.time == 4.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a run needs a budget"),
        ({"time": 0}, "--time 0: must be above 0"),
        ({"updates": -3}, "--updates -3: must be above 0"),
        ({"time": nan}, "--time nan: must be above 0"),
        ({"target": 0.5}, "--target: give --time, --updates or --rounds too"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(given, words):
    with pytest.raises(BadInput, match=words):
        Budget(**given)


def test_refilling_keeps_the_concurrency_and_never_hands_a_busy_client_work():
    durations = [1.0, 1.7, 2.3, 0.9, 3.1, 1.1, 2.0, 0.7, 1.3, 5.0]
    run = Run(durations, limit=4, time=60.0)
    open_: set[int] = set()
    sizes = []

    def between() -> None:
        sizes.append(len(open_))

    def listen(e: Event) -> None:
        if e.kind == OUT:
            assert e.client not in open_
            open_.add(e.client)
        elif e.kind == IN:
            open_.discard(e.client)

    run.sim.engine._listeners = (*run.sim.engine._listeners, listen)
    run.go(between)
    assert set(sizes) == {4}
    assert {c for _, _, c in run.seen(OUT)} == set(range(10))


def test_who_has_no_next_duration_leaves_for_good_and_another_takes_its_place():
    run = Run([[1.0, None], 10.0, 1.0], limit=2, time=30.0).go()
    gone = [t for t, _, c in run.seen("leave") if c == 0]
    assert len(gone) == 1
    after = [e for e in run.seen(OUT) if e[0] >= gone[0]]
    assert after
    assert all(c != 0 for _, _, c in after)
    in_flight = 0
    for e in run.events:
        in_flight += {OUT: 1, IN: -1}.get(e.kind, 0)
    assert in_flight == 2


def test_when_everybody_has_left_a_run_by_updates_ends_where_it_stands():
    run = Run([[1.0, 2.0, None], [5.0, None]], updates=100, evaluate=total, eval_every=2.0).go()
    assert run.line(IN, "leave") == "1 in0 | 3 in0 leave0 | 5 in1 leave1"
    assert run.sim.time == 5.0
    assert run.sim.engine.curve[-1][:2] == (5.0, 3)


def test_when_everybody_has_left_a_run_by_time_stands_still_to_its_end():
    run = Run([[1.0, None]], time=6.0, evaluate=total, eval_every=2.0).go()
    assert run.sim.time == 6.0
    assert [p[:2] for p in run.sim.engine.curve] == [(0, 0), (2, 1), (4, 1), (6, 1)]


def test_a_run_without_anybody_ends_at_once():
    run = Run([1.0], availability={0: []}, updates=5, evaluate=total, eval_every=1.0).go()
    assert run.events[-1].kind == "evaluate"
    assert (run.sim.time, run.sim.engine.updates, len(run.sim.engine.curve)) == (0.0, 0, 1)


def test_a_barrier_goes_on_when_members_leave_for_good():
    run = Run([[1.0, None], 2.0], method="fedavg", rounds=3).go()
    assert run.line(OUT) == "0 out0 out1 | 2 out1 | 4 out1"
    assert run.sim.time == 6.0


def test_an_update_that_is_not_finite_is_refused_counted_and_the_run_goes_on():
    run = Run([2.0, 3.0], bad=[(0, 1)], time=6.0).go()
    assert run.line(IN, "rejected") == "2 in0 | 3 in1 | 4 rejected0 | 6 in1 in0"
    assert run.accepted_clients == [2, 2]
    assert (run.sim.engine.updates, run.sim.engine.rejected, run.sim.engine.lost) == (4, 1, 0)
    rejected = next(e for e in run.events if e.kind == "rejected")
    assert (rejected.visit, rejected.stepped) == (1, False)
    assert sum(run.sim.engine.staleness.values()) == 4


def test_strict_stops_at_the_first_update_that_is_not_finite():
    with pytest.raises(
        Diverged, match=r"client 0 came back at 4 s with weights that are not finite .*visit 1.*learning rate"
    ):
        Run([2.0, 3.0], bad=[(0, 1)], time=6.0, strict=True).go()


def test_a_run_by_updates_that_are_all_refused_ends_where_it_is_and_one_by_time_goes_on():
    never = [(0, v) for v in range(400)]
    run = Run([1.0], bad=never, updates=5).go()
    assert (run.sim.engine.updates, run.sim.engine.rejected, run.sim.time, run.sim.engine.has_stalled) == (
        0,
        100,
        100.0,
        True,
    )
    assert Run([1.0], bad=never, time=150.0).go().sim.engine.rejected == 150
    once = Run([1.0], bad=[b for b in never if b != (0, 60)], rounds=5).go()
    assert (once.sim.engine.updates, once.sim.engine.rejected, once.sim.engine.has_stalled) == (1, 160, True)
    assert not Run([1.0], bad=never[:99], updates=5).go().sim.engine.has_stalled


def test_a_loss_that_is_nan_in_real_training_is_refused_and_the_others_go_on():
    task = small_task(3)
    task.clients[1][1][0, 0] = nan
    result = tarry.run("fedasync", task, delay=[1.0, 1.0, 1.0], time=5, epochs=1)
    assert (result.updates, result.rejected) == (10, 5)
    assert result.weights is not None
    assert result.weights.isfinite().all()
    with pytest.raises(Diverged, match="client 1 came back at 1 s"):
        tarry.run("fedasync", task, delay=[1.0, 1.0, 1.0], time=5, epochs=1, strict=True)


def test_bytes_are_those_of_the_models_and_what_travels_along():
    run = Run([1.0, 2.0], fails=[(0, 0)], time=2.0).go()
    # handed out: 2 at 0, 1 at 1, 2 at 2; arrived: 0 at 2 and 1 at 2; a model is 8 bytes, the extra 12
    assert run.sim.engine.bytes_down == 5 * 8
    assert run.sim.engine.bytes_up == 2 * (8 + 12)


def test_what_a_client_keeps_comes_back_to_it_at_its_next_visit():
    run = Run([1.0, 2.0], memory=True, time=2.0).go()
    kept = {(t.client, t.visit): run.executor.memories[t.number] for t in run.executor.jobs.values()}
    assert {k: {n: int(v) for n, v in m.items()} for k, m in kept.items()} == {
        (0, 2): {"visits": 1},
        (1, 1): {"visits": 0},
    }
    assert run.executor.memories[0] == {}


BUSY: dict[str, Any] = {
    "durations": [1.0, [2.0, 0.5], 3.0, [0.7, 0.7, None]],
    "availability": {2: [(0.0, 4.0), (5.0, inf)], 1: [(1.0, inf)]},
    "fails": [(0, 3)],
    "bad": [(0, 1)],
    "evaluate": total,
    "eval_every": 1.5,
    "limit": 3,
}


@pytest.mark.parametrize(
    "budget", [{"time": 9.0}, {"updates": 14}, {"rounds": 12, "time": 50.0}, {"target": 0.5, "time": 50.0}]
)
@pytest.mark.parametrize("method", ["fedasync", "fedavg", "orthofl"])
def test_a_run_taken_up_after_any_instant_goes_on_to_the_same_end(method, budget):
    whole = Run(**BUSY, method=method, **budget)
    stops: list[tuple[int, dict[str, Any]]] = []
    whole.go(lambda: stops.append((len(whole.events), copy.deepcopy(whole.sim.save()))))
    assert len(stops) > 5

    def without_weights(events: list[Event]) -> list[tuple[Any, ...]]:
        return [tuple(v.tolist() if isinstance(v, Tensor) else v for v in e) for e in events]

    for so_far, saved in stops:
        again = Run(**BUSY, method=method, **budget)
        again.sim.load(saved)
        again.go()
        assert without_weights(again.events) == without_weights(whole.events[so_far:]), f"taken up after event {so_far}"
        assert again.sim.engine.curve == whole.sim.engine.curve
        for name in ("time", "updates", "lost", "rejected", "bytes_up", "bytes_down", "staleness"):
            assert getattr(again.sim.engine, name) == getattr(whole.sim.engine, name)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, nan])
def test_a_delay_function_that_gives_no_duration_is_refused_with_client_and_value(seconds):
    def not_forever(p: tarry.Progress) -> None:
        assert p.fraction == 1.0, "the clock does not move"

    def delay(client: int, visit: int) -> float:
        return seconds if (client, visit) == (1, 1) else 1.0

    with pytest.raises(BadInput, match=r"client 1"):
        tarry.run(task=small_task(2), delay=delay, updates=50, epochs=1, eval_every=1.0, progress=not_forever)


def test_close_empties_the_pool_of_vectors():
    pool.empty_pooled(torch.zeros(1 << 20))  # dropped at once, so its memory is in the pool
    assert pool._free_buffers
    Run([1.0], time=2.0).go().sim.close()
    assert not pool._free_buffers
