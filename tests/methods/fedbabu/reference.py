"""FedBABU (Oh et al. 2022): FedAvg whose client descends in the body alone; the head stays as it was drawn.

In the twins' problem U, v and c belong to the module that owns the last map; the body is the scale g.
"""

from __future__ import annotations

import numpy as np

from tests.reference.problem import Problem, Vec


def descend_body(problem: Problem, m: int, w: Vec, *, steps: int, lr: float) -> Vec:
    body = np.zeros_like(w)
    body[problem.layers[3].at] = 1.0
    for _ in range(steps):
        w = w - lr * body * problem.gradient(m, w)
    return w
