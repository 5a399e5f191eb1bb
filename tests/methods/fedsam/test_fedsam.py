"""FedSAM and FedASAM against their twins, and what they promise."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.errors import BadInput
from tarry.parts.sharpness import ascend, ascended_adaptively
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import Shift, batchnorm_net, noisy_run
from tests.methods.fedasync.reference import FedAsync, polynomial
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedsam.reference import descend_flat
from tests.reference.match import Case, cases, check, few
from tests.reference.problem import Vec

some = settings(few, max_examples=4)
Choice = dict[str, Any]
F64 = torch.float64

CHOICES: list[Choice] = [
    {"name": "fedsam"},
    {"name": "fedsam", "rho": 0.7},
    {"name": "fedasam"},
    {"name": "fedasam", "rho": 0.1, "eta": 0.2},
    {"name": "fedasam", "rho": 0.3, "eta": 0.0},
]
PAPERS: dict[str, Choice] = {"fedsam": {"rho": 0.05}, "fedasam": {"rho": 0.5, "eta": 0.01}}


def trained_by(case: Case, choice: Choice) -> Any:
    how = {**PAPERS[choice["name"]], **{k: v for k, v in choice.items() if k != "name"}}

    def train(m: int, w: Vec) -> Vec:
        return descend_flat(case.problem, m, w, steps=case.steps, lr=case.lr, **how)

    return train


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@some
@given(case=st.one_of(cases(), cases(losses=True)))
def test_it_is_its_twin(choice: Choice, case: Case) -> None:
    check(choice, case, FedAvg(case.problem.w0, case.sizes), train=trained_by(case, choice))


@pytest.mark.parametrize("choice", CHOICES[1:4:2], ids=str)
@some
@given(case=cases())
def test_weighing_all_alike_and_under_fedasyncs_server_it_is_its_twin(choice: Choice, case: Case) -> None:
    train = trained_by(case, choice)
    check({**choice, "weighting": "uniform"}, case, FedAvg(case.problem.w0, [1] * len(case.sizes)), train=train)
    local = tarry.methods.build(choice["name"], **{k: v for k, v in choice.items() if k != "name"}).local
    method = replace(tarry.methods.build("fedasync", alpha=0.5), local=local)
    check(method, case, FedAsync(case.problem.w0, 0.5, polynomial(0.5)), train=train)


# Collapses and closed forms


@pytest.mark.parametrize("name", ["fedsam", "fedasam"])
def test_with_rho_0_it_is_fedavg_to_the_bit(name: str) -> None:
    plain = noisy_run("fedavg")
    assert noisy_run({"name": name, "rho": 0.0}) == plain
    assert noisy_run({"name": name, "rho": 0.01}) != plain


def after_one_visit(method: Any, H: Tensor, start: Tensor, **how: Any) -> Tensor:
    """Under L = ½ wᵀ H w."""
    task = tarry.Task(
        "quadratic",
        model=Shift(start),
        loss=lambda z, _: 0.5 * (z @ H * z).sum(1).mean(),
        clients=[(torch.zeros(1, len(start)), torch.zeros(1))],
        metrics=["loss"],
    )
    result = tarry.run(method, task, dtype="float64", delay=[1.0], updates=1, **how)
    assert result.weights is not None
    return result.weights


def test_on_a_quadratic_a_step_of_sam_is_known_in_closed_form() -> None:
    """L = ½ wᵀ H w: g = H w and ∇L(w + ε) = H w + ρ H g/‖g‖; two steps with γ = 0.1."""
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    H, w = root @ root.T, torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=F64)
    got = after_one_visit({"name": "fedsam", "rho": 0.3}, H, w, steps=2, lr=0.1)
    for _ in range(2):
        g = H @ w
        w = w - 0.1 * (g + 0.3 * H @ g / g.norm())
    torch.testing.assert_close(got, w, rtol=1e-12, atol=0)


def test_on_an_isotropic_quadratic_sam_goes_beyond_the_minimum_by_gamma_rho_and_comes_back() -> None:
    """H = 1: w ← w − γ (w + ρ ŵ) along a line. From 1 with γ = ½, ρ = ½: 0.25, −0.125, 0.1875, −0.15625."""
    H, start = torch.eye(2, dtype=F64), torch.tensor([0.6, 0.8], dtype=F64)
    along = [after_one_visit({"name": "fedsam", "rho": 0.5}, H, start, steps=n, lr=0.5) for n in range(1, 5)]
    torch.testing.assert_close(
        torch.stack(along), torch.tensor([0.25, -0.125, 0.1875, -0.15625], dtype=F64)[:, None] * start
    )


def test_the_gradient_further_up_goes_through_the_clients_optimizer() -> None:
    """Momentum and weight decay by hand: weights decay where they are, not where the gradient was taken."""
    H, start = torch.diag(torch.tensor([1.0, 4.0], dtype=F64)), torch.tensor([1.0, 1.0], dtype=F64)
    how = {"steps": 3, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.5}
    got = after_one_visit({"name": "fedsam", "rho": 0.2}, H, start, **how)
    w, v = start, torch.zeros(2, dtype=F64)
    for _ in range(3):
        g = H @ w
        v = 0.9 * v + H @ (w + 0.2 * g / g.norm()) + 0.5 * w
        w = w - 0.1 * v
    torch.testing.assert_close(got, w, rtol=1e-12, atol=0)


def test_where_eta_outweighs_all_weights_asam_is_sam() -> None:
    """T ≈ η: ε ≈ ρ η g/‖g‖, SAM with ρ η."""
    H, start = torch.diag(torch.tensor([1.0, 4.0], dtype=F64)), torch.tensor([1.0, -0.5], dtype=F64)
    asam = after_one_visit({"name": "fedasam", "rho": 0.3e-8, "eta": 1e8}, H, start, steps=3, lr=0.1)
    sam = after_one_visit({"name": "fedsam", "rho": 0.3}, H, start, steps=3, lr=0.1)
    torch.testing.assert_close(asam, sam, rtol=1e-6, atol=0)


def test_asam_is_indifferent_to_how_a_weights_size_is_shared_out() -> None:
    """L(u v) does not change when u is doubled and v halved; with η = 0 nor does its value at w + ε. SAM's does."""

    def further_up(w: Tensor, adaptive: bool) -> Tensor:
        u, v = w
        g = torch.stack([v, u]) * 2 * (u * v - 3)  # of (u v − 3)²
        up = ascended_adaptively(w, g, rho=0.2, eta=0.0) if adaptive else ascend(w, g, rho=0.2)
        return (up[0] * up[1] - 3) ** 2

    one, other = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor([2.0, 1.0], dtype=F64) * torch.tensor([2.0, 0.5])
    assert one[0] * one[1] == other[0] * other[1]
    torch.testing.assert_close(further_up(one, True), further_up(other, True), rtol=1e-14, atol=0)
    assert not torch.allclose(further_up(one, False), further_up(other, False), rtol=1e-2)


# How far up


def test_how_far_up_by_hand() -> None:
    """SAM: g = (3, −4), ρ = 1: ε = (0.6, −0.8). ASAM: w = (1, −2), η = 0, g = (4, 1): T g = (4, 2), T² g = (4, 4)."""
    zero = torch.zeros(2, dtype=F64)
    torch.testing.assert_close(
        ascend(zero, torch.tensor([3.0, -4.0], dtype=F64), rho=1.0), torch.tensor([0.6, -0.8], dtype=F64)
    )
    w, g = torch.tensor([1.0, -2.0], dtype=F64), torch.tensor([4.0, 1.0], dtype=F64)
    up = ascended_adaptively(w, g, rho=np.sqrt(20.0), eta=0.0)
    torch.testing.assert_close(up, w + 4)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-22])
def test_of_a_gradient_that_is_as_good_as_0_nothing_is_made(size: float) -> None:
    """In 32 bits the square of 1e-22 is 0: its norm says nothing, and dividing by it would blow up what is left."""
    w, g = torch.linspace(-2, 2, 50), torch.full((50,), size)
    for up in (ascend(w, g, rho=5.0), ascended_adaptively(w, g, rho=5.0, eta=0.01)):
        torch.testing.assert_close(up, w, rtol=1e-6, atol=1e-6)


# Running statistics


@pytest.mark.parametrize("name", ["fedsam", "fedasam"])
def test_running_statistics_move_once_a_step_and_at_the_weights_themselves(name: str) -> None:
    """One step of a client: statistics as after one pass of an ordinary copy at what was received."""
    net = batchnorm_net(4, 5, 3, seed=6).double()
    x, y = torch.linspace(-2, 3, 24, dtype=F64).view(6, 4) ** 2, torch.tensor([0, 1, 2, 0, 1, 2])
    task = tarry.Task("normed", model=net, loss=cross_entropy, clients=[(x, y)])
    choice = {"name": name, "rho": 3.0}
    result = tarry.run(choice, task, dtype="float64", steps=1, batch="all", lr=0.1, delay=[1.0], updates=1)
    once = copy.deepcopy(net).train()
    once(x)
    norm = once[1]
    assert result.weights is not None
    torch.testing.assert_close(result.weights[-10:], torch.cat([norm.running_mean, norm.running_var]))


# What cannot be


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("fedsam", {"rho": -0.1}, ["--method.rho -0.1: must be 0 or more"]),
        (
            "fedasam",
            {"rho": -1.0, "eta": -0.5},
            ["--method.rho -1.0: must be 0 or more", "--method.eta -0.5: must be 0 or more"],
        ),
    ],
)
def test_what_cannot_be_is_refused(name: str, params: Choice, said: list[str]) -> None:
    with pytest.raises(BadInput) as e:
        build_by_flags(tarry.methods, name, **params)
    assert list(e.value.problems) == said
