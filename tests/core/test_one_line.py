"""Records are shown in one line."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import tarry
from tarry.core.layout import Layout
from tarry.core.one_line import WIDTH, function_name
from tarry.parts.staleness import discount, polynomial


def test_every_record_that_travels_in_a_run_is_one_short_line() -> None:
    seen: list[Any] = []

    def see(update: tarry.Update, view: tarry.ServerView) -> tarry.Update:
        seen.extend([update, update.ticket, view])
        return update

    class Seeing(tarry.LocalRule):
        def begin(self, visit: tarry.VisitInput) -> Any:
            seen.append(visit)
            return super().begin(visit)

        def finish(self, w: Any, context: Any, state: Any) -> tarry.VisitOutput:
            seen.append(tarry.VisitOutput({"delta": w}))
            return seen[-1]

    method = tarry.Method("seeing", local=Seeing(), correct=tarry.stateless(see))
    tarry.run(method, "digits", updates=2, callbacks=[seen.append], progress=seen.append)
    kinds = {type(record).__name__ for record in seen}
    assert kinds == {"Update", "Ticket", "ServerView", "VisitInput", "VisitOutput", "Event", "Progress"}
    for record in seen:
        assert repr(record).startswith(f"{type(record).__name__}(")
        assert len(repr(record)) <= WIDTH
        assert "\n" not in repr(record)


def test_numbers_come_first_and_tensors_are_shown_by_their_shape() -> None:
    ticket = tarry.Ticket(5, 2, 0, 3, 12.5, torch.zeros(4), torch.zeros(4))
    update = tarry.Update(ticket, torch.ones(4), 40, 5, 1, loss=0.25)
    assert repr(ticket) == (
        "Ticket(number=5, client=2, visit=0, version=3, time=12.5, sent=tensor[4], anchor=tensor[4])"
    )
    assert repr(update).startswith("Update(client=2, n_examples=40, n_steps=5, staleness=1, loss=0.25, ticket=Ticket(")
    assert repr(tarry.TicketExtras({"c": torch.ones(2, 3)})) == "TicketExtras(payload={'c': tensor[2, 3]})"
    assert repr(tarry.VisitOutput()) == "VisitOutput()"
    assert repr(tarry.NextStart(torch.tensor(1.5))) == "NextStart(weights=1.5)"


def test_parts_are_shown_by_the_function_that_made_them() -> None:
    assert repr(tarry.Correct.of(discount(polynomial(0.5)))) == "Correct(apply=discount, only_scales=True)"
    assert repr(tarry.Part(print, payload_keys=frozenset("ba"))) == "Part(apply=print, payload_keys={'a', 'b'})"
    assert function_name(partial(partial(print, 1), 2)) == "print"
    assert function_name(tarry.methods.search) == "Registry"


def test_a_layout_is_shown_by_its_sizes() -> None:
    assert repr(Layout.of(nn.Linear(3, 2))) == "Layout(8 weights in 2 tensors)"
    with_statistics = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert repr(Layout.of(with_statistics)) == "Layout(12 weights in 4 tensors, 4 statistics in 2)"
