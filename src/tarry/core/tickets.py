"""Records that travel between the server and its clients.

    Ticket    the server's record of a hand-out; staleness is computed from it, never from what a client reports
    Update    the result of a visit, with its ticket
    NextStart a client's own next start, in place of the global weights of the moment
    TicketExtras what a part adds to a hand-out
    VisitJob       a visit to train; LocalResult: its result

Staleness is the number of server steps between hand-out and arrival; 0 = fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from .one_line import one_line
from .schedule import ScheduleInput

__all__ = [
    "CONTROL",
    "DIFFERENCE",
    "NOTHING",
    "LocalResult",
    "NextStart",
    "Ticket",
    "TicketExtras",
    "Update",
    "VisitJob",
]

NOTHING: Mapping[str, Tensor] = MappingProxyType({})
#: the extra that carries a control point's displacement from the midpoint, φ − (Θ + Θ_i)/2
CONTROL = "control"
#: the extra of clients whose delta is not their final weights minus the weights they were sent
DIFFERENCE = "difference"


class Ticket(NamedTuple):
    """One hand-out. Its tensors are shared by reference and never written to.

    >>> weights = torch.zeros(3)
    >>> tarry.Ticket(number=7, client=2, visit=1, version=5, time=12.0, sent=weights, anchor=weights)
    Ticket(number=7, client=2, visit=1, version=5, time=12, sent=tensor[3], anchor=tensor[3])
    """

    number: int  # counts hand-outs, all clients
    client: int
    visit: int  # counts this client's hand-outs
    version: int  # server steps made when `anchor` was the global
    time: float
    sent: Tensor  # the weights the client was given
    anchor: Tensor  # the global weights then
    payload: Mapping[str, Tensor] = NOTHING  # sent with the weights
    from_reply: bool = False  # `sent` is the client's own start, made by the reply to its last update

    def __repr__(self) -> str:
        return one_line(self)

    @property
    def schedule_input(self) -> ScheduleInput:
        """The server steps, the visit and the time, on which the learning rate of the visit may depend.

        >>> weights = torch.zeros(3)
        >>> tarry.Ticket(7, 2, visit=1, version=5, time=12.0, sent=weights, anchor=weights).schedule_input
        ScheduleInput(version=5, visit=1, time=12.0)
        """
        return ScheduleInput(self.version, self.visit, self.time)


class _UpdateFields(NamedTuple):
    ticket: Ticket
    delta: Tensor  # result − sent: points downhill
    n_examples: int
    n_steps: int
    staleness: int
    loss: float = float("nan")
    weight: float = 1.0  # set by a correct part, from the staleness
    extras: Mapping[str, Tensor] = NOTHING
    endpoint: Tensor | None = None  # the client's weights, if sent + delta does not give them to the bit


class Update(_UpdateFields):
    """One client's update, or the mean of several from an aggregate part (its ticket is then one of that moment).

    Fields: ticket, delta (result − sent), n_examples, n_steps, staleness, loss, weight, extras, endpoint.

    >>> ticket = tarry.Ticket(7, 2, 1, 5, 12.0, sent=torch.ones(2), anchor=torch.ones(2))
    >>> update = tarry.Update(ticket, delta=torch.tensor([0.5, 0.0]), n_examples=40, n_steps=5, staleness=1)
    >>> update.local
    tensor([1.5000, 1.0000])
    """

    def __repr__(self) -> str:
        return one_line(self, client=self.ticket.client)

    @cached_property
    def local(self) -> Tensor:
        """The client's weights at the end of its training.

        >>> ticket = tarry.Ticket(7, 2, 1, 5, 12.0, sent=torch.tensor([1.0, 2.0]), anchor=torch.zeros(2))
        >>> tarry.Update(ticket, torch.tensor([0.5, -1.0]), n_examples=40, n_steps=5, staleness=0).local
        tensor([1.5000, 1.0000])
        """
        return self.ticket.sent + self.delta if self.endpoint is None else self.endpoint

    def replace(self, **changes: Any) -> Update:
        """Return a copy with some fields changed. The endpoint is not copied: it may not fit the changed fields.

        >>> ticket = tarry.Ticket(7, 2, 1, 5, 12.0, sent=torch.zeros(2), anchor=torch.zeros(2))
        >>> update = tarry.Update(ticket, torch.ones(2), n_examples=40, n_steps=5, staleness=3)
        >>> update.replace(weight=1 / (1 + update.staleness)).weight
        0.25
        """
        return self._replace(**{"endpoint": None, **changes})


class NextStart(NamedTuple):
    """A client's own next start, made at its arrival; the server fills in `anchor` and `version` after its step.

    >>> own_weights = tarry.stateless(lambda update, view: tarry.NextStart(update.local))
    >>> method = tarry.methods["fedasync"]().compose(reply=own_weights)
    >>> tarry.run(method, "digits", clients=3, updates=5).updates
    5
    """

    weights: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    anchor: Tensor | None = None
    version: int = 0

    def __repr__(self) -> str:
        return one_line(self)


class TicketExtras(NamedTuple):
    """Additions of a server part to a hand-out: a payload, and weights in place of the global ones (None: those).

    >>> momentum = torch.zeros(3)
    >>> tarry.TicketExtras(payload={"momentum": momentum})
    TicketExtras(payload={'momentum': tensor[3]})
    """

    payload: Mapping[str, Tensor] = NOTHING
    weights: Tensor | None = None

    def __repr__(self) -> str:
        return one_line(self)


class VisitJob(NamedTuple):
    """A visit to train: everything that its result depends on."""

    number: int
    client: int
    visit: int
    sent: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    memory: Mapping[str, Tensor] = NOTHING
    version: int = 0  # server steps made when `anchor` was the global
    time: float = 0.0  # of the hand-out

    @property
    def schedule_input(self) -> ScheduleInput:
        """The server steps, the visit and the time, on which the learning rate of the visit may depend."""
        return ScheduleInput(self.version, self.visit, self.time)


class LocalResult(NamedTuple):
    """The result of a visit. `finite` is checked in the process that trained."""

    delta: Tensor
    n_examples: int
    n_steps: int
    loss: float  # mean over the steps
    finite: bool = True
    extras: Mapping[str, Tensor] = NOTHING  # travels to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    notes: Mapping[str, Tensor] = NOTHING  # for diagnostics
