"""TWAFL: Communication-Efficient Federated Deep Learning with Layerwise Asynchronous Model Update and Temporally
Weighted Aggregation (Chen, Sun, Jin, IEEE TNNLS 2019). The temporally weighted aggregation of its ASTW.

    round t   a random cohort trains from W; each ω^k that arrives replaces the last one, timestamp^k = t
    server    W ← Σ_k (n_k / n) a^(−(t − timestamp^k)) ω^k         over all clients' latest models, a = e/2

Erratum: as printed the weights sum to less than 1 as soon as a client is absent, and W would shrink towards 0 with
every such round. Here they are divided by their sum, as in a public reproduction of the paper, whose text was not
available. a = 1 lets old models count in full; with all clients in every round t − timestamp^k = 0, and the server is
FedAvg's for every a.

A client without an arrival has no ω^k and does not count; a lost visit leaves ω^k and its timestamp unchanged. The sum
over all clients is updated in double precision: a round divides it by a, an arrival subtracts the old term and adds the
new one. Running statistics are averaged with the weights.

Left out: the paper's other half, which sends deep layers only in the last rounds of every cycle. It saves traffic, and
adds one more timestamp per client to the aggregation.

Fed-OGD's paper calls it ASTW and prints an update on arrival with weights e^(−βτ)/Σ_j e^(−βτ_j); here it is the
original's, in rounds.

On the server, in model sizes: N rows and 2 (the sum, in double precision) beside the global.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import e
from typing import Annotated

import torch

from ..core.client_table import ClientScalars
from ..core.errors import BadInput
from ..core.method import Method, ServerView
from ..core.parts import Aggregate
from ..core.search_space import Range
from ..core.tickets import CONTROL, Update
from ..parts.cached import RowCache, as_update
from ..parts.rounds import barrier
from .registry import methods

__all__ = ["twafl"]


@dataclass(frozen=True)
class LatestModels(RowCache):
    """Every client's latest model ω^k, with the weighted sum of all, and the updates of the round."""

    marks: ClientScalars = field(default_factory=ClientScalars)  # n_k and timestamp^k of every client
    mass: float = 0.0  # the sum of the weights
    count: int = 0
    examples: int = 0
    steps: int = 0


def latest_models(a: float) -> Aggregate:
    """Return an aggregate part: at the end of a round, step to the weighted mean of all clients' latest models.

    The weight of an update scales the weight of its model.
    """

    def apply(update: Update | None, state: LatestModels, view: ServerView) -> tuple[Update | None, LatestModels]:
        if update is not None:
            state = with_model(update, state, view)
        if view.in_flight or not state.count:
            return None, state
        mean = as_update(state.sum / state.mass - view.weights, view, state.examples, state.steps)
        return mean, LatestModels(state.rows, state.sum / a, state.marks, state.mass / a)

    def with_model(update: Update, state: LatestModels, view: ServerView) -> LatestModels:
        k, new, mass = update.ticket.client, update.n_examples * update.weight, state.mass
        total = torch.add(state.sum, update.local, alpha=new)
        if (old := state.rows.get(k)) is not None:
            n_k, timestamp = state.marks[k]
            counted = n_k * a ** (timestamp - view.version)
            total, mass = total.sub_(old, alpha=counted), mass - counted
        state.rows.put(k, update.local)
        state.marks[k] = (new, view.version)
        examples, steps = state.examples + update.n_examples, state.steps + update.n_steps
        return LatestModels(state.rows, total, state.marks, mass + new, state.count + 1, examples, steps)

    return Aggregate(apply, LatestModels.empty, dropped_extras=frozenset({CONTROL}))


@methods.register(
    "twafl",
    paper="Chen et al. 2019, Communication-Efficient Federated Deep Learning with Layerwise Asynchronous Model Update "
    "and Temporally Weighted Aggregation",
    use="Rounds of few clients out of many, whose data differ: absent clients count with their last models.",
    space={"a": Range(1.0, 2.72)},
)
def twafl(
    *,
    a: Annotated[
        float, "how fast a model fades: it counts a^(−rounds since it came); 1 = never; the paper's is e/2"
    ] = (e / 2),
) -> Method:
    """Synchronous rounds; the server averages every client's latest model, less the older it is."""
    if not a >= 1:
        raise BadInput(f"--method.a {a}: must be 1 or more (1: old models count in full)")
    return Method(
        "twafl",
        staleness="t − timestamp^k = server steps (rounds) since the client's latest model came; it weighs a^−(that)",
        aggregate=latest_models(a),
        dispatch=barrier(),
    )
