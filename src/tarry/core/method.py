"""A federated method: a name, a client rule, and five server parts with plain defaults.

    local      LocalRule                            what a client does in a step
    correct    Update → Update                      staleness weights, delay correction
    aggregate  Update | None → Update | None        each arrival, buffer, round
    step       Update → new global weights          add, mix, ...
    reply      Update → NextStart | None            the client's next start
    dispatch   IdleClients → clients                which idle clients get work now

A simulator and a deployment run the same record (core.server). Parts are described in core.parts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import rng
from .idle_clients import IdleClients
from .layout import Layout
from .local_rule import ClientModel, LocalRule
from .one_line import function_name, one_line
from .parts import ADD, EACH_ARRIVAL, KEEP, REFILL, SEND_GLOBAL, Aggregate, Correct, Dispatch, Part, Reply, Step
from .printable import html_text
from .schedule import RateSchedule, ScheduleInput, ServerScheduleInput
from .task import Examples
from .tickets import NextStart, Ticket, Update

__all__ = [
    "Geodesic",
    "Method",
    "Personalization",
    "Predict",
    "RunLimits",
    "ServerModel",
    "ServerView",
    "StepAndReply",
    "name_of_part",
]


class RunLimits(NamedTuple):
    """The limits of a run that are known at its beginning: its budget (None: unlimited) and its learning rates."""

    time: float | None = None
    updates: int | None = None
    rounds: int | None = None
    schedule: RateSchedule | None = None  # of the clients' learning rate; None: constant


class ServerModel(Protocol):
    """The model on the server, for inputs without labels. It runs in eval mode: no dropout, fixed statistics."""

    inputs: Tensor  # the unlabeled set
    mask: Tensor | None  # the token positions that count; None: all
    distill_lr: float | None  # the task's learning rate for distillation; None: it names none

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        """Return the model's outputs at a whole vector (weights and statistics)."""

    def grad(self, vec: Tensor, x: Tensor, objective: Callable[[Tensor], Tensor], /) -> tuple[Tensor, Tensor]:
        """Return the gradient of objective(outputs) over the trained weights, and its value."""


#: start Θ, end Θ̂, t, update → γ(t), a curve with γ(0) = Θ and γ(1) = Θ̂ along which a server step goes
Geodesic = Callable[[Tensor, Tensor, float, Update], Tensor]


class ServerView(NamedTuple):
    """A read-only view of the server at the moment of an arrival or another decision.

    >>> def look(update, view):
    ...     print(view.time, view.version, view.in_flight)
    ...     return update
    >>> method = tarry.Method("watched", correct=tarry.stateless(look))
    >>> result = tarry.run(method, "digits", clients=2, delay=[3, 5], updates=3)
    3.0 0 1
    5.0 1 1
    6.0 2 1
    """

    weights: Tensor  # the global weights, before this arrival changes them
    layout: Layout
    version: int  # server steps so far
    time: float
    in_flight: int  # tickets still out
    n_clients: int
    stream: int  # the key of the server's random draws
    decision: int  # decisions so far
    accepted: int = 0  # accepted updates so far
    limits: RunLimits = RunLimits()
    model: ServerModel | None = None
    notes: dict[str, Any] | None = None  # parts write diagnostics of this arrival into it; None: none are collected
    busy_since: float = 0.0  # the time since which at least one client has been training without a break

    def __repr__(self) -> str:
        return one_line(self)

    @property
    def progress(self) -> float:
        """The share of the budget that was used before this update, from 0 to 1 (0 if the run has no budget).

        Updates and server steps are counted alike: neither counts the update that has just arrived.

        >>> progress = []
        >>> def look(update, view):
        ...     progress.append(view.progress)
        ...     return update
        >>> method = tarry.Method("watched", correct=tarry.stateless(look))
        >>> result = tarry.run(method, "digits", clients=2, updates=4)
        >>> progress
        [0.0, 0.25, 0.5, 0.75]
        """
        h = self.limits
        used = ((self.time, h.time), (self.accepted - 1, h.updates), (self.version, h.rounds))
        return min(1.0, max((max(done, 0) / end for done, end in used if end), default=0.0))

    def rate(self, ticket: Ticket | None = None) -> float:
        """The clients' learning rate as a factor on --lr: of a ticket's visit, or at this moment.

        The rate at this moment is unknown under a schedule by clients' visits, and BadInput is raised.

        >>> rates = []
        >>> def look(update, view):
        ...     rates.append((view.rate(update.ticket), view.rate()))
        ...     return update
        >>> method = tarry.Method("watched", correct=tarry.stateless(look))
        >>> halved = "exponential:factor=0.5"
        >>> result = tarry.run(method, "digits", clients=2, delay=[1, 1.5], updates=3, lr_schedule=halved)
        >>> rates
        [(1.0, 1.0), (1.0, 0.5), (0.5, 0.25)]
        """
        if self.limits.schedule is None:
            return 1.0
        return self.limits.schedule(self.schedule_input if ticket is None else ticket.schedule_input)

    @property
    def schedule_input(self) -> ScheduleInput:
        """The server steps and the virtual time, on which the server's learning rate may depend.

        >>> inputs = []
        >>> def look(update, view):
        ...     inputs.append(view.schedule_input)
        ...     return update
        >>> method = tarry.Method("watched", correct=tarry.stateless(look))
        >>> result = tarry.run(method, "digits", clients=2, updates=2, delay=[1, 3])
        >>> [(at.version, at.time) for at in inputs]
        [(0, 1.0), (1, 2.0)]
        """
        return ServerScheduleInput(self.version, 0, self.time)

    @property
    def key(self) -> int:
        """The key for random draws of this decision (core.rng).

        >>> keys = []
        >>> def look(update, view):
        ...     keys.append(view.key)
        ...     return update
        >>> method = tarry.Method("watched", correct=tarry.stateless(look))
        >>> first, again = (tarry.run(method, "digits", clients=2, updates=3, seed=1) for _ in range(2))
        >>> len(set(keys[:3])), keys[:3] == keys[3:]
        (3, True)
        """
        return rng.extend(self.stream, self.decision)

    def displacement(self, update: Update) -> Tensor:
        """Return the displacement of an update: its delta; for running statistics, client's value − global value.

        A stale delta of a variance, added to a global that has changed since, could make it negative. A convex
        combination of two variances cannot be negative.

        >>> step = tarry.stateless(lambda update, view: view.weights + 0.5 * view.displacement(update))
        >>> method = tarry.Method("half", step=step)
        >>> tarry.run(method, "digits", clients=2, updates=3).rounds
        3
        """
        if not self.layout.stats:
            return update.delta
        n = self.layout.n_params
        return torch.cat([update.delta[:n], update.local[n:] - self.weights[n:]])


#: the global weights and the states of all parts by name → the weights that are evaluated and saved
OutputWeights = Callable[[Tensor, Mapping[str, Any]], Tensor]
#: a client's weights, its own examples, f → a function from inputs to outputs, in place of the model
Predict = Callable[[Tensor, Examples, ClientModel], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Personalization:
    """Personalization of the result of a run by every client (--personalize)."""

    tune: LocalRule = field(default_factory=LocalRule)  # the rule of its fine-tuning, on its own examples
    predict: Predict | None = None  # how it predicts afterwards; None = by the model
    own: bool = False  # it begins from its next start (or the weights it was last sent), not from the run's result


#: the new global weights and the client's next start from one update; None: call the step and the reply one by one
BothAtOnce = Callable[[Update, ServerView], tuple[Tensor, NextStart] | None]


class StepAndReply(NamedTuple):
    """A step and a reply without states that share one pass over the same vectors, with the same result to the bit."""

    step: Step
    reply: Reply
    apply: BothAtOnce


@dataclass(frozen=True, init=False, repr=False)
class Method:
    """A federated method: a name, what staleness means to it, a client rule and server parts with plain defaults.

    >>> step = tarry.stateless(lambda update, view: view.weights + 0.5 * update.delta)
    >>> method = tarry.Method("careful", step=step)
    >>> tarry.run(method, "digits", clients=3, updates=5).method
    'careful'
    >>> tarry.methods["fedbuff"](buffer=3)
    Method('fedbuff', correct=discount, aggregate=buffer, step=add)
    """

    name: str
    staleness: str
    local: LocalRule
    correct: Correct
    aggregate: Aggregate
    step: Step
    reply: Reply
    dispatch: Dispatch
    output_weights: OutputWeights | None  # None = the global weights
    needs_unlabeled: bool  # it needs a set of inputs without labels (view.model)
    wrapper: Callable[[Method], Method] | None  # a wrapper that it puts around any server: a distillation, ...
    inner: Method | None  # the method inside that wrapper
    as_correction: Correct | None  # the correct part that a cross takes from it, if not `correct`
    personalization: Personalization  # how its clients personalize the result
    step_and_reply: StepAndReply | None  # a faster way through its step and reply; dropped if either is replaced

    def __init__(
        self,
        name: str,
        staleness: str = "ignored",
        local: LocalRule | None = None,
        correct: Part[Update, Update] = KEEP,
        aggregate: Part[Update | None, Update | None] = EACH_ARRIVAL,
        step: Part[Update, Tensor] = ADD,
        reply: Part[Update, NextStart | None] = SEND_GLOBAL,
        dispatch: Part[IdleClients, list[int]] = REFILL,
        output_weights: OutputWeights | None = None,
        needs_unlabeled: bool = False,
        wrapper: Callable[[Method], Method] | None = None,
        inner: Method | None = None,
        as_correction: Part[Update, Update] | None = None,
        personalization: Personalization | None = None,
        step_and_reply: StepAndReply | None = None,
    ):
        if step_and_reply is not None and (step_and_reply.step is not step or step_and_reply.reply is not reply):
            step_and_reply = None
        vars(self).update(
            name=name,
            staleness=staleness,
            local=LocalRule() if local is None else local,
            correct=Correct.of(correct),
            aggregate=Aggregate.of(aggregate),
            step=Step.of(step),
            reply=Reply.of(reply),
            dispatch=Dispatch.of(dispatch),
            output_weights=output_weights,
            needs_unlabeled=needs_unlabeled,
            wrapper=wrapper,
            inner=inner,
            as_correction=None if as_correction is None else Correct.of(as_correction),
            personalization=Personalization() if personalization is None else personalization,
            step_and_reply=step_and_reply,
        )

    def compose(
        self,
        *,
        local: Method | LocalRule | None = None,
        correct: Method | Part[Update, Update] | None = None,
        aggregate: Method | Part[Update | None, Update | None] | None = None,
        step: Method | Part[Update, Tensor] | None = None,
        reply: Method | Part[Update, NextStart | None] | None = None,
        dispatch: Method | Part[IdleClients, list[int]] | None = None,
        distill: Method | None = None,
        manifold: Geodesic | None = None,
        name: str | None = None,
    ) -> Method:
        """Return this method with parts of others, like --local, --reply and so on of the command line.

        Each part is taken from a method, or is the part itself. `aggregate` also takes the dispatch of a method,
        `distill` its wrapper; the server steps along the curve `manifold`.

        >>> fedsol = tarry.methods["fedsol"](rho=1.0)
        >>> mine = tarry.methods["orthofl"]().compose(local=fedsol, name="orthosol")
        >>> in_python = tarry.run(mine, "digits", clients=3, updates=5)
        >>> by_settings = tarry.run("orthofl", "digits", local="fedsol:rho=1", clients=3, updates=5)
        >>> in_python.weights_sha256 == by_settings.weights_sha256
        True
        """
        from .compose import compose_parts  # it builds methods

        parts = {"local": local, "correct": correct, "aggregate": aggregate, "step": step, "reply": reply}
        given = {**parts, "dispatch": dispatch}
        return compose_parts(self, given, distill=distill, manifold=manifold, name=name)

    def __repr__(self) -> str:
        text = ", ".join([repr(self.name), *(f"{p}={what}" for p, what in self._own_parts().items())])
        return "\n".join(textwrap.wrap(f"Method({text})", 100, subsequent_indent="       ", max_lines=6))

    def _repr_html_(self) -> str:
        """Return a table of the parts that are not the default, for a notebook."""
        parts = self._own_parts() or {"all parts": "default"}
        rows = "".join(f"<tr><th>{html_text(p)}</th><td>{html_text(what)}</td></tr>" for p, what in parts.items())
        return f"<p><b>{html_text(self.name)}</b></p><table>{rows}</table>"

    def _own_parts(self) -> dict[str, str]:
        """Return the parts and properties that are not the default, as text."""
        parts = {"local": _format_rule(self.local)} if self.local != LocalRule() else {}
        parts |= {p: name_of_part(getattr(self, p)) for p, plain in _PLAIN.items() if getattr(self, p) is not plain}
        others = ("output_weights", "wrapper", "as_correction", "personalization")
        parts |= {p: "..." for p in others if getattr(self, p) not in (None, Personalization())}
        return parts | ({"needs_unlabeled": "True"} if self.needs_unlabeled else {})


#: the parts of a method that was given none
_PLAIN = {"correct": KEEP, "aggregate": EACH_ARRIVAL, "step": ADD, "reply": SEND_GLOBAL, "dispatch": REFILL}


def name_of_part(part: Part[Any, Any] | LocalRule) -> str:
    """Return the name of the function or class that made a part; of a client rule its class."""
    return function_name(part.apply if isinstance(part, Part) else type(part))


def _format_rule(rule: Any) -> str:
    """Return the class of a rule with its numbers and words that are not the default, and the rules inside it."""
    shown = []
    for f, value in ((f, getattr(rule, f.name)) for f in fields(rule)):
        if f.repr and is_dataclass(value):
            shown.append(f"{f.name}={_format_rule(value)}")
        elif f.repr and isinstance(value, int | float | str) and value != f.default:
            shown.append(f"{f.name}={value!r}")
    return f"{type(rule).__name__}({', '.join(shown)})"
