"""Small runs worked out by hand. Everybody's loss is ½‖θ − c_m‖², and a visit is one step of length ½: θ ← (θ + c_m)/2.

Almost all numbers are sums of powers of two, so they are met exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tarry
from tests.helpers.models import Shift


def half_square_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * ((outputs - targets) ** 2).sum(dim=1).mean()


def globals_after(
    method: Any,
    optima: Sequence[Sequence[float]],
    delay: list[list[float]],
    *,
    updates: int,
    examples: Sequence[int] = (1, 1),
    steps: int = 1,
) -> list[tuple[float, int, int, list[float]]]:
    """(time, client, staleness, θ) of every arrival, from θ = 0."""
    d = len(optima[0])
    data = [(torch.zeros(n, d), torch.tensor([list(c)] * n)) for c, n in zip(optima, examples, strict=True)]
    task = tarry.Task("points", model=Shift([0.0] * d), loss=half_square_distance, clients=data, score=None)
    seen: list[tarry.Event] = []
    tarry.run(
        method,
        task,
        dtype="float64",
        batch="all",
        steps=steps,
        lr=0.5,
        delay=delay,
        updates=updates,
        callbacks=[seen.append],
    )
    return [(e.time, e.client, e.staleness, e.weights.tolist()) for e in seen if e.kind == "arrival"]


def test_fedasync_by_hand() -> None:
    """c = 4 and −8, visits of 1 s and 2 s, α_τ = ½ / (τ + 1).

    1 s   A from 0      w_A = 2        τ = 0, α = ½     w = ½·0 + ½·2 = 1
    2 s   B from 0      w_B = −4       τ = 1, α = ¼     w = ¾·1 + ¼·(−4) = −¼         (B was handed out before A)
          A from 1      w_A = 5/2      τ = 1, α = ¼     w = ¾·(−¼) + ¼·5/2 = 7/16
    3 s   A from 7/16   w_A = 71/32    τ = 0, α = ½     w = ½·7/16 + ½·71/32 = 85/64
    """
    method = {"name": "fedasync", "alpha": 0.5, "a": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [2]], updates=4) == [
        (1, 0, 0, [1]),
        (2, 1, 1, [-1 / 4]),
        (2, 0, 1, [7 / 16]),
        (3, 0, 0, [85 / 64]),
    ]


def test_fedbuff_by_hand() -> None:
    """c = 4 and −8, visits of 1 s and 2 s, K = 2, s(τ) = 1 / (1 + τ).

    1 s   A from 0     Δ = 2                 buffer 2              w = 0
    2 s   B from 0     Δ = −4    τ = 0       buffer 2, −4   →      w = 0 + ½(2 − 4) = −1
          A from 0     Δ = 2     τ = 1       buffer ½·2            w = −1
    3 s   A from −1    Δ = 5/2   τ = 0       buffer 1, 5/2  →      w = −1 + ½(1 + 5/2) = 3/4
    """
    method = {"name": "fedbuff", "buffer": 2, "a": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [2]], updates=4) == [
        (1, 0, 0, [0]),
        (2, 1, 0, [-1]),
        (2, 0, 1, [-1]),
        (3, 0, 0, [3 / 4]),
    ]


def test_fedavg_by_hand() -> None:
    """c = 4 with one example and −8 with three; a round lasts its slowest member's 2 s.

    round 1   w_A = 2,   w_B = −4      w = ¼·2 + ¾·(−4) = −5/2
    round 2   w_A = ¾,   w_B = −21/4   w = ¼·¾ − ¾·21/4 = −15/4
    """
    assert globals_after("fedavg", [[4], [-8]], [[1], [2]], updates=4, examples=(1, 3)) == [
        (1, 0, 0, [0]),
        (2, 1, 0, [-5 / 2]),
        (3, 0, 0, [-5 / 2]),
        (4, 1, 0, [-15 / 4]),
    ]


def test_fedprox_by_hand() -> None:
    """μ = 1 and two steps: after the first, half-way to c, the pull back equals the pull on; the second does nothing.

    A: 0 → 2, then 2 − ½((2 − 4) + 1·(2 − 0)) = 2.   B: 0 → −4, and stays.   w = ½·2 − ½·4 = −1
    """
    method = {"name": "fedprox", "mu": 1.0}
    assert globals_after(method, [[4], [-8]], [[1], [1]], updates=2, steps=2)[-1] == (1, 1, 0, [-1])


def test_orthofl_by_hand() -> None:
    """c_A = (4, 0) in 2 s, c_B = (4, 4) in 1 s; β_t = ½ / s; two parameters in one layer.

    no. 1, 1 s   B from (0, 0)         W_B = (2, 2)   s = 1, β_t = ½   W = (1, 1)
                 Δ = (0, 0)                                           B starts from (2, 2)
    no. 2, 2 s   A from (0, 0)         W_A = (2, 0)   s = 2, β_t = ¼   W = ¾(1, 1) + ¼(2, 0) = (5/4, 3/4)
                 Δ = (1, 1), Δ_A = (2, 0), Δ⊥ = (0, 1)                 A starts from (2, 1), not (3, 1)
    no. 3, 2 s   B from (2, 2)         W_B = (3, 3)   s = 2, β_t = ¼   W = ¾(5/4, 3/4) + ¼(3, 3) = (27/16, 21/16)
                 Δ = (¼, −¼) ⊥ Δ_B = (1, 1)                            B starts from (13/4, 11/4)
    no. 4, 3 s   B from (13/4, 11/4)   W_B = (29/8, 27/8)   s = 1, β_t = ½    W = (85/32, 75/32)
    no. 5, 4 s   A from (2, 1)         W_A = (3, ½)   s = 3, β_t = 1/6  W = (5·85/32 + 3, 5·75/32 + ½) / 6
    """
    arrivals = globals_after({"name": "orthofl", "beta": 0.5, "a": 1.0}, [[4, 0], [4, 4]], [[2], [1]], updates=5)
    assert arrivals[:4] == [
        (1, 1, 0, [1, 1]),
        (2, 0, 1, [5 / 4, 3 / 4]),
        (2, 1, 1, [27 / 16, 21 / 16]),
        (3, 1, 0, [85 / 32, 75 / 32]),
    ]
    assert arrivals[4][:3] == (4, 0, 2)
    assert arrivals[4][3] == pytest.approx([(5 * 85 / 32 + 3) / 6, (5 * 75 / 32 + 0.5) / 6], rel=1e-14)


def test_orthofl_leaves_a_lone_client_to_itself() -> None:
    """Nobody else, no shift: the client walks 0 → 2 → 3 → 7/2 → 15/4 towards 4 as if never interrupted, and W follows.

    β_t = ½: W = 1, then ½(1 + 3) = 2, ½(2 + 7/2) = 11/4, ½(11/4 + 15/4) = 13/4
    """
    arrivals = globals_after({"name": "orthofl", "beta": 0.5}, [[4.0]], [[1.0]], updates=4, examples=(1,))
    assert [w for *_, w in arrivals] == [[1], [2], [11 / 4], [13 / 4]]


def test_orthofl_as_released_by_hand() -> None:
    """The case of `test_orthofl_by_hand`, with the second model V and W's first value replaced (α = 0.5 (d + 1)^(−1)).

    no. 1   B from (0, 0)   x = (2, 2)   V = x + 0 = (2, 2)                                    W = (2, 2)
    no. 2   A from (0, 0)   x = (2, 0)   V − V_A = (2, 2), x − V_A = (2, 0): V = (2, 0) + (0, 2) = (2, 2)
                                         d = 1, α = ¼                                          W = (2, 3/2)
    no. 3   B from (2, 2)   x = (3, 3)   V − V_B = (0, 0): V = (3, 3);   d = 1, α = ¼           W = (9/4, 15/8)
    no. 4   B from (3, 3)   x = (7/2, 7/2)                               d = 0, α = ½           W = (23/8, 43/16)
    """
    method = {"name": "orthofl", "state": "reference", "beta": 0.5, "a": 1.0}
    arrivals = globals_after(method, [[4, 0], [4, 4]], [[2], [1]], updates=4)
    assert [w for *_, w in arrivals] == [[2, 2], [2, 3 / 2], [9 / 4, 15 / 8], [23 / 8, 43 / 16]]
