"""FedSOL's studies: the toy's fixed points, layer-wise strengths, what is seen of a round."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import atan2, hypot
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tarry.config.spec import Spec
from tarry.core.layout import Block, Kind, Layout
from tarry.methods import methods
from tarry.reproduce.studies import toy
from tarry.reproduce.studies.adaptive_strength import strengths
from tarry.reproduce.studies.local_effects import PAPER, Rounds
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import build_run


@pytest.mark.parametrize(("rho", "optimum"), [(0.5, (1.0, 1.0)), (1.2, (2.0, 0.5))])
def test_fedsol_settles_at_the_radius_less_rho_in_the_same_direction(rho: float, optimum: tuple[float, float]) -> None:
    rule = methods.build("fedsol", rho=rho, proximal="l2", adaptive=False, part="all").local
    u, v = toy.path_of(rule, optimum, 0.2, steps=600, lr=0.2)[-1]
    assert hypot(u, v) == pytest.approx(hypot(*optimum) - rho, abs=1e-6)
    assert atan2(v, u) == pytest.approx(atan2(optimum[1], optimum[0]), abs=1e-6)
    assert (u, v) == pytest.approx(toy.settles("fedsol", rho, optimum, 0.2), abs=1e-6)


def test_fedprox_settles_towards_the_steeper_axis() -> None:
    rule = methods.build("fedprox", mu=0.5).local
    u, v = toy.path_of(rule, (1.0, 1.0), 0.1, steps=400, lr=0.2)[-1]
    assert (u, v) == pytest.approx((1 / 1.5, 0.1 / 0.6), abs=1e-9)
    assert (u, v) == pytest.approx(toy.settles("fedprox", 0.5, (1.0, 1.0), 0.1), abs=1e-9)


def test_the_toy_steps_by_the_papers_gradients() -> None:
    fedsol = methods.build("fedsol", rho=0.3, proximal="l2", adaptive=False, part="all").local
    path = toy.path_of(fedsol, (1.0, 2.0), 0.1, steps=5, lr=0.01)
    for (u, v), (u_next, v_next) in pairwise(path[1:]):  # the first has no perturbation
        r = hypot(u, v)
        g = (u - 1.0) + 0.3 * u / r, 0.1 * ((v - 2.0) + 0.3 * v / r)
        assert (u_next, v_next) == pytest.approx((u - 0.01 * g[0], v - 0.01 * g[1]), abs=1e-12)


@pytest.mark.parametrize("rho", [0.05, 0.1, 0.4])
def test_proposition_2_holds_up_to_a_term_in_rho_squared(rho: float) -> None:
    """To first order FedSOL's step changes the local loss as FedAvg's does at w + (ρ/2) ĝ_p.

    On a quadratic loss with the Hessian H the rest is ρ² ‖H ĝ_p‖² / 4 exactly.
    """
    optimum, curvature, lr = np.array([1.0, 2.0]), np.array([1.0, 0.1]), 0.01
    fedsol = methods.build("fedsol", rho=rho, proximal="l2", adaptive=False, part="all").local
    path = [np.array(p) for p in toy.path_of(fedsol, (1.0, 2.0), 0.1, steps=6, lr=lr)]
    for w, after in pairwise(path[1:]):  # the first step has no perturbation
        direction = (w - after) / lr
        g, unit = curvature * (w - optimum), w / np.linalg.norm(w)  # l2: g_p points along w − w_g, w_g = 0
        change = -(g @ direction)
        fedavg = curvature * (w + rho / 2 * unit - optimum)
        assert change - -(fedavg @ fedavg) == pytest.approx(rho**2 * np.sum((curvature * unit) ** 2) / 4, abs=1e-9)


def test_the_toy_tells_how_far_the_closed_form_is(tmp_path: Path) -> None:
    asked = {"steps": 300, "lr": 0.3, "rho": [0.5], "mu": [1.0]}
    found = toy.run(asked, quick=False, seeds=[0], device="cpu", folder=tmp_path, tell=lambda _: None)
    assert found["numbers"]["fedsol"]["0.5"]["0"]["angle"] == pytest.approx(45, abs=0.01)
    assert found["numbers"]["fedprox"]["1"]["0"]["gap"] < 1e-4


def test_strengths_by_hand() -> None:
    layout = Layout((Block("a", 0, 2, (2,), Kind.PARAM), Block("b", 2, 6, (4,), Kind.HEAD)))
    w_g, w = torch.tensor([3.0, 4.0, 1, 1, 1, 1]), torch.tensor([6.0, 8.0, 1, 1, 1, 1])
    found = strengths(w, w_g, layout)
    assert found["a"] == pytest.approx({"lambda": 0.7, "scaled": 0.7 * 2**0.5, "moved": 1.0})
    assert found["b"] == {"lambda": 0.0, "scaled": 0.0, "moved": 0.0}
    even = strengths(w_g + torch.tensor([1.0, -1, 2, 2, -2, 2]), w_g, layout)
    assert even["a"]["scaled"] == pytest.approx(1)
    assert even["b"]["scaled"] == pytest.approx(1)


def _made(method: Any, **changes: Any) -> Any:
    settings = {"task": {"name": "digits", "limit": 120}, "clients": 6, "concurrency": 3, "rounds": 5, "steps": 3}
    return build_run(Spec.of({**settings, "delay": "constant", "batch": 8, "method": method, **changes}))


def test_a_rounds_numbers_are_those_of_the_formulas() -> None:
    made = _made("fedavg")
    options = {**PAPER, "every": 1}
    look = Rounds(made, options)
    draw = np.random.default_rng(1)
    w_g = made.layout.read(made.module, torch.float32)
    models = [(c, w_g + torch.from_numpy(draw.normal(size=len(w_g)) * 0.1).float()) for c in (2, 4, 5)]
    found = look.look(w_g, models)
    far = [float((w - w_g).double().norm()) for _, w in models]
    pairs = [float((a - b).double().norm()) for (_, a), (_, b) in combinations(models, 2)]
    assert found["distance"] == pytest.approx(np.mean(far), rel=1e-5)
    assert found["distance_sd"] == pytest.approx(np.std(far), rel=1e-3)
    assert found["divergence"] == pytest.approx(np.mean(pairs), rel=1e-5)
    x, y = made.task.test
    z = {i: _outputs(made, w, x) for i, w in enumerate([w_g, *(w for _, w in models)])}
    right = [100 * float((z[i].argmax(1) == y.numpy()).mean()) for i in range(4)]
    assert found["global"] == pytest.approx(right[0])
    assert found["local"] == pytest.approx(np.mean(right[1:]))
    by_class = [100 * float((z[0].argmax(1) == c)[y.numpy() == c].mean()) for c in range(10)]
    assert found["classes"] == pytest.approx(by_class)
    kl = [
        _kl(_outputs(made, w_g, made.task.clients[c][0]), _outputs(made, w, made.task.clients[c][0])) for c, w in models
    ]
    assert found["proximal"] == pytest.approx(np.mean(kl), rel=1e-4)


def _outputs(made: Any, weights: torch.Tensor, x: torch.Tensor) -> Any:
    """The mlp by hand, in float64."""
    w1, b1, w2, b2 = (t.double().numpy() for t in made.layout.views(weights).values())
    hidden = np.maximum(x.flatten(1).double().numpy() @ w1.T + b1, 0)
    return hidden @ w2.T + b2


def _kl(z_g: Any, z: Any) -> float:
    p, q = (np.exp(v / 3) / np.exp(v / 3).sum(1, keepdims=True) for v in (z_g, z))
    return float((p * np.log(p / q)).sum(1).mean())


def test_rounds_are_looked_at_whole_and_every_so_often() -> None:
    made = _made("fedavg")
    look = Rounds(made, {**PAPER, "every": 2, "measures": ["distance"]})
    run_observed(made, look)
    assert [r["round"] for r in look.rows] == [0, 2, 4]
    assert all(r["distance"] > 0 for r in look.rows)


def test_a_perturbation_below_rounding_is_fedavg_and_tells_its_cosine() -> None:
    sol = _made({"name": "fedsol", "rho": 1e-9}, diagnose=True)
    look = Rounds(sol, {**PAPER, "every": 1, "measures": ["cosine"]})
    noted, plain = run_observed(sol, look), run_observed(_made("fedavg"))
    assert noted.weights is not None
    assert plain.weights is not None
    assert torch.allclose(noted.weights, plain.weights, atol=1e-6)
    assert all(-1 <= r["cosine"] <= 1 for r in look.rows)
    assert len(look.rows) == 5
