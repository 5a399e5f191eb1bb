"""Where one method, at some setting, is another or a closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tarry
from tarry import Method, NextStart, ServerView, Update, stateless
from tests.helpers.models import random_clients
from tests.helpers.small_task import small_task
from tests.laws.variants import EVERYTHING

#: all clients at once, no losses: only the method is left to differ
PLAIN: dict[str, Any] = {
    "delay": EVERYTHING["delay"],
    "dtype": "float64",
    "steps": 3,
    "batch": 2,
    "lr": 0.1,
    "time": 12.0,
    "seed": 7,
}


def weights_after_every_event(method: Any, **changes: Any) -> list[Tensor]:
    seen: list[tarry.Event] = []
    tarry.run(method, small_task(), callbacks=[seen.append], **{**PLAIN, **changes})
    return [e.weights for e in seen if e.kind in ("arrival", "lost")]


def same(one: Any, other: Any, **changes: Any) -> None:
    a, b = weights_after_every_event(one, **changes), weights_after_every_event(other, **changes)
    assert len(a) >= 12
    assert not torch.allclose(a[-1], a[0], rtol=1e-3), "something was learnt"
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


HARD: dict[str, Any] = {"concurrency": 4, "failure_rate": 0.2, "availability": EVERYTHING["availability"]}


@pytest.mark.parametrize("changes", [{}, HARD], ids=["plain", "losses"])
def test_fedprox_without_its_pull_is_fedavg(changes: dict[str, Any]) -> None:
    same({"name": "fedprox", "mu": 0.0}, "fedavg", **changes)


@pytest.mark.parametrize("changes", [{}, HARD], ids=["plain", "losses"])
def test_fedbuff_of_one_without_discount_adds_every_delta_on_arrival(changes: dict[str, Any]) -> None:
    """Asynchronous SGD with step 1, which is what a method with no parts named does."""
    same({"name": "fedbuff", "buffer": 1, "a": 0.0, "eta": 1.0}, Method("asgd"), **changes)


def test_fedbuff_of_everybody_with_equal_delays_and_no_discount_is_fedavg() -> None:
    """Six clients of equal size and K = 6: all arrive before anybody starts, so a full buffer is a round."""
    same({"name": "fedbuff", "buffer": 6, "a": 0.0}, "fedavg", delay={"name": "constant", "seconds": 2.0})


@pytest.mark.parametrize("changes", [{}, HARD], ids=["plain", "losses"])
def test_orthofl_without_calibration_is_fedasync(changes: dict[str, Any]) -> None:
    orthofl = {"name": "orthofl", "ablation": "no-calibration", "beta": 0.4, "a": 0.7}
    same(orthofl, {"name": "fedasync", "alpha": 0.4, "a": 0.7}, **changes)


def naive_decoupled(beta: float, a: float) -> Method:
    """FedAsync whose clients keep their own weights and are sent the whole global shift."""

    def step(update: Update, view: ServerView) -> Tensor:
        weight = float(beta * (update.staleness + 1) ** -a)
        return (1 - weight) * view.weights + weight * update.local

    def reply(update: Update, view: ServerView) -> NextStart:
        return NextStart(update.local + (view.weights - update.ticket.anchor))

    return Method("decoupled", step=stateless(step), reply=stateless(reply))


@pytest.mark.parametrize("changes", [{}, HARD], ids=["plain", "losses"])
def test_orthofl_without_projection_is_fedasync_with_clients_of_their_own(changes: dict[str, Any]) -> None:
    same({"name": "orthofl", "projection": "none"}, naive_decoupled(0.6, 0.5), **changes)


def test_the_proximal_term_does_nothing_in_a_single_step() -> None:
    """Its gradient μ (w − w_start) is 0 where the step begins."""
    same({"name": "fedasync", "mu": 3.0}, {"name": "fedasync", "mu": 0.0}, steps=1)
    same({"name": "fedprox", "mu": 3.0}, "fedavg", steps=1)


def test_the_proximal_term_does_something_in_two_steps() -> None:
    a = weights_after_every_event({"name": "fedasync", "mu": 3.0}, steps=2)
    b = weights_after_every_event({"name": "fedasync", "mu": 0.0}, steps=2)
    assert not torch.allclose(a[-1], b[-1], rtol=1e-3)


EQUAL: dict[str, Any] = {"delay": {"name": "constant", "seconds": 1.0}, "time": 1.0}


def deltas_of_a_wave() -> tuple[Tensor, list[Tensor]]:
    """Θ^t and the six clients' pseudo-gradients Δ_i = Θ^t − Θ_i^t, all from Θ^t."""
    module = small_task().model
    assert isinstance(module, torch.nn.Module)
    theta = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).double()
    grabbed: list[Tensor] = []

    def grab(update: Update, _: ServerView) -> Update:
        grabbed.append(-update.delta)
        return update

    tarry.run(Method("grab", correct=stateless(grab)), small_task(), **{**PLAIN, **EQUAL})
    assert len(grabbed) == 6
    return theta, grabbed


@pytest.mark.parametrize("alpha", [0.1, 0.6, 1.0])
def test_fedasync_with_equal_delays_is_the_closed_form_of_asyncmanifold(alpha: float) -> None:
    """Eq. 6–7 of Aggregation on Learnable Manifolds: after k + 1 of the clients that started from Θ^t,

    Θ = Θ^t − Σ_{i=0..k} α (1 − α)^(k−i) Δ_{i+1}
    """
    theta, deltas = deltas_of_a_wave()
    method = {"name": "fedasync", "alpha": alpha, "staleness": "constant"}
    for k, weights in enumerate(weights_after_every_event(method, **EQUAL)):
        expected = theta - sum(alpha * (1 - alpha) ** (k - i) * deltas[i] for i in range(k + 1))
        torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-13)


def test_fedasync_with_equal_delays_and_weights_1_over_k_is_the_mean() -> None:
    """α = 1 and s(τ) = 1/(τ + 1): the k-th arrival of a wave mixes with 1/k, so Θ is the mean of those that came."""
    theta, deltas = deltas_of_a_wave()
    method = {"name": "fedasync", "alpha": 1.0, "a": 1.0}
    after = weights_after_every_event(method, **EQUAL)
    for k, weights in enumerate(after, 1):
        torch.testing.assert_close(weights, theta - sum(deltas[:k]) / k, rtol=1e-12, atol=1e-13)
    same(method, method)
    torch.testing.assert_close(after[-1], weights_after_every_event("fedavg", **EQUAL)[-1], rtol=1e-12, atol=1e-13)


def test_orthofl_of_one_layer_projects_the_same_by_layer_and_whole() -> None:
    data = random_clients([4] * 3, 3, 2, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = torch.nn.Linear(3, 2, bias=False)
    task = tarry.Task("one", model=module, loss=torch.nn.functional.cross_entropy, clients=data)
    settings: dict[str, Any] = {**PLAIN, "delay": [[1.0], [2.0], [3.0, 1.0]]}
    shas = {
        by: tarry.run({"name": "orthofl", "projection": by}, task, **settings).weights_sha256
        for by in ("layer", "full", "none")
    }
    assert shas["layer"] == shas["full"] != shas["none"]
