"""FedSOL, App. L and Fig. 13: where FedSOL and FedProx settle on two weights.

    L_local = ½ (u − u_l)² + δ/2 (v − v_l)²         L_p = μ/2 (u² + v²)         w_g = (0, 0)

    FedSOL (Λ = 1)   settles at (r_l − ρ) (u_l, v_l)/r_l          the direction of the local optimum
    FedProx          settles at (u_l/(1 + μ), δ v_l/(δ + μ))      bent towards the steeper axis

The steps are those of the library's own rules, from (u_l, v_l) as in the figure. FedSOL does not depend on μ; which ρ
and μ were drawn the paper does not say. After 4000 steps of 0.01 the flat direction has (1 − 0.01 δ)^4000, for δ = 0.1
about 2 %, of its way left: `gap` is the distance from the closed form then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.layout import Layout
from ...core.local_rule import LocalRule, VisitInput
from ...core.optim import make_optimizer
from ...core.task import Task
from ...core.tickets import NOTHING
from ...methods import methods
from ...training.flat_model import FlatModel
from .canvas import panels
from .series import line, short
from .study import Tell, begin

__all__ = ["PAPER", "QUICK", "draw", "path_of", "run", "settles"]

PAPER: dict[str, Any] = {
    "optimum": [1.0, 1.0],
    "delta": 0.1,
    "steps": 4000,
    "lr": 0.01,
    "rho": [0.25, 0.5, 0.75, 1.0],
    "mu": [0.1, 0.5, 1.0, 2.0],
}
QUICK: dict[str, Any] = {"steps": 1000, "lr": 0.04}


class _ToyPoint(nn.Module):
    """Two weights as a model: outputs x ⊙ w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def settles(rule: str, strength: float, optimum: Sequence[float], delta: float) -> tuple[float, float]:
    """The closed form: FedSOL's with ρ, FedProx's with μ."""
    u, v = optimum
    if rule == "fedsol":
        r = hypot(u, v)
        return (r - strength) * u / r, (r - strength) * v / r
    return u / (1 + strength), delta * v / (delta + strength)


def path_of(rule: LocalRule, optimum: Sequence[float], delta: float, *, steps: int, lr: float) -> list[list[float]]:
    """The weights before every step and after the last, from (u_l, v_l), with w_g = (0, 0)."""
    root = delta**0.5
    rows = ([1.0, root], [optimum[0], root * optimum[1]])
    batch = (torch.tensor(rows[:1], dtype=torch.float64), torch.tensor(rows[1:], dtype=torch.float64))
    task = Task(
        "toy", model=_ToyPoint, loss=lambda out, y: ((out - y) ** 2).sum() / 2, clients=[batch], metrics=["loss"]
    )
    module = _ToyPoint()
    layout, by = Layout.of(module), make_optimizer("sgd", lr=lr)
    bound = FlatModel(module, layout, task, by)
    w_g = torch.zeros(2, dtype=torch.float64)
    _, context = rule.begin(VisitInput(w_g, NOTHING, NOTHING, layout, n_steps=steps, n_batches=1))
    w = torch.tensor(list(optimum), dtype=torch.float64)
    state, path = rule.init(w, context, bound), [w.tolist()]
    for _ in range(steps):
        w, state, _ = rule.step(w, batch, context, state, bound)
        path.append(w.tolist())
    return path


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: fedsol, fedprox. Columns: their ρ or μ. Measures: radius, angle (degrees), gap to the closed form."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o = study.options
    rules = {f"fedsol-{rho:g}": _fedsol(rho) for rho in o["rho"]} | {f"fedprox-{mu:g}": _fedprox(mu) for mu in o["mu"]}
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {"fedsol": {}, "fedprox": {}}
    for label, rule in rules.items():
        name, _, strength = label.partition("-")
        path = path_of(rule, o["optimum"], o["delta"], steps=o["steps"], lr=o["lr"])
        (u, v), (u_c, v_c) = path[-1], settles(name, float(strength), o["optimum"], o["delta"])
        angle = float(torch.rad2deg(torch.atan2(torch.tensor(v), torch.tensor(u))))
        found = {"radius": short(hypot(u, v)), "angle": short(angle), "gap": short(hypot(u - u_c, v - v_c))}
        numbers.setdefault(name, {})[strength] = {"0": found}
        curves[name][f"{'ρ' if name == 'fedsol' else 'μ'} = {strength}"] = line(
            [u for u, _ in path], [v for _, v in path], points=120
        )
    return {"numbers": numbers, "curves": curves, "axes": {"x": "u", "y": "v"}, "notes": study.notes}


def _fedsol(rho: float) -> LocalRule:
    return methods.build("fedsol", rho=rho, proximal="l2", adaptive=False, part="all").local


def _fedprox(mu: float) -> LocalRule:
    return methods.build("fedprox", mu=mu).local


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The paths, and the line from the global to the local optimum."""
    with panels(path, 1, len(result["curves"])) as axes:
        for ax, (name, paths) in zip(axes[0], result["curves"].items(), strict=True):
            begins = [(p["x"][0], p["y"][0]) for p in paths.values()]
            ax.axline((0, 0), begins[0], color="0.7", linestyle="--", linewidth=1)
            for label, p in paths.items():
                (drawn,) = ax.plot(p["x"], p["y"], label=label)
                ax.plot(p["x"][-1], p["y"][-1], "o", color=drawn.get_color())
            ax.set(title=name, xlabel="u", ylabel="v", xlim=(0, None), ylim=(0, None))
            ax.legend()
