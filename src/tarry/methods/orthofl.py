"""OrthoFL: Orthogonal Calibration for Asynchronous Federated Learning.

    server   W(t+)   = (1 − β_t) W(t) + β_t W_m(t),   β_t = β s^(−a),  s = t − τ ≥ 1          Eq. 3
    client   Δ_m     = W_m(t) − W_m(τ+)               what the client did                      Eq. 4
             Δ       = W(t)  − W(τ+)                  what the others did meanwhile            Eq. 5
             Δ⊥_l    = Δ_l − (Δ_l·Δ_m,l / Δ_m,l·Δ_m,l) Δ_m,l     layer by layer                Eq. 6
             W_m(t+) = W_m(t) + Δ⊥                    its next start                           Eq. 7

W(τ+) is the ticket's anchor, W_m(τ+) what was sent; s is the ticket's staleness + 1. A layer is one parameter tensor. A
layer the client did not move is not projected. First contact and late joiners get W. Whoever is lost is handed the same
start again. BatchNorm statistics are no direction: they mix into W like weights, and the client keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Kind
from ..core.local_rule import Brief, Context, LocalRule, Outcome
from ..core.method import Method, Now, Part, stateless
from ..core.tickets import Offer, Start, Update
from ..parts.project import Projection, complement, reject, shifted_beside
from ..parts.staleness import Decay, polynomial
from ..parts.step import mix
from ..vector.blocks import large
from .registry import methods

__all__ = ["orthofl"]

BETA = frozenset({"beta"})
START = "start"  # of a client, laid aside by the step
Placement = Literal["server", "client", "hybrid"]
Ablation = Literal["none", "no-calibration", "no-average", "pairwise"]


def calibrated(update: Update, now: Now, by: Projection) -> Tensor:
    """Eq. 5–7: the client's weights plus what the others did, less what of it lies along the client's own way."""
    return shifted_beside(update, now.weights, layout=now.layout, by=by)[0]


def on_server(by: Projection) -> Part[Update, Start | None]:
    """Algorithm 1: the server calibrates and sends W_m(t+)."""

    def apply(update: Update, now: Now) -> Start:
        made = update.aside.pop(START, None)
        return Start(calibrated(update, now, by) if made is None else made)

    return stateless(apply)


def averaged(beta: float, s: Decay, by: Projection) -> Part[Update, Tensor]:
    """Eq. 3; for a large model in one sweep with Eq. 5–7, which read the same vectors: the start is laid aside."""
    alone = mix(beta, s)

    def apply(update: Update, state: Any, now: Now) -> tuple[Tensor, Any]:
        t = beta * s(update.staleness) * update.weight
        if t > 1 or not large(now.weights) or "local" in update.__dict__:
            return alone(update, state, now)
        update.aside[START], new = shifted_beside(update, now.weights, layout=now.layout, by=by, mixing=t)
        assert new is not None
        return new, state

    return replace(alone, apply=apply)


def by_placement(
    placement: Placement, share: float, by: Projection, beta: float, s: Decay
) -> Part[Update, Start | None]:
    """Algorithm 1 or 2, client by client: those that calibrate themselves are sent W(t) and β_t instead."""

    def apply(update: Update, now: Now) -> Start | None:
        if placement == "hybrid" and update.ticket.client >= share * now.n_clients:
            return Start(calibrated(update, now, by))
        beta_t = torch.tensor(beta * s(update.staleness), dtype=torch.float64)
        return Start(now.weights, {"beta": beta_t})

    def fits(method: Method) -> str | None:
        plain = Method("plain")
        by_eq_3 = method.step.formula == ("mix", beta, s)
        at_once = method.aggregate.apply is plain.aggregate.apply and method.correct.apply is plain.correct.apply
        return (
            None if by_eq_3 and at_once else "orthofl's clients work W(t+) out by Eq. 3, which is not how W moves here"
        )

    return replace(stateless(apply), sends=BETA, demands=BETA, fits=fits)


@dataclass(frozen=True)
class SelfCalibrating(LocalRule):
    """Algorithm 2: the client keeps W_m, its last start and W(τ+); it derives W(t+) from W(t) and β_t itself."""

    by: Projection

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        kept, beta = brief.memory, brief.payload.get("beta")
        if beta is None or not kept:
            return brief.weights, {"start": brief.weights, "anchor": brief.weights}
        shift, moved = brief.weights - kept["anchor"], kept["own"] - kept["start"]
        start = kept["own"] + reject(shift, moved, layout=brief.layout, by=self.by)
        return start, {"start": start, "anchor": torch.lerp(brief.weights, kept["own"], beta.item())}

    @property
    def needs(self) -> frozenset[str]:
        return BETA

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:  # noqa: ARG002
        return Outcome(memory={"own": w, **context})


def pairwise(by: Projection) -> Part[Update, Start | None]:
    """Fig. 3's variant: the shift stays whole; the client's update loses the span of the others' latest ones."""

    def apply(update: Update, latest: dict[int, Tensor], now: Now) -> tuple[Start, dict[int, Tensor]]:
        me = update.ticket.client
        others = [d for c, d in latest.items() if c != me]
        own = complement(update.delta, others, layout=now.layout, by=by)
        shift = now.weights - update.ticket.anchor
        start = update.ticket.sent + own + reject(shift, shift, layout=now.layout, by="none")
        return Start(start), {**latest, me: update.delta}

    return Part(apply, lambda _: {})


def reference_reply() -> Part[Update, Start | None]:
    """The released code: a second server model, V ← x + reject(V − V_m; x − V_m), is what every client gets back."""

    def apply(update: Update, v: dict[str, Tensor], now: Now) -> tuple[Start, dict[str, Tensor]]:
        new = update.local + reject(v["V"] - update.ticket.sent, update.delta, layout=now.layout)
        for block in now.layout.layers:
            if block.kind is Kind.NORM:
                new[block.at] = update.local[block.at]
        return Start(new), {"V": new}

    def offer(_: int, v: dict[str, Tensor], __: Now) -> Offer:
        return Offer(weights=v["V"])  # W is never handed out: a client at first contact gets V too

    return Part(apply, lambda weights: {"V": weights}, offer)


def reference_step(beta: float, s: Decay) -> Part[Update, Tensor]:
    """The released code's moving average: the very first arrival replaces W."""
    later = mix(beta, s)

    def apply(update: Update, state: Any, now: Now) -> tuple[Tensor, Any]:
        return (update.local, state) if now.version == 0 else later(update, state, now)

    return Part(apply)


@methods.register(
    "orthofl",
    paper="Orthogonal Calibration for Asynchronous Federated Learning",
    use="Clients whose data differ and whose speeds differ a hundredfold: the slow ones keep what they learnt.",
)
def orthofl(
    *,
    beta: Annotated[float, "mixing weight of a fresh update"] = 0.6,
    a: Annotated[float, "how fast it falls with staleness: β s^(−a)"] = 0.5,
    projection: Annotated[
        Projection, "Eq. 6 by layer, over the whole vector, or not at all (shift added whole)"
    ] = "layer",
    placement: Annotated[Placement, "who calibrates: Algorithm 1, Algorithm 2, or some each; same numbers"] = "server",
    share: Annotated[float, "hybrid: the share of clients that calibrate themselves (the first ones)"] = 0.5,
    ablation: Annotated[
        Ablation, "Fig. 3: w/o calibration is FedAsync; w/o moving average; pairwise projection"
    ] = "none",
    state: Annotated[Literal["paper", "reference"], "the paper's equations, or what the authors' code does"] = "paper",
) -> Method:
    """Keep global and client weights apart; send a client the others' progress orthogonal to its own.

    `state="reference"` follows the authors' released code: one calibrated model V for all clients, and W, which is only
    evaluated, mixed from the arrivals; normalisation layers keep the client's value in V. It knows no placement and no
    ablation. `pairwise` is one sentence in the paper; our reading: the global step is Eq. 3 unchanged, and the client
    starts from what was sent + Δ + its own update without the span of the other clients' latest updates.
    """
    _check(share, placement, ablation, state)
    s = polynomial(a)
    name = "orthofl" if state == "paper" else "orthofl-reference"
    words = "s = τ + 1, τ = server steps since the client's last arrival (each is a step); mixing weight β s^(−a)"
    step = mix(beta, s)
    if state == "reference":
        return Method(name, staleness=words, step=reference_step(beta, s), reply=reference_reply())
    if ablation == "no-calibration":
        return Method(name, staleness=words, step=step)
    if ablation == "no-average":
        return Method(name, staleness="not used", step=stateless(lambda u, now: calibrated(u, now, projection)))
    if ablation == "pairwise":
        return Method(name, staleness=words, step=step, reply=pairwise(projection))
    if placement == "server":
        return Method(name, staleness=words, step=averaged(beta, s, projection), reply=on_server(projection))
    reply = by_placement(placement, share, projection, beta, s)
    return Method(name, staleness=words, local=SelfCalibrating(projection), step=step, reply=reply)


def _check(share: float, placement: str, ablation: str, state: str) -> None:
    problems = []
    if not 0 <= share <= 1:
        problems.append(f"--method.share {share}: must be between 0 and 1")
    if state == "reference" and (placement != "server" or ablation != "none"):
        problems.append("--method.state reference: the released code calibrates on the server and has no ablations")
    if ablation != "none" and placement != "server":
        problems.append(f"--method.ablation {ablation} --method.placement {placement}: ablations run on the server")
    if problems:
        raise BadInput(problems)
