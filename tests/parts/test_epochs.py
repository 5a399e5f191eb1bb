"""A server that steps when an instant is over, not when an update comes; and epochs, which are built on that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Method, ServerView
from tarry.core.parts import Aggregate
from tarry.core.server import Server
from tarry.core.tickets import LocalResult, Ticket, Update
from tarry.parts.epochs import EpochServer, at_epoch_ends, epoch_aggregate, storable
from tarry.record.rows import read_rows
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def away(outputs: Tensor, targets: Tensor) -> Tensor:
    """Its gradient is −1 everywhere: with a rate of 1 every visit of one step brings a delta of 1."""
    return -outputs.mean() + 0 * targets.sum()


def task(n: int) -> tarry.Task:
    one = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1))
    return tarry.Task("away", model=Scalar(), loss=away, clients=[one] * n, test=one, metrics=["loss"])


@dataclass(frozen=True)
class Script:
    """Client k's v-th visit takes seconds[k][v]; after the last it leaves for good. Some visits are lost."""

    seconds: Sequence[Sequence[float]]
    gone: Collection[tuple[int, int]] = field(default_factory=set)

    def __call__(self, client: int, visit: int, /) -> float | None:
        own = self.seconds[client]
        return own[visit] if visit < len(own) else None

    def lost(self, client: int, visit: int) -> bool:
        return (client, visit) in self.gone


def always(*seconds: float, lost: Collection[tuple[int, int]] = ()) -> Script:
    return Script([[s] * 100 for s in seconds], lost)


def events(method: Method, delay: Script, **setup: Any) -> list[tarry.Event]:
    seen: list[tarry.Event] = []
    fixed = {"dtype": "float64", "steps": 1, "batch": "all", "lr": 1.0}
    tarry.run(method, task(len(delay.seconds)), delay=delay, callbacks=[seen.append], **{**fixed, **setup})
    return seen


def rows_of(seen: list[tarry.Event], *kinds: str) -> list[tuple[str, float, int]]:
    return [(e.kind, e.time, e.client) for e in seen if e.kind in kinds]


def pooled(delta: Tensor, view: ServerView) -> Update:
    ticket = Ticket(-1, -1, -1, view.version, view.time, view.weights, view.weights)
    return Update(ticket, delta, 1, 1, 0)


def instants(log: list[Any] | None = None) -> Method:
    """Adds up what comes at an instant and steps by the sum when it is over, if anything came."""
    log = [] if log is None else log

    def apply(update: Update | None, total: float, view: ServerView) -> tuple[None, float]:
        log.append(("apply", view.time, view.in_flight))
        return None, total if update is None else total + update.delta.sum().item()

    def settle(total: float, view: ServerView) -> tuple[Update | None, float]:
        log.append(("settle", view.time, view.in_flight))
        return (pooled(torch.full_like(view.weights, total), view), 0.0) if total else (None, total)

    return Method("instants", aggregate=Aggregate(apply, lambda _: 0.0, on_instant_end=settle))


# The server

LAYOUT = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))


def server(method: Method) -> Server:
    return Server(method, torch.zeros(2, dtype=torch.float64), layout=LAYOUT, n_clients=3, seed=0)


def test_a_method_that_settles_nothing_is_not_disturbed() -> None:
    s = server(Method("each"))
    before = s.decisions
    assert s.end_instant(1.0) is False
    assert (s.decisions, s.version) == (before, 0)


def test_settling_steps_by_what_the_aggregate_passes_on() -> None:
    s = server(instants())
    tickets = [s.hand_out(c, 0.0) for c in range(3)]
    for t in tickets[:2]:
        receipt = s.receive(t.number, LocalResult(torch.tensor([1.0, 2.0], dtype=torch.float64), 1, 1, 0.5), 1.0)
        assert not receipt.stepped
    assert (s.version, s.weights.tolist()) == (0, [0, 0])
    assert s.end_instant(1.0) is True
    assert (s.version, s.weights.tolist()) == (1, [6, 6])
    assert s.end_instant(1.0) is False
    assert (s.version, s.weights.tolist()) == (1, [6, 6])


def test_what_is_out_before_a_settled_step_is_one_step_staler_after_it() -> None:
    s = server(instants())
    first, second = s.hand_out(0, 0.0), s.hand_out(1, 0.0)
    one = LocalResult(torch.ones(2, dtype=torch.float64), 1, 1, 0.5)
    assert s.receive(first.number, one, 1.0).staleness == 0
    s.end_instant(1.0)
    assert s.receive(second.number, one, 2.0).staleness == 1


def test_settling_lets_go_of_the_old_weights_and_counts_what_is_kept() -> None:
    def settle(_: Any, view: ServerView) -> tuple[Update, dict[str, Tensor]]:
        return pooled(torch.ones_like(view.weights), view), {"kept": torch.ones(5, dtype=torch.float64)}

    keeps = Aggregate(lambda _, state, __: (None, state), lambda _: {}, on_instant_end=settle)
    s = server(Method("keeps", aggregate=keeps))
    s.end_instant(1.0)
    assert s.meter.held == 16
    assert s.meter.peak == 16 + 40


# The simulator


def test_it_is_asked_once_an_instant_after_all_its_arrivals() -> None:
    log: list[Any] = []
    events(instants(log), always(1.0, 1.0, 2.0), time=2.0)
    assert log == [
        *[("apply", 1.0, 2), ("apply", 1.0, 1), ("settle", 1.0, 1)],
        *[("apply", 2.0, 2), ("apply", 2.0, 1), ("apply", 2.0, 0), ("settle", 2.0, 0)],
    ]


def test_an_instant_is_arrivals_the_step_comings_and_goings_hand_outs_and_evaluation() -> None:
    seen = events(instants(), always(1.0, 1.0, 5.0), availability={"2": [[1.0, 9.0]]}, eval_every=1.0, time=1.0)
    kinds = [e.kind for e in seen if e.time == 1.0]
    assert kinds == ["arrival", "arrival", "step", "join", "hand_out", "hand_out", "hand_out", "evaluate"]


def test_a_step_is_told_with_its_weights_and_no_client() -> None:
    seen = events(instants(), always(1.0, 1.0), time=2.0)
    steps = [e for e in seen if e.kind == "step"]
    assert [(e.time, e.version, e.updates, e.stepped, e.weights.tolist()) for e in steps] == [
        (1.0, 1, 2, True, [2.0]),
        (2.0, 2, 4, True, [4.0]),
    ]
    assert {(e.client, e.ticket, e.visit, e.staleness, e.loss) for e in steps} == {(-1, -1, -1, -1, None)}
    assert not any(e.stepped for e in seen if e.kind == "arrival")
    assert [e.weights.item() for e in seen if e.kind == "hand_out"] == [0, 0, 2, 2, 4, 4]


def test_a_method_without_settling_tells_of_no_step() -> None:
    assert not rows_of(events(Method("each"), always(1.0, 1.0), time=3.0), "step")


def test_an_instant_that_only_brings_losses_is_settled_too_and_may_pass_nothing_on() -> None:
    log: list[Any] = []
    seen = events(instants(log), always(1.0, lost={(0, 0)}), time=2.0)
    assert [what for what, *_ in log] == ["apply", "settle"] * 2
    assert rows_of(seen, "step", "lost") == [("lost", 1.0, 0), ("step", 2.0, -1)]


def test_a_budget_of_rounds_ends_with_the_step_that_fills_it() -> None:
    seen = events(instants(), always(1.0, 2.0), rounds=2, eval_every=100.0)
    assert rows_of(seen, "step") == [("step", 1.0, -1), ("step", 2.0, -1)]
    assert rows_of(seen, "hand_out")[-1] == ("hand_out", 1.0, 0)
    assert seen[-1].kind == "evaluate"
    assert seen[-1].weights.tolist() == [3.0], "the last step is tested"


def test_a_budget_of_updates_ends_with_the_arrival_that_fills_it() -> None:
    seen = events(instants(), always(1.0, 1.0), updates=2, eval_every=100.0)
    assert [e.kind for e in seen if e.time == 1.0] == ["arrival", "arrival", "evaluate"]


def test_steps_are_rows_of_the_log(tmp_path: Path) -> None:
    events(instants(), always(1.0, 1.0), time=1.0, out=tmp_path / "run")
    rows = [r for r in read_rows(tmp_path / "run" / "events.jsonl") if r["kind"] == "step"]
    assert rows == [{"kind": "step", "time": 1.0, "version": 1, "updates": 2, "stepped": True}]


def test_a_run_saved_after_any_instant_ends_the_same() -> None:
    delay = always(1.0, 3.0, 1.5)
    setup = {"task": task(3), "delay": delay, "time": 12.0, "dtype": "float64", "steps": 1, "lr": 1.0}
    made = build_run(Spec.of({"method": epochs(), **setup}))
    executor, saved = Simulation(made).executor(), list[Any]()
    sim = Simulation(made).simulator(executor, [])
    sim.run(lambda: saved.append(sim.save()))
    executor.close()
    assert len(saved) > 10
    for record in saved[::3]:
        executor = Simulation(made).executor()
        again = Simulation(made).simulator(executor, [])
        again.load(record)
        again.run()
        executor.close()
        assert torch.equal(again.server.weights, sim.server.weights)
        assert again.server.version == sim.server.version


# Epochs


@dataclass(frozen=True)
class Counting(EpochServer):
    """Steps by the number of clients that ever came, and notes which were late."""

    log: list[Any]

    def init(self, _: Tensor) -> dict[str, Any]:
        return {"came": 0}

    def on_update(self, update: Update, late: bool, book: dict[str, Any], view: ServerView) -> dict[str, Any]:
        self.log.append((view.time, update.ticket.client, late))
        return {"came": book["came"] + 1}

    def end_epoch(self, book: dict[str, Any], view: ServerView) -> tuple[Tensor | None, dict[str, Any]]:
        return torch.full_like(view.weights, book["came"]) if book["came"] else None, book


class Offering(Counting):
    """A server that sends a number along."""

    @property
    def offers(self) -> bool:
        return True

    def init(self, _: Tensor) -> dict[str, Any]:
        return {"came": 7}

    def payload(self, client: int, book: dict[str, Any]) -> dict[str, Tensor]:
        return {"x": torch.tensor(client + book["came"])}


def epochs(length: float | None = None, log: list[Any] | None = None) -> Method:
    server = Counting([] if log is None else log)
    return Method("epochs", aggregate=epoch_aggregate(length, server), dispatch=at_epoch_ends())


def steps(seen: list[tarry.Event]) -> list[float]:
    return [e.time for e in seen if e.kind == "step"]


def hand_outs(seen: list[tarry.Event]) -> dict[int, list[float]]:
    out: dict[int, list[float]] = {}
    for e in seen:
        if e.kind == "hand_out":
            out.setdefault(e.client, []).append(e.time)
    return out


def test_a_client_of_m_epochs_takes_part_in_every_mth() -> None:
    log: list[Any] = []
    seen = events(epochs(log=log), always(1.0, 3.0, 5.0), time=15.0)
    assert steps(seen) == [float(t) for t in range(1, 16)]
    times = hand_outs(seen)
    assert times[0] == [float(t) for t in range(16)]
    assert times[1] == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    assert times[2] == [0.0, 5.0, 10.0, 15.0]
    assert {(client, late) for _, client, late in log} == {(0, False), (1, True), (2, True)}


def test_who_is_back_early_waits_for_the_end_of_the_epoch() -> None:
    """2 s: at 1.5 client 0 is back and waits for client 2; client 1, back at 2.5, waits for the second epoch's end."""
    log: list[Any] = []
    seen = events(epochs(2.0, log), always(1.5, 2.5, 2.0), time=5.0)
    assert steps(seen) == [2.0, 4.0]
    assert hand_outs(seen) == {0: [0.0, 2.0, 4.0], 1: [0.0, 4.0], 2: [0.0, 2.0, 4.0]}
    assert {(client, late) for _, client, late in log} == {(0, False), (1, True), (2, False)}


def test_an_epoch_is_over_when_nobody_is_training() -> None:
    seen = events(epochs(10.0), always(1.0, 3.0), time=7.0)
    assert steps(seen) == [3.0, 6.0]
    assert hand_outs(seen)[0] == [0.0, 3.0, 6.0]


def test_an_epoch_ends_by_the_clock_though_nobody_comes_back_just_then() -> None:
    """2 s, visits of 1 and 5 s: nobody is back at 2, 4, 7, 9; at 5 all are, and an epoch begins."""
    log: list[Any] = []
    seen = events(epochs(2.0, log), always(1.0, 5.0), time=9.0)
    assert steps(seen) == [2.0, 4.0, 5.0, 7.0, 9.0]
    assert hand_outs(seen) == {0: [0.0, 2.0, 4.0, 5.0, 7.0, 9.0], 1: [0.0, 5.0]}
    assert log == [(1.0, 0, False), (3.0, 0, False), (5.0, 1, True), (5.0, 0, False), (6.0, 0, False), (8.0, 0, False)]


def test_an_epoch_that_nobody_came_back_in_lasts_until_somebody_does() -> None:
    """2 s, visits of 5 and 9 s: nobody is back at 2 or 4. The second epoch began at 5: client 1, at 9, ends it."""
    seen = events(epochs(2.0), always(5.0, 9.0), time=14.0)
    assert steps(seen) == [5.0, 9.0, 11.0]
    assert hand_outs(seen) == {0: [0.0, 5.0, 11.0], 1: [0.0, 9.0]}


def test_with_speeds_that_are_no_multiples_every_epoch_has_its_step() -> None:
    """The fastest first visit takes 10 s, later ones a little less; the third client takes a thousand."""
    delay = Script([[10.0, *[9.9] * 90], [10.5, *[9.8, 9.7] * 50], [1000.0] * 2])
    log: list[Any] = []
    assert steps(events(epochs(log=log), delay, time=800.0)) == [10.0 * n for n in range(1, 81)]
    assert {(client, late) for _, client, late in log[2:]} == {(0, False), (1, False)}


def test_a_method_may_ask_for_instants_of_its_own_while_somebody_is_training() -> None:
    """Every 3 s; the one client is away from 4 on, so that nobody trains and nothing wakes."""
    log: list[float] = []

    def settle(woken: float, view: ServerView) -> tuple[None, float]:
        log.append(view.time)
        return None, max(woken, view.time)

    plain = instants().aggregate
    aggregate = replace(plain, init=lambda _: 0.0, on_instant_end=settle, next_wakeup=lambda woken, _: woken + 3)
    seen = events(Method("bell", aggregate=aggregate), always(20.0), availability={"0": [[0.0, 7.0]]}, time=30.0)
    assert log == [3.0, 6.0, 7.0]
    assert rows_of(seen, "lost", "step") == [("lost", 7.0, 0)]


def test_losses_end_an_epoch_with_what_is_in_the_book_and_an_empty_book_lets_it_go_on() -> None:
    """Client 0 is lost at 1 and 3. Nothing is known at 1: it waits until 2, when client 1 makes a length and an end."""
    seen = events(epochs(), always(1.0, 2.0, lost={(0, 0), (0, 1)}), time=4.0)
    assert rows_of(seen, "lost", "arrival", "step") == [
        *[("lost", 1.0, 0), ("arrival", 2.0, 1), ("step", 2.0, -1)],
        *[("lost", 3.0, 0), ("arrival", 4.0, 1), ("step", 4.0, -1)],
    ]
    known = events(epochs(1.0), always(1.0, 9.0, lost={(0, 2)}), time=4.0)
    assert rows_of(known, "lost", "step") == [
        *[("step", 1.0, -1), ("step", 2.0, -1), ("lost", 3.0, 0), ("step", 3.0, -1), ("step", 4.0, -1)]
    ]


def test_comings_and_goings_end_no_epoch_and_who_comes_waits_for_its_end() -> None:
    seen = events(epochs(1.0), always(2.0, 2.0, 2.0), availability={"2": [[1.5, 9.0]]}, time=4.0)
    assert steps(seen) == [2.0, 4.0]
    assert hand_outs(seen) == {0: [0.0, 2.0, 4.0], 1: [0.0, 2.0, 4.0], 2: [2.0, 4.0]}


def test_after_an_empty_spell_an_epoch_begins_with_the_work_handed_out() -> None:
    """Both are away from 1 to 10. At 10.5 the epoch of 2 s, begun anew at 10, is not over, though 1 was long ago."""
    both = {"0": [[0.0, 1.25], [10.0, 99.0]], "1": [[0.0, 1.25], [10.0, 99.0]]}
    delay = Script([[1.0, 1.0, 0.5, 9.0], [1.0, 1.0, 2.0, 9.0]])
    seen = events(epochs(2.0), delay, availability=both, time=13.0)
    assert steps(seen) == [1.0, 1.25, 12.0]


def test_the_place_of_a_client_that_left_for_good_goes_to_another_at_once() -> None:
    """Four of twelve at a time, one visit each: whoever is picked again leaves, and a fresh one starts right then."""
    seen = events(epochs(), Script([[1.0]] * 12), concurrency=4, time=5.0)
    assert [e.time for e in seen if e.kind == "hand_out"] == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_offers_see_the_book() -> None:
    method = epochs(1.0)
    plain = method.aggregate
    made = epoch_aggregate(1.0, Offering([]))
    assert plain.offer is None
    s = server(replace(method, aggregate=made))
    assert s.hand_out(2, 0.0).payload["x"].item() == 9


def test_an_entry_is_the_weighted_displacement_and_the_clients_own_statistics() -> None:
    layout = Layout((Block("w", 0, 2, (2,), Kind.PARAM), Block("s", 2, 3, (1,), Kind.STAT)))
    sent = torch.tensor([1.0, 1.0, 5.0])
    now = ServerView(sent + 1, layout, 4, 1.0, 0, 2, 0, 0)
    update = Update(Ticket(0, 0, 0, 0, 0.0, sent, sent), torch.tensor([2.0, 3.0, -1.0]), 1, 1, 4, weight=0.5)
    assert storable(update, now).tolist() == [1.0, 1.5, 4.0]


def test_durations_that_a_machine_rounds_still_fall_on_one_instant() -> None:
    """0.1 s thirty times is three seconds: every epoch of r has its step, and everybody comes when due."""
    kinds: list[str] = []
    settings = {"clients": 10, "delay": {"name": "fedogd-l2", "r": 0.1}, "time": 3.0, "steps": 1}
    tarry.run("fedogd", "digits", callbacks=[lambda e: kinds.append(e.kind)], **settings)
    assert kinds.count("step") == 30
    assert kinds.count("arrival") == 4 * 30 + 3 * 10 + 3 * 6
