"""Variants of OrthoFL: calibration by the clients, the ablations of Fig. 3, the released code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...core.client_table import ClientScalars
from ...core.layout import Kind
from ...core.local_rule import Context, LocalRule, VisitInput, VisitOutput
from ...core.method import Method, ServerView
from ...core.parts import EACH_ARRIVAL, KEEP, MixStep, Reply, Step
from ...core.tickets import NextStart, TicketExtras, Update
from ...parts.project import Projection, calibrate, orthogonal_component, orthogonal_to_span
from ...parts.staleness import Decay
from ...parts.step import mix

__all__ = ["Ablation", "Capable", "Placement", "Variant"]

Placement = Literal["server", "client", "hybrid"]
Capable = Literal["index", "speed"]
Known = ClientScalars | None  # whether a client calibrates itself, where that goes by speed
Ablation = Literal["none", "no-calibration", "no-average", "pairwise"]
BETA = frozenset({"beta"})  # the payload β_t, for clients that calibrate themselves


@dataclass(frozen=True)
class Variant:
    """The variants of OrthoFL for one β, s and projection."""

    beta: float
    s: Decay
    by: Projection
    staleness = "s = τ + 1, τ = server steps since the client's last arrival (each is a step); mixing weight β s^(−a)"

    def on_clients(self, share: float, capable: Capable) -> Method:
        """Algorithm 2 for a share of all clients, the first or the fastest; Algorithm 1 for the rest."""
        return Method(
            "orthofl",
            staleness=self.staleness,
            local=SelfCalibrating(self.by),
            step=mix(self.beta, self.s),
            reply=mixed_placement(share, capable, self),
        )

    def ablation(self, name: Ablation) -> Method:
        """Fig. 3: without Eq. 4 to 7, without Eq. 3, or with a projection of the update in place of the shift's."""
        if name == "no-average":
            return Method("orthofl", staleness="not used", step=calibrated_step(self.by))
        step = mix(self.beta, self.s)
        if name == "no-calibration":
            return Method("orthofl", staleness=self.staleness, step=step)
        return Method("orthofl", staleness=self.staleness, step=step, reply=pairwise(self.by))

    def released_code(self) -> Method:
        """The authors' released code."""
        step, reply = released_step(self.beta, self.s), released_reply()
        return Method("orthofl-reference", staleness=self.staleness, step=step, reply=reply)


def mixed_placement(share: float, capable: Capable, how: Variant) -> Reply:
    """Algorithm 2 for a share of all clients: they are sent W(t) and β_t. Algorithm 1 for the rest.

    With "speed" these are the clients whose first updates arrive first. Who calibrates is decided at a client's first
    arrival, for good: it needs the global weights of its last start, which it has then.
    """

    def is_capable(client: int, known: Known, n: int) -> bool:
        if known is None:
            return client < share * n
        if client not in known:
            known[client] = len(known) < share * n
        return bool(known[client])

    def apply(update: Update, known: Known, view: ServerView) -> tuple[NextStart, Known]:
        if not is_capable(update.ticket.client, known, view.n_clients):
            return NextStart(calibrate(update, view.weights, layout=view.layout, by=how.by)), known
        beta_t = torch.tensor(how.beta * how.s(update.staleness), dtype=torch.float64)
        return NextStart(view.weights, {"beta": beta_t}), known

    def incompatibility(method: Method) -> str | None:
        at_once = method.aggregate is EACH_ARRIVAL and method.correct is KEEP
        if at_once and method.step.formula == MixStep(how.beta, how.s):
            return None
        return "orthofl's clients work W(t+) out by Eq. 3, which is not how W moves here"

    def init(_: Tensor) -> ClientScalars | None:
        return ClientScalars() if capable == "speed" else None

    return Reply(apply, init, payload_keys=BETA, must_be_used=BETA, incompatibility=incompatibility)


@dataclass(frozen=True)
class SelfCalibrating(LocalRule):
    """Algorithm 2: the client keeps W_m, its last start and W(τ+); it computes W(t+) from W(t) and β_t itself."""

    by: Projection

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        memory, beta = visit.memory, visit.payload.get("beta")
        if beta is None or not memory:
            return visit.weights, {"start": visit.weights, "anchor": visit.weights}
        own = memory["own"] - memory["start"]  # Eq. 4
        shift = visit.weights - memory["anchor"]  # Eq. 5
        start = memory["own"] + orthogonal_component(shift, own, layout=visit.layout, by=self.by)  # Eq. 6, 7
        return start, {"start": start, "anchor": torch.lerp(visit.weights, memory["own"], beta.item())}  # Eq. 3

    @property
    def required_payload(self) -> frozenset[str]:
        return BETA

    def finish(self, w: Tensor, context: Context, state: Any) -> VisitOutput:  # noqa: ARG002
        return VisitOutput(memory={"own": w, **context})


def calibrated_step(by: Projection) -> Step:
    """Fig. 3, without the moving average: W ← W_m(t+) of Eq. 7."""

    def apply(update: Update, state: None, view: ServerView) -> tuple[Tensor, None]:
        return calibrate(update, view.weights, layout=view.layout, by=by), state

    return Step(apply)


def pairwise(by: Projection) -> Reply:
    """Fig. 3, pairwise: the shift stays whole; the client's update loses the span of the other clients' latest ones."""

    def apply(update: Update, latest: dict[int, Tensor], view: ServerView) -> tuple[NextStart, dict[int, Tensor]]:
        me = update.ticket.client
        others = [delta for client, delta in latest.items() if client != me]
        own = orthogonal_to_span(update.delta, others, layout=view.layout, by=by)
        shift = view.weights - update.ticket.anchor
        start = update.ticket.sent + own + orthogonal_component(shift, shift, layout=view.layout, by="none")
        return NextStart(start), {**latest, me: update.delta}

    return Reply(apply, lambda _: {})


def released_reply() -> Reply:
    """The released code: a second server model, V ← x + (V − V_m)⊥ along x − V_m, is what every client gets back."""

    def apply(update: Update, v: dict[str, Tensor], view: ServerView) -> tuple[NextStart, dict[str, Tensor]]:
        shift = v["V"] - update.ticket.sent
        new = update.local + orthogonal_component(shift, update.delta, layout=view.layout)
        for block in view.layout.layers:
            if block.kind is Kind.NORM:
                new[block.at] = update.local[block.at]
        return NextStart(new), {"V": new}

    def offer(_: int, v: dict[str, Tensor], __: ServerView) -> TicketExtras:
        return TicketExtras(weights=v["V"])  # W is never sent: a client gets V at its first visit too

    return Reply(apply, lambda weights: {"V": weights}, offer)


def released_step(beta: float, s: Decay) -> Step:
    """The released code's moving average: the very first arrival replaces W."""
    later = mix(beta, s)

    def apply(update: Update, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        return (update.local, state) if view.version == 0 else later(update, state, view)

    return Step(apply)
