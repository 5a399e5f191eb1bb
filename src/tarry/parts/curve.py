"""AsyncCurve's client: an endpoint θ and the control point of a curve to it (Algorithm 2).

    every epoch, over the same batches:
    endpoint   θ ← θ − η₁ Adam(∇F)             F = ℓ + (μ/2) exp(‖π_L(θ) − π_L(Θ)‖²_L / σ)                    Eq. 24
    control    λ ~ U[0, 1]                     one for every batch
               φ = M + δφ − γ P_Δ(δφ)          M = (Θ + θ)/2, P_Δ the projection onto Δ = Θ − θ               Eq. 30
               δφ ← δφ − η₂ Adam(∇ℓ)           at the curve's point λ; moments are 0 at every epoch's start
    at the end φ − M is sent beside the displacement

    lorentz    π_L(x) = (√(1 + ‖x‖²), x),  ‖(x₀, x)‖²_L = −x₀² + ‖x‖²                                    Eq. 26, 27
               the exponent is at most 80, so that float32 does not overflow; F's gradient has the same sign beyond
    l2         F = ℓ + (μ/2) ‖θ − Θ‖²          FedProx's
    asam       the gradient is taken at θ + ρ T² g / ‖T g‖,  T = |θ| + 0.01 (Kwon et al. 2021)

∇_δφ is the chain rule's: 2λ(1−λ) (I − γ P_Δ) ∇ℓ, half of it for the printed curve. Errata followed: Adam divides by
√v̂ + ε, not √(v̂ + ε); what is sent is the projected displacement of Eq. 30, not δφ itself. λ of the k-th control step
of a visit (from 0) is uniform(extend(extend(key(seed, Stream.LOCAL, client, visit), 1), k)) of core.rng.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import rng
from ..core.local_rule import ClientModel, Context, LocalRule, RuleStep, VisitInput, VisitOutput
from ..core.optim import USUAL_ADAM, AdamNumbers, Optimizer, make_optimizer
from ..core.task import Examples
from ..core.tickets import CONTROL, NOTHING
from .checks import above, at_least, between, check, decay
from .sharpness import ascended_adaptively

__all__ = ["SHIFT", "CurveLearning", "CurveName", "ClientProximalName", "SolverName"]

ClientProximalName = Literal["lorentz", "l2", "none"]
SolverName = Literal["adam", "asam", "sgd"]
CurveName = Literal["bezier", "printed", "line"]

#: the payload Θ^τ − Θ^(τ+1), over the trained weights: the global's last step, uphill, for Adam's first moments
SHIFT = "shift"
_LAMBDA = 1  # the part of the visit's key for the draws of λ
_ROOM = 64  # the smallest number of λ in the context, so that stacked clients have tensors of one size
_STEEP = 80.0  # the largest exponent of the Lorentz term: float32 overflows at 88.7
_FLOOR = 0.01  # ASAM's η: how far a weight of 0 may still be moved


class ControlPass(NamedTuple):
    """The state of one epoch's control steps."""

    adam: Any
    line: Tensor  # sums of losses, for diagnostics
    curve: Tensor
    steps: Tensor


class VisitState(NamedTuple):
    """The state of a visit."""

    solver: Any  # the endpoint's optimizer
    control: Tensor  # δφ, before it is projected
    control_pass: ControlPass | None  # of the epoch; None: the curve is a line
    steps: Tensor  # control steps of the visit


@dataclass(frozen=True)
class CurveLearning(LocalRule):
    """Train an endpoint and a control point in turns, with learning rates of its own; a `line` has no control point."""

    lr: float
    control_lr: float
    solver: SolverName
    rho: float
    proximal: ClientProximalName
    mu: float
    sigma: float
    gamma: float
    shape: CurveName
    adam: AdamNumbers = USUAL_ADAM

    def __post_init__(self) -> None:
        check(
            above(0, lr=self.lr, control_lr=self.control_lr),
            at_least(0, rho=self.rho, mu=self.mu),
            above(0, sigma=self.sigma),
            between(0, 1, gamma=self.gamma),
            decay(beta1=self.adam.beta1, beta2=self.adam.beta2),
            above(0, eps=self.adam.eps),
        )

    @property
    def own_optimizer(self) -> bool:
        return True

    @property
    def used_payload(self) -> frozenset[str]:
        return frozenset({SHIFT}) if self.solver != "sgd" else frozenset()

    @property
    def uploads(self) -> frozenset[str]:
        return frozenset() if self.shape == "line" else frozenset({CONTROL})

    @property
    def passes(self) -> tuple[RuleStep, ...]:
        return (self.step,) if self.shape == "line" else (self.step, self.control_step)

    @cached_property
    def _endpoint(self) -> Optimizer:
        return make_optimizer("sgd" if self.solver == "sgd" else "adam", lr=self.lr, numbers=self.adam)

    @cached_property
    def _control(self) -> Optimizer:
        return make_optimizer("adam", lr=self.control_lr, numbers=self.adam)

    def begin(self, visit: VisitInput) -> tuple[Tensor, Context]:
        w = visit.weights.clone()  # a copy: the last bit of torch.dot depends on the memory alignment
        key = rng.extend(visit.key, _LAMBDA)
        lam = [rng.uniform(rng.extend(key, k)) for k in range(visit.n_steps)]
        lam += [0.0] * (max(_ROOM, 1 << (len(lam) - 1).bit_length()) - len(lam))  # padded to a power of 2, for stacking
        context = {"start": visit.layout.params(w), "lam": torch.tensor(lam, dtype=w.dtype, device=w.device)}
        if SHIFT in visit.payload:
            context["first"] = visit.payload[SHIFT] / visit.n_batches
        return w, context

    def init(self, w: Tensor, context: Context, model: ClientModel) -> VisitState:  # noqa: ARG002
        begin, first = self._endpoint, context.get("first")
        warm = None if begin.warm is None or first is None else begin.warm(first, first * first)
        none = torch.zeros((), dtype=torch.int64, device=w.device)
        first_pass = None if self.shape == "line" else self._new_pass(w)
        return VisitState(begin.init(w) if warm is None else warm, torch.zeros_like(w), first_pass, none)

    def _new_pass(self, control: Tensor) -> ControlPass:
        zero = torch.zeros_like(control[0])
        return ControlPass(self._control.init(control), zero, zero, zero)

    def begin_pass(self, pass_index: int, state: VisitState, model: ClientModel) -> VisitState:  # noqa: ARG002
        return state._replace(control_pass=self._new_pass(state.control)) if pass_index == 1 else state

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: VisitState, model: ClientModel
    ) -> tuple[Tensor, VisitState, Tensor]:
        g, loss = model.grad(w, batch)
        g = self.transform_grad(g, w, context)
        if self.solver == "asam":
            w_up = ascended_adaptively(w, g, rho=self.rho, eta=_FLOOR)
            g = self.transform_grad(model.grad(w_up, batch, still=True)[0], w_up, context)
        w, solver = self._endpoint.apply_gradient(w, g, state.solver)
        return w, state._replace(solver=solver), loss

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        """Return ∇F (Eq. 24) from ∇ℓ. For lorentz, with a = √(1 + ‖θ‖²) and b = √(1 + ‖Θ‖²):

        ∇ = (μ/σ) exp((‖θ − Θ‖² − (a − b)²)/σ) · (θ − Θ − ((a − b)/a) θ)
        """
        if self.proximal == "none":
            return g
        start = context["start"]
        d = w - start
        if self.proximal == "l2":
            return torch.add(g, d, alpha=self.mu)
        dd, ds, ss = torch.dot(d, d), torch.dot(d, start), torch.dot(start, start)
        a, b = torch.sqrt(1 + ss + 2 * ds + dd), torch.sqrt(1 + ss)
        rise = (2 * ds + dd) / (a + b)  # a − b, without the cancellation
        pull = self.mu / self.sigma * torch.exp(((dd - rise * rise) / self.sigma).clamp_max(_STEEP))
        return torch.addcmul(torch.addcmul(g, d, pull), w, -pull * rise / a)

    def control_step(
        self, w: Tensor, batch: Examples, context: Context, state: VisitState, model: ClientModel
    ) -> tuple[Tensor, VisitState, Tensor]:
        """δφ ← δφ − η₂ Adam(∇ℓ), with ∇ℓ at the point λ of the curve with the control point φ of Eq. 30."""
        start, control = context["start"], state.control
        lams = context["lam"]  # in a stack, finished clients go on counting; their results are discarded
        lam = lams.gather(0, state.steps.view(1).clamp_max(len(lams) - 1)).squeeze(0)
        way = w - start  # Δ, up to its sign
        straight, d = torch.lerp(start, w, lam), self._project_out(control, way)  # d = φ − M, Eq. 30
        share = 2 * lam * (1 - lam) if self.shape == "bezier" else lam * (1 - lam)
        at = torch.addcmul(straight, d, share)
        if self.shape == "printed":  # its coefficients do not sum to 1
            at = torch.addcmul(at, start + w, -share / 2)
        g, loss = model.grad(at, batch, still=True)
        assert state.control_pass is not None
        adam, line, curve, steps = state.control_pass
        control, adam = self._control.apply_gradient(control, share * self._project_out(g, way), adam)
        if self.diagnose:
            line, curve = line + model.loss(straight, batch), curve + loss
        done = ControlPass(adam, line, curve, steps + 1)
        return w, state._replace(control=control, control_pass=done, steps=state.steps + 1), loss

    def _project_out(self, v: Tensor, way: Tensor) -> Tensor:
        """Return v − γ P_Δ(v), P_Δ the projection onto the way Δ; v if the way is 0."""
        size = torch.dot(way, way).clamp_min(torch.finfo(way.dtype).tiny)
        return torch.addcmul(v, way, -self.gamma * torch.dot(v, way) / size) if self.gamma else v

    def finish(self, w: Tensor, context: Context, state: VisitState) -> VisitOutput:
        if self.shape == "line":
            return VisitOutput()
        assert state.control_pass is not None
        start, done = context["start"], state.control_pass
        sent = {CONTROL: self._project_out(state.control, w[: len(start)] - start)}
        means = {"line_loss": done.line / done.steps, "curve_loss": done.curve / done.steps}
        return VisitOutput(sent, notes=means if self.diagnose else NOTHING)
