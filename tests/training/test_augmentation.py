"""Inputs that are augmented while they are trained on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core import rng
from tarry.core.optim import make_optimizer
from tarry.training.batch_order import augmentation_draws
from tarry.training.visit import BatchIterator, LocalWork


def shaken(x: Tensor, u: Tensor) -> Tensor:
    """Mirrored by one number, shifted by the other."""
    return torch.where(u[:, :1] < 0.5, x.flip(1), x) + 0.3 * u[:, 1:]


def task(augment: bool = True) -> tarry.Task:
    g = torch.Generator().manual_seed(0)
    clients = []
    for n in (13, 9, 20, 20):
        x = torch.randn(n, 6, generator=g)
        clients.append((x, (x[:, 0] > 0).long() + (x[:, 1] > 0)))
    return tarry.Task(
        "shaken",
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        loss=nn.functional.cross_entropy,
        clients=clients,
        test=clients[2],
        augment=shaken if augment else None,
        n_draws=2 if augment else 0,
    )


def test_numbers_are_uniform_and_a_function_of_the_key() -> None:
    u = rng.uniforms(rng.key(3, 1), 4000, 3)
    assert u.shape == (4000, 3)
    assert 0 <= u.min() < 0.001
    assert 0.999 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert (u == rng.uniforms(rng.key(3, 1), 4000, 3)).all()
    assert (u != rng.uniforms(rng.key(3, 2), 4000, 3)).mean() > 0.99


def test_batches_are_augmented_by_their_own_numbers_fresh_every_epoch() -> None:
    t = task()
    x, y = t.clients[0]
    work = LocalWork(make_optimizer("sgd", lr=0.1), epochs=3, batch=4)
    visit = BatchIterator(torch.zeros(1), (x, y), work, 77, like=t)
    seen = []
    for epoch, lap in enumerate(visit.epochs()):
        u = torch.from_numpy(augmentation_draws(13, 2, 77, epoch))
        for got, labels in lap:
            assert visit.at is not None
            torch.testing.assert_close(got, shaken(x[visit.at], u[visit.at]), rtol=0, atol=0)
            assert (labels == y[visit.at]).all()
        seen.append(u)
    assert not (seen[0] == seen[1]).all()
    assert not visit.again  # what a model said of an example does not hold for the next epoch's


@pytest.mark.parametrize("batch", [5, "all"])
@pytest.mark.parametrize("method", ["fedavg", "fedsol", "fedntd", "asynccurve"])
def test_everybody_trains_the_same_together_and_alone(method: str, batch: int | str) -> None:
    how = {"time": 300.0, "dtype": "float64", "delay": "exponential", "epochs": 2, "batch": batch, "lr": 0.1}
    alone = tarry.run(method, task(), executor="inline", **how)
    stacked = tarry.run(method, task(), executor="batched", **how)
    assert "trained together" in stacked.executor_info, stacked.executor_info
    assert alone.weights is not None
    assert stacked.weights is not None
    torch.testing.assert_close(stacked.weights, alone.weights, rtol=1e-9, atol=1e-11)
    plain = tarry.run(method, task(augment=False), executor="inline", **how)
    assert plain.weights is not None
    assert (plain.weights - alone.weights).abs().max() > 1e-4


def test_processes_do_the_same_to_the_bit() -> None:
    how = {"time": 300.0, "delay": "exponential", "epochs": 2, "batch": 5}
    alone, pool = (tarry.run("fedavg", task(), workers=w, **how) for w in (1, 2))
    assert alone.weights_sha256 == pool.weights_sha256
