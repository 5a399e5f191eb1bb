"""What goes out and what comes back.

    Ticket    the server's receipt of a hand-out; staleness is read off it, never believed from a client
    Update    what came of it, with its ticket beside it
    Start     what a client gets next when that is not simply the global weights of the moment

Staleness is defined once: the number of server steps between hand-out and arrival, 0 = fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

__all__ = ["NOTHING", "Start", "Ticket", "Update"]

NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True, slots=True)
class Ticket:
    """One hand-out. Tensors are shared by reference and never written to."""

    number: int  # counts hand-outs, all clients
    client: int
    visit: int  # counts this client's hand-outs
    version: int  # server steps made when `anchor` was the global
    time: float
    sent: Tensor  # the weights the client was given
    anchor: Tensor  # the global weights then
    payload: Mapping[str, Tensor] = field(default_factory=dict)  # what travelled along


@dataclass(frozen=True)
class Update:
    """One client's answer, or several put together by an aggregate part (the ticket is then the last one's)."""

    ticket: Ticket
    delta: Tensor  # result − sent: points downhill
    n_examples: int
    n_steps: int
    staleness: int
    loss: float = float("nan")
    weight: float = 1.0  # what a correct part makes of staleness
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def local(self) -> Tensor:
        """The client's weights at the end of its training."""
        return self.ticket.sent + self.delta


@dataclass(frozen=True, slots=True)
class Start:
    """A client's own next start, made when its update came; `anchor` and `version` are of the moment right after."""

    weights: Tensor
    payload: Mapping[str, Tensor] = field(default_factory=dict)
    anchor: Tensor | None = None
    version: int = 0
