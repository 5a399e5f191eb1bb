"""GradMA against its twin; what is remembered, for how long and at what cost; and where it is FedAvg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.build import plan
from tarry.core.errors import BadInput, SolverFailed
from tarry.parts import cone
from tarry.spec import Spec

from .fedavg import FedAvg
from .gradma import QP, GradMA, worker_update
from .match import Case, cases, check, few
from .problem import Vec

some = settings(few, max_examples=8)


def worker(case: Case, qp: QP) -> Callable[[int, Vec], Vec]:
    """The twin's client, who remembers what came of visits that were not lost."""
    problem, visits, last = case.problem, dict[int, int](), dict[int, Vec]()

    def train(i: int, x: Vec) -> Vec:
        visit = visits[i] = visits.get(i, -1) + 1
        end = worker_update(problem, i, x, last.get(i, x), qp, steps=case.steps, lr=case.lr)
        if (i, visit) not in case.lost:
            last[i] = end
        return end

    return train


def compare(method: dict[str, Any], case: Case, *, concurrency: int | None = None) -> None:
    """At a rate that lets a worker's rows come apart: a full batch's second step stands at 90° to its first."""
    case = replace(case, lr=0.2)
    layers = [layer.at for layer in case.problem.layers]
    qp = QP(layers if method.get("projection") == "layer" else [slice(0, layers[-1].stop)])
    sizes = [1] * len(case.sizes) if method.get("weighting") == "uniform" else case.sizes
    how = {k: v for k, v in method.items() if k in ("beta1", "beta2", "eta", "memory")}
    side = method.get("side", "both")
    check(
        {"name": "gradma", **method},
        case,
        FedAvg(case.problem.w0, sizes) if side == "worker" else GradMA(case.problem.w0, sizes, qp, **how),
        train=None if side == "server" else worker(case, qp),
        concurrency=concurrency,
        well_posed=lambda: qp.thinnest > 2e-3,
    )


METHODS: list[dict[str, Any]] = [
    {},
    {"side": "server", "eta": 0.7},
    {"side": "worker", "weighting": "uniform"},
    {"projection": "layer"},
    {"beta1": 0.9, "beta2": 1.0, "side": "server"},
    {"beta1": 0.0, "beta2": 0.0},
    {"memory": 0},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(method: dict[str, Any], case: Case) -> None:
    compare(method, case)


@pytest.mark.parametrize("method", [{}, {"side": "server", "beta2": 0.9}, {"projection": "layer"}], ids=str)
@some
@given(case=cases(), limit=st.integers(1, 2), memory=st.integers(2, 4))
def test_it_is_its_twin_when_few_are_remembered_of_many(
    method: dict[str, Any], case: Case, limit: int, memory: int
) -> None:
    compare({**method, "memory": memory}, case, concurrency=limit)
