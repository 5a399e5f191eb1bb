"""What a server may compute with the model: outputs and gradients on inputs without labels, never on anybody's data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .client import Bound

__all__ = ["ModelLab"]

_CHUNK = 500  # inputs run at once when only outputs are wanted


class ModelLab:
    """The task's model on the task's unlabelled inputs, as in use: dropout off, statistics still."""

    def __init__(self, bound: Bound):
        task = bound.task
        assert task.unlabelled is not None
        self._bound = bound
        self.inputs, self.mask, self.distil_lr = task.unlabelled, task.unlabelled_mask, task.distil_lr

    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        return torch.cat([self._bound.outputs(vec, part) for part in torch.split(x, _CHUNK)])

    def grad(self, vec: Tensor, x: Tensor, objective: Callable[[Tensor], Tensor], /) -> tuple[Tensor, Tensor]:
        bound = self._bound
        bound.module.eval()
        bound.flat.copy_(vec)
        loss = objective(bound.module(x))
        grads = torch.autograd.grad(loss, bound.params, materialize_grads=True)
        bound.module.train()
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()
