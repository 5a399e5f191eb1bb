"""A client's visit: the project's one training loop, and the module it trains.

`Bound` gives a LocalRule its functions over a flat vector by making a module's tensors views of one buffer, so an
ordinary module runs at its ordinary speed and the optimiser's arithmetic is a handful of calls however many layers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import rng
from .errors import BadInput
from .layout import Layout
from .local import Brief, LocalRule
from .optim import Optimiser
from .rng import Stream
from .task import Examples, Task
from .ticket import NOTHING

__all__ = ["Bound", "Job", "Trained", "Work", "build_module", "train"]


@dataclass(frozen=True)
class Work:
    """How much a client does in a visit: epochs over its data or a number of steps, and its batch (None = all)."""

    optimiser: Optimiser
    epochs: int | None = 1
    steps: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise BadInput(f"--epochs {self.epochs} --steps {self.steps}: local work is one of the two")
        for flag, value in (("--epochs", self.epochs), ("--steps", self.steps), ("--batch", self.batch)):
            if value is not None and value < 1:
                raise BadInput(f"{flag} {value}: must be 1 or more")

    def n_steps(self, n: int) -> int:
        """Steps of a visit for a client of n examples."""
        return self.steps if self.steps is not None else (self.epochs or 0) * ceil(n / (self.batch or n))


class Job(NamedTuple):
    """A visit to be trained; everything its outcome depends on."""

    number: int
    client: int
    visit: int
    sent: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    memory: Mapping[str, Tensor] = NOTHING


class Trained(NamedTuple):
    """What a visit came to. `finite` is found where the numbers are at hand: in the process that trained."""

    delta: Tensor
    n_examples: int
    n_steps: int
    loss: float  # mean over the steps
    finite: bool = True
    extras: Mapping[str, Tensor] = NOTHING  # travels to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client


def build_module(task: Task, *, seed: int, dtype: torch.dtype) -> nn.Module:
    """The task's model with its first weights: drawn from the seed, or those of the module the task was given."""
    if isinstance(task.model, nn.Module):
        return copy.deepcopy(task.model).to(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, Stream.INIT) >> 1)
        return task.model().to(dtype)


class Bound:
    """A module bound to a flat vector: `Functions` for one client at a time, and evaluation."""

    def __init__(self, module: nn.Module, layout: Layout, task: Task, optimiser: Optimiser):
        self.module, self.layout, self.task, self.optimiser = module.train(), layout, task, optimiser
        self.descend = optimiser.descend
        first = next(p for p in module.parameters() if p.requires_grad)
        self.flat = layout.read(module, first.dtype)
        self._trained = self.flat[: layout.n_params]
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        views, named = layout.views(self.flat), dict(module.named_parameters())
        for block in layout.layers:
            named[block.name].data = views[block.name]
        self._params = [named[b.name] for b in layout.layers]
        for block in layout.stats:
            owner, _, leaf = block.name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = views[block.name]

    def load(self, weights: Tensor) -> None:
        """Begin from these weights: trained tensors and running statistics; counters as built."""
        self.flat.copy_(weights)
        for buffer, first in self._counters:
            buffer.copy_(first)

    def grad(self, w: Tensor, batch: Examples, /) -> tuple[Tensor, Tensor]:
        self._trained.copy_(w)
        x, y = batch
        loss = self.task.loss(self.module(x), y)
        grads = torch.autograd.grad(loss, self._params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()

    @torch.no_grad()
    def evaluate(self, weights: Tensor, examples: Examples, *, chunk: int = 1000) -> tuple[float | None, float]:
        """Share of right answers (None where the task has no score) and mean loss on a set of examples."""
        self.load(weights)
        self.module.eval()
        right, total = 0.0, 0.0
        for x, y in zip(torch.split(examples[0], chunk), torch.split(examples[1], chunk), strict=True):
            out = self.module(x)
            total += self.task.loss(out, y).item() * len(x)
            if self.task.score is not None:
                right += float(self.task.score(out, y))
        self.module.train()
        n = len(examples[0])
        return (None if self.task.score is None else right / n), total / n


def batches(data: Examples, work: Work, key: int) -> Iterator[Examples]:
    """The mini-batches of a visit: a fresh order every epoch; a batch that holds everything keeps the stored order."""
    x, y = data
    n, left, epoch = len(x), work.n_steps(len(x)), 0
    size = min(work.batch or n, n)
    while left > 0:
        if size == n:
            parts: Any = [None]
        else:
            order = torch.from_numpy(rng.permutation(rng.key(key, epoch), n)).to(x.device)
            parts = torch.split(order, size)
        for index in parts[:left]:
            yield (x, y) if index is None else (x[index], y[index])
        left, epoch = left - len(parts), epoch + 1


def train(job: Job, bound: Bound, *, rule: LocalRule, work: Work, seed: int) -> Trained:
    """Train one visit: a function of the job and the seed alone, whoever runs it and when."""
    data, layout = bound.task.clients[job.client], bound.layout
    noise = rng.key(seed, Stream.LOCAL, job.client, job.visit) >> 1
    torch.default_generator.manual_seed(noise)
    if job.sent.is_cuda:
        torch.cuda.manual_seed(noise)
    start, context = rule.begin(Brief(job.sent, job.payload, job.memory, layout))
    bound.load(start)
    w = layout.params(start)
    state, total, n_steps = work.optimiser.init(w), torch.zeros((), dtype=w.dtype, device=w.device), 0
    for batch in batches(data, work, rng.key(seed, Stream.ORDER, job.client, job.visit)):
        w, state, loss = rule.step(w, batch, context, state, bound)
        total = total + loss
        n_steps += 1
    final = torch.cat([w, bound.flat[layout.n_params :]]) if layout.stats else w
    extras, memory = rule.finish(final, context)
    delta, mean_loss = final - job.sent, total.item() / n_steps
    finite = isfinite(mean_loss) and isfinite(delta.sum().item())
    return Trained(delta, len(data[0]), n_steps, mean_loss, finite, extras, memory)
