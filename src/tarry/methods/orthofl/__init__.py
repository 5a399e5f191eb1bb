"""OrthoFL: Orthogonal Calibration for Asynchronous Federated Learning.

    server   W(t+)   = (1 − β_t) W(t) + β_t W_m(t),   β_t = β s^(−a),  s = t − τ ≥ 1          Eq. 3
    client   Δ_m     = W_m(t) − W_m(τ+)               what the client did                      Eq. 4
             Δ       = W(t)  − W(τ+)                  what the other clients did meanwhile     Eq. 5
             Δ⊥_l    = Δ_l − (Δ_l·Δ_m,l / Δ_m,l·Δ_m,l) Δ_m,l     layer by layer                Eq. 6
             W_m(t+) = W_m(t) + Δ⊥                    its next start                           Eq. 7

W(τ+) is the ticket's anchor, W_m(τ+) the weights that were sent; s is the ticket's staleness + 1. A layer is one
parameter tensor. A layer that the client did not move is not projected. At its first visit a client gets W. A client
whose visit was lost gets the same start again. BatchNorm statistics have no direction: they mix into W like weights,
and the client keeps its own.

App. B also names a variant in which clients store W(τ+) and send it back, so that the server needs no copy. It is not
offered: it changes no number, doubles the traffic both ways, and the server here keeps the weights of its tickets
anyway. Clients that store W(τ+) and use it themselves are `placement=client`.

Eq. 3 is `mix` of parts.step, Eq. 4 to 7 are `calibrate` of parts.project. Algorithm 2, the ablations and the authors'
released code are in the file `variants`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from ...core.errors import BadInput
from ...core.method import Method, ServerView, StepAndReply
from ...core.parts import Reply
from ...core.search_space import Range
from ...core.tickets import NextStart, Update
from ...parts.project import Projection, calibrate, calibrate_and_mix
from ...parts.staleness import Decay, polynomial
from ...parts.step import mix
from ...vector.blocks import large
from ..registry import methods
from .variants import Ablation, Capable, Placement, Variant

__all__ = ["orthofl"]


def algorithm_1(beta: float, s: Decay, by: Projection) -> StepAndReply:
    """Algorithm 1: the server mixes, calibrates and sends W_m(t+)."""
    step = mix(beta, s)  # Eq. 3

    def reply(update: Update, state: None, view: ServerView) -> tuple[NextStart, None]:
        return NextStart(calibrate(update, view.weights, layout=view.layout, by=by)), state  # Eq. 4 to 7

    def both(update: Update, view: ServerView) -> tuple[Tensor, NextStart] | None:
        """The same in one pass over memory, for a large model."""
        beta_t = beta * s(update.staleness) * update.weight
        if beta_t > 1 or not large(view.weights) or update.endpoint is not None:
            return None
        start, new = calibrate_and_mix(update, view.weights, beta_t, layout=view.layout, by=by)
        return new, NextStart(start)

    return StepAndReply(step, Reply(reply), both)


@methods.register(
    "orthofl",
    paper="Orthogonal Calibration for Asynchronous Federated Learning",
    use="Clients whose data differ and whose speeds differ a hundredfold: the slow ones keep what they learned.",
    space={"beta": Range(0.2, 0.8), "a": Range(0.3, 0.7)},
)
def orthofl(
    *,
    beta: Annotated[float, "mixing weight of a fresh update"] = 0.6,
    a: Annotated[float, "how fast it falls with staleness: β s^(−a)"] = 0.5,
    projection: Annotated[
        Projection, "Eq. 6 by layer, over the whole vector, or not at all (shift added whole)"
    ] = "layer",
    placement: Annotated[Placement, "who calibrates: Algorithm 1, Algorithm 2, or some each; same numbers"] = "server",
    share: Annotated[float, "hybrid: the share of clients that calibrate themselves"] = 0.5,
    capable: Annotated[Capable, "hybrid: these are the first by number, or the first to send an update"] = "index",
    ablation: Annotated[
        Ablation, "Fig. 3: w/o calibration is FedAsync; w/o moving average; pairwise projection"
    ] = "none",
    state: Annotated[Literal["paper", "reference"], "the paper's equations, or what the authors' code does"] = "paper",
) -> Method:
    """Keep global and client weights apart; send a client the others' progress orthogonal to its own.

    `state="reference"` follows the authors' released code: one calibrated model V for all clients, and W, which is only
    evaluated, mixed from the arrivals; normalization layers keep the client's value in V. It knows no placement and no
    ablation. `pairwise` is one sentence in the paper; our reading: the global step is Eq. 3 unchanged, and the client
    starts from what was sent + Δ + its own update without the span of the other clients' latest updates.
    """
    _check(share, placement, ablation, state)
    s = polynomial(a)
    variant = Variant(beta, s, projection)
    if state == "reference":
        return variant.released_code()
    if ablation != "none":
        return variant.ablation(ablation)
    if placement != "server":
        return variant.on_clients(1.0 if placement == "client" else share, capable)
    both = algorithm_1(beta, s, projection)
    return Method("orthofl", staleness=variant.staleness, step=both.step, reply=both.reply, step_and_reply=both)


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
