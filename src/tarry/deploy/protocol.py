"""How a ticket is put into a letter, and an answer read: for clients of ours, and for any Flower app.

Own     the flat vector and what the method sends along; back come a delta, extras and the ticket's token
Plain   the model's tensors by name; back come the same tensors and `num-examples`, as any Flower app answers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite, nan
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ..core.errors import BadInput
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.method import Method
from ..core.tickets import LocalResult, Ticket
from .server.open_tickets import Held
from .wire import Array, Form, Letter, Refused, Return, Word, opened, said

__all__ = ["Answer", "Own", "Plain", "Speech", "check_plain"]

_MOST_EXAMPLES = 10**12
_PARTS = ("correct", "aggregate", "step", "reply", "dispatch")
EXTRA, PAYLOAD = "extra.", "payload."


class Answer(NamedTuple):
    """What a client came back with; `took`: the seconds it says it worked, for the record alone."""

    trained: LocalResult
    keeps: bool = False  # it remembers something of this visit
    took: float | None = None
    forgot: bool = False  # what it should have remembered was gone


class Speech(Protocol):
    """How to talk to clients."""

    greets: bool  # whether clients can say who they are
    tokens: bool  # whether they hand tokens back

    def order(self, ticket: Ticket, held: Held, *, node: int, kept: int, ttl: float) -> Letter: ...

    def question(self, weights: torch.Tensor, *, node: int, client: int, ttl: float) -> Letter: ...

    def answer(self, back: Return, ticket: Ticket) -> Answer:
        """Raise Refused where it is not what may come back. Numbers that are not finite are told, not refused."""


class Own:
    """To clients of ours. `knows`: a client's examples and steps a visit, where the server knows them."""

    greets = tokens = True

    def __init__(
        self,
        layout: Layout,
        rule: LocalRule,
        *,
        dtype: torch.dtype,
        federation: str,
        knows: Callable[[int], tuple[int, int]] | None = None,
    ):
        numbers = np.dtype(str(dtype).removeprefix("torch."))
        extras = frozenset(EXTRA + name for name in rule.gives)
        self._form = Form({"delta": (layout.size,)}, numbers, extras, layout.size)
        self._federation, self._knows = federation, knows

    def order(self, ticket: Ticket, held: Held, *, node: int, kept: int, ttl: float) -> Letter:
        words: dict[str, Word] = {
            "federation": self._federation,
            "number": ticket.number,
            "token": held.token,
            "client": ticket.client,
            "visit": ticket.visit,
            "version": ticket.version,
            "kept": kept,
        }
        payload = {PAYLOAD + k: v.detach().cpu().numpy() for k, v in ticket.payload.items()}
        return Letter(node, "train", words, {"weights": ticket.sent.detach().cpu().numpy(), **payload}, ttl)

    def question(self, weights: torch.Tensor, *, node: int, client: int, ttl: float) -> Letter:
        words: dict[str, Word] = {"federation": self._federation, "client": client}
        return Letter(node, "evaluate", words, {"weights": weights.detach().cpu().numpy()}, ttl)

    def answer(self, back: Return, ticket: Ticket) -> Answer:
        w = said(back.words, num_examples=int, num_steps=int, loss=float, took=float, keeps=bool, forgot=bool)
        if self._knows is not None and (w["num_examples"], w["num_steps"]) != self._knows(ticket.client):
            raise Refused(f"client {ticket.client} tells of {w['num_examples']} examples, {w['num_steps']} steps")
        found = opened(back.arrays, self._form)
        delta = torch.from_numpy(found.pop("delta"))
        extras = {name.removeprefix(EXTRA): torch.from_numpy(np.array(a)) for name, a in found.items()}
        trained = _trained(delta, w["num_examples"], w["num_steps"], w["loss"], extras)
        return Answer(trained, w["keeps"], w["took"], w["forgot"])


class Plain:
    """To any Flower app: `rest` are tensors of its model that are not trained, sent along as they were built."""

    greets = tokens = False

    def __init__(self, layout: Layout, names: list[str], rest: Mapping[str, Array], *, dtype: torch.dtype, lr: float):
        numbers = np.dtype(str(dtype).removeprefix("torch."))
        unread = {k: v.nbytes for k, v in rest.items()}
        self._form = Form({b.name: b.shape for b in layout.blocks}, numbers, ignored=unread)
        self._layout, self._names, self._rest, self._lr = layout, names, rest, lr

    def _arrays(self, weights: torch.Tensor) -> dict[str, Array]:
        views = {k: v.numpy() for k, v in self._layout.views(weights.detach().cpu()).items()}
        return {name: views.get(name, self._rest.get(name)) for name in self._names}  # type: ignore[misc]

    def order(self, ticket: Ticket, held: Held, *, node: int, kept: int, ttl: float) -> Letter:  # noqa: ARG002
        words: dict[str, Word] = {"server-round": ticket.version + 1, "lr": self._lr}
        return Letter(node, "train", words, self._arrays(ticket.sent), ttl)

    def question(self, weights: torch.Tensor, *, node: int, client: int, ttl: float) -> Letter:  # noqa: ARG002
        return Letter(node, "evaluate", {}, self._arrays(weights), ttl)

    def answer(self, back: Return, ticket: Ticket) -> Answer:
        n = said(back.words, num_examples=int)["num_examples"]
        found = opened(back.arrays, self._form)
        local = torch.cat(
            [torch.from_numpy(np.ascontiguousarray(found[b.name])).reshape(-1) for b in self._layout.blocks]
        )
        losses = [v for k in ("train_loss", "train-loss", "loss") if isinstance(v := back.words.get(k), float)]
        made = _trained(local - ticket.sent.cpu(), n, 1, 0.0, {})
        return Answer(made._replace(loss=losses[0] if losses else nan))


def _trained(delta: torch.Tensor, n: int, steps: int, loss: float, extras: dict[str, Any]) -> LocalResult:
    if not (1 <= n <= _MOST_EXAMPLES and 1 <= steps <= _MOST_EXAMPLES):
        raise Refused(f"{n} examples, {steps} steps")
    finite = isfinite(loss) and all(isfinite(t.sum().item()) for t in (delta, *extras.values()))
    return LocalResult(delta, n, steps, loss, finite, extras)


def check_plain(method: Method, label: str) -> None:
    """Raise BadInput where a method needs more of its clients than weights and a number of examples."""
    problems, rule = [], method.local
    if type(rule) is not LocalRule:
        problems.append(f"its clients train by a rule of their own ({type(rule).__name__})")
    reads = frozenset[str]().union(*(getattr(method, p).reads for p in _PARTS))
    demands = frozenset[str]().union(*(getattr(method, p).demands for p in _PARTS))
    for what, names in (("send back", reads | rule.gives), ("use", demands | rule.needs)):
        if names:
            problems.append(f"its clients must {what} {', '.join(sorted(names))}")
    if problems:
        raise BadInput(
            f"--method {label}: {'; '.join(problems)}, and a Flower app of one's own does no such thing: name "
            "tarry.deploy.client_app:app as clientapp, or take a method whose clients just train (fedasync, fedbuff, "
            "ca2fl, fadas, mifa, orthofl, fedecho ...)"
        )
