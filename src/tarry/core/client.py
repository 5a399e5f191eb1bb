"""A client's visit: the project's one training loop, and the module it trains.

`Bound` gives a LocalRule its functions over a flat vector by making a module's tensors views of one buffer, so an
ordinary module runs at its ordinary speed and the optimiser's arithmetic is a handful of calls however many layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from . import rng
from .cut import Cut, head_of
from .drops import Drops, drops
from .errors import BadInput
from .layout import Layout
from .local import Brief, DeepObjective, LocalRule, Objective, Split
from .optim import Optimiser
from .promise import checked
from .rng import Stream
from .task import Examples, Task
from .ticket import NOTHING
from .visits import draws, orders

__all__ = ["Bound", "Job", "Trained", "Visit", "Work", "build_module", "train"]

_CHUNK = 200  # examples that a model is asked about at once


@dataclass(frozen=True)
class Work:
    """How much a client does in a visit: epochs over its data or a number of steps, and its batch (None = all)."""

    optimiser: Optimiser
    epochs: int | None = 1
    steps: int | None = None
    batch: int | None = None
    later: Callable[[int], Optimiser] | None = None  # the optimiser after so many server steps, where it changes

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise BadInput(f"--epochs {self.epochs} --steps {self.steps}: local work is one of the two")
        for flag, value in (("--epochs", self.epochs), ("--steps", self.steps), ("--batch", self.batch)):
            if value is not None and value < 1:
                raise BadInput(f"{flag} {value}: must be 1 or more")

    def n_steps(self, n: int) -> int:
        """Steps of a visit for a client of n examples."""
        return self.steps if self.steps is not None else (self.epochs or 0) * self.n_batches(n)

    def n_batches(self, n: int) -> int:
        """Steps of an epoch for a client of n examples."""
        return ceil(n / (self.batch or n))


class Job(NamedTuple):
    """A visit to be trained; everything its outcome depends on."""

    number: int
    client: int
    visit: int
    sent: Tensor
    payload: Mapping[str, Tensor] = NOTHING
    memory: Mapping[str, Tensor] = NOTHING
    version: int = 0  # server steps made when the weights were the global


class Trained(NamedTuple):
    """What a visit came to. `finite` is found where the numbers are at hand: in the process that trained."""

    delta: Tensor
    n_examples: int
    n_steps: int
    loss: float  # mean over the steps
    finite: bool = True
    extras: Mapping[str, Tensor] = NOTHING  # travels to the server
    memory: Mapping[str, Tensor] = NOTHING  # stays with the client
    notes: Mapping[str, Tensor] = NOTHING  # for diagnostics


def build_module(task: Task, *, seed: int, dtype: torch.dtype) -> nn.Module:
    """The task's model with its first weights: drawn from the seed, or those of the module the task was given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, Stream.INIT) >> 1)
        module = copy.deepcopy(task.model) if isinstance(task.model, nn.Module) else task.model()
        if any(is_lazy(p) for p in (*module.parameters(), *module.buffers())):  # it is made when it sees an example
            x = task.clients[0][0][:2].cpu()
            with torch.no_grad():
                module.eval()(x.to(torch.get_default_dtype()) if x.is_floating_point() else x)
            module.train()
        return module.to(dtype)


class Bound:
    """A module bound to a flat vector: `Functions` for one client at a time, and evaluation."""

    def __init__(self, module: nn.Module, layout: Layout, task: Task, optimiser: Optimiser, *, bf16: bool = False):
        self.module, self.layout, self.task, self.task_loss = module.train(), layout, task, task.loss
        self._bf16 = bf16
        self.use(optimiser)
        first = next(p for p in module.parameters() if p.requires_grad)
        self.flat = layout.read(module, first.dtype)
        self._trained = self.flat[: layout.n_params]
        self.counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        views, named = layout.views(self.flat), dict(module.named_parameters())
        for block in layout.layers:
            named[block.name].data = views[block.name]
        self.params = [named[b.name] for b in layout.layers]
        self.head = head_of(module, layout)
        self.drops = Drops() if drops(module) else None
        self.steady = not layout.stats and self.drops is None
        self.visit: Visit | None = None  # the one under way
        self._writes: bool | None = None  # whether the module writes to its inputs, when it is known
        owners = [block.name.rpartition(".") for block in layout.stats]
        places = [(module.get_submodule(owner)._buffers, leaf) for owner, _, leaf in owners]
        self._places = [(*place, views[b.name]) for place, b in zip(places, layout.stats, strict=True)]
        self._bind()

    def mean(self, values: Tensor, /) -> Tensor:
        return values.mean()

    def _bind(self) -> None:
        """Make the statistics the module's."""
        for buffers, leaf, view in self._places:
            buffers[leaf] = view

    def statistics(self) -> Tensor:
        """The running statistics, also where the module has put others in their place."""
        for buffers, leaf, view in self._places:
            if (own := buffers[leaf]) is not view and own is not None:
                view.copy_(own.detach())
        self._bind()
        return self.flat[self.layout.n_params :]

    def load(self, weights: Tensor) -> None:
        """Begin from these weights: trained tensors and running statistics; counters as built."""
        self.flat.copy_(weights)
        self._bind()
        for buffer, first in self.counters:
            buffer.copy_(first)

    def use(self, optimiser: Optimiser) -> None:
        """Descend by this optimiser from now on."""
        self.optimiser, self.init, self.descend = optimiser, optimiser.init, optimiser.descend

    def begin_step(self, noise: int | None, step: int = 0, lap: int = 0) -> None:
        """Which step of a visit it is: what is left out at random is a function of that."""
        if self.drops is not None:
            self.drops.begin(None if noise is None else rng.extend(noise, step), lap)

    def run(self, x: Tensor) -> Tensor:
        """The module on inputs, in bfloat16 where that is asked for; outputs are of the weights' type."""
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
        self._trained.copy_(w)
        x, y = batch
        kept = self._statistics() if still else None
        loss = (objective or self.task.loss)(self.run(x), y)
        grads = torch.autograd.grad(loss, self.params, materialize_grads=True)
        self._put_back(kept)
        return torch.cat([g.reshape(-1) for g in grads]), loss.detach()

    def deep_grad(
        self, w: Tensor, batch: tuple[Tensor, Any], objective: DeepObjective, /, *, still: bool = False
    ) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        with self._overheard(seen):
            return self.grad(w, batch, lambda out, y: objective(out, _flat(seen), y), still=still)

    def features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        seen: list[Tensor] = []
        with self._overheard(seen):
            self.outputs(vec, x)
        return _flat(seen)

    def _overheard(self, seen: list[Tensor]) -> RemovableHandle:
        """What goes into the head is added to `seen` meanwhile."""
        if self.head is None:
            raise BadInput(f"--task {self.task.name}: its model has no last map of its own, whose inputs are features")
        return self.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))

    @torch.no_grad()
    def loss(self, w: Tensor, batch: Examples, /) -> Tensor:
        self._trained.copy_(w)
        kept = self._statistics()
        aside = nullcontext() if self.drops is None else self.drops.aside()
        with aside, torch.random.fork_rng(devices=[w.device] if w.is_cuda else []):  # nothing of the run's is drawn
            loss = self.task.loss(self.run(batch[0]), batch[1])
        self._put_back(kept)
        return loss

    def received(self, x: Tensor, /) -> Tensor:
        assert self.visit is not None, "asked outside of a visit"
        return self._once("received", self.outputs, self.visit.sent, x)

    def known_features(self, vec: Tensor, x: Tensor, /) -> Tensor:
        return self._once(f"features of {id(vec)}", self.features, vec, x)

    def _once(self, name: str, ask: Callable[[Tensor, Tensor], Tensor], vec: Tensor, x: Tensor) -> Tensor:
        """What is said of the batch at hand, out of a table of all the client's examples where they come again."""
        v = self.visit
        if v is None or not v.again:
            return ask(vec, x)
        if name not in v.tables:
            v.tables[name] = torch.cat([ask(vec, part) for part in torch.split(v.x, _CHUNK)])
        table = v.tables[name]
        return table if v.at is None else table[v.at]

    @torch.no_grad()
    def outputs(self, vec: Tensor, x: Tensor, /) -> Tensor:
        kept = self._statistics()
        self.flat.copy_(vec)
        self.module.eval()
        out = self._harmless(self.run, x)
        self.module.train()
        self._put_back(kept)
        return out

    def split(self, w: Tensor, x: Tensor, /) -> Split:
        self._trained.copy_(w)
        return Cut(self, w, x)

    def _statistics(self) -> list[Tensor] | None:
        """A copy of what a training pass moves beside weights, where there is anything."""
        if not self.layout.stats:
            return None
        return [self.statistics().clone(), *(b.clone() for b, _ in self.counters)]

    def _put_back(self, kept: list[Tensor] | None) -> None:
        if kept is not None:
            self.statistics().copy_(kept[0])
            for (buffer, _), value in zip(self.counters, kept[1:], strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def evaluate(self, weights: Tensor, examples: Examples, *, chunk: int | None = None) -> tuple[float | None, float]:
        """Share of right answers (None where the task has no score) and mean loss on a set of examples."""
        self.load(weights)
        self.module.eval()
        right, total, size = 0.0, 0.0, chunk or self.task.chunk
        for x, y in zip(torch.split(examples[0], size), torch.split(examples[1], size), strict=True):
            out = self._harmless(self.module, x)
            total += self.task.loss(out, y).item() * len(x)
            if self.task.score is not None:
                right += float(self.task.score(out, y))
        self.module.train()
        n = len(examples[0])
        return (None if self.task.score is None else right / n), total / n

    def _harmless(self, ask: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Asked of inputs that are somebody's own: a model may write to what it is given."""
        if self._writes is False:
            return ask(x)
        given = x.clone()
        before = given._version
        out = ask(given)
        self._writes = given._version != before
        return out


def _flat(seen: list[Tensor]) -> Tensor:
    """The features of a pass, a row an example."""
    if len(seen) != 1:
        raise BadInput(f"--task: the model's last linear or conv map is run {len(seen)} times a pass; features need 1")
    return seen[0].flatten(1)


class Visit:
    """A visit under way: the mini-batches of its epochs, and where in the client's data the one at hand lies."""

    def __init__(self, sent: Tensor, data: Examples, work: Work, key: int, *, like: Task | None = None):
        self.sent, self.x = sent, data[0]
        self.at: Tensor | None = None  # the examples of the batch at hand; None = all of them, in order
        self.tables: dict[str, Tensor] = {}  # what a model says of them all, once somebody has asked
        self._data, self._work, self._key = data, work, key
        self._augment, self._draws = (None, 0) if like is None else (like.augment, like.draws)
        more = work.n_steps(len(self.x)) > work.n_batches(len(self.x))
        self.again = more and self._augment is None  # the same examples come more than once

    def epochs(self) -> Iterator[_Lap]:
        """A fresh order every epoch; a batch of everything keeps the stored order. Batches are cut when asked for."""
        n = len(self.x)
        for epoch, (order, count) in enumerate(orders(n, self._work, self._key)):
            drawn: Tensor | None = None
            if self._augment is not None:
                drawn = torch.from_numpy(draws(n, self._draws, self._key, epoch)).to(self.sent)
            if order is None:
                yield _Lap(self, [None], drawn)
            else:
                parts = torch.split(torch.from_numpy(order).to(self.x.device), self._work.batch or n)
                yield _Lap(self, parts[:count], drawn)

    def batch(self, at: Tensor | None, drawn: Tensor | None) -> Examples:
        self.at = at
        x, y = (t.clone() if at is None else t[at] for t in self._data)  # a model may write to what it is given
        if drawn is not None:
            assert self._augment is not None
            x = self._augment(x, drawn if at is None else drawn[at])
        return x, y


class _Lap:
    """An epoch's batches, however often it is gone through."""

    def __init__(self, visit: Visit, parts: Sequence[Tensor | None], drawn: Tensor | None):
        self._visit, self._parts, self._drawn = visit, parts, drawn

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Examples]:
        return (self._visit.batch(at, self._drawn) for at in self._parts)


def train(job: Job, bound: Bound, *, rule: LocalRule, work: Work, seed: int) -> Trained:
    """Train one visit: a function of the job and the seed alone, whoever runs it and when."""
    data, layout, task, untouched = bound.task.clients[job.client], bound.layout, bound.task, job.sent._version
    n, key = len(data[0]), rng.key(seed, Stream.LOCAL, job.client, job.visit)
    torch.default_generator.manual_seed(key >> 1)
    if job.sent.is_cuda:
        torch.cuda.manual_seed(key >> 1)
    brief = Brief(job.sent, job.payload, job.memory, layout, key, work.n_steps(n), work.n_batches(n))
    if work.later is not None:
        bound.use(work.later(job.version))
    start, context = checked(rule, "begin", rule.begin(brief), 2)
    bound.load(start)
    w = layout.params(start)
    state, total, laps = rule.init(w, context, bound), torch.zeros((), dtype=w.dtype, device=w.device), rule.laps
    bound.visit = Visit(job.sent, data, work, rng.key(seed, Stream.ORDER, job.client, job.visit), like=task)
    noise, done = rng.key(seed, Stream.DROPOUT, job.client, job.visit), 0
    try:
        for epoch in bound.visit.epochs():
            for lap, step in enumerate(laps):
                bound.begin_step(None)
                if len(laps) > 1:
                    state = rule.turn(lap, state, bound)
                for i, batch in enumerate(epoch):
                    bound.begin_step(noise, done + i, lap)
                    w, state, loss = checked(rule, "step", step(w, batch, context, state, bound), 3)
                    if lap == 0:
                        total = total + loss
            done += len(epoch)
    except ValueError as e:
        if "more than 1 value per channel" not in str(e):
            raise
        raise BadInput(
            f"--batch {work.batch or 'all'}: client {job.client} has {n} examples, so a batch is left with one, which"
            " batch normalisation cannot learn from; use another --batch, or a model with group normalisation"
        ) from e
    finally:
        bound.visit = None
        bound.begin_step(None)
    final = torch.cat([w, bound.statistics()]) if layout.stats else w
    out = checked(rule, "finish", rule.finish(final, context, state))
    if job.sent._version != untouched:
        raise BadInput(
            f"local rule {type(rule).__name__}: it wrote to the weights that the client was sent; a rule never writes"
            " to what it is given: `w + step`, not `w.add_(step)`"
        )
    delta = final - job.sent if out.delta is None else out.delta
    mean_loss = total.item() / brief.n_steps
    finite = isfinite(mean_loss) and isfinite(delta.sum().item())
    return Trained(delta, n, brief.n_steps, mean_loss, finite, out.extras, out.memory, out.notes)
