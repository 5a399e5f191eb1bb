"""OrthoFL otherwise than by Algorithm 1: calibration by the clients, the ablations of Fig. 3, the released code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...core.layout import Kind
from ...core.local_rule import Brief, Context, LocalRule, Outcome
from ...core.method import Method, Now
from ...core.parts import EACH_ARRIVAL, KEEP, MixStep, Reply, Step
from ...core.tickets import Offer, Start, Update
from ...parts.project import Projection, calibrate, orthogonal_component, orthogonal_to_span
from ...parts.staleness import Decay
from ...parts.step import mix

__all__ = ["Ablation", "Placement", "Variant"]

Placement = Literal["server", "client", "hybrid"]
Ablation = Literal["none", "no-calibration", "no-average", "pairwise"]
BETA = frozenset({"beta"})  # the payload β_t, for clients that calibrate themselves


@dataclass(frozen=True)
class Variant:
    """The variants of OrthoFL for one β, s and projection."""

    beta: float
    s: Decay
    by: Projection
    staleness = "s = τ + 1, τ = server steps since the client's last arrival (each is a step); mixing weight β s^(−a)"

    def on_clients(self, share: float) -> Method:
        """Algorithm 2 for the first clients, a share of all; Algorithm 1 for the rest."""
        return Method(
            "orthofl",
            staleness=self.staleness,
            local=SelfCalibrating(self.by),
            step=mix(self.beta, self.s),
            reply=mixed_placement(share, self.by, self.beta, self.s),
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


def mixed_placement(share: float, by: Projection, beta: float, s: Decay) -> Reply:
    """Algorithm 2 for the first clients, a share of all: they are sent W(t) and β_t. Algorithm 1 for the rest."""

    def apply(update: Update, state: None, now: Now) -> tuple[Start, None]:
        if update.ticket.client >= share * now.n_clients:
            return Start(calibrate(update, now.weights, layout=now.layout, by=by)), state
        beta_t = torch.tensor(beta * s(update.staleness), dtype=torch.float64)
        return Start(now.weights, {"beta": beta_t}), state

    def incompatibility(method: Method) -> str | None:
        at_once = method.aggregate is EACH_ARRIVAL and method.correct is KEEP
        if at_once and method.step.formula == MixStep(beta, s):
            return None
        return "orthofl's clients work W(t+) out by Eq. 3, which is not how W moves here"

    return Reply(apply, payload_keys=BETA, must_be_used=BETA, incompatibility=incompatibility)


@dataclass(frozen=True)
class SelfCalibrating(LocalRule):
    """Algorithm 2: the client keeps W_m, its last start and W(τ+); it computes W(t+) from W(t) and β_t itself."""

    by: Projection

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        memory, beta = brief.memory, brief.payload.get("beta")
        if beta is None or not memory:
            return brief.weights, {"start": brief.weights, "anchor": brief.weights}
        own = memory["own"] - memory["start"]  # Eq. 4
        shift = brief.weights - memory["anchor"]  # Eq. 5
        start = memory["own"] + orthogonal_component(shift, own, layout=brief.layout, by=self.by)  # Eq. 6, 7
        return start, {"start": start, "anchor": torch.lerp(brief.weights, memory["own"], beta.item())}  # Eq. 3

    @property
    def needs(self) -> frozenset[str]:
        return BETA

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:  # noqa: ARG002
        return Outcome(memory={"own": w, **context})


def calibrated_step(by: Projection) -> Step:
    """Fig. 3, without the moving average: W ← W_m(t+) of Eq. 7."""

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        return calibrate(update, now.weights, layout=now.layout, by=by), state

    return Step(apply)


def pairwise(by: Projection) -> Reply:
    """Fig. 3, pairwise: the shift stays whole; the client's update loses the span of the other clients' latest ones."""

    def apply(update: Update, latest: dict[int, Tensor], now: Now) -> tuple[Start, dict[int, Tensor]]:
        me = update.ticket.client
        others = [delta for client, delta in latest.items() if client != me]
        own = orthogonal_to_span(update.delta, others, layout=now.layout, by=by)
        shift = now.weights - update.ticket.anchor
        start = update.ticket.sent + own + orthogonal_component(shift, shift, layout=now.layout, by="none")
        return Start(start), {**latest, me: update.delta}

    return Reply(apply, lambda _: {})


def released_reply() -> Reply:
    """The released code: a second server model, V ← x + (V − V_m)⊥ along x − V_m, is what every client gets back."""

    def apply(update: Update, v: dict[str, Tensor], now: Now) -> tuple[Start, dict[str, Tensor]]:
        shift = v["V"] - update.ticket.sent
        new = update.local + orthogonal_component(shift, update.delta, layout=now.layout)
        for block in now.layout.layers:
            if block.kind is Kind.NORM:
                new[block.at] = update.local[block.at]
        return Start(new), {"V": new}

    def offer(_: int, v: dict[str, Tensor], __: Now) -> Offer:
        return Offer(weights=v["V"])  # W is never sent: a client gets V at its first visit too

    return Reply(apply, lambda weights: {"V": weights}, offer)


def released_step(beta: float, s: Decay) -> Step:
    """The released code's moving average: the very first arrival replaces W."""
    later = mix(beta, s)

    def apply(update: Update, state: Any, now: Now) -> tuple[Tensor, Any]:
        return (update.local, state) if now.version == 0 else later(update, state, now)

    return Step(apply)
