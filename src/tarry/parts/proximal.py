"""Proximal losses L_p(w; w_g): how far a client's model has come from the one it received.

    l2     ½ ‖w − w_g‖²                                 FedProx's, without its μ
    kl     KL(softmax(z_g / T) ‖ softmax(z / T))        z, z_g: outputs of the client's and of the received model
    ntd    T² KL(softmax(z̃_g / T) ‖ softmax(z̃ / T))     z̃: outputs but for the true class's (FedNTD)
    moon   −log(e^(s_g/T) / (e^(s_g/T) + e^(s_prev/T)))  s: cosines between the client's features and those of the
                                                        received model, and of the client's previous one (MOON)
    scaffold, feddyn, fednova                           the potentials of what these methods add to gradients
                                                        (parts.variates): ⟨c − c_k, w⟩, −⟨λ_k, w⟩ + (α/2) ‖w − w_g‖²,
                                                        and ½ ‖w − w_g‖²

A client may add β L_p to its own loss (`Auxiliary`), or perturb its weights along ∇L_p (FedSOL, Eq. 2 and 5). Other
models are asked as in use: dropout off, their own running statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..core.errors import BadInput
from ..core.layout import Kind, Layout
from ..core.local_rule import Brief, Context, Functions, LocalRule, Objective, Outcome, Split
from ..core.optim import Optimiser
from ..core.task import Examples, Task
from .classes import want_classes
from .variates import Control, Dual, Normal, Variate

__all__ = [
    "KL",
    "L2",
    "MOON",
    "NTD",
    "Auxiliary",
    "Near",
    "OfFeatures",
    "OfOutputs",
    "OfVariate",
    "OfWeights",
    "Proximal",
    "ProximalLoss",
    "proximal_loss",
]

Proximal = Literal["kl", "l2", "ntd", "moon", "scaffold", "feddyn", "fednova"]
FEDDYN = 0.01  # α, as `feddyn` has it
_ROUNDING = 100  # of the last digit: unit vectors no further apart are the same


class Near(Protocol):
    """A proximal loss on one batch, at any weights."""

    passes: ClassVar[bool]  # whether a gradient takes a pass through the model

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:
        """(∇L_p, L_p) at w; `still`: running statistics stay what they were."""

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:
        """(∇L_p, L_p) at w, after the body's pass at w; the gradient need be right in the head only."""

    def added(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        """(∇(L + β L_p), L) at w by one pass, L being the task's loss."""


class ProximalLoss(Protocol):
    """A loss by name: what it keeps for a visit and from visit to visit, and what it is on a batch."""

    rests: ClassVar[bool] = True  # its gradient is 0 at w_g
    reaches_head: ClassVar[bool] = True  # its gradient need not be 0 in the head

    def check(self, layout: Layout, optimiser: Optimiser) -> None:  # noqa: ARG002 - what losses override
        """Raise BadInput where such a model has no such loss, or such an optimiser no use for it."""
        return

    def suits(self, task: Task) -> None:  # noqa: ARG002 - what losses override
        """Raise BadInput where such a task has no such loss."""
        return

    def begin(self, brief: Brief) -> Context:  # noqa: ARG002 - what losses override
        """What every step of the visit may read."""
        return {}

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:
        """On a batch. Asked for before the step's first pass: it may load other weights."""

    @property
    def needs(self) -> frozenset[str]:
        """What of the payload it cannot do without."""
        return frozenset()

    @property
    def gives(self) -> frozenset[str]:
        """The extras it sends back."""
        return frozenset()

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float) -> Outcome:  # noqa: ARG002
        """What is sent, and kept until the next visit; w is the whole vector that the client ends with.

        `share` of the loss's gradient was in the directions that it descended.
        """
        return Outcome()


def _noted(objective: Objective) -> tuple[Objective, list[Tensor]]:
    """The objective, and where it notes its values."""
    values: list[Tensor] = []

    def noting(outputs: Tensor, targets: Any) -> Tensor:
        values.append(objective(outputs, targets))
        return values[-1]

    return noting, values


@dataclass(frozen=True)
class OfWeights:
    """A loss of the weights alone: (∇L_p, L_p) in closed form."""

    f: Functions
    at: Callable[[Tensor], tuple[Tensor, Tensor]]
    passes: ClassVar[bool] = False

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - nothing moves
        return self.at(w)

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - outputs do not matter
        return self.at(w)

    def added(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        g, loss = self.f.grad(w, batch)
        return torch.add(g, self.at(w)[0], alpha=beta), loss


@dataclass(frozen=True)
class OfOutputs:
    """A loss of the model's outputs on x, held against an aim."""

    f: Functions
    x: Tensor
    aim: Any
    objective: Objective
    passes: ClassVar[bool] = True

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:
        return self.f.grad(w, (self.x, self.aim), self.objective, still=still)

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:
        objective, values = _noted(self.objective)
        return split.head_grad(w, self.aim, objective), values[0].detach()

    def added(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        local, losses = _noted(self.f.task_loss)
        g, _ = self.f.grad(w, batch, lambda z, y: local(z, y) + beta * self.objective(z, self.aim))
        return g, losses[0].detach()


@dataclass(frozen=True)
class OfFeatures:
    """A loss of what goes into the head on x, held against an aim."""

    f: Functions
    x: Tensor
    aim: Any
    objective: Objective  # of features in the place of outputs
    passes: ClassVar[bool] = True

    def gradient(self, w: Tensor, *, still: bool) -> tuple[Tensor, Tensor]:
        return self.f.deep_grad(w, (self.x, self.aim), lambda _, r, aim: self.objective(r, aim), still=still)

    def on_head(self, split: Split, w: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        raise AssertionError("features do not depend on the head")

    def added(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        local, losses = _noted(self.f.task_loss)
        g, _ = self.f.deep_grad(w, batch, lambda z, r, y: local(z, y) + beta * self.objective(r, self.aim))
        return g, losses[0].detach()


@dataclass(frozen=True)
class L2(ProximalLoss):
    """½ ‖w − w_g‖²; its gradient is w − w_g."""

    def begin(self, brief: Brief) -> Context:
        return {"received": brief.weights}

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:  # noqa: ARG002 - the same on all inputs
        w_g = f.layout.params(context["received"])

        def at(w: Tensor) -> tuple[Tensor, Tensor]:
            g = w - w_g
            return g, torch.dot(g, g) / 2

        return OfWeights(f, at)


@dataclass(frozen=True)
class KL(ProximalLoss):
    """KL(p ‖ q) with p = softmax(z_g/T), q = softmax(z/T) over the last dimension; the mean over all others; no T²."""

    temperature: float = 3.0

    def suits(self, task: Task) -> None:
        want_classes(task, "--method.proximal kl:", "use --method.proximal l2")

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:  # noqa: ARG002 - f knows the received one
        x, _ = batch
        z_g = f.received(x)
        if z_g.ndim < 2 or z_g.shape[-1] < 2:
            raise BadInput(
                "--method.proximal kl: compares classes, and this model has one output; use --method.proximal l2"
            )
        s = z_g / self.temperature
        return OfOutputs(f, x, s - s.logsumexp(-1, keepdim=True), lambda z, aim: f.mean(self.divergence(z, aim)))

    def divergence(self, z: Tensor, log_p: Tensor) -> Tensor:
        """Σ p (log p − z/T) + log Σ e^(z/T), of each example.

        In this form the gradient is (q − p)/T with q rounded as p was: exactly 0 at z = z_g. Whoever divides it by its
        norm would else follow rounding errors where a visit begins.
        """
        s = z / self.temperature
        return (log_p.exp() * (log_p - s)).sum(-1) + s.logsumexp(-1)


@dataclass(frozen=True)
class NTD(ProximalLoss):
    """T² KL(p̃ ‖ q̃): as kl, over the classes that are not the example's own, and with T²."""

    temperature: float = 1.0
    flag: str = "--method.proximal ntd"

    def suits(self, task: Task) -> None:
        want_classes(task, f"{self.flag}:", "use another task")

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:  # noqa: ARG002 - f knows the received one
        x, y = batch
        z_g = f.received(x)
        if y.is_floating_point() or z_g.ndim < 2 or z_g.shape[-1] < 3 or y.shape != z_g.shape[:-1]:
            out, labels = ("×".join(map(str, t.shape)) for t in (z_g, y))
            raise BadInput(
                f"{self.flag}: compares the classes that are not the label, so there have to be 3 or more, and whole"
                f" numbers for labels; a batch here has outputs of {out} and {y.dtype} labels of {labels}; use another"
                " task"
            )
        true = torch.arange(z_g.shape[-1], device=y.device) == y.unsqueeze(-1)
        s = z_g / self.temperature
        log_p = s - s.masked_fill(true, -torch.inf).logsumexp(-1, keepdim=True)
        aim = (true, log_p.exp().masked_fill(true, 0), log_p)
        return OfOutputs(f, x, aim, lambda z, aim: f.mean(self.divergence(z, aim)))

    def divergence(self, z: Tensor, aim: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """As kl's: exactly 0, and so its gradient, at z = z_g."""
        true, p, log_p = aim
        s = z / self.temperature
        total = s.masked_fill(true, -torch.inf).logsumexp(-1)
        return self.temperature**2 * ((p * (log_p - s)).sum(-1) + total)


@dataclass(frozen=True)
class MOON(ProximalLoss):
    """log(1 + e^((s_prev − s_g)/T)), the mean over examples.

    The client keeps the model it ends with for its next visit. As long as it has none there is nothing to be held
    against, and no gradient.
    """

    temperature: float = 0.5
    flag: str = "--method.proximal moon"
    rests: ClassVar[bool] = False  # at w_g it points away from the previous model
    reaches_head: ClassVar[bool] = False

    def check(self, layout: Layout, optimiser: Optimiser) -> None:  # noqa: ARG002
        heads = [b.kind is Kind.HEAD for b in layout.layers]
        if all(heads) or not any(heads):
            why = "nothing is trained before it" if any(heads) else "the model has none"
            raise BadInput(
                f"{self.flag}: compares what goes into the last linear or conv map, and {why}; use another model"
            )

    def begin(self, brief: Brief) -> Context:
        return {"received": brief.weights, "previous": brief.memory.get("previous")}

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:
        x, _ = batch
        received, previous = context["received"], context["previous"]
        if previous is None:
            f.features(received, x[:1])  # a model without features is refused here, not at the second visit
            return OfWeights(f, lambda w: (torch.zeros_like(w), w.new_zeros(())))
        apart = _unit(f.known_features(previous, x)) - _unit(f.known_features(received, x))
        size = torch.linalg.vector_norm(apart, dim=-1, keepdim=True)
        apart = torch.where(size > _ROUNDING * torch.finfo(apart.dtype).eps, apart, 0)
        return OfFeatures(f, x, apart, lambda r, apart: f.mean(self.contrast(r, apart)))

    def contrast(self, r: Tensor, apart: Tensor) -> Tensor:
        """`apart` is r_prev/‖r_prev‖ − r_g/‖r_g‖: exactly 0, and so the gradient, where the two models agree."""
        return softplus((_unit(r) * apart).sum(-1) / self.temperature)

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float) -> Outcome:  # noqa: ARG002
        return Outcome(memory={"previous": w})


@dataclass(frozen=True)
class OfVariate(ProximalLoss):
    """The potential of what a variate adds to gradients: SCAFFOLD's, FedDyn's, FedNova's. 0 at w_g."""

    variate: Variate
    rests: ClassVar[bool] = False  # SCAFFOLD's and FedDyn's point somewhere at w_g, too

    @property
    def needs(self) -> frozenset[str]:
        return self.variate.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.variate.gives

    def check(self, layout: Layout, optimiser: Optimiser) -> None:  # noqa: ARG002
        self.variate.check(optimiser)

    def begin(self, brief: Brief) -> Context:
        return self.variate.begin(brief)

    def near(self, batch: Examples, context: Context, f: Functions) -> Near:  # noqa: ARG002 - the same on all inputs
        start = context["start"]

        def at(w: Tensor) -> tuple[Tensor, Tensor]:
            g = self.variate.added(w, context)
            return g, torch.dot(g + self.variate.added(start, context), w - start) / 2  # it is linear in w

        return OfWeights(f, at)

    def finish(self, w: Tensor, context: Context, optimiser: Optimiser, share: float) -> Outcome:
        return self.variate.finish(w, context, optimiser, share)


def _unit(r: Tensor) -> Tensor:
    """r/‖r‖ by row. A row of nothing has no direction, and none that it could be pulled in."""
    size = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return r / torch.where(size > 0, size, torch.inf)


def proximal_loss(name: Proximal, *, temperature: float) -> ProximalLoss:
    """The proximal loss of that name; the temperature is kl's, ntd's and moon's."""
    of_outputs: dict[str, Callable[[float], ProximalLoss]] = {"kl": KL, "ntd": NTD, "moon": MOON}
    if name in of_outputs:
        return of_outputs[name](temperature)
    of_weights: dict[str, ProximalLoss] = {
        "l2": L2(),
        "scaffold": OfVariate(Control()),
        "feddyn": OfVariate(Dual(FEDDYN)),
        "fednova": OfVariate(Normal(1.0)),
    }
    return of_weights[name]


@dataclass(frozen=True)
class Auxiliary(LocalRule):
    """L + β L_p, by one pass a step. The loss that is told is L."""

    proximal: ProximalLoss
    beta: float

    def check(self, layout: Layout, optimiser: Optimiser) -> None:
        self.proximal.check(layout, optimiser)

    def suits(self, task: Task) -> None:
        self.proximal.suits(task)

    @property
    def needs(self) -> frozenset[str]:
        return self.proximal.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.proximal.gives

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        return brief.weights, self.proximal.begin(brief)

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002
        return f.init(w), f.optimiser

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        g, loss = self.proximal.near(batch, context, f).added(w, batch, self.beta)
        inner, optimiser = state
        w, inner = f.descend(w, g, inner)
        return w, (inner, optimiser), loss

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        return self.proximal.finish(w, context, state[1], self.beta)
