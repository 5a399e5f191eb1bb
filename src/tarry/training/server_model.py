"""What a server may compute with the model: outputs and gradients on inputs without labels, never on anybody's data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import BadInput
from .flat_model import FlatModel

__all__ = ["FlatServerModel"]

_CHUNK = 500  # inputs run at once when only outputs are wanted


class FlatServerModel:
    """The task's model on the task's unlabelled inputs, as in use: dropout off, statistics still.

    The bound is the lab's own: it stays as in use.
    """

    def __init__(self, bound: FlatModel):
        task = bound.task
        assert task.unlabelled is not None
        if not len(task.unlabelled):
            raise BadInput("--unlabelled: there are no inputs in it")
        bound.module.eval()
        self._bound = bound
        self.inputs, self.mask, self.distil_lr = task.unlabelled, task.unlabelled_mask, task.distil_lr

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        self._bound.flat.copy_(vec)
        return torch.cat([self._bound.module(part) for part in torch.split(x, _CHUNK)])

    def grad(self, vec: Tensor, x: Tensor, objective: Callable[[Tensor], Tensor], /) -> tuple[Tensor, Tensor]:
        bound = self._bound
        bound.flat.copy_(vec)
        loss = objective(bound.module(x))
        grads = torch.autograd.grad(loss, bound.params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()
