"""Per-FedAvg against its twin, and by hand on parabolas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import Scale, half_mean_square
from tests.methods.fedavg.reference import FedAvg
from tests.methods.perfedavg.reference import descend_meta
from tests.reference.match import Case, cases, check, few

alphas = st.sampled_from([0.01, 0.1, 0.3])


@few
@given(cases(), alphas)
def test_first_order_is_its_twin(case: Case, alpha: float) -> None:
    problem = case.problem
    check(
        {"name": "perfedavg", "alpha": alpha},
        case,
        FedAvg(problem.w0, case.sizes),
        train=lambda m, w: descend_meta(problem, m, w, steps=case.steps, beta=case.lr, alpha=alpha),
    )


@few
@given(cases(), alphas, st.sampled_from([0.001, 0.1]))
def test_hessian_free_is_its_twin(case: Case, alpha: float, delta: float) -> None:
    """The same differences, so the same rounding: to no more than a part in 10⁸ where δ divides it."""
    problem = case.problem
    check(
        {"name": "perfedavg", "alpha": alpha, "form": "hf", "delta": delta, "weighting": "uniform"},
        case,
        FedAvg(problem.w0, [1] * len(case.sizes)),
        train=lambda m, w: descend_meta(problem, m, w, steps=case.steps, beta=case.lr, alpha=alpha, delta=delta),
    )


def parabola(a: float, b: float, n: int) -> tuple[Tensor, Tensor]:
    """½ a (w − b)² for inputs √a and targets √a b: a mean over the batch."""
    x = torch.full((n, 1), a**0.5, dtype=torch.float64)
    return x, x * b


def after_a_step(params: dict[str, Any], n: int = 6, **settings: Any) -> float:
    """w after one step from 2 on ½ a (w − b)², a = 3, b = −1."""
    task = tarry.Task(
        "bowl", model=Scale([2.0]), loss=half_mean_square, clients=[parabola(3.0, -1.0, n)], metrics=["loss"]
    )
    defaults = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5, "delay": [1.0], "rounds": 1}
    result = tarry.run({"name": "perfedavg", **params}, task, **{**defaults, **settings})
    assert result.weights is not None
    return result.weights.item()


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_first_order_on_a_parabola(n: int) -> None:
    """∇f(2) = 3 · 3 = 9; w̃ = 2 − 0.1 · 9 = 1.1; ∇f(w̃) = 6.3; w = 2 − 0.5 · 6.3 = −1.15."""
    assert after_a_step({"alpha": 0.1}, n) == pytest.approx(-1.15, rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("delta", [0.001, 0.5])
def test_hessian_free_on_a_parabola_is_the_exact_meta_gradient(n: int, delta: float) -> None:
    """(1 − 0.1 · 3) · 6.3 = 4.41; w = 2 − 0.5 · 4.41 = −0.205. Differences of a line are exact, whatever δ."""
    assert after_a_step({"alpha": 0.1, "form": "hf", "delta": delta}, n) == pytest.approx(-0.205, rel=1e-11)


def test_the_batches_are_every_second_example() -> None:
    """D pulls to −1, D' to 4: w̃ = 2 − 0.1 · 3 · 3 = 1.1; ∇f(w̃; D') = 3 · (1.1 − 4) = −8.7; w = 2 + 0.5 · 8.7."""
    (x, to_d), (_, to_d1) = parabola(3.0, -1.0, 4), parabola(3.0, 4.0, 4)
    y = torch.where(torch.arange(4)[:, None] % 2 == 0, to_d, to_d1)
    task = tarry.Task("two", model=Scale([2.0]), loss=half_mean_square, clients=[(x, y)], metrics=["loss"])
    settings: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5, "delay": [1.0]}
    result = tarry.run({"name": "perfedavg", "alpha": 0.1}, task, rounds=1, **settings)
    assert result.weights is not None
    assert result.weights.item() == pytest.approx(6.35, rel=1e-14)


def test_the_meta_gradient_goes_through_the_clients_optimizer() -> None:
    """Two steps with momentum ½: 6.3; then w = −1.15, w̃ = −1.105, g = −0.315; v = −0.315 + ½ 6.3 = 2.835."""
    assert after_a_step({"alpha": 0.1}, steps=2, momentum=0.5) == pytest.approx(-1.15 - 0.5 * 2.835, rel=1e-13)


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_clients_tune_by_steps_of_alpha_whatever_the_optimizer(form: str) -> None:
    """A step a batch of everything: w − α ∇f(w), which moves the one threshold past the client's test examples."""

    class Sign(Scale):
        def forward(self, x: Tensor) -> Tensor:
            s = x * self.w
            return torch.cat([s, -s], dim=1)

    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1])
    task = tarry.Task("sign", Sign([2.0]), nn.functional.cross_entropy, clients=[(x, y)], test=(x, y))
    settings: dict[str, Any] = {"dtype": "float64", "batch": "all", "steps": 1, "delay": [1.0], "rounds": 1}
    # w = 2 stays where it is in a round of rate 1e-12; one tuning step makes it negative only where α is large
    for alpha, right in ((0.1, 0.0), (1.0, 1.0)):
        method = {"name": "perfedavg", "alpha": alpha, "form": form}
        result = tarry.run(method, task, lr=1e-12, momentum=0.9, personalize=1, **settings)
        assert result.personalization is not None
        assert result.personalization["before"]["mean"] == 0.0
        assert result.personalization["after"]["mean"] == right, alpha


@pytest.mark.parametrize(
    ("params", "said"), [({"alpha": 0.0}, "--method.alpha 0.0"), ({"delta": -1.0}, "--method.delta -1.0")]
)
def test_what_cannot_be_is_refused(params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "perfedavg", **params)
