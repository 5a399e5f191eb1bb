"""LentWeights: evaluation by a module whose tensors are the weights that are evaluated, so that no copy is kept.

A module that writes to its own tensors while it is evaluated gets a copy. Whether it does is seen on the first
evaluation, which is made on a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.layout import Layout
from ..core.optim import Optimizer
from ..core.task import Examples, Task
from .flat_model import FlatModel

__all__ = ["LentWeights"]

_ALIGNMENT = 64  # bytes: a matrix product of numbers at other addresses may differ in its last bits


class LentWeights:
    """A module that has weights during an evaluation only. It takes the tensors of the module away."""

    def __init__(self, module: nn.Module, layout: Layout, task: Task, optimizer: Optimizer):
        self._module, self._layout, self._task, self._optimizer = module, layout, task, optimizer
        self._writes: bool | None = None  # whether the module writes to its tensors; None: not known yet

    def evaluate(self, weights: Tensor, examples: Examples) -> dict[str, float]:
        """Return the task's metrics and the mean loss over all examples, by name."""
        lend = self._writes is False and weights.data_ptr() % _ALIGNMENT == 0
        flat = weights if lend else weights.clone()
        model = FlatModel(self._module, self._layout, self._task, self._optimizer, flat=flat)
        score = model.evaluate(flat, examples)
        if self._writes is None:
            self._writes = not torch.equal(flat, weights)
        self._give_back()
        return score

    def _give_back(self) -> None:
        named = dict(self._module.named_parameters())
        for block in self._layout.layers:
            named[block.name].data = named[block.name].new_empty(0)
        for block in self._layout.stats:
            owner, _, leaf = block.name.rpartition(".")
            self._module.get_submodule(owner)._buffers[leaf] = None
