"""FlatModel: an nn.Module whose tensors are views of one flat vector, with the functions that a LocalRule calls.

The module runs at its ordinary speed, and the arithmetic of an optimizer is a few calls, whatever the number of layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core import rng
from ..core.layout import Layout
from ..core.local_rule import FeatureObjective, HeadSplit, Objective
from ..core.optim import Optimizer
from ..core.rng import Stream
from ..core.task import Examples, Task
from ..metrics import Scoring, default_metrics, metrics_of
from .determinism import generator_held
from .features import features, grad_with_features
from .head_split import FlatHeadSplit, head_of
from .keyed_dropout import KeyedDropout, uses_dropout
from .model_size import errors_of_model_size

if TYPE_CHECKING:
    from .visit import BatchIterator

__all__ = ["FlatModel", "build_module"]

_CHUNK = 200  # examples of a pass without gradients
_LARGE = 1 << 22  # bytes of trained weights from which memory counts more than the number of calls


def build_module(task: Task, *, seed: int, dtype: torch.dtype, flags: str = "") -> nn.Module:
    """Return the task's model with its first weights: drawn from the seed, or those of the module in the task.

    `flags` are those that chose the model, for errors.
    """
    with generator_held(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, Stream.INIT) >> 1)
        with errors_of_model_size(flags or f"--task {task.name}"):
            module = copy.deepcopy(task.model) if isinstance(task.model, nn.Module) else task.model()
        if any(is_lazy(p) for p in (*module.parameters(), *module.buffers())):  # lazy: built by its first example
            x = task.clients[0][0][:2].cpu()
            with torch.no_grad():
                module.eval()(x.to(torch.get_default_dtype()) if x.is_floating_point() else x)
            module.train()
        return module.to(dtype)


class FlatModel:
    """A module over a flat vector: `ClientModel` for one client at a time, and evaluation.

    The vector is `flat`, or a new one with the module's present values.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        optimizer: Optimizer,
        *,
        bf16: bool = False,
        flat: Tensor | None = None,
    ):
        self.module, self.layout, self.task, self.task_loss = module.train(), layout, task, task.loss
        self._bf16 = bf16
        self.use(optimizer)
        first = next(p for p in module.parameters() if p.requires_grad)
        self.flat = layout.read(module, first.dtype) if flat is None else flat
        self.trained = self.flat[: layout.n_params]
        self.is_large = self.trained.nbytes >= _LARGE
        self.counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        views, named = layout.views(self.flat), dict(module.named_parameters())
        for block in layout.layers:
            named[block.name].data = views[block.name]
        self.params = [named[b.name] for b in layout.layers]
        self.head = head_of(module, layout)
        self.drops = KeyedDropout() if uses_dropout(module) else None
        self.train_equals_eval = not layout.stats and self.drops is None
        self.visit: BatchIterator | None = None  # the visit in progress
        self._writes: bool | None = None  # whether the module writes to its inputs; None: not known yet
        owners = [block.name.rpartition(".") for block in layout.stats]
        places = [(module.get_submodule(owner)._buffers, leaf) for owner, _, leaf in owners]
        self._places = [(*place, views[b.name]) for place, b in zip(places, layout.stats, strict=True)]
        self._bind()

    def mean(self, values: Tensor, /) -> Tensor:
        return values.mean()

    def _bind(self) -> None:
        """Put the views of the statistics into the module."""
        for buffers, leaf, view in self._places:
            buffers[leaf] = view

    def statistics(self) -> Tensor:
        """Return the running statistics, also where the module has put other tensors in their place."""
        for buffers, leaf, view in self._places:
            if (own := buffers[leaf]) is not view and own is not None:
                view.copy_(own.detach())
        self._bind()
        return self.flat[self.layout.n_params :]

    def load(self, weights: Tensor) -> None:
        """Set all weights: trained tensors and running statistics. Counters are set as built."""
        if weights is not self.flat:
            self.flat.copy_(weights)
        self._bind()
        for buffer, first in self.counters:
            buffer.copy_(first)

    def use(self, optimizer: Optimizer) -> None:
        """Set the optimizer."""
        self.optimizer, self.init, self.apply_gradient = optimizer, optimizer.init, optimizer.apply_gradient

    def run(self, x: Tensor) -> Tensor:
        """Run the module, in bfloat16 where that is asked for. Outputs have the type of the weights."""
        with nullcontext() if self.drops is None or not self.module.training else self.drops:
            return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        if not self._bf16:
            out: Tensor = self.module(x)
            return out
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            rough: Tensor = self.module(x)
        return rough.to(self.flat.dtype)

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        self.trained.copy_(w)
        x, y = batch
        saved = self._statistics() if still else None
        loss = (objective or self.task.loss)(self.run(x), y)
        grads = list(torch.autograd.grad(loss, self.params, materialize_grads=True))
        self._put_back(saved)
        return self._concatenate(grads), loss.detach()

    def _concatenate(self, tensors: list[Tensor]) -> Tensor:
        """Return the tensors as one vector. Large ones are taken out of the list one by one, and freed."""
        if not self.is_large:
            return torch.cat([g.reshape(-1) for g in tensors])
        out = torch.empty_like(self.trained)
        for block in self.layout.layers:
            out[block.at] = tensors.pop(0).reshape(-1)
        return out

    def grad_with_features(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: FeatureObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        return grad_with_features(self, w, batch, objective, still=still)

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        return features(self, vec, x)

    @torch.no_grad()
    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        self.trained.copy_(w)
        saved = self._statistics()
        redraw = nullcontext() if self.drops is None else self.drops.without_advancing()
        with (
            redraw,
            generator_held(),
            torch.random.fork_rng(devices=[w.device] if w.is_cuda else []),
        ):
            loss = self.task.loss(self.run(batch[0]), batch[1])
        self._put_back(saved)
        return loss

    def received_outputs(self, x: Tensor, /) -> Tensor:
        assert self.visit is not None, "asked outside of a visit"
        return self._once("received", self.outputs, self.visit.sent, x)

    def cached_features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        return self._once(f"features of {id(vec)}", self.features, vec, x)

    def _once(self, name: str, ask: Callable[[Tensor, Tensor], Tensor], vec: Tensor, x: Tensor) -> Tensor:
        """Return what `ask` makes of the current batch, from a table of all examples where batches repeat."""
        v = self.visit
        if v is None or not v.again:
            return ask(vec, x)
        if name not in v.tables:
            v.tables[name] = torch.cat([ask(vec, part) for part in torch.split(v.x, _CHUNK)])
        table = v.tables[name]
        return table if v.at is None else table[v.at]

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        saved = self._statistics()
        self.flat.copy_(vec)
        self.module.eval()
        out = self._harmless(self.run, x)
        self.module.train()
        self._put_back(saved)
        return out

    def head_split(self, w: Tensor, x: Tensor, /) -> HeadSplit:
        self.trained.copy_(w)
        return FlatHeadSplit(self, w, x)

    def _statistics(self) -> list[Tensor] | None:
        """Return a copy of the statistics and counters that a training pass changes; None where there are none."""
        if not self.layout.stats:
            return None
        return [self.statistics().clone(), *(b.clone() for b, _ in self.counters)]

    def _put_back(self, saved: list[Tensor] | None) -> None:
        if saved is not None:
            self.statistics().copy_(saved[0])
            for (buffer, _), value in zip(self.counters, saved[1:], strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def evaluate(self, weights: Tensor, examples: Examples, *, chunk: int | None = None) -> dict[str, float]:
        """Return the task's metrics and the mean loss over all examples, by name."""
        self.load(weights)
        self.module.eval()
        scoring, total, size = None, 0.0, chunk or self.task.chunk
        for x, y in zip(torch.split(examples[0], size), torch.split(examples[1], size), strict=True):
            out = self._harmless(self.module, x)
            total += self.task.loss(out, y).item() * len(x)
            scoring = scoring or self._scoring(out, examples[1])
            scoring.update(out, y)
        self.module.train()
        return {**({} if scoring is None else scoring.values()), "loss": total / len(examples[0])}

    def _scoring(self, outputs: Tensor, targets: Tensor) -> Scoring:
        named = self.task.metrics
        return Scoring(default_metrics(outputs, targets) if named is None else metrics_of(named))

    def _harmless(self, ask: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Run on inputs that must not change: on a copy, unless the model is known not to write to its inputs."""
        if self._writes is False:
            return ask(x)
        given = x.clone()
        before = given._version
        out = ask(given)
        self._writes = given._version != before
        return out
