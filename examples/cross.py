"""Parts of several methods in one: FedSOL's clients, OrthoFL's server, FedEcho's distillation, and your own curve.

python -m tarry run --method orthofl --local fedsol --distill fedecho --task digits --time 3000
python -m tarry run --method fedasync --manifold examples/cross.py:overshooting --task digits --time 3000
"""

from typing import Annotated

import torch

import tarry


def overshooting(*, bow: Annotated[float, "largest distance from the straight line"] = 0.1):
    """Return a curve from start to end that bends towards the weights that the client was sent."""

    def geodesic(start: torch.Tensor, end: torch.Tensor, t: float, update: tarry.Update) -> torch.Tensor:
        began = update.ticket.sent[: len(start)]
        return torch.lerp(start, end, t) + bow * t * (1 - t) * (began - start)

    return geodesic


if __name__ == "__main__":
    crosses = ["orthofl", "orthofl+local=fedsol", "orthofl+local=fedsol+distill=fedecho"]
    comparison = tarry.compare(crosses, "digits", seeds=[0], time=2000, lr=0.1)
    for row in comparison.summary.rows:
        print(f"{row.label:36} {row.accuracy:.3f}")
    bowed = tarry.run("fedasync", "digits", time=2000, lr=0.1, manifold=overshooting(bow=0.2))
    print(f"{bowed.label:36} {bowed.final_accuracy:.3f}")
