"""Local-only: every client trains alone, the baseline of personalised federated learning (FedSOL, Table 9).

    client   w_k ← plain training from w_k, visit after visit; at first from the first weights
    server   W = (1/N) Σ_k w_k                       of all N clients; nobody ever trains from it

There is no global model. What is tested as the answer is the mean of everybody's own model (who was not heard of yet
counts with the first weights; running statistics go 1/N of the way to a client's own at each arrival). The score that
tells is that of --personalise: of every client's own latest model, tuned for so many epochs more.

A client's model is kept for it as its next start, so the server here holds two models a client (its start, and what the
global was then); the bytes that are counted are those of sending it forth and back, which a deployment would not do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.method import Geodesic, Method, Now, Part, Personal
from ..core.ticket import Offer, Start, Update
from ..parts.manifold import line, travel
from ..parts.proximal import MOON
from .registry import methods

__all__ = ["local_only"]


def keep() -> Part[Update, Start | None]:
    """A client goes on from where it ended; it begins from the first weights whenever it first comes."""

    def apply(update: Update, state: dict[str, Any], _: Now) -> tuple[Start, dict[str, Any]]:
        return Start(update.local), state

    def offer(_: int, state: dict[str, Any], __: Now) -> Offer:
        return Offer(weights=state["first"])

    def fits(method: Method) -> str | None:
        contrasts = isinstance(getattr(method.local, "proximal", None), MOON)
        return "clients that receive their own previous model have nothing to contrast it with" if contrasts else None

    return Part(apply, lambda weights: {"first": weights}, offer, fits=fits)


def share(along: Geodesic = line) -> Part[Update, Tensor]:
    """W ← W + Δ_k / N: where clients go on from their own ends, the mean of all of them."""

    def apply(update: Update, state: None, now: Now) -> tuple[Tensor, None]:
        return travel(along, now, now.weights + now.moved(update), update.weight / now.n_clients, update), state

    return Part(apply, along=share)


@methods.register(
    "local-only",
    paper="Lee et al. 2024, FedSOL (Table 9), where it is the baseline of personalised learning",
    use="To see what federating is worth: clients that never learn from each other. Score it with --personalise.",
)
def local_only() -> Method:
    """Every client trains alone from the first weights; the answer is the mean of their models, used by nobody."""
    return Method("local-only", staleness="not used", step=share(), reply=keep(), personal=Personal(own=True))
