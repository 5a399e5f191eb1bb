"""Your own client rule in one file: each client keeps its velocity from one visit to the next.

python -m tarry run --method examples/own_clients.py:lasting --method.momentum 0.5 --task digits --time 3000
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

import tarry


@dataclass(frozen=True)
class Lasting(tarry.LocalRule):
    """Momentum that continues from the last visit. `memory` is what a client keeps between visits."""

    momentum: float

    def begin(self, visit: Any) -> Any:
        velocity = visit.memory.get("velocity")
        if velocity is None:  # the first visit
            velocity = torch.zeros(visit.layout.n_params).to(visit.weights)
        return visit.weights, {"velocity": velocity}

    def init(self, w: Any, context: Any, model: Any) -> Any:
        return context["velocity"]

    def step(self, w: Any, batch: Any, context: Any, velocity: Any, model: Any) -> Any:
        gradient, loss = model.grad(w, batch)
        velocity = self.momentum * velocity + gradient  # never in place: a step does not own its inputs
        return w - model.optimizer.lr * velocity, velocity, loss

    def finish(self, w: Any, context: Any, velocity: Any) -> Any:
        return tarry.VisitOutput(memory={"velocity": velocity})


def lasting(*, momentum: Annotated[float, "momentum of a client, kept between visits"] = 0.5) -> tarry.Method:
    """FedAsync with clients that keep their momentum."""
    return replace(tarry.methods.build("fedasync"), name="lasting", local=Lasting(momentum))


if __name__ == "__main__":
    for executor in ("inline", "batched"):  # the same rule in both executors
        result = tarry.run(lasting(), "digits", time=3000, lr=0.05, executor=executor)
        print(f"{executor:8} {result.final_accuracy:.3f}")
