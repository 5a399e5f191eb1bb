"""FedSOL, Fig. 8: the largest eigenvalues of the Hessian at the global model, and the loss on a plane around it.

    λ1, λ1/λ5          of the mean training loss over a sample of all clients' examples, by Lanczos' method
    the plane          along the eigenvectors of λ1 and λ2 (the paper), or two random directions, filter by filter as
                       long as the weights (Li et al. 2018: `directions = "random"`)

Lanczos: from a random unit vector, `iterations` Hessian-vector products with every new vector made orthogonal to all
before; eigenvalues of the tridiagonal matrix of coefficients stand for the Hessian's largest. `residual` tells how well
λ5 is known: ‖H v − λ v‖ / λ1. Which data, how many and how far the plane reaches the paper does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from ...core import rng
from ...core.errors import BadInput
from ...core.rng import Stream
from ...core.task import Examples
from ...runs.build import BuiltRun
from ...training.determinism import deterministic
from ...training.flat_model import FlatModel
from .canvas import panels
from .fedsol_setting import SETTINGS, SMALL
from .series import short
from .study import Study, Tell, begin
from .surface import grid, random_directions
from .watch import loss_on, model_of, run_observed, some_of

__all__ = ["PAPER", "QUICK", "Spectrum", "draw", "lanczos", "product", "run"]

PAPER: dict[str, Any] = {
    "settings": SETTINGS,
    "stand_ins": [],
    "methods": {
        "fedavg": "fedavg",
        "fedasam": {"name": "fedasam", "rho": 1.0},
        "fedsol": {"name": "fedsol", "rho": 2.0},
    },
    "examples": 2000,
    "iterations": 40,
    "directions": "eigenvectors",
    "span": 1.0,
    "points": 21,
}
QUICK: dict[str, Any] = {
    "settings": SMALL,
    "examples": 300,
    "iterations": 30,
    "points": 9,
}
_CHUNK = 250  # examples a Hessian-vector product is taken of at once


class Spectrum(NamedTuple):
    """The largest eigenvalues, falling, their vectors (a row each), and ‖H v − λ v‖ of each."""

    values: list[float]
    vectors: Tensor
    residuals: list[float]


def product(bound: FlatModel, weights: Tensor, examples: Examples) -> Callable[[Tensor], Tensor]:
    """v → H v of the mean loss over the trained weights, the model as in use (dropout off, statistics still)."""
    layout, module = bound.layout, bound.module
    stats = {b.name: weights[b.at].view(b.shape) for b in layout.stats}
    chunks = list(zip(torch.split(examples[0], _CHUNK), torch.split(examples[1], _CHUNK), strict=True))

    def apply(v: Tensor) -> Tensor:
        module.eval()
        total = torch.zeros_like(v)
        for x, y in chunks:
            w = layout.params(weights).clone().requires_grad_()
            named = {b.name: w[b.at].view(b.shape) for b in layout.layers}
            loss = bound.task.loss(functional_call(module, {**named, **stats}, (x,)), y)
            (g,) = torch.autograd.grad(loss, w, create_graph=True)
            (hv,) = torch.autograd.grad(torch.dot(g, v), w)
            total.add_(hv, alpha=len(x) / len(examples[0]))
        module.train()
        return total

    return apply


def lanczos(apply: Callable[[Tensor], Tensor], first: Tensor, iterations: int, k: int = 5) -> Spectrum:
    """The k largest eigenvalues that so many products show; fewer products where the space is used up."""
    basis, alphas, betas = [first / first.norm()], list[float](), list[float]()
    for _ in range(min(iterations, len(first))):
        w = apply(basis[-1])
        alphas.append(float(torch.dot(w, basis[-1])))
        known = torch.stack(basis)
        for _ in range(2):  # once leaves what rounding has spoilt
            w = w - known.T @ (known @ w)
        betas.append(float(w.norm()))
        if betas[-1] <= 1e-6 * max(map(abs, alphas)):
            break
        basis.append(w / betas[-1])
    n = len(alphas)
    values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas[: n - 1], 1) + np.diag(betas[: n - 1], -1))
    order = np.argsort(-values)[:k]
    chosen = torch.from_numpy(vectors[:, order].T.copy()).to(first)
    residuals = [abs(betas[n - 1] * vectors[-1, i]) for i in order]
    return Spectrum([float(values[i]) for i in order], chosen @ torch.stack(basis[:n]), residuals)


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. One column, global. Measures: lambda1, ratio (λ1/λ5), lambda5, residual, accuracy (per cent)."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    if (directions := study.options["directions"]) not in ("eigenvectors", "random"):
        raise BadInput(f"[study_options] directions {directions}: must be eigenvectors or random")
    numbers: dict[str, Any] = {}
    surfaces: dict[str, Any] = {}
    for name, choice in study.choices("methods").items():
        for seed in seeds:
            found = _piece(study, seed, name, choice)
            surface = found.pop("surface")
            numbers.setdefault(name, {}).setdefault("global", {})[str(seed)] = found
            if seed == seeds[0]:
                surfaces[name] = surface
    curves = {name: {"first axis": {"x": s["x"], "y": s["z"][len(s["y"]) // 2]}} for name, s in surfaces.items()}
    axes = {"x": "along the first direction", "y": "loss"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "surfaces": surfaces, "notes": study.notes}


def _piece(study: Study, seed: int, name: str, choice: Any) -> dict[str, Any]:
    o, changes = study.options, {"method": choice}

    def make() -> dict[str, Any]:
        made = study.plan(seed, changes)
        result = run_observed(made, tell=study.tell, what=f"{name}, seed {seed}")
        assert result.weights is not None
        accuracy = {} if result.final_accuracy is None else {"accuracy": short(100 * result.final_accuracy)}
        with deterministic():
            return {**accuracy, **_analyze(made, result.weights, seed, o)}

    cache_options = ("examples", "iterations", "directions", "span", "points")
    found: dict[str, Any] = study.piece(
        f"{name}-{seed}", [study.settings(changes), seed, [o[k] for k in cache_options]], make
    )
    return found


def _analyze(made: BuiltRun, weights: Tensor, seed: int, o: Mapping[str, Any]) -> dict[str, Any]:
    bound, sample = model_of(made), _sample(made, o["examples"])
    n = made.layout.n_params
    first = torch.from_numpy(rng.generator(rng.key(seed, Stream.DATA, 2)).standard_normal(n)).to(weights)
    spectrum = lanczos(product(bound, weights, sample), first, o["iterations"])
    top, fifth = spectrum.values[0], spectrum.values[-1]
    u, v = spectrum.vectors[:2]
    if o["directions"] == "random":
        u, v = random_directions(weights, made.layout, seed)
    at = [short(x) for x in np.linspace(-o["span"], o["span"], o["points"])]
    found = {"lambda1": top, "ratio": top / fifth, "lambda5": fifth, "residual": spectrum.residuals[-1] / top}
    surface = {"x": at, "y": at, "z": grid(loss_on(bound, sample), weights, u, v, at, at)}
    return {**{name: short(value) for name, value in found.items()}, "surface": surface}


def _sample(made: BuiltRun, most: int) -> Examples:
    """About so many of all clients' training examples."""
    x, y = (torch.cat([own[i] for own in made.task.clients]) for i in (0, 1))
    return some_of((x, y), most)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The loss on each plane, one scale for all."""
    surfaces, numbers = result["surfaces"], result["numbers"]
    high = max(max(map(max, s["z"])) for s in surfaces.values())
    with panels(path, 1, len(surfaces)) as axes:
        for ax, (name, s) in zip(axes[0], surfaces.items(), strict=True):
            drawn = ax.contourf(s["x"], s["y"], s["z"], levels=np.linspace(0, high, 21).tolist(), cmap="viridis")
            ax.plot(0, 0, "w+")
            first = next(iter(numbers[name]["global"].values()))
            ax.set(title=f"{name}: λ1 {first['lambda1']:.3g}, λ1/λ5 {first['ratio']:.3g}")
        axes[0][0].figure.colorbar(drawn, ax=list(axes[0]), label="loss")
