"""A case is a problem with scripted durations; `check` runs it through the library and through a twin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from torch import Tensor

import tarry
from tests.methods.fedavg.reference import descend
from tests.reference.loop import Arrival, Twin, play
from tests.reference.problem import Problem, Vec

#: the same cases on every machine; no clock in a test
few = settings(max_examples=20, derandomize=True, deadline=None, database=None)


@dataclass(frozen=True)
class Case:
    seed: int
    p: int
    h: int
    sizes: list[int]
    durations: list[list[float]]
    steps: int
    lr: float
    updates: int
    blind: bool
    lost: frozenset[tuple[int, int]] = frozenset()  # (client, visit)

    @property
    def problem(self) -> Problem:
        return Problem.draw(self.seed, p=self.p, h=self.h, sizes=self.sizes, blind=self.blind)


@st.composite
def cases(draw: st.DrawFn, *, wide: bool = False, losses: bool = False) -> Case:
    """Durations are multiples of a half, so that several clients often arrive at one instant.

    `wide`: at most three clients and layers of three or more, so that updates are seldom linearly dependent.
    """
    n = draw(st.integers(2, 3 if wide else 5))
    halves = st.lists(st.integers(1, 6).map(lambda i: i / 2), min_size=1, max_size=3)
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        p=draw(st.integers(3 if wide else 1, 3)),
        h=draw(st.integers(3 if wide else 1, 3)),
        sizes=draw(st.lists(st.integers(1, 6), min_size=n, max_size=n)),
        durations=draw(st.lists(halves, min_size=n, max_size=n)),
        steps=draw(st.integers(1, 3)),
        lr=draw(st.sampled_from([0.02, 0.05])),
        updates=draw(st.integers(6, 20)),
        blind=draw(st.booleans()),
        lost=draw(st.frozensets(visits_of(n), min_size=1, max_size=12)) if losses else frozenset(),
    )


def visits_of(n: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, n - 1), st.integers(0, 5))


def events_of(method: Any, case: Case, **more: Any) -> list[tarry.Event]:
    seen: list[tarry.Event] = []
    with tempfile.TemporaryDirectory() as folder:
        tarry.run(
            method,
            case.problem.task(),
            dtype="float64",
            batch="all",
            steps=case.steps,
            optimizer="sgd",
            lr=case.lr,
            delay=trace(case, Path(folder) / "visits.csv") if case.lost else case.durations,
            updates=case.updates,
            time=1000.0,  # in case of a mistake
            callbacks=[seen.append],
            **more,
        )
    return seen


def weights_after_arrivals(method: Any, case: Case) -> list[Tensor]:
    return [e.weights for e in events_of(method, case) if e.kind == "arrival"]


def trace(case: Case, path: Path) -> dict[str, str]:
    """The durations and losses as a recorded run, which is how single visits are made to fail."""
    lines = ["client,visit,start,seconds,fate"]
    for m, own in enumerate(case.durations):
        for visit in range(200):
            fate = "lost" if (m, visit) in case.lost else "came"
            lines.append(f"{m},{visit},0,{own[visit % len(own)]},{fate}")
    path.write_text("\n".join(lines) + "\n")
    return {"name": "trace", "path": str(path)}


def check(
    method: Any,
    case: Case,
    twin: Twin,
    *,
    train: Callable[[int, Vec], Vec] | None = None,
    concurrency: int | None = None,
    well_posed: Callable[[], bool] = lambda: True,
) -> None:
    """The library and the twin agree on every arrival: when, who, how stale, and the global weights after it.

    Whom to draw when not all may train at once is the library's own business: the twin follows its hand-outs.
    """
    problem = case.problem
    seen = events_of(method, case, concurrency=concurrency)

    def pick(now: float, idle: list[int]) -> list[int]:
        if concurrency is None:
            return idle
        chosen = [e.client for e in seen if e.kind == "hand_out" and e.time == now]
        assert set(chosen) <= set(idle)
        return chosen

    local = train or (lambda m, w: descend(problem, m, w, steps=case.steps, lr=case.lr))
    expected = play(twin, local, case.durations, updates=case.updates, pick=pick, lost=case.lost)
    assume(well_posed())
    arrived = [Arrival(e.time, e.client, e.staleness, e.weights.numpy()) for e in seen if e.kind == "arrival"]
    assert [a[:3] for a in arrived] == [e[:3] for e in expected]
    for number, (a, e) in enumerate(zip(arrived, expected, strict=True)):
        np.testing.assert_allclose(a.w, e.w, rtol=1e-10, atol=1e-12, err_msg=f"global weights after arrival {number}")
