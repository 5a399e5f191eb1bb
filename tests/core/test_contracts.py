"""A part of one's own that returns something else is told by the method's and the part's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry import Aggregate, Method, ServerView, Update, VisitOutput
from tarry.core.contracts import check_first_call
from tarry.core.errors import BadInput
from tarry.core.local_rule import Context, LocalRule, VisitInput
from tarry.core.parts import Part, stateless
from tarry.core.tickets import NextStart
from tests.helpers.models import random_clients


def task() -> tarry.Task:
    clients = random_clients([8] * 2, 4, 2, seed=0)
    return tarry.Task("two", model=lambda: nn.Linear(4, 2), loss=nn.functional.cross_entropy, clients=clients)


RUN: dict[str, Any] = {"delay": [1.0, 2.0], "updates": 6, "steps": 1}
SLIPS: dict[str, tuple[dict[str, Part[Any, Any]], str]] = {
    "nothing": ({"step": stateless(lambda u, now: None)}, "its step returned None; it should return the new global"),
    "no return": ({"step": Part(lambda u, s, now: None)}, "its step returned None; "),  # type: ignore[arg-type,return-value]
    "no state": ({"step": Part(lambda u, s, now: now.weights)}, "its step returned a float32 tensor of 10 alone; "),  # type: ignore[arg-type,return-value]
    "another shape": ({"step": stateless(lambda u, now: now.weights[:3])}, "its step returned a float32 tensor of 3; "),
    "a number": ({"step": stateless(lambda u, now: 0.5)}, "its step returned float; "),
    "another type": (
        {"step": stateless(lambda u, now: now.weights.double())},
        "its step returned a float64 tensor of 10; it should return the new global weights (the model has 10 float32",
    ),
    "an update of another type": (
        {"correct": stateless(lambda u, now: u.replace(delta=u.delta.double()))},
        "its correct returned Update with a float64 tensor of 10; ",
    ),
    "a delta for an update": (
        {"correct": stateless(lambda u, now: u.delta)},
        "its correct returned a float32 tensor of 10; ",
    ),
    "a long update": (
        {"correct": stateless(lambda u, now: u.replace(delta=u.delta.repeat(2)))},
        "its correct returned Update with a float32 tensor of 20; ",
    ),
    "a pooled nothing": ({"aggregate": stateless(lambda u, now: False)}, "its aggregate returned bool; "),
    "a start of nothing": (
        {"reply": stateless(lambda u, now: NextStart(None))},
        "its reply returned NextStart with None; ",
    ),  # type: ignore[arg-type]
    "a client for clients": ({"dispatch": stateless(lambda roster, now: 0)}, "its dispatch returned int; "),
}


@pytest.mark.parametrize("what", SLIPS)
def test_a_slip_is_told_by_method_and_part(what: str) -> None:
    parts, said = SLIPS[what]
    with pytest.raises(BadInput) as e:
        tarry.run(Method("mine", **parts), task(), **RUN)  # type: ignore[arg-type]
    (problem,) = e.value.problems
    assert problem.startswith(f"method 'mine': {said}")


class Slips(LocalRule):
    """A rule of one's own, with a return forgotten."""

    def __init__(self, what: str):
        self.what = what

    def begin(self, visit: VisitInput) -> Any:
        return visit.weights if self.what == "begin" else super().begin(visit)

    def step(self, *args: Any) -> Any:
        done = super().step(*args)
        return {"step": None, "loss": done[:2]}.get(self.what, done)

    def finish(self, *args: Any) -> Any:
        return None if self.what == "finish" else super().finish(*args)


@pytest.mark.parametrize("executor", ["inline", "batched"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("begin", "its begin returned a float32 tensor of 10; it should return (start, context)"),
        ("step", "its step returned None; it should return (weights, state, loss)"),
        ("loss", "its step returned a tuple of 2; it should return (weights, state, loss)"),
        ("finish", "its finish returned None; it should return a VisitOutput"),
    ],
)
def test_a_slip_of_a_local_rule_is_told_too(what: str, said: str, executor: str) -> None:
    with pytest.raises(BadInput) as e:
        tarry.run(Method("mine", local=Slips(what)), task(), executor=executor, **RUN)
    assert e.value.problems == (f"local rule Slips: {said}",)


class InDoublePrecision(LocalRule):
    """A rule whose step returns weights of another type."""

    def step(self, *args: Any) -> Any:
        w, state, loss = super().step(*args)
        return w.double(), state, loss


class WideDelta(LocalRule):
    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:
        return VisitOutput(delta=torch.zeros_like(w).double())


@pytest.mark.parametrize("executor", ["inline", "pool", "batched"])
def test_a_delta_of_more_precision_than_the_weights_is_rejected(executor: str) -> None:
    with pytest.raises(BadInput, match="WideDelta: its delta is float64, and the client was sent float32"):
        tarry.run(Method("mine", local=WideDelta()), task(), executor=executor, **RUN)


def doubled_later(update: Update, view: ServerView) -> Tensor:
    return view.weights + (update.delta.double() if view.version else update.delta)


def doubled_at_the_end(state: Update | None, _: ServerView) -> tuple[Update | None, None]:
    return None if state is None else state.replace(delta=state.delta.double()), None


@pytest.mark.parametrize(
    "method",
    [
        Method("late", step=stateless(doubled_later)),
        Method("late", aggregate=Aggregate(lambda u, s, _: (None, u), on_instant_end=doubled_at_the_end)),
    ],
    ids=["step", "aggregate"],
)
def test_weights_that_change_their_type_later_are_rejected(method: Method) -> None:
    with pytest.raises(BadInput, match=r"'late': its step returned a float64 tensor of .* the model has .* float32"):
        tarry.run(method, task(), **RUN)


def test_output_weights_of_another_type_are_rejected() -> None:
    method = Method("wide", output_weights=lambda weights, _: weights.double())
    with pytest.raises(BadInput, match=r"'wide': its output_weights returned a float64 tensor of .*float32"):
        tarry.run(method, task(), **RUN)


@pytest.mark.parametrize("executor", ["inline", "batched"])
def test_a_local_rule_that_changes_the_type_of_the_weights_is_rejected(executor: str) -> None:
    rule = InDoublePrecision()
    with pytest.raises(BadInput, match="InDoublePrecision: its weights are float64, and the client was sent float32"):
        tarry.run(Method("mine", local=rule), task(), executor=executor, **RUN)


def test_a_part_is_looked_at_until_it_has_returned_something() -> None:
    def late(u: Any, count: int, now: Any) -> tuple[Any, int]:
        return (None if count < 2 else u.delta), count + 1

    with pytest.raises(BadInput, match="its aggregate returned a float32 tensor of 10"):
        tarry.run(Method("late", aggregate=Part(late, lambda _: 0)), task(), **RUN)


def test_a_part_that_keeps_its_promise_is_itself_again_and_plain_parts_are_never_looked_at() -> None:
    half: Callable[..., Any] = stateless(lambda u, now: now.weights + 0.5 * u.delta)  # type: ignore[assignment]
    method = Method("half", step=half)  # type: ignore[arg-type]
    apply = check_first_call(method)
    assert apply["step"] is not method.step.apply
    for part in ("correct", "aggregate", "reply", "dispatch"):
        assert apply[part] is getattr(method, part).apply

    class Moment:
        weights = torch.zeros(3)

    class Answer:
        delta = torch.ones(3)

    made, _ = apply["step"](Answer, None, Moment)  # type: ignore[arg-type]
    assert made.tolist() == [0.5] * 3
    assert apply["step"] is method.step.apply


@pytest.mark.parametrize("part", ["step", "correct"])
def test_a_part_that_writes_to_what_it_is_given_is_told(part: str) -> None:
    def step(update: Any, now: Any) -> Any:
        return now.weights.add_(update.delta)

    def correct(update: Any, now: Any) -> Any:
        update.delta.mul_(0.5)
        return update

    method = Method("mine", **{part: stateless({"step": step, "correct": correct}[part])})
    what = {"step": "the global weights", "correct": "the update's delta"}[part]
    with pytest.raises(BadInput, match=f"method 'mine': its {part} wrote to {what}; a part never writes"):
        tarry.run(method, task(), delay=[1.0, 2.0], updates=4)


def test_a_rule_that_writes_to_what_it_was_sent_is_told() -> None:
    class Hasty(LocalRule):
        def step(self, w: Any, batch: Any, context: Any, state: Any, fns: Any) -> Any:
            grad, loss = fns.grad(w, batch)
            return w.sub_(0.1 * grad), state, loss

    for executor in ("inline", "batched"):
        with pytest.raises(BadInput, match="local rule Hasty: it wrote to the weights that the client was sent"):
            tarry.run(Method("mine", local=Hasty()), task(), delay=[1.0, 2.0], updates=4, executor=executor)
