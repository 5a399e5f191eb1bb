"""The naive event loop: whoever is due next arrives; all arrivals of an instant are received before anybody starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from tests.reference.problem import Vec


class Arrival(NamedTuple):
    time: float
    client: int
    staleness: int
    w: Vec  # the global weights after it


class Twin(Protocol):
    """A server: what a client is given, and what its answer does. `receive` tells the staleness, 0 = fresh."""

    w: Vec
    in_rounds: bool  # nobody starts while somebody is out

    def start(self, m: int) -> Vec: ...

    def receive(self, m: int, w_m: Vec) -> int: ...

    def lose(self, m: int) -> None:
        """m's work is gone; m will be back for more."""


def pick_all(_: float, idle: list[int]) -> list[int]:
    return idle


def play(
    twin: Twin,
    train: Callable[[int, Vec], Vec],
    durations: Sequence[Sequence[float]],
    *,
    updates: int,
    pick: Callable[[float, list[int]], list[int]] = pick_all,
    lost: Collection[tuple[int, int]] = (),
) -> list[Arrival]:
    """Play until so many updates have arrived.

    Client m's v-th visit takes durations[m][v], over and over; it brings nothing if (m, v) is among the lost.
    """
    now, log = 0.0, list[Arrival]()
    out: list[tuple[float, int, int, Vec | None]] = []  # due, hand-out number, client, w_m
    idle, visits = list(range(len(durations))), [0] * len(durations)
    while True:
        if not (twin.in_rounds and out):
            for m in pick(now, sorted(idle)):
                idle.remove(m)
                due = now + durations[m][visits[m] % len(durations[m])]
                trained = train(m, twin.start(m))
                out.append((due, sum(visits), m, None if (m, visits[m]) in lost else trained))
                visits[m] += 1
        now = min(due for due, *_ in out)
        for _, _, m, w_m in sorted((o for o in out if o[0] == now), key=lambda o: o[1]):
            idle.append(m)
            if w_m is None:
                twin.lose(m)
                continue
            log.append(Arrival(now, m, twin.receive(m, w_m), twin.w.copy()))
            if len(log) == updates:
                return log
        out = [o for o in out if o[0] > now]
