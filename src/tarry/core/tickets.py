"""What goes out and what comes back.

    Ticket    the server's receipt of a hand-out; staleness is read off it, never believed from a client
    Update    what came of it, with its ticket beside it
    Start     what a client gets next when that is not simply the global weights of the moment
    Offer     what a part adds to a hand-out
    Job       a visit to be trained; Trained: what came of it

Staleness is defined once: the number of server steps between hand-out and arrival, 0 = fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["NOTHING", "VisitJob", "Offer", "Start", "Ticket", "LocalResult", "Update"]

NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Ticket(NamedTuple):
    """One hand-out. Tensors are shared by reference and never written to."""

    number: int  # counts hand-outs, all clients
    client: int
    visit: int  # counts this client's hand-outs
    version: int  # server steps made when `anchor` was the global
    time: float
    sent: Tensor  # the weights the client was given
    anchor: Tensor  # the global weights then
    payload: Mapping[str, Tensor] = NOTHING  # what travelled along
    own: bool = False  # the start was the client's own, made by the reply to its last update


class _Update(NamedTuple):
    ticket: Ticket
    delta: Tensor  # result − sent: points downhill
    n_examples: int
    n_steps: int
    staleness: int
    loss: float = float("nan")
    weight: float = 1.0  # what a correct part makes of staleness
    extras: Mapping[str, Tensor] = NOTHING


class Update(_Update):
    """One client's answer, or several put together by an aggregate part (the ticket is then one of the moment).

    Fields: ticket, delta (result − sent), n_examples, n_steps, staleness, loss, weight, extras.
    """

    @cached_property
    def local(self) -> Tensor:
        """The client's weights at the end of its training."""
        return self.ticket.sent + self.delta

    @cached_property
    def aside(self) -> dict[str, Tensor]:
        """What one part of a method came by on its way, and a later one of this arrival need not work out again."""
        return {}

    def but(self, **changes: Any) -> Update:
        """The same update with some fields changed."""
        return Update(*self._replace(**changes))


class Start(NamedTuple):
    """A client's own next start, made when its update came; `anchor` and `version` are of the moment right after."""

    weights: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    anchor: Tensor | None = None
    version: int = 0


class Offer(NamedTuple):
    """What a server part adds to a hand-out, of the moment: a payload, and weights in the global's place."""

    payload: Mapping[str, Tensor] = NOTHING
    weights: Tensor | None = None


class VisitJob(NamedTuple):
    """A visit to be trained; everything its outcome depends on."""

    number: int
    client: int
    visit: int
    sent: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    memory: Mapping[str, Tensor] = NOTHING
    version: int = 0  # server steps made when the weights were the global


class LocalResult(NamedTuple):
    """What a visit came to. `finite` is found where the numbers are at hand: in the process that trained."""

    delta: Tensor
    n_examples: int
    n_steps: int
    loss: float  # mean over the steps
    finite: bool = True
    extras: Mapping[str, Tensor] = NOTHING  # travels to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    notes: Mapping[str, Tensor] = NOTHING  # for diagnostics
