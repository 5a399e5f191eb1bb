"""The naive event loop: whoever is due next arrives; all arrivals of an instant are received before anybody starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .problem import Vec


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


def everybody(_: float, idle: list[int]) -> list[int]:
    return idle


def play(
    twin: Twin,
    train: Callable[[int, Vec], Vec],
    durations: Sequence[Sequence[float]],
    *,
    updates: int,
    pick: Callable[[float, list[int]], list[int]] = everybody,
) -> list[Arrival]:
    """Play until so many updates have arrived. Client m's v-th visit takes durations[m][v], over and over."""
    now, log, out = 0.0, list[Arrival](), list[tuple[float, int, int, Vec]]()  # out: due, hand-out number, client, w_m
    idle, visits = list(range(len(durations))), [0] * len(durations)
    while True:
        if not (twin.in_rounds and out):
            for m in pick(now, sorted(idle)):
                idle.remove(m)
                due = now + durations[m][visits[m] % len(durations[m])]
                out.append((due, sum(visits), m, train(m, twin.start(m))))
                visits[m] += 1
        now = min(due for due, *_ in out)
        for _, _, m, w_m in sorted((o for o in out if o[0] == now), key=lambda o: o[1]):
            log.append(Arrival(now, m, twin.receive(m, w_m), twin.w.copy()))
            idle.append(m)
            if len(log) == updates:
                return log
        out = [o for o in out if o[0] > now]
