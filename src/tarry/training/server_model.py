"""FlatServerModel: outputs and gradients of the model on unlabeled inputs, for methods that distill on the server."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import BadInput
from .flat_model import FlatModel

__all__ = ["FlatServerModel"]

_CHUNK = 500  # inputs of a pass without gradients


class FlatServerModel:
    """The task's model in evaluation mode on the task's unlabeled inputs; it never sees the data of a client.

    The FlatModel must be used by nothing else: it stays in evaluation mode.
    """

    def __init__(self, model: FlatModel):
        task = model.task
        assert task.unlabelled is not None
        if not len(task.unlabelled):
            raise BadInput("--unlabelled: there are no inputs in it")
        model.module.eval()
        self._model = model
        self.inputs, self.mask, self.distil_lr = task.unlabelled, task.unlabelled_mask, task.distil_lr

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        self._model.flat.copy_(vec)
        return torch.cat([self._model.module(part) for part in torch.split(x, _CHUNK)])

    def grad(self, vec: Tensor, x: Tensor, objective: Callable[[Tensor], Tensor], /) -> tuple[Tensor, Tensor]:
        bound = self._model
        bound.flat.copy_(vec)
        loss = objective(bound.module(x))
        grads = torch.autograd.grad(loss, bound.params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()
