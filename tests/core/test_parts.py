"""Parts: the place that each class fits, what a plain Part becomes there, and a joint step and reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Method, ServerView, StepAndReply
from tarry.core.parts import (
    ADD,
    EACH_ARRIVAL,
    KEEP,
    REFILL,
    SEND_GLOBAL,
    Aggregate,
    Correct,
    Dispatch,
    Part,
    Reply,
    Step,
    stateless,
)
from tarry.core.server import Server
from tarry.core.tickets import LocalResult, NextStart, Ticket, Update
from tests.helpers.tensors import vec

LAYOUT = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))
DEFAULTS: dict[str, Any] = {
    "correct": KEEP,
    "aggregate": EACH_ARRIVAL,
    "step": ADD,
    "reply": SEND_GLOBAL,
    "dispatch": REFILL,
}
CLASSES = {"correct": Correct, "aggregate": Aggregate, "step": Step, "reply": Reply, "dispatch": Dispatch}


def test_a_plain_method_has_the_default_parts_themselves() -> None:
    method = Method("plain")
    assert all(getattr(method, place) is part for place, part in DEFAULTS.items())


@pytest.mark.parametrize("place", list(CLASSES))
def test_a_part_for_any_place_gets_the_class_of_its_place_with_all_it_has(place: str) -> None:
    def offer(client: int, state: Any, view: ServerView) -> None:
        return None

    part: Part[Any, Any] = Part(lambda x, state, _: (x, state), lambda _: 7, offer, payload_keys=frozenset({"k"}))
    made = getattr(Method("own", **{place: part}), place)  # type: ignore[arg-type]
    assert type(made) is CLASSES[place]
    assert (made.apply, made.init, made.offer, made.payload_keys) == (part.apply, part.init, offer, {"k"})


@pytest.mark.parametrize("place", list(CLASSES))
def test_a_part_of_another_place_is_rejected_by_name(place: str) -> None:
    other = "reply" if place != "reply" else "step"
    with pytest.raises(BadInput, match=rf"{place}={other.capitalize()}: wants a tarry\.{place.capitalize()}"):
        Method("wrong", **{place: DEFAULTS[other]})
    with pytest.raises(BadInput, match=rf"{place}=function: wants a tarry\.{place.capitalize()}"):
        Method("wrong", **{place: lambda x, state, now: (x, state)})  # type: ignore[arg-type]


def test_the_classes_are_public() -> None:
    assert [getattr(tarry, kind.__name__) for kind in CLASSES.values()] == list(CLASSES.values())


def test_the_endpoint_of_an_update_is_its_local_and_does_not_outlive_a_change() -> None:
    update = Update(Ticket(0, 0, 0, 0, 0.0, vec(1, 1), vec(1, 1)), vec(1, 2), 1, 1, 0, endpoint=vec(5, 5))
    assert update.local.tolist() == [5, 5]
    assert update.replace(weight=0.5).local.tolist() == [2, 3]
    assert update.replace(endpoint=vec(6, 6)).local.tolist() == [6, 6]


# A step and a reply at once

STEP: Step = Step(lambda update, state, now: (update.local, state))
REPLY: Reply = Reply(lambda update, state, now: (NextStart(10 * update.local), state))


def together(log: list[str], *, always: bool = True) -> Method:
    def apply(update: Update, view: ServerView) -> tuple[Tensor, NextStart] | None:
        log.append("both")
        return (update.local, NextStart(10 * update.local)) if always else None

    return Method("both", step=STEP, reply=REPLY, step_and_reply=StepAndReply(STEP, REPLY, apply))


def arrived(method: Method) -> Server:
    server = Server(method, vec(0, 0), layout=LAYOUT, n_clients=2, seed=0)
    ticket = server.hand_out(0, 0.0)
    assert server.receive(ticket.number, LocalResult(vec(1, 2), 1, 1, 0.5), 1.0).stepped
    return server


@pytest.mark.parametrize("always", [True, False])
def test_a_step_and_reply_at_once_comes_to_the_same(always: bool) -> None:
    log: list[str] = []
    one, other = arrived(together(log, always=always)), arrived(Method("both", step=STEP, reply=REPLY))
    assert log == ["both"]
    assert (one.version, one.decisions, one.meter.held) == (other.version, other.decisions, other.meter.held)
    for server in (one, other):
        assert server.weights.tolist() == [1, 2]
        assert server.starts[0].weights.tolist() == [10, 20]
        assert server.starts[0].anchor is server.weights
        assert server.starts[0].version == 1


def test_it_is_not_used_for_an_update_that_a_part_before_the_step_has_changed() -> None:
    log: list[str] = []
    correct = stateless(lambda update, now: update.replace(delta=2 * update.delta))
    server = arrived(replace(together(log), correct=correct))
    assert log == []
    assert server.weights.tolist() == [2, 4]
    assert server.starts[0].weights.tolist() == [10, 20], "the reply is to the update as it came"


@pytest.mark.parametrize("changes", [{"step": ADD}, {"reply": SEND_GLOBAL}])
def test_it_is_dropped_where_the_step_or_the_reply_is_another(changes: dict[str, Any]) -> None:
    method = together([])
    assert replace(method, name="other").step_and_reply is method.step_and_reply
    assert replace(method, **changes).step_and_reply is None
