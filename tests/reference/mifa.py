"""MIFA (Gu et al. 2021), in gradient sign: G_i = (w − w_i)/η of client i's last round, w ← w − η (1/N) Σ_i G_i.

`algorithm_1` is the paper's loop over rounds, each with a set of available clients; G_i is 0 before client i's first.
`play` knows a clock: a round is over when all its clients are back (with or without anything), or an epoch's length
after its beginning, if somebody came back in it, else with the first who does. A server that waits for everybody makes
rounds of who has not been seen, and steps when all have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from .problem import Vec

Train = Callable[[int, Vec], Vec]  # client, w → w_i


def algorithm_1(w: Vec, n: int, available: Sequence[Collection[int]], train: Train, *, eta: float) -> list[Vec]:
    """w after each round."""
    G = [np.zeros_like(w) for _ in range(n)]
    after = []
    for A in available:
        for i in A:
            G[i] = (w - train(i, w)) / eta
        w = w - eta * sum(G) / n
        after.append(w)
    return after


class Step(NamedTuple):
    time: float
    w: Vec


class HandOut(NamedTuple):
    time: float
    client: int
    steps: int  # made by then


def play(
    w: Vec,
    train: Train,
    durations: Sequence[Sequence[float]],
    *,
    eta: float,
    updates: int,
    wait: bool = True,
    epoch: float = inf,
    pick: Callable[[float, list[int]], list[int]] = lambda _, candidates: candidates,
    lost: Collection[tuple[int, int]] = (),
) -> tuple[list[Step], list[HandOut]]:
    """Until so many updates have arrived. `pick` chooses among those who may be handed work."""
    n, now, began, back, stepped, came = len(durations), 0.0, 0.0, False, True, 0
    G: dict[int, Vec] = {}
    steps: list[Step] = []
    handed: list[HandOut] = []
    out: list[tuple[float, int, int, Vec | None]] = []  # due, number, client, G
    idle, visits = set(range(n)), [0] * n
    while True:
        waiting = wait and len(G) < n
        if not out or (stepped and not waiting):
            began = began if out else now
            for i in pick(now, sorted(i for i in idle if not (waiting and i in G))):
                idle.remove(i)
                due = now + durations[i][visits[i] % len(durations[i])]
                out.append((due, len(handed), i, None if (i, visits[i]) in lost else (w - train(i, w)) / eta))
                handed.append(HandOut(now, i, len(steps)))
                visits[i] += 1
        now = min(began + epoch if back else inf, *(due for due, *_ in out))
        for _, _, i, G_i in sorted((o for o in out if o[0] == now), key=lambda o: o[1]):
            idle.add(i)
            back = True
            if G_i is not None:
                G[i] = G_i
                came += 1
                if came == updates:
                    return steps, handed
        out = [o for o in out if o[0] > now]
        over = not out or now >= began + epoch
        stepped = over and back and bool(G) and not (wait and len(G) < n)
        if over:
            back = False
        if stepped:
            w = w - eta * sum(G.values()) / n
            began = now
            steps.append(Step(now, w))
