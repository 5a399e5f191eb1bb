"""FedSOL joined with the losses of other methods (its Table 4): what they are on their own, and what is perturbed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tarry
from tarry.core.errors import BadInput
from tests.helpers.small_task import small_task
from tests.laws.test_batchnorm import task as normalized

SETTINGS: dict[str, Any] = {
    "delay": [1.0, 1.5, 2.0, 1.0, 3.0, 2.5],
    "concurrency": 4,
    "rounds": 6,
    "steps": 3,
    "batch": 2,
    "lr": 0.1,
    "momentum": 0.5,
    "dtype": "float64",
}


def final(method: Any, **more: Any) -> torch.Tensor:
    weights = tarry.run(method, small_task(), **{**SETTINGS, **more}).weights
    assert weights is not None
    return weights


@pytest.mark.parametrize(
    ("server", "name"), [("scaffold", "scaffold"), ("feddyn", "feddyn"), ("fednova:mu=1", "fednova"), ("moon", "moon")]
)
def test_added_to_the_loss_they_are_the_methods_themselves(server: str, name: str) -> None:
    """A5 is L + β L_p with β = 1; moon's own temperature is 0.5, and its own weight is 1."""
    joined = f"{server}+local=fedsol:proximal={name},strategy=A5,part=all,temperature=0.5"
    torch.testing.assert_close(final(joined), final(server), rtol=1e-12, atol=1e-14)


def test_under_scaffold_clients_that_are_hardly_perturbed_are_plain() -> None:
    """c_k is the mean of the visit's own gradients, and reaches nobody's step."""
    joined = "scaffold+local=fedsol:proximal=scaffold,rho=1e-12"
    torch.testing.assert_close(final(joined), final("fedavg:weighting=uniform"), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova"])
def test_no_perturbation_is_the_limit_of_a_small_one(name: str) -> None:
    none, small = (final(f"{name}+local=fedsol:proximal={name},part=all,rho={r}") for r in (0.0, 1e-12))
    torch.testing.assert_close(none, small, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("proximal", ["kl", "ntd"])
def test_a_fixed_perturbation_has_a_first_step_where_training_says_something_else_than_use(proximal: str) -> None:
    """Under batch normalization the received model and the client's differ in a visit's first step, too."""
    one = {"steps": 1, "batch": "all", "dtype": "float64", "rounds": 2, "delay": "constant"}
    choice = f"fedsol:proximal={proximal},temperature=1,part=all,adaptive=false,rho=0.5"
    normed = [tarry.run(m, normalized(), lr=0.1, **one).weights for m in (choice, "fedavg")]
    assert normed[0] is not None
    assert normed[1] is not None
    assert (normed[0] - normed[1]).norm() > 1e-4
    torch.testing.assert_close(final(choice, **one), final("fedavg", **one), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova"])
def test_the_perturbation_is_along_what_the_method_would_add(name: str) -> None:
    small, large = (final(f"{name}+local=fedsol:proximal={name},part=all,rho={r}") for r in (1e-6, 0.5))
    plain = final(f"{name}+local=fedsol:proximal={name},part=all,rho=1e-9")
    torch.testing.assert_close(small, plain, rtol=1e-4, atol=1e-5)
    assert (large - plain).norm() > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova"])
def test_alone_it_is_refused_for_what_its_server_does_not_send(name: str) -> None:
    with pytest.raises(BadInput, match=r"method='fedsol.*need .* from the server, which nothing here sends"):
        tarry.run(f"fedsol:proximal={name}", small_task(), **SETTINGS)


def test_a_clients_control_variate_is_the_mean_of_its_gradients_however_it_was_perturbed() -> None:
    """One full-batch step from the global of a quadratic: c_k is the gradient there, since ε is 0 in a first step."""
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    targets = [torch.tensor([[3.0], [1.0]]), torch.tensor([[-2.0], [0.0]])]
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(net.weight, 0.5)
    task = tarry.Task(
        "quadratic", model=net, loss=torch.nn.functional.mse_loss, clients=[(x, t) for t in targets], metrics=["loss"]
    )
    seen: list[Any] = []
    tarry.run(
        "scaffold+local=fedsol:proximal=scaffold,part=all",
        task,
        delay=[1.0, 1.0],
        rounds=3,
        steps=1,
        batch="all",
        lr=0.1,
        dtype="float64",
        callbacks=[seen.append],
    )
    stepped = [e.weights.item() for e in seen if e.stepped]
    w, want = 0.5, []
    for _ in range(3):
        gradients = [float((2 * x * (w * x - t)).mean()) for t in targets]
        w -= 0.1 * sum(gradients) / 2
        want.append(w)
    assert stepped == pytest.approx(want, rel=1e-12)
