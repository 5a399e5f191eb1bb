"""Proximal losses L_p(w; w_g): the distance of a client's model from the one it received.

    l2     ½ ‖w − w_g‖²                                 FedProx's, without its μ
    kl     KL(softmax(z_g / T) ‖ softmax(z / T))        z, z_g: outputs of the client's and of the received model
    ntd    T² KL(softmax(z̃_g / T) ‖ softmax(z̃ / T))     z̃: outputs but for the true class's (FedNTD)
    moon   −log(e^(s_g/T) / (e^(s_g/T) + e^(s_prev/T)))  s: cosines between the client's features and those of the
                                                        received model, and of the client's previous one (MOON)
    scaffold, feddyn, fednova                           the potentials of what these methods add to gradients
                                                        (parts.variates): ⟨c − c_k, w⟩, −⟨λ_k, w⟩ + (α/2) ‖w − w_g‖²,
                                                        and ½ ‖w − w_g‖²

A client may add β L_p to its own loss (`WithProximalLoss`, in parts.proximal_rules), or perturb its weights along ∇L_p
(FedSOL, Eq. 2 and 5). Other models are run as in use: dropout off, their own running statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..core.errors import BadInput
from ..core.layout import Kind, Layout
from ..core.local_rule import ClientModel, Context, FeatureObjective, HeadSplit, Objective, VisitInput, VisitOutput
from ..core.optim import Optimizer
from ..core.task import Examples, Task
from .classes import want_classes

__all__ = [
    "KL",
    "L2",
    "MOON",
    "NTD",
    "BatchProximal",
    "OfFeatures",
    "OfOutputs",
    "OfWeights",
    "ProximalLoss",
    "WholePasses",
]

_ROUNDING = 100  # of the last digit: unit vectors no further difference are the same


class WholePasses:
    """A model that is not split: each call is a whole training pass, and the first one moves running statistics."""

    def __init__(self, model: ClientModel, x: Tensor):
        self._f, self._x, self._moved = model, x, False

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        """Return the gradient of an objective of outputs at w, over the whole model."""
        return self._f.grad(w, (self._x, targets), objective, still=self._begin())[0]

    def feature_grad(self, w: Tensor, targets: Any, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return gradient and value of an objective of features at w."""
        on_features: FeatureObjective = lambda _, r, aim: objective(r, aim)  # noqa: E731
        return self._f.grad_with_features(w, (self._x, targets), on_features, still=self._begin())

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient and value of the task's loss at w."""
        return self._f.grad(w, (self._x, y), still=self._begin())

    def _begin(self) -> bool:
        """Return whether a pass was made before this one."""
        moved, self._moved = self._moved, True
        return moved


class BatchProximal(Protocol):
    """A proximal loss on one batch, at any weights."""

    def gradient(self, passes: HeadSplit, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return (∇L_p, L_p) at w; by a model split before its head, the gradient need be right in the head only."""

    def total_gradient(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        """Return (∇(L + β L_p), L) at w by one pass, L being the task's loss."""


class ProximalLoss(Protocol):
    """A proximal loss: its context of a visit, its memory between visits, and its value on a batch."""

    zero_at_start: ClassVar[bool] = True  # its gradient is 0 at w_g
    reaches_head: ClassVar[bool] = True  # its gradient need not be 0 in the head
    required_payload: ClassVar[frozenset[str]] = frozenset()  # the payload keys that it cannot do without
    uploads: ClassVar[frozenset[str]] = frozenset()  # the extras that it sends back

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002 - what losses override
        """Raise BadInput if the loss is not defined for this model, or unused by this optimizer."""
        return

    def check_task(self, task: Task) -> None:  # noqa: ARG002 - what losses override
        """Raise BadInput if the loss is not defined for this task."""
        return

    def begin(self, visit: VisitInput) -> Context:  # noqa: ARG002 - what losses override
        """Return the context, which every step of the visit may read."""
        return {}

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:
        """Return the loss on a batch. Call it before the step's first pass: it may load other weights."""

    def finish(self, w: Tensor, context: Context, optimizer: Optimizer, share: float) -> VisitOutput:  # noqa: ARG002
        """Return the uploads and the memory of the visit; w is the whole vector that the client ends with.

        `share` of the loss's gradient was in the directions that it descended.
        """
        return VisitOutput()


def _record_values(objective: Objective) -> tuple[Objective, list[Tensor]]:
    """Return the objective, and the list that its values are appended to."""
    values: list[Tensor] = []

    def record(outputs: Tensor, targets: Any) -> Tensor:
        values.append(objective(outputs, targets))
        return values[-1]

    return record, values


@dataclass(frozen=True)
class OfWeights:
    """A loss of the weights alone: (∇L_p, L_p) in closed form."""

    model: ClientModel
    at: Callable[[Tensor], tuple[Tensor, Tensor]]

    def gradient(self, passes: HeadSplit, w: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - it takes no pass
        return self.at(w)

    def total_gradient(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        g, loss = self.model.grad(w, batch)
        return torch.add(g, self.at(w)[0], alpha=beta), loss


@dataclass(frozen=True)
class OfOutputs:
    """A loss of the model's outputs on x, compared with a target."""

    model: ClientModel
    aim: Any
    objective: Objective

    def gradient(self, passes: HeadSplit, w: Tensor) -> tuple[Tensor, Tensor]:
        objective, values = _record_values(self.objective)
        return passes.head_grad(w, self.aim, objective), values[0].detach()

    def total_gradient(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        local, losses = _record_values(self.model.task_loss)
        g, _ = self.model.grad(w, batch, lambda z, y: local(z, y) + beta * self.objective(z, self.aim))
        return g, losses[0].detach()


@dataclass(frozen=True)
class OfFeatures:
    """A loss of the features (the head's inputs) on x, compared with a target."""

    model: ClientModel
    aim: Any
    objective: Objective  # of features in the place of outputs

    def gradient(self, passes: HeadSplit, w: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(passes, WholePasses), "features do not depend on the head"
        return passes.feature_grad(w, self.aim, self.objective)

    def total_gradient(self, w: Tensor, batch: Examples, beta: float) -> tuple[Tensor, Tensor]:
        local, losses = _record_values(self.model.task_loss)
        g, _ = self.model.grad_with_features(w, batch, lambda z, r, y: local(z, y) + beta * self.objective(r, self.aim))
        return g, losses[0].detach()


@dataclass(frozen=True)
class L2(ProximalLoss):
    """½ ‖w − w_g‖²; its gradient is w − w_g."""

    def begin(self, visit: VisitInput) -> Context:
        return {"received": visit.weights}

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:  # noqa: ARG002 - the same on all inputs
        w_g = model.layout.params(context["received"])

        def at(w: Tensor) -> tuple[Tensor, Tensor]:
            g = w - w_g
            return g, torch.dot(g, g) / 2

        return OfWeights(model, at)


@dataclass(frozen=True)
class KL(ProximalLoss):
    """KL(p ‖ q) with p = softmax(z_g/T), q = softmax(z/T) over the last dimension; the mean over all others; no T²."""

    temperature: float = 3.0

    def check_task(self, task: Task) -> None:
        want_classes(task, "--method.proximal kl:", "use --method.proximal l2")

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:  # noqa: ARG002 - f knows the received one
        x, _ = batch
        z_g = model.received_outputs(x)
        if z_g.ndim < 2 or z_g.shape[-1] < 2:
            raise BadInput(
                "--method.proximal kl: compares classes, and this model has one output; use --method.proximal l2"
            )
        s = z_g / self.temperature
        return OfOutputs(model, s - s.logsumexp(-1, keepdim=True), lambda z, aim: model.mean(self.divergence(z, aim)))

    def divergence(self, z: Tensor, log_p: Tensor) -> Tensor:
        """Σ p (log p − z/T) + log Σ e^(z/T), of each example.

        In this form the gradient is (q − p)/T with q rounded as p was: exactly 0 at z = z_g. Divided by
        its norm, rounding errors would be a direction where a visit begins.
        """
        s = z / self.temperature
        return (log_p.exp() * (log_p - s)).sum(-1) + s.logsumexp(-1)


@dataclass(frozen=True)
class NTD(ProximalLoss):
    """T² KL(p̃ ‖ q̃): as kl, over the classes that are not the example's own, and with T²."""

    temperature: float = 1.0
    flag: str = field(default="--method.proximal ntd", repr=False)

    def check_task(self, task: Task) -> None:
        want_classes(task, f"{self.flag}:", "use another task")

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:  # noqa: ARG002 - f knows the received one
        x, y = batch
        z_g = model.received_outputs(x)
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
        return OfOutputs(model, aim, lambda z, aim: model.mean(self.divergence(z, aim)))

    def divergence(self, z: Tensor, aim: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the divergence, computed as kl's: exactly 0, and so its gradient, at z = z_g."""
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
    flag: str = field(default="--method.proximal moon", repr=False)
    zero_at_start: ClassVar[bool] = False  # at w_g it points away from the previous model
    reaches_head: ClassVar[bool] = False

    def check(self, layout: Layout, optimizer: Optimizer) -> None:  # noqa: ARG002
        heads = [b.kind is Kind.HEAD for b in layout.layers]
        if all(heads) or not any(heads):
            why = "nothing is trained before it" if any(heads) else "the model has none"
            raise BadInput(
                f"{self.flag}: compares what goes into the last linear or conv map, and {why}; use another model"
            )

    def begin(self, visit: VisitInput) -> Context:
        return {"received": visit.weights, "previous": visit.memory.get("previous")}

    def on(self, batch: Examples, context: Context, model: ClientModel) -> BatchProximal:
        x, _ = batch
        received, previous = context["received"], context["previous"]
        if previous is None:
            model.features(received, x[:1])  # a model without features is rejected here, not at the second visit
            return OfWeights(model, lambda w: (torch.zeros_like(w), w.new_zeros(())))
        difference = _unit(model.cached_features(previous, x)) - _unit(model.cached_features(received, x))
        size = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
        difference = torch.where(size > _ROUNDING * torch.finfo(difference.dtype).eps, difference, 0)
        return OfFeatures(model, difference, lambda r, difference: model.mean(self.contrast(r, difference)))

    def contrast(self, r: Tensor, difference: Tensor) -> Tensor:
        """`difference` is r_prev/‖r_prev‖ − r_g/‖r_g‖: exactly 0, and so the gradient, where the two models agree."""
        return softplus((_unit(r) * difference).sum(-1) / self.temperature)

    def finish(self, w: Tensor, context: Context, optimizer: Optimizer, share: float) -> VisitOutput:  # noqa: ARG002
        return VisitOutput(memory={"previous": w})


def _unit(r: Tensor) -> Tensor:
    """r/‖r‖ by row. A row of nothing has no direction, and none that it could be pulled in."""
    size = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return r / torch.where(size > 0, size, torch.inf)
