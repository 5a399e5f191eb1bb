"""Models train in stacks as they do one by one; statistics of batches travel and are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tarry
from tarry import Layout
from tarry.core.local_rule import LocalRule
from tarry.core.optim import make_optimizer
from tarry.core.tickets import LocalResult, VisitJob
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.training.flat_model import FlatModel, build_module
from tarry.training.visit import LocalWork, train
from tests.tasks.models.small_models import CASES, NORMED, Case, label, slim

pytestmark = pytest.mark.usefixtures("slim")
__all__ = ["slim"]


def bound(case: Case, sizes: tuple[int, ...], **more: Any) -> FlatModel:
    task, how = case.task(sizes, **more), make_optimizer("sgd", lr=0.05)
    module = build_module(task, seed=3, dtype=torch.float64)
    return FlatModel(module, Layout.of(module, task.clients[0][0]), task, how)


def far(a: LocalResult, b: LocalResult) -> float:
    return ((a.delta - b.delta).norm() / a.delta.norm()).item()


def stacks_as_alone(b: FlatModel) -> None:
    work, rule, sent = (
        LocalWork(make_optimizer("sgd", lr=0.05), epochs=None, steps=3, batch=4),
        LocalRule(),
        b.flat.clone(),
    )
    jobs = [VisitJob(i, i, 0, sent) for i in range(3)]
    alone = [train(j, b, rule=rule, work=work, seed=1) for j in jobs]
    together = BatchedTrainer(b, rule=rule, work=work, seed=1, size=3).train(jobs)
    assert all(a.delta.norm() > 0 for a in alone)
    assert max(map(far, alone, together)) < 1e-9


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "resnet34" and 64 not in c.shape], ids=label)
def test_a_stack_comes_to_what_each_comes_to_alone(case: Case) -> None:
    """Batches of unequal length are among them: the padding counts for nothing."""
    stacks_as_alone(bound(case, (4, 7, 3)))


@pytest.mark.parametrize("case", [c for c in NORMED if c.name != "resnet34" and c.shape[1:] != (64, 64)], ids=label)
def test_a_stack_with_batch_normalization_comes_to_what_each_comes_to_alone(case: Case) -> None:
    """Weights and running statistics."""
    stacks_as_alone(bound(case, (4, 7, 3), norm="batch"))


SETTINGS: dict[str, Any] = {"delay": [[1.0], [2.0]], "dtype": "float64", "steps": 2, "lr": 0.05, "time": 2.0, "seed": 1}


@pytest.mark.parametrize(
    ("name", "more"), [("vgg11", {}), ("textcnn", {}), ("resnet18-1d", {"norm": "batch"})], ids=str
)
def test_the_batched_executor_takes_them(name: str, more: dict[str, Any]) -> None:
    case = next(c for c in CASES if c.name == name)
    task = case.task((6, 6), **more)
    ways = {e: tarry.run("fedasync", task, executor=e, batch=3, **SETTINGS) for e in ("inline", "batched")}
    a, b = (ways[e].weights for e in ("inline", "batched"))
    assert ways["batched"].executor_info.startswith("clients are trained together"), ways["batched"].executor_info
    assert a is not None
    assert b is not None
    assert (a - b).norm() <= 1e-9 * a.norm()


@pytest.mark.parametrize("case", NORMED, ids=label)
def test_statistics_of_batches_travel_and_are_averaged(case: Case) -> None:
    """FedAvg of two clients of equal size: the global's statistics are the mean of theirs, and have moved."""
    task = case.task((6, 6), norm="batch")
    result = tarry.run("fedavg", task, executor="inline", batch=3, **SETTINGS)
    module = build_module(task, seed=1, dtype=torch.float64)
    layout = Layout.of(module, task.clients[0][0])
    assert layout.stats
    assert result.weights is not None
    assert result.weights.numel() == layout.size
    b = FlatModel(module, layout, task, make_optimizer("sgd", lr=0.05))
    first = b.flat.clone()
    work = LocalWork(make_optimizer("sgd", lr=0.05), epochs=None, steps=2, batch=3)
    own = [train(VisitJob(i, i, 0, first), b, rule=LocalRule(), work=work, seed=1) for i in range(2)]
    mean = first + (own[0].delta + own[1].delta) / 2
    torch.testing.assert_close(result.weights, mean, rtol=1e-9, atol=1e-12)
    moved = (result.weights - first)[layout.n_params :]
    assert all(moved[s.start - layout.n_params : s.stop - layout.n_params].abs().sum() > 0 for s in layout.stats)
