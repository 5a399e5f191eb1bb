"""Equivalence checks: whether clients trained together get the same results as one by one.

`check_equivalence` tries it in double precision, where rounding explains no difference: a few visits of a few clients,
cut short, in batches of a few examples as ragged as those of all clients, are trained alone, again, and together. It
finds what a model, a loss or a rule does that a traced and stacked step does not do: batches whose examples depend on
each other, statistics kept in its own way, numbers drawn from a generator, counts in Python. It runs on the CPU,
whatever device the run is on. Where it would take long, or a loss holds numbers of single precision, it is left out.

`Tolerance.check` compares results in the precision of the run, where rounding may differ.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import rng
from ...core.local_rule import LocalRule
from ...core.rng import Stream
from ...core.shards import Examples, client_sizes
from ...core.tickets import LocalResult, VisitJob
from ...training.determinism import generator_held
from ...training.flat_model import FlatModel
from ...training.visit import LocalWork, train
from .masked_batchnorm import MaskedBatchNorm
from .trace import NoBatchingRule, NotStackable
from .trainer import BatchedTrainer

__all__ = ["Tolerance", "check_equivalence", "relative_distance", "with_rounding_noise"]

_EXACT = torch.float64
_ALIKE = 1e-6  # of a number's own size, after a few steps
_TIMES, _MOST = 4, 0.5  # times the distance that a change of the last digits makes, up to a distance of so much
_LIMITS = {torch.float64: 1e-6, torch.float32: 2e-2}  # of the norm of a delta, after a few steps: a ReLU may flip
_ROUGH_LIMIT = 0.1  # with reduced precision
_LONG, _BACK, _LARGE = 0.2, 3, 50_000_000  # seconds of a step; passes forth that one back and forth takes; weights
_BATCH, _FULLER, _STEPS, _EPOCHS, _VISITS = 8, 3, 4, 2, 2  # examples, and so many more than in a short batch; of each
_NO_MEAN = "is the loss the mean of the examples' losses, and does each example's output depend on it alone?"


def check_equivalence(
    model: FlatModel, jobs: Sequence[VisitJob], *, rule: LocalRule, work: LocalWork, seed: int, ragged: bool
) -> bool:
    """Raise NotStackable if stacked training gives other numbers; return False if it cannot be checked.

    `ragged`: batches differ in length.
    """
    if sum(p.numel() for p in model.module.parameters()) > _LARGE:
        return False
    short, shards = _short(work), [_exact(s) for s in _shards(model, jobs, work, ragged=ragged)]
    task = replace(model.task, clients=shards, train=None, test=None, unlabeled=None, unlabeled_mask=None)
    try:
        module = copy.deepcopy(model.module).to("cpu", _EXACT)
        own = FlatModel(module, model.layout, task, work.optimizer)
        if _BACK * _BATCH * _seconds(own, shards[0][0][:1]) > _LONG:
            return False
        given = list(_visits(jobs, len(shards)))
        alone = [_train_alone(job, own, rule, short, seed) for job in given]
        again = train(given[0], own, rule=rule, work=short, seed=seed)
    except NotStackable:
        raise
    except Exception:  # it is not made for double precision, or for a processor
        return False
    if not all(t.finite for t in alone):
        return False
    if _far(alone[0], again, model) > 0:
        raise NotStackable(
            "the same visit gives another result the second time: its model or loss keeps state in Python"
        )
    trainer = BatchedTrainer(own, rule=rule, work=short, seed=seed)
    if trainer.masks and not trainer.loss_is_mean():
        raise NotStackable("its loss is not the mean of the examples' losses, and clients differ in size")
    try:
        together = trainer.train(given)
    except NoBatchingRule:
        trainer.size = 1
        together = trainer.train(given)
    for job, a, b in zip(given, alone, together, strict=True):
        if (far := _far(a, b, model)) > _ALIKE:
            near = train(with_rounding_noise(job, seed), own, rule=rule, work=short, seed=seed)
            if far > min(_MOST, _TIMES * _far(a, near, model)):
                raise NotStackable(
                    f"a client's update differs by {far:.1g} of its size when trained with others; {_NO_MEAN}"
                )
    return True


class Tolerance:
    """The largest accepted difference between two results of a client. `rough`: the run has reduced precision."""

    def __init__(self, model: FlatModel, rule: LocalRule, seed: int, *, rough: bool):
        self._model, self._rule, self._seed, self._rough = model, rule, seed, rough

    def check(
        self,
        jobs: Sequence[VisitJob],
        alone: Sequence[LocalResult],
        stacked: Sequence[LocalResult],
        work: LocalWork,
    ) -> None:
        """Raise NotStackable where a delta differs by more than the limit and by more than rounding explains."""
        for job, a, b in zip(jobs, alone, stacked, strict=True):
            limit = _ROUGH_LIMIT if self._rough else _LIMITS.get(a.delta.dtype, _ROUGH_LIMIT)
            far = relative_distance(a.delta, b.delta)
            if not a.finite or far <= limit:
                continue
            if not far <= min(_MOST, _TIMES * self._effect_of_rounding(job, a, work)):
                raise NotStackable(
                    f"a client's update differs by {far:.1g} of its size when trained with others; {_NO_MEAN}"
                )

    def _effect_of_rounding(self, job: VisitJob, result: LocalResult, work: LocalWork) -> float:
        """Return how far the result moves when the last digits of the weights sent change."""
        noisy = with_rounding_noise(job, self._seed)
        other = train(noisy, self._model, rule=self._rule, work=work, seed=self._seed)
        return relative_distance(result.delta, other.delta)


def _seconds(model: FlatModel, x: Tensor) -> float:
    """Return the seconds of a forward pass, the second of two: the first one includes initialization."""
    for _ in range(2):
        began = time.perf_counter()
        model.outputs(model.flat, x)
    return time.perf_counter() - began


def _short(work: LocalWork) -> LocalWork:
    work = replace(work, batch=None if work.batch is None else min(work.batch, _BATCH))
    if work.steps is not None:
        return replace(work, steps=min(work.steps, _STEPS))
    return replace(work, epochs=min(work.epochs or 1, _EPOCHS))


def _shards(model: FlatModel, jobs: Sequence[VisitJob], work: LocalWork, *, ragged: bool) -> Iterator[Examples]:
    """Some of the first client's examples and of the smallest one's: a whole batch and what is left, if anything is.

    Where clients differ in size, the first one's are there once more with a batch less, and so make fewer steps.
    """
    clients = model.task.clients
    sizes = client_sizes(clients)
    smallest = min((j.client for j in jobs), key=lambda c: sizes[c])
    for client in dict.fromkeys((jobs[0].client, smallest)):
        x, y = clients[client]
        n = _cut(len(x), work.batch)
        yield x[:n], y[:n]
        if ragged and client == jobs[0].client and n > 2:
            less = _BATCH if n > _BATCH else n - 1
            yield x[:less], y[:less]


def _cut(n: int, batch: int | None) -> int:
    """Return how many of n examples the check uses: they have a whole and a short batch, if the n have them."""
    if batch is None or batch <= _BATCH:
        size = batch or _BATCH
        return min(n, size + (n % size or size)) if batch is not None else min(n, size)
    short = min(n % batch, _BATCH - _FULLER)
    return (_BATCH if n >= batch else 0) + (short or (_BATCH if n > batch else 0))


def _exact(examples: Examples) -> Examples:
    x, y = (t.detach().to("cpu", _EXACT if t.is_floating_point() else t.dtype) for t in examples)
    return x, y


def _visits(jobs: Sequence[VisitJob], clients: int) -> Iterator[VisitJob]:
    """A few of each, from what the first jobs were sent; copied once each, however many were sent the same."""
    copies: dict[int, Tensor] = {}

    def exact(t: Tensor) -> Tensor:
        if id(t) not in copies:
            copies[id(t)] = t.to("cpu", _EXACT) if t.is_floating_point() else t.to("cpu")
        return copies[id(t)]

    for i in range(clients * _VISITS):
        c, v = divmod(i, _VISITS)
        job = jobs[c % len(jobs)]
        payload, memory = ({k: exact(t) for k, t in given.items()} for given in (job.payload, job.memory))
        yield job._replace(number=i, client=c, visit=v, sent=exact(job.sent), payload=payload, memory=memory)


def _train_alone(job: VisitJob, model: FlatModel, rule: LocalRule, work: LocalWork, seed: int) -> LocalResult:
    """Return the result of training one client; raise NotStackable for what cannot be reproduced in a stack."""
    with generator_held():
        before = _generator_states(job, seed)
        made = train(job, model, rule=rule, work=work, seed=seed)
        after = _generator_states(job, None)
    if before != after:
        raise NotStackable("it draws random numbers by itself; use dropout layers of torch, or the client's key")
    counted = {id(b) for m in model.module.modules() if (b := getattr(m, "num_batches_tracked", None)) is not None}
    counted |= {id(b) for b in MaskedBatchNorm(model.module).counters.values()}
    if any(id(b) not in counted and not torch.equal(b, first) for b, first in model.counters):
        raise NotStackable("its model counts in whole numbers of its own")
    return made


def _generator_states(job: VisitJob, seed: int | None) -> tuple[Any, ...]:
    """Return the states of all random generators; with a seed, torch's is first set as at the start of a visit."""
    if seed is not None:
        torch.default_generator.manual_seed(rng.key(seed, Stream.LOCAL, job.client, job.visit) >> 1)
    numpy_state: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - the state of numpy's global generator
    return (
        random.getstate(),
        numpy_state[1].tobytes(),
        numpy_state[2],
        torch.default_generator.get_state().numpy().tobytes(),
    )


def with_rounding_noise(job: VisitJob, seed: int) -> VisitJob:
    """Return the job with its weights changed by rounding noise: the difference in results bounds that of rounding."""
    key, sent = rng.key(seed, Stream.LOCAL, job.client), job.sent
    way = torch.from_numpy(rng.uniforms(key, len(sent), 1)[:, 0]).to(sent) - 0.5
    return job._replace(sent=sent * (1 + 32 * torch.finfo(sent.dtype).eps * way))


def _far(a: LocalResult, b: LocalResult, model: FlatModel) -> float:
    """Return the largest relative distance of weights, statistics, losses, extras and memory."""
    n = model.layout.n_params
    pairs = [(a.delta[:n], b.delta[:n]), (a.delta[n:], b.delta[n:])]
    pairs += [(torch.tensor([a.loss]), torch.tensor([b.loss]))]
    for mine, other in ((a.extras, b.extras), (a.memory, b.memory)):
        if mine.keys() != other.keys():
            return 1.0
        pairs += [(mine[k], other[k]) for k in mine]
    return max(relative_distance(x.double(), y.double()) for x, y in pairs)


def relative_distance(a: Tensor, b: Tensor) -> float:
    """The distance of two, in lengths of the first."""
    return float((a - b).norm() / a.norm().clamp_min(1e-30)) if a.numel() and not torch.equal(a, b) else 0.0
