"""A model's functions without a module's state: what a LocalRule calls when its step is traced, stacked and captured.

`Bound` (core.client) writes weights into one module and runs it: fastest for one client at a time. `Pure` says the same
of any weights handed in, so that a step of a rule becomes a plain function of tensors, which can be traced once and run
for many clients at a time. Statistics that a training pass moves are a vector that goes in and comes out.

Batches of unequal length are padded to one length; `mask` then says which rows count, and a mean over the batch is a
mean over these. For the task's own loss that takes the loss of single examples: it must be the mean of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.hooks import RemovableHandle

from .errors import BadInput
from .layout import Kind, Layout
from .local import DeepObjective, Objective, Split
from .optim import Optimiser
from .stack import NotStackable
from .task import Examples, Task

__all__ = ["Pure"]


class Pure:
    """`Functions` of the tensors they are given; `begin_step` says which statistics, received weights and rows."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        optimiser: Optimiser,
        head: nn.Module | None,
        *,
        bf16: bool = False,
        channels_last: bool = False,
    ):
        self.module, self.layout, self.task, self.head = module.train(), layout, task, head
        self._bf16, self._channels_last = bf16, channels_last
        self.steady = not layout.stats
        self._sizes = [b.stop - b.start for b in layout.layers]
        self._counters = {n: b for n, b in module.named_buffers() if not b.is_floating_point()}
        self.use(optimiser)
        self._sent = self.stats = torch.empty(0)
        self._mask: Tensor | None = None

    def use(self, optimiser: Optimiser) -> None:
        """Descend by this optimiser from now on."""
        self.optimiser, self.init, self.descend = optimiser, optimiser.init, optimiser.descend

    def begin_step(self, sent: Tensor, stats: Tensor, mask: Tensor | None) -> None:
        """The received vector, running statistics (a step moves them: read them off after it), the rows that count."""
        self._sent, self.stats, self._mask = sent, stats, mask

    # What a rule calls

    def task_loss(self, outputs: Tensor, targets: Any) -> Tensor:
        if self._mask is None:
            return self.task.loss(outputs, targets)
        return self.mean(vmap(lambda z, y: self.task.loss(z[None], y[None]))(outputs, targets))

    def mean(self, values: Tensor) -> Tensor:
        if self._mask is None:
            return values.mean()
        if len(values) != len(self._mask):
            raise NotStackable("it takes batches apart, and they are padded")
        mask, values = self._mask.to(values.dtype), values.flatten(1).mean(1) if values.ndim > 1 else values
        return torch.dot(values, mask) / mask.sum().clamp_min(1)

    def grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: Objective | None = None, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        x, y = batch
        with torch.enable_grad():
            params = self._leaves(w)
            loss = (objective or self.task_loss)(self._run(params, x, still=still), y)
            grads = torch.autograd.grad(loss, params, materialize_grads=True)
        return _flat(grads), loss.detach()

    def deep_grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: DeepObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        with self._overheard(seen):
            return self.grad(w, batch, lambda out, y: objective(out, _only(seen), y), still=still)

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        seen: list[Tensor] = []
        with self._overheard(seen):
            self.outputs(vec, x)
        return _only(seen)

    known_features = features

    @torch.no_grad()
    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        return self.task_loss(self._run(self._views(w), batch[0], still=True), batch[1])

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        self.module.eval()
        n = self.layout.n_params
        out = self._call(self._views(vec[:n]), vec[n:], x)
        self.module.train()
        return out

    def received(self, x: Tensor, /) -> Tensor:
        return self.outputs(self._sent, x)

    def split(self, w: Tensor, x: Tensor, /) -> Split:
        return _PureSplit(self, w, x)

    # How

    def _views(self, w: Tensor) -> list[Tensor]:
        return [part.view(b.shape) for part, b in zip(torch.split(w, self._sizes), self.layout.layers, strict=True)]

    def _leaves(self, w: Tensor) -> list[Tensor]:
        return [v.detach().requires_grad_() for v in self._views(w)]

    def _run(self, params: list[Tensor], x: Tensor, *, still: bool) -> Tensor:
        """A training pass; statistics move unless they are to be still."""
        if not self.layout.stats:
            return self._call(params, self.stats, x)
        moved = self.stats.clone()
        out = self._call(params, moved, x)
        if not still:
            self.stats = moved
        return out

    def _call(self, params: list[Tensor], stats: Tensor, x: Tensor) -> Tensor:
        n = self.layout.n_params
        named = {b.name: p for b, p in zip(self.layout.layers, params, strict=True)}
        named |= {b.name: stats[b.start - n : b.stop - n].view(b.shape) for b in self.layout.stats}
        named |= {name: b.clone() for name, b in self._counters.items()}
        if self._channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
            named = {k: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for k, t in named.items()}
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16, cache_enabled=False):
            out: Tensor = functional_call(self.module, named, (x,))
        return out.to(params[0].dtype) if self._bf16 else out

    def _overheard(self, seen: list[Tensor]) -> RemovableHandle:
        if self.head is None:
            raise BadInput(f"--task {self.task.name}: its model has no last map of its own, whose inputs are features")
        return self.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))


class _PureSplit:
    """A model run once up to its head, where its head is its last word; else whole passes are made."""

    def __init__(self, pure: Pure, w: Tensor, x: Tensor):
        self._pure, self._w, self._x = pure, w, x
        layers = pure.layout.layers
        self._at = [i for i, b in enumerate(layers) if b.kind is Kind.HEAD]
        self._features: Tensor | None = None
        calls: list[tuple[Any, Any, Any]] = []
        with torch.enable_grad():
            self._params = pure._leaves(w)
            if pure.head is None:
                self._out = pure._run(self._params, x, still=False)
                return
            with pure.head.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True):
                self._out = pure._run(self._params, x, still=False)
        if len(calls) == 1 and len(calls[0][0]) == 1 and not calls[0][1] and calls[0][2] is self._out:
            self._features = calls[0][0][0]
            owner = {id(p): n for n, p in pure.head.named_parameters(recurse=False)}
            named = dict(pure.module.named_parameters())
            self._names = [owner[id(named[layers[i].name])] for i in self._at]

    def head_grad(self, w: Tensor, targets: Any, objective: Objective) -> Tensor:
        g = torch.zeros_like(w)
        if not self._at:
            return g
        with torch.enable_grad():
            if w is self._w:
                own, out = [self._params[i] for i in self._at], self._out
                parts = torch.autograd.grad(objective(out, targets), own, retain_graph=True, materialize_grads=True)
            elif self._features is not None:
                views = self._pure._leaves(w)
                own = [views[i] for i in self._at]
                parts = torch.autograd.grad(objective(self._again(own, self._features.detach()), targets), own)
            else:
                whole, _ = self._pure.grad(w, (self._x, targets), objective, still=True)
                parts = tuple(whole[self._pure.layout.layers[i].at] for i in self._at)
        for i, part in zip(self._at, parts, strict=True):
            g[self._pure.layout.layers[i].at] = part.reshape(-1)
        return g

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._features is None:
            return self._pure.grad(w, (self._x, y), still=True)
        with torch.enable_grad():
            views = self._pure._leaves(w)
            own = [views[i] for i in self._at]
            loss = self._pure.task_loss(self._again(own, self._features), y)
            body = [p for i, p in enumerate(self._params) if i not in self._at]
            grads = torch.autograd.grad(loss, [*own, *body], materialize_grads=True)
        whole = dict(zip([*self._at, *(i for i in range(len(views)) if i not in self._at)], grads, strict=True))
        return _flat([whole[i] for i in range(len(views))]), loss.detach()

    def _again(self, own: list[Tensor], features: Tensor) -> Tensor:
        assert self._pure.head is not None
        out: Tensor = functional_call(self._pure.head, dict(zip(self._names, own, strict=True)), (features,))
        return out


def _flat(grads: Any) -> Tensor:
    return torch.cat([g.reshape(-1) for g in grads])


def _only(seen: list[Tensor]) -> Tensor:
    if len(seen) != 1:
        raise BadInput(f"--task: the model's last linear or conv map is run {len(seen)} times a pass; features need 1")
    return seen[0].flatten(1)
