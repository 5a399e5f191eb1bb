from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from tarry.core.layout import Layout
from tarry.core.optim import make_optimizer
from tarry.core.task import Task
from tarry.reproduce.studies.hessian import lanczos, product
from tarry.reproduce.studies.surface import filter_normalized, grid, random_directions
from tarry.training.flat_model import FlatModel


def _model(*middle: nn.Module) -> tuple[FlatModel, Tensor, tuple[Tensor, Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(3, 4), *middle, nn.Tanh(), nn.Linear(4, 3)).double()
        x, y = torch.randn(300, 3).double(), torch.randint(3, (300,))
    task = Task("t", model=lambda: module, loss=cross_entropy, clients=[(x, y)])
    layout = Layout.of(module, x[:2])
    bound = FlatModel(module, layout, task, make_optimizer("sgd", lr=0.1))
    return bound, bound.flat.clone(), (x, y)


def _dense(bound: FlatModel, weights: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
    """The whole Hessian by torch, on all examples at once, the module as in use."""
    blocks, (x, y) = bound.layout.layers, examples
    bound.module.eval()

    def loss(w: Tensor) -> Tensor:
        named = {b.name: w[b.at].view(b.shape) for b in blocks}
        stats = {b.name: weights[b.at].view(b.shape) for b in bound.layout.stats}
        return cross_entropy(functional_call(bound.module, {**named, **stats}, (x,)), y)

    made: Any = torch.autograd.functional.hessian(loss, weights[: bound.layout.n_params].clone())
    bound.module.train()
    dense: Tensor = made
    return dense


@pytest.mark.parametrize("middle", [(), (nn.BatchNorm1d(4),)], ids=["plain", "batchnorm"])
def test_products_and_the_largest_eigenvalues_are_those_of_the_dense_hessian(middle: tuple[nn.Module, ...]) -> None:
    bound, weights, examples = _model(*middle)
    n = bound.layout.n_params
    weights[n:] += 0.3  # running statistics of their own
    dense, apply = _dense(bound, weights, examples), product(bound, weights, examples)
    v = torch.from_numpy(np.random.default_rng(0).normal(size=n))
    assert torch.allclose(apply(v), dense @ v, atol=1e-12)
    assert torch.equal(bound.flat[n:], _model(*middle)[1][n:])  # statistics have not moved
    expected = torch.linalg.eigvalsh(dense).flip(0)[:5]
    found = lanczos(apply, v, iterations=n)
    assert found.values == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-10)
    for value, vector, residual in zip(found.values, found.vectors, found.residuals, strict=True):
        assert float((dense @ vector - value * vector).norm()) == pytest.approx(residual, abs=1e-8)
        assert float(vector.norm()) == pytest.approx(1)


def test_the_residual_tells_that_there_were_too_few_products() -> None:
    spectrum = torch.linspace(0, 1, 200).double()
    first = torch.from_numpy(np.random.default_rng(2).normal(size=200))
    few, many = (lanczos(lambda v: spectrum * v, first, k) for k in (8, 150))
    assert few.residuals[-1] > 1e-3
    assert many.residuals[-1] < 1e-8
    assert many.values == pytest.approx(spectrum.flip(0)[:5].tolist())


def test_it_ends_where_there_is_nothing_left_to_find() -> None:
    found = lanczos(lambda v: torch.where(torch.arange(50) < 2, 3.0, 1.0) * v, torch.ones(50), 40)
    assert found.values == pytest.approx([3.0, 1.0], rel=1e-5)


def test_filters_of_a_direction_are_as_long_as_the_weights_and_biases_stay() -> None:
    bound, weights, _ = _model()
    layout = bound.layout
    a, b = random_directions(weights, layout, seed=3)
    assert not torch.equal(a, b)
    for block in layout.layers:
        if len(block.shape) == 1:
            assert not a[block.at].any()
        else:
            sizes = [t[block.at].view(block.shape).norm(dim=1) for t in (a, weights)]
            assert torch.allclose(*sizes)
    doubled = filter_normalized(2 * a, weights, layout)
    assert torch.allclose(doubled, a)


def test_a_grid_has_a_row_for_every_y() -> None:
    origin = torch.tensor([1.0, 2.0, 5.0])
    u, v = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])  # the last number is no weight
    found = grid(lambda w: float(100 * w[2] + 10 * w[1] + w[0]), origin, u, v, [0.0, 1.0], [0.0, 0.5, 1.0])
    assert found == [[521.0, 522.0], [526.0, 527.0], [531.0, 532.0]]
    assert origin.tolist() == [1.0, 2.0, 5.0]
