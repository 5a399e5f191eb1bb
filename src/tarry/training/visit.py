"""A client's visit: the amount of work, the mini-batches, and `train`, the one training loop of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor

from ..core import rng
from ..core.contracts import check_rule_dtype, check_rule_output
from ..core.errors import BadInput
from ..core.local_rule import Context, LocalRule, VisitInput
from ..core.optim import Optimizer
from ..core.rng import Stream
from ..core.schedule import ScheduleInput
from ..core.task import Examples, Task
from ..core.tickets import LocalResult, VisitJob
from .batch_order import augmentation_draws, epoch_orders
from .determinism import generator_held
from .flat_model import FlatModel

__all__ = ["BatchIterator", "LocalWork", "train"]


@dataclass(frozen=True)
class LocalWork:
    """The work of a visit: epochs over the client's data or a number of steps, and the batch size (None = all)."""

    optimizer: Optimizer
    epochs: int | None = 1
    steps: int | None = None
    batch: int | None = None
    optimizer_at: Callable[[ScheduleInput], Optimizer] | None = None  # of a visit, where the learning rate changes

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise BadInput(f"--epochs {self.epochs} --steps {self.steps}: local work is one of the two")
        for flag, value in (("--epochs", self.epochs), ("--steps", self.steps), ("--batch", self.batch)):
            if value is not None and value < 1:
                raise BadInput(f"{flag} {value}: must be 1 or more")

    def n_steps(self, n: int) -> int:
        """Return the steps of a visit for a client with n examples."""
        return self.steps if self.steps is not None else (self.epochs or 0) * self.n_batches(n)

    def n_batches(self, n: int) -> int:
        """Return the steps of an epoch for a client with n examples."""
        return ceil(n / (self.batch or n))


class BatchIterator:
    """The mini-batches of a visit, epoch by epoch, and which of the client's examples are in the current one."""

    def __init__(self, sent: Tensor, data: Examples, work: LocalWork, key: int, *, like: Task | None = None):
        self.sent, self.x = sent, data[0]
        self.at: Tensor | None = None  # indices of the current batch; None = all examples, in order
        self.tables: dict[str, Tensor] = {}  # cached outputs or features of all examples
        self._data, self._work, self._key = data, work, key
        self._augment, self._n_draws = (None, 0) if like is None else (like.augment, like.n_draws)
        more = work.n_steps(len(self.x)) > work.n_batches(len(self.x))
        self.again = more and self._augment is None  # examples come more than once, so that caching pays

    def epochs(self) -> Iterator[_Epoch]:
        """Yield the batches of each epoch, in a new order; a batch of all examples keeps the stored order."""
        n = len(self.x)
        for epoch, (order, count) in enumerate(epoch_orders(n, self._work, self._key)):
            drawn: Tensor | None = None
            if self._augment is not None:
                drawn = torch.from_numpy(augmentation_draws(n, self._n_draws, self._key, epoch)).to(self.sent)
            if order is None:
                yield _Epoch(self, [None], drawn)
            else:
                parts = torch.split(torch.from_numpy(order).to(self.x.device), self._work.batch or n)
                yield _Epoch(self, parts[:count], drawn)

    def batch(self, at: Tensor | None, drawn: Tensor | None) -> Examples:
        self.at = at
        x, y = (t.clone() if at is None else t[at] for t in self._data)  # a model may write to what it is given
        if drawn is not None:
            assert self._augment is not None
            x = self._augment(x, drawn if at is None else drawn[at])
        return x, y


class _Epoch:
    """The batches of an epoch, which a rule may go through several times."""

    def __init__(self, visit: BatchIterator, parts: Sequence[Tensor | None], drawn: Tensor | None):
        self._visit, self._parts, self._drawn = visit, parts, drawn

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Examples]:
        return (self._visit.batch(at, self._drawn) for at in self._parts)


def train(job: VisitJob, model: FlatModel, *, rule: LocalRule, work: LocalWork, seed: int) -> LocalResult:
    """Train one visit. The result is a function of the job and the seed alone, in every process and at any time."""
    with generator_held():
        return _train(job, model, rule, work, seed)


def _train(job: VisitJob, model: FlatModel, rule: LocalRule, work: LocalWork, seed: int) -> LocalResult:
    data, layout, untouched = model.task.clients[job.client], model.layout, job.sent._version
    n, key = len(data[0]), rng.key(seed, Stream.LOCAL, job.client, job.visit)
    torch.default_generator.manual_seed(key >> 1)
    if job.sent.is_cuda:
        torch.cuda.manual_seed(key >> 1)
    brief = VisitInput(job.sent, job.payload, job.memory, layout, key, work.n_steps(n), work.n_batches(n))
    if work.optimizer_at is not None:
        model.use(work.optimizer_at(job.schedule_input))
    start, context = check_rule_output(rule, "begin", rule.begin(brief), 2)
    model.load(start)
    order = rng.key(seed, Stream.ORDER, job.client, job.visit)
    model.visit = BatchIterator(job.sent, data, work, order, like=model.task)
    try:
        w, state, total = _descend(layout.params(start), context, model.visit, model, rule, job, seed)
    except ValueError as e:
        if "more than 1 value per channel" not in str(e):
            raise
        raise BadInput(
            f"--batch {work.batch or 'all'}: client {job.client} has {n} examples, so a batch is left with one, which"
            " batch normalization cannot learn from; use another --batch, or a model with group normalization"
        ) from e
    finally:
        model.visit = None
        if model.drops is not None:
            model.drops.begin(None)
    if w is model.trained:
        model.statistics()  # the last ones are in the vector now
        final = model.flat
    else:
        final = torch.cat([w, model.statistics()]) if layout.stats else w
    out = check_rule_output(rule, "finish", rule.finish(final, context, state))
    if job.sent._version != untouched:
        raise BadInput(
            f"local rule {type(rule).__name__}: it wrote to the weights that the client was sent; a rule never writes"
            " to what it is given: `w + step`, not `w.add_(step)`"
        )
    check_rule_dtype(rule, final, out.delta, job.sent)
    delta = final - job.sent if out.delta is None else out.delta
    mean_loss = total.item() / brief.n_steps
    finite = isfinite(mean_loss) and isfinite(delta.sum().item())
    return LocalResult(delta, n, brief.n_steps, mean_loss, finite, out.extras, out.memory, out.notes)


def _descend(
    w: Tensor, context: Context, visit: BatchIterator, model: FlatModel, rule: LocalRule, job: VisitJob, seed: int
) -> tuple[Tensor, Any, Tensor]:
    """Make all steps; return the weights, the state of the rule, and the sum of the losses of the first pass."""
    state, total = rule.init(w, context, model), torch.zeros((), dtype=w.dtype, device=w.device)
    passes, drops, done = rule.passes, model.drops, 0
    if model.is_large and type(rule) is LocalRule and model.optimizer.overwrite is not None:
        w, passes = model.trained, (_plain_step,)
    noise = rng.key(seed, Stream.DROPOUT, job.client, job.visit)
    for epoch in visit.epochs():
        for pass_index, step in enumerate(passes):
            if drops is not None:
                drops.begin(None)
            if len(passes) > 1:
                state = rule.begin_pass(pass_index, state, model)
            for i, batch in enumerate(epoch):
                if drops is not None:
                    drops.begin(rng.extend(noise, done + i), pass_index)
                made: Any = step(w, batch, context, state, model)
                if type(made) is not tuple or len(made) != 3:
                    check_rule_output(rule, "step", made, 3)
                w, state, loss = made
                if pass_index == 0:
                    total = total + loss
        done += len(epoch)
    return w, state, total


def _plain_step(
    w: Tensor,
    batch: Examples,
    context: Context,  # noqa: ARG001 - as LocalRule.step
    state: Any,
    model: Any,
) -> tuple[Tensor, Any, Tensor]:
    """LocalRule.step in the FlatModel's own vector, with the same bits: a large model is in memory once, not thrice."""
    g, loss = model.grad(w, batch)
    return w, model.optimizer.overwrite(w, g, state), loss
