"""FunctionalModel: a model's functions of given weights, for steps of a LocalRule that are traced and stacked.

FlatModel (training.flat_model) writes weights into one module and runs it, which is fastest for one client at a time.
FunctionalModel computes the same of any weights that it is given, so that a step of a rule is a function of tensors: it
can be traced once and run for many clients. Statistics that a training pass changes go in and come out as a vector.

Batches of unequal length are padded to one length. `mask` then says which rows count, and means over the batch, also
those of batch normalization (masked_batchnorm), are over these rows. The task's loss must be the mean of the losses of
single examples for that.

With `channels_last` vectors and gradients are in channels-last order (batched.channels_last), and images are permuted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from ...core.layout import Block, Kind, Layout
from ...core.local_rule import FeatureObjective, HeadSplit, Objective
from ...core.optim import Optimizer
from ...core.task import Examples, Task
from ...training.features import features, grad_with_features, run_to_head
from ...training.keyed_dropout import KeyedDropout, uses_dropout
from . import channels_last as channels
from .masked_batchnorm import MaskedBatchNorm
from .trace import NotStackable

__all__ = ["FunctionalModel"]

_IGNORED = -100  # a target that cross_entropy leaves out


class FunctionalModel:
    """`ClientModel` of the tensors they are given; `begin_step` says which statistics, received weights and rows."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        optimizer: Optimizer,
        head: nn.Module | None,
        *,
        bf16: bool = False,
        channels_last: bool = False,
    ):
        self.module, self.layout, self.task, self.head = module.train(), layout, task, head
        self._bf16, self.channels_last = bf16, channels_last
        self.drops = KeyedDropout() if uses_dropout(module) else None
        self.train_equals_eval = not layout.stats and self.drops is None
        self._sizes, self._shared = [b.stop - b.start for b in layout.layers], _shared_modules(module)
        self.norms, whole = (
            MaskedBatchNorm(module),
            {n: b for n, b in module.named_buffers() if not b.is_floating_point()},
        )
        counters = self.norms.counters
        self._stats = [(b.name, b.shape) for b in layout.stats] + [(n, tuple(b.shape)) for n, b in counters.items()]
        self._stat_sizes = [b.stop - b.start for b in layout.stats] + [b.numel() for b in counters.values()]
        self.counts = torch.tensor([float(b) for b in counters.values()])  # what statistics have behind them, at first
        self._counters = {n: b for n, b in whole.items() if n not in counters}
        self.use(optimizer)
        self._sent = self.stats = torch.empty(0)
        self._mask: Tensor | None = None

    def use(self, optimizer: Optimizer) -> None:
        """Descend by this optimizer from now on."""
        self.optimizer, self.init, self.apply_gradient = optimizer, optimizer.init, optimizer.apply_gradient

    def begin_step(
        self, sent: Tensor, stats: Tensor, mask: Tensor | None = None, key: Tensor | None = None, pass_index: int = 0
    ) -> None:
        """The received vector, running statistics (a step moves them: read them off after it), the rows that count;

        the key and the pass_index of a step, of which a model's dropout is a function.
        """
        self._sent, self.stats, self._mask = sent, stats, mask
        if self.drops is not None:
            self.drops.begin(key, pass_index)

    # What a rule calls

    def task_loss(self, outputs: Tensor, targets: Any) -> Tensor:
        if self._mask is None:
            return self.task.loss(outputs, targets)
        rows = outputs.ndim == 2 and targets.ndim == 1 and len(outputs) == len(self._mask)
        if self.task.loss is cross_entropy and rows:
            counts: Tensor = (self._mask & (targets != _IGNORED)).to(outputs.dtype)
            sums = torch.dot(cross_entropy(outputs, targets, reduction="none"), counts)
            return sums / (counts.sum() + ~self._mask.any())  # clients that are done have none
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
        return self._flat(grads), loss.detach()

    def grad_with_features(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: FeatureObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        return grad_with_features(self, w, batch, objective, still=still)

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        return features(self, vec, x)

    cached_features = features

    @torch.no_grad()
    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        with nullcontext() if self.drops is None else self.drops.without_advancing():
            return self.task_loss(self._run(self._views(w), batch[0], still=True), batch[1])

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        self.module.eval()
        n = self.layout.n_params
        out, _ = self._call(self._views(vec[:n]), nn.functional.pad(vec[n:], (0, len(self.counts))), x)
        self.module.train()
        return out

    def received_outputs(self, x: Tensor, /) -> Tensor:
        return self.outputs(self._sent, x)

    def head_split(self, w: Tensor, x: Tensor, /) -> HeadSplit:
        return _FunctionalHeadSplit(self, w, x)

    # How

    def _views(self, w: Tensor) -> list[Tensor]:
        view = channels.view if self.channels_last else _view
        return [view(part, b) for part, b in zip(torch.split(w, self._sizes), self.layout.layers, strict=True)]

    def _flat(self, grads: Sequence[Tensor]) -> Tensor:
        return torch.cat([channels.flat(g) if self.channels_last else g.reshape(-1) for g in grads])

    def _leaves(self, w: Tensor) -> list[Tensor]:
        return [v.detach().requires_grad_() for v in self._views(w)]

    def _run(self, params: list[Tensor], x: Tensor, *, still: bool) -> Tensor:
        """A training pass; statistics move unless they are to be still."""
        out, moved = self._call(params, self.stats, x)
        if not still:
            self.stats = moved
        return out

    def _call(self, params: list[Tensor], stats: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the statistics after it."""
        held = stats.clone()  # a layer may write to it
        parts = zip(self._stats, torch.split(held, self._stat_sizes), strict=True) if self._stats else ()
        given, version = {name: part.view(shape) for (name, shape), part in parts}, held._version
        named = {b.name: p for b, p in zip(self.layout.layers, params, strict=True)} | given
        named |= {name: b.clone() for name, b in self._counters.items()}
        if self.channels_last and x.ndim == 4:
            x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        bf16 = torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16, cache_enabled=False)
        with bf16, self.norms.use_rows(self._mask), self._dropout_context(), _put_back(self._shared):
            out: Tensor = functional_call(self.module, named, (x,))
        others = [name for name in given if named[name] is not given[name] and name not in self.norms.moved]
        if self._mask is not None and (others or held._version != version):
            raise NotStackable("the model keeps statistics of its batches in a layer of its own, and they are padded")
        moved = torch.cat([named[name].reshape(-1) for name in given]) if given else stats
        return (out.to(params[0].dtype) if self._bf16 else out), moved

    def _dropout_context(self) -> AbstractContextManager[Any]:
        if self.drops is None or not self.module.training:
            return nullcontext()
        if self.drops.key is None:
            raise NotStackable("it runs a model with dropout before its first step, or between epochs")
        return self.drops


class _FunctionalHeadSplit:
    """HeadSplit of a FunctionalModel: the body is run once. Where something follows the head, whole passes are made."""

    def __init__(self, model: FunctionalModel, w: Tensor, x: Tensor):
        self._model, self._w, self._x = model, w, x
        layers = model.layout.layers
        self._at = [i for i, b in enumerate(layers) if b.kind is Kind.HEAD]
        with torch.enable_grad():
            self._params = model._leaves(w)
            self._out, self._features = run_to_head(model.head, lambda: model._run(self._params, x, still=False))
        if model.head is not None and self._features is not None:
            owner = {id(p): n for n, p in model.head.named_parameters(recurse=False)}
            named = dict(model.module.named_parameters())
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
                views = self._model._leaves(w)
                own = [views[i] for i in self._at]
                parts = torch.autograd.grad(objective(self._again(own, self._features.detach()), targets), own)
            else:
                whole, _ = self._model.grad(w, (self._x, targets), objective, still=True)
                parts = tuple(whole[self._model.layout.layers[i].at] for i in self._at)
        for i, part in zip(self._at, parts, strict=True):
            g[self._model.layout.layers[i].at] = self._model._flat([part])
        return g

    def grad(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._features is None:
            return self._model.grad(w, (self._x, y), still=True)
        with torch.enable_grad():
            views = self._model._leaves(w)
            own = [views[i] for i in self._at]
            loss = self._model.task_loss(self._again(own, self._features), y)
            body = [p for i, p in enumerate(self._params) if i not in self._at]
            grads = torch.autograd.grad(loss, [*own, *body], materialize_grads=True)
        whole = dict(zip([*self._at, *(i for i in range(len(views)) if i not in self._at)], grads, strict=True))
        return self._model._flat([whole[i] for i in range(len(views))]), loss.detach()

    def _again(self, own: list[Tensor], features: Tensor) -> Tensor:
        assert self._model.head is not None
        out: Tensor = functional_call(self._model.head, dict(zip(self._names, own, strict=True)), (features,))
        return out


def _shared_modules(module: nn.Module) -> list[nn.Module]:
    """Modules that are in it by more than one name."""
    names = Counter(id(m) for _, m in module.named_modules(remove_duplicate=False))
    return [m for m in module.modules() if names[id(m)] > 1]


@contextmanager
def _put_back(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Torch exchanges a module's tensors for a call name by name, and leaves those in it that it exchanged twice."""
    tensors: list[dict[str, Any]] = [held for m in modules for held in (m._parameters, m._buffers)]
    originals = [(held, dict(held)) for held in tensors]
    try:
        yield
    finally:
        for held, was in originals:
            held.update(was)


def _view(part: Tensor, block: Block) -> Tensor:
    return part.view(block.shape)
