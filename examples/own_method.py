"""Your own method in one file: FedAsync that weights an update by its agreement with the last step.

python -m tarry run --method examples/own_method.py:agreeing --method.floor 0.2 --task digits --time 3000
"""

from typing import Annotated, Any

import torch

import tarry


def agreeing(
    *, alpha: Annotated[float, "largest mixing weight"] = 0.6, floor: Annotated[float, "smallest mixing weight"] = 0.1
):
    """Mix an update into the global weights by its cosine with the last server step."""

    def init(weights: torch.Tensor) -> dict[str, Any]:
        return {"last": torch.zeros_like(weights)}

    def apply(update: tarry.Update, state: dict[str, Any], view: tarry.ServerView):
        cosine = torch.cosine_similarity(update.delta, state["last"], dim=0).item()
        new = torch.lerp(view.weights, update.local, max(floor, alpha * cosine))
        return new, {"last": new - view.weights}

    return tarry.Method("agreeing", staleness="not used", step=tarry.Part(apply, init))


if __name__ == "__main__":
    comparison = tarry.compare([agreeing(), "fedasync", "orthofl"], "digits", seeds=[0], time=3000, lr=0.1)
    for row in comparison.summary.rows:
        print(f"{row.label:12} {row.accuracy:.3f}")
