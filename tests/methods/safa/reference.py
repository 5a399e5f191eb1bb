"""SAFA (Wu et al. 2021): a cached model w*_k of each of m clients, the first w before it has come; w ← Σ (n_k/n) w*_k.

    as a round begins   who lags by more than τ rounds: w*_k ← w, and what it is training counts for nothing
    as it ends          of those who came, C m are picked: first who was not picked in the last round, by arrival
                        w*_k of the picked ← w_k;  w ← Σ (n_k/n) w*_k;  w*_k of the others who came ← w_k

The round is over when C m have come of which it is certain that they are picked, T_lim after its beginning, or when
nobody is training; before anybody has come at all it goes on. n_k is known of who has come; of others it is the mean of
those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil, inf

from tests.reference.clock import HandOut, Step
from tests.reference.problem import Vec

NEARLY = 1e-9


class SAFA:
    def __init__(self, w: Vec, m: int, *, C: float = 0.5, tau: int = 5, T_lim: float | None = None):
        self.w, self.m, self.tau, self.T_lim = w, m, tau, T_lim
        self.quota = ceil(C * m - NEARLY)
        self.cache = [w for _ in range(m)]
        self.version, self.base = 0, [0] * m
        self.sizes: dict[int, float] = {}
        self.last: list[int] = []
        self.uploads: dict[int, Vec] = {}  # of the round, as they came

    def begin_round(self) -> None:
        for k in range(self.m):
            if self.version - self.base[k] > self.tau:
                self.cache[k], self.base[k] = self.w, self.version

    def receive(self, k: int, w_k: Vec, n_k: float, lag: int) -> bool:
        """Whether it counts."""
        self.sizes[k] = n_k
        if lag > self.tau:
            self.base[k] = self.version
            return False
        self.uploads[k] = w_k
        return True

    def picked(self, extra: int = 0) -> list[int]:
        """With `extra` places kept for clients that were not picked in the last round."""
        first = [k for k in self.uploads if k not in self.last][: self.quota]
        again = [k for k in self.uploads if k in self.last]
        return first + again[: max(0, self.quota - len(first) - extra)]

    def is_certain(self) -> bool:
        to_come = [k for k in range(self.m) if k not in self.last and k not in self.uploads]
        return len(self.picked(extra=len(to_come))) == self.quota

    def end_round(self) -> None:
        self.last = self.picked()
        for k in self.last:
            self.cache[k] = self.uploads[k]
        mean = sum(self.sizes.values()) / len(self.sizes)
        n = [self.sizes.get(k, mean) for k in range(self.m)]
        self.w = sum(n[k] / sum(n) * self.cache[k] for k in range(self.m))  # type: ignore[assignment]
        for k, w_k in self.uploads.items():
            self.cache[k] = w_k
        self.version += 1
        for k in self.uploads:
            self.base[k] = self.version
        self.uploads = {}


def play(
    server: SAFA,
    train: Callable[[int, Vec], Vec],
    sizes: Sequence[float],
    durations: Sequence[Sequence[float]],
    *,
    updates: int,
    pick: Callable[[float, list[int]], list[int]] = lambda _, idle: idle,
    lost: Collection[tuple[int, int]] = (),
) -> tuple[list[Step], list[HandOut], int]:
    """Until so many updates have arrived; steps, hand-outs, and how many updates came too late."""
    now, began, stepped, came, wasted = 0.0, 0.0, True, 0, 0
    steps: list[Step] = []
    handed: list[HandOut] = []
    out: list[tuple[float, int, int, int, Vec | None]] = []  # due, number, client, the round it began in, w_k
    idle, visits, late = set(range(server.m)), [0] * server.m, list[int]()
    while True:
        if stepped:
            server.begin_round()
        if not steps and not out:
            began = now
        for k in pick(now, sorted(idle)) if stepped or not out else sorted(late):
            idle.remove(k)
            due = now + durations[k][visits[k] % len(durations[k])]
            w_k = None if (k, visits[k]) in lost else train(k, server.w)
            out.append((due, len(handed), k, server.version, w_k))
            handed.append(HandOut(now, k, server.version))
            visits[k] += 1
        late = []
        bell = began + server.T_lim if server.T_lim is not None and server.sizes else inf
        now = min(bell, *(due for due, *_ in out))
        for _, _, k, version, w_k in sorted((o for o in out if o[0] == now), key=lambda o: o[1]):
            idle.add(k)
            if w_k is None:
                continue
            if not server.receive(k, w_k, sizes[k], server.version - version):
                late.append(k)
                wasted += 1
            came += 1
            if came == updates:
                return steps, handed, wasted
        out = [o for o in out if o[0] > now]
        overtime = server.T_lim is not None and now >= began + server.T_lim
        stepped = (not out or server.is_certain() or overtime) and bool(server.sizes)
        if stepped:
            server.T_lim = server.T_lim or now - began
            server.end_round()
            began = now
            steps.append(Step(now, server.w))
