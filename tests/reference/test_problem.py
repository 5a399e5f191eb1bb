"""The hand-made gradient and the module describe one problem; the naive loop keeps its one rule."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given

from tests.reference.loop import play
from tests.reference.match import Case, cases, few
from tests.reference.problem import Vec


@few
@given(cases())
def test_the_gradient_by_hand_is_the_gradient_of_the_module(case: Case) -> None:
    problem = case.problem
    task = problem.task()
    for m, (x, y) in enumerate(task.clients):
        module = task.model
        assert isinstance(module, torch.nn.Module)
        grads = torch.autograd.grad(task.loss(module(x), y), list(module.parameters()))
        flat = torch.cat([g.reshape(-1) for g in grads]).numpy()
        np.testing.assert_allclose(problem.gradient(m, problem.w0), flat, rtol=1e-12, atol=1e-14)


def test_a_blind_client_moves_one_layer_only() -> None:
    problem = Case(1, 2, 2, [3, 3], [[1.0], [1.0]], 1, 0.1, 6, True).problem
    moved = [bool(np.any(problem.gradient(0, problem.w0)[layer.at] != 0)) for layer in problem.layers]
    assert moved == [False, False, True, False]
    assert all(np.any(problem.gradient(1, problem.w0)[layer.at] != 0) for layer in problem.layers)


class _Counter:
    """w counts arrivals; what a client is given tells how many it knew of."""

    in_rounds = False

    def __init__(self) -> None:
        self.w: Vec = np.zeros(1)

    def start(self, m: int) -> Vec:
        return self.w

    def receive(self, m: int, w_m: Vec) -> int:
        known = int(self.w[0] - w_m[0])
        self.w = self.w + 1
        return known

    def lose(self, m: int) -> None:
        pass


def test_the_naive_loop_receives_an_instant_whole_before_anybody_starts() -> None:
    """Durations 1, 1 and 2: at 1 clients 0 and 1 arrive, both then know of 2; at 2 come client 2 (out since 0, so its
    ticket is the oldest and first, stale by 2), then 0 (stale by 1) and 1 (stale by 2)."""
    log = play(_Counter(), lambda m, w: w, [[1.0], [1.0], [2.0]], updates=5)
    assert [(a.time, a.client, a.staleness) for a in log] == [(1, 0, 0), (1, 1, 1), (2, 2, 2), (2, 0, 1), (2, 1, 2)]
