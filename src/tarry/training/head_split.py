"""FlatHeadSplit: a FlatModel split before its head, to run the body once and the head at any weights (for FedSOL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.layout import Kind, Layout
from ..core.local_rule import Objective
from .features import run_to_head

if TYPE_CHECKING:
    from .flat_model import FlatModel

__all__ = ["FlatHeadSplit", "head_of"]


def head_of(module: nn.Module, layout: Layout) -> nn.Module | None:
    """Return the module that owns the tensors of the head; None where several do, or where it has submodules."""
    named = dict(module.named_parameters())
    head = {id(named[b.name]) for b in layout.layers if b.kind is Kind.HEAD}
    owners = [m for m in module.modules() if any(id(p) in head for p in m.parameters(recurse=False))]
    return owners[0] if len(owners) == 1 and not any(owners[0].children()) else None


class FlatHeadSplit:
    """HeadSplit of a FlatModel: the body is run forward once, and backward once.

    Where something follows the head, and after `grad`, whole passes are made instead.
    """

    def __init__(self, model: FlatModel, w: Tensor, x: Tensor):
        self._model, self._w, self._x = model, w, x
        self._head = [(b, p) for b, p in zip(model.layout.layers, model.params, strict=True) if b.kind is Kind.HEAD]
        self._out: Tensor | None  # None when its graph is no longer valid
        self._out, self._features = run_to_head(model.head, lambda: model.run(x))

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        g, own = torch.zeros_like(w), [p for _, p in self._head]
        if not own:
            return g
        if w is self._w and self._out is not None:
            if self._features is None:  # what follows the head may look at weights on the way back
                self._load(w)
            parts = torch.autograd.grad(objective(self._out, targets), own, retain_graph=True, materialize_grads=True)
        elif self._features is not None:
            parts = torch.autograd.grad(objective(self._again(w, self._features), targets), own)
        else:
            whole, _ = self._whole(w, targets, objective)
            parts = tuple(whole[b.at] for b, _ in self._head)
        for (b, _), part in zip(self._head, parts, strict=True):
            g[b.at] = part.reshape(-1)
        return g

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._features is None:
            return self._whole(w, y)
        loss = self._model.task.loss(self._again(w, self._features), y)
        self._features = self._out = None  # the body's graph is spent below
        grads = torch.autograd.grad(loss, self._model.params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()

    def _again(self, w: Tensor, features: Tensor) -> Tensor:
        """Run the head at w."""
        self._load(w)
        assert self._model.head is not None
        out: Tensor = self._model.head(features)
        return out

    def _load(self, w: Tensor) -> None:
        # past the version counter (.data): statistics in the graph are views of the same buffer, and stay as they are
        self._model.flat[: len(w)].data.copy_(w)

    def _whole(self, w: Tensor, targets: Any, objective: Objective | None = None) -> tuple[Tensor, Tensor]:
        self._out = None
        return self._model.grad(w, (self._x, targets), objective, still=True)
