"""Clients of your own in one file: each keeps its velocity from one visit to the next.

python -m tarry run --method examples/own_clients.py:lasting --method.momentum 0.5 --task digits --time 3000
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

import tarry


@dataclass(frozen=True)
class Lasting(tarry.LocalRule):
    """Momentum that does not begin anew: `memory` is what a client kept, and what it keeps."""

    momentum: float

    def begin(self, brief: Any) -> Any:
        kept = brief.memory.get("velocity")
        velocity = torch.zeros(brief.layout.n_params).to(brief.weights) if kept is None else kept
        return brief.weights, {"velocity": velocity}

    def init(self, w: Any, context: Any, f: Any) -> Any:
        return context["velocity"]

    def step(self, w: Any, batch: Any, context: Any, velocity: Any, f: Any) -> Any:
        gradient, loss = f.grad(w, batch)
        velocity = self.momentum * velocity + gradient  # never in place: others may hold what a step is given
        return w - f.optimizer.lr * velocity, velocity, loss

    def finish(self, w: Any, context: Any, velocity: Any) -> Any:
        return tarry.VisitOutput(memory={"velocity": velocity})


def lasting(*, momentum: Annotated[float, "of a client, from visit to visit"] = 0.5) -> tarry.Method:
    """FedAsync with clients whose momentum lasts."""
    return replace(tarry.methods.build("fedasync"), name="lasting", local=Lasting(momentum))


if __name__ == "__main__":
    for executor in ("inline", "batched"):  # one rule for both
        result = tarry.run(lasting(), "digits", time=3000, lr=0.05, executor=executor)
        print(f"{executor:8} {result.final_accuracy:.3f}")
