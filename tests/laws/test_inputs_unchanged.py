"""Nothing that is handed in is ever written to, and where nothing is learnt nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.local_rule import ClientModel, Context, LocalRule, RuleStep, VisitInput, VisitOutput
from tarry.core.method import Method, ServerView
from tarry.core.optim import Optimizer
from tarry.core.parts import Aggregate, Dispatch, Part
from tarry.core.task import Examples
from tarry.core.tickets import LocalResult, TicketExtras, Update
from tarry.runs.simulation import Simulation
from tests.helpers.small_task import flat_loss, small_task
from tests.helpers.spy import spied
from tests.laws.variants import EVERYTHING, Choice, built, every_method, planned

UNBOUND = {k: v for k, v in EVERYTHING.items() if k != "task"}


def tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for v in x.values():
            yield from tensors(v)
    elif isinstance(x, list | tuple):
        for v in x:
            yield from tensors(v)


class Watch:
    """Keeps copies of what is handed in; `check` compares."""

    def __init__(self, *inputs: Any):
        self.kept = [(t, t.clone()) for t in tensors(inputs)]

    def check(self, what: str) -> int:
        for now, then in self.kept:
            assert torch.equal(now, then), f"{what} wrote to its input"
        return len(self.kept)


def watched(part: Part[Any, Any], name: str, count: list[int]) -> Part[Any, Any]:
    """The part; every function that it has is watched."""
    hooks: dict[str, Any] = {}

    def apply(x: Any, state: Any, view: ServerView) -> tuple[Any, Any]:
        watch = Watch(x, state, view)
        out = part.apply(x, state, view)
        count[0] += watch.check(name)
        return out

    def init(weights: Tensor) -> Any:
        watch = Watch(weights)
        out = part.init(weights)
        watch.check(f"{name}.init")
        return out

    def offer(client: int, state: Any, view: ServerView) -> TicketExtras | None:
        watch = Watch(state, view)
        assert part.offer is not None
        out = part.offer(client, state, view)
        count[0] += watch.check(f"{name}.offer")
        return out

    def on_instant_end(state: Any, view: ServerView) -> tuple[Any, Any]:
        assert isinstance(part, Aggregate)
        assert part.on_instant_end is not None
        watch = Watch(state, view)
        out = part.on_instant_end(state, view)
        count[0] += watch.check(f"{name}.on_instant_end")
        return out

    def observe(update: Update, state: Any, view: ServerView) -> Any:
        assert isinstance(part, Dispatch)
        assert part.observe is not None
        watch = Watch(update, state, view)
        out = part.observe(update, state, view)
        count[0] += watch.check(f"{name}.observe")
        return out

    if isinstance(part, Aggregate):
        hooks = {"on_instant_end": part.on_instant_end and on_instant_end}
    if isinstance(part, Dispatch):
        hooks = {"observe": part.observe and observe}
    return type(part)(apply, init, part.offer and offer, **hooks)


@dataclass(frozen=True)
class WatchedRule(LocalRule):
    inner: LocalRule
    count: list[int]

    def check(self, layout: Layout, optimizer: Optimizer) -> None:
        self.inner.check(layout, optimizer)

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        watch = Watch(visit.weights, visit.payload, visit.memory)
        out = self.inner.begin(visit)
        self.count[0] += watch.check("local.begin")
        return out

    @property
    def passes(self) -> tuple[RuleStep, ...]:
        return tuple(self.lap(step) for step in self.inner.passes)

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        watch = Watch(w, context)
        out = self.inner.init(w, context, model)
        self.count[0] += watch.check("local.init")
        return out

    def lap(self, inner: RuleStep) -> RuleStep:
        def step(
            w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
        ) -> tuple[Tensor, Any, Tensor]:
            watch = Watch(w, batch, context, state)
            out = inner(w, batch, context, state, model)
            self.count[0] += watch.check("local.step")
            return out

        return step

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        watch = Watch(w, context, state)
        out = self.inner.finish(w, context, state)
        self.count[0] += watch.check("local.finish")
        return out


PARTS = ("correct", "aggregate", "step", "reply", "dispatch")


def watched_method(choice: Choice, count: list[int]) -> Method:
    method = built(choice)
    parts: dict[str, Any] = {name: watched(getattr(method, name), name, count) for name in PARTS}
    return replace(method, local=WatchedRule(method.local, count), **parts)


@every_method
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parts_and_local_rules_never_write_to_what_they_are_handed(choice: Choice, optimizer: str) -> None:
    count = [0]
    momentum = 0.9 if optimizer == "sgd" else 0.0
    settings = {**EVERYTHING, "time": 8.0, "optimizer": optimizer, "momentum": momentum}
    try:
        tarry.run(watched_method(choice, count), **settings)
    except BadInput as e:
        assert "optimizer='adam'" in str(e)  # noqa: PT017 - what a method rejects, it rejects by name
        assert optimizer == "adam"
        return
    assert count[0] > 100


@every_method
def test_weights_once_shown_in_an_event_never_change(choice: Choice) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    tarry.run(choice, callbacks=[lambda e: seen.append((e.weights, e.weights.clone()))], **EVERYTHING)
    assert all(torch.equal(now, then) for now, then in seen)


@every_method
def test_the_server_writes_neither_to_tickets_nor_to_what_came_back(choice: Choice) -> None:
    made = planned(choice, **EVERYTHING)
    server = Simulation(made).simulator(Simulation(made).executor(), []).server
    out = [server.hand_out(client, 0.0) for client in range(4)]
    for time, ticket in enumerate(out, 1):
        delta = torch.linspace(-1, 1, len(ticket.sent)) * time
        trained = LocalResult(delta, 10, 2, 0.5)
        watch = Watch([(t.sent, t.anchor, t.payload) for t in out], delta, server.weights)
        server.receive(ticket.number, trained, float(time))
        assert watch.check("receive") >= 10


@every_method
def test_a_tasks_module_and_examples_are_left_as_they_were(choice: Choice) -> None:
    task = small_task()
    assert isinstance(task.model, nn.Module)
    watch = Watch(dict(task.model.named_parameters()), list(task.clients))
    result = tarry.run(choice, task, **UNBOUND)
    assert watch.check("run") == 4 + 12
    assert result.weights is not None
    first = torch.cat([p.detach().reshape(-1) for p in task.model.parameters()])
    assert not torch.allclose(result.weights, first, rtol=1e-3), "it did learn"


@every_method
def test_where_the_gradient_is_zero_nothing_moves(choice: Choice) -> None:
    """Neither the global weights nor what any client is handed, at any time.

    A method that distils moves by what models say of other inputs: by nothing here where it makes no step.
    """
    if built(choice).needs_unlabeled:
        choice = {**choice, "q": 0}
    task = small_task(flat_loss)
    assert isinstance(task.model, nn.Module)
    first = torch.cat([p.detach().reshape(-1) for p in task.model.parameters()]).double()
    method, spy = spied(built(choice))

    def look(e: tarry.Event) -> None:
        torch.testing.assert_close(e.weights, first, rtol=1e-13, atol=1e-15)

    tarry.run(method, task, dtype="float64", callbacks=[look], **UNBOUND)
    assert len(spy.starts) >= 12
    for start in spy.starts:
        torch.testing.assert_close(start, first, rtol=1e-13, atol=1e-15)
