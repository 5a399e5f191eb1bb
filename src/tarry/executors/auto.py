"""An executor that trains all who wait at once, if that gives the same numbers, in the way that is fastest here.

Before it trains anybody it tries a few steps: in double precision, where rounding explains nothing (sim.proof); two
clients one by one and stacked, which must agree as far as rounding lets them; then, timed, one by one and each way to
stack (how many clients a stack, how many lanes, whose kernels), once for each kind of run in a process, where the two
must agree again. What it found is in `told`. What cannot be stacked (a model that looks at values, a rule that thinks
in Python) is trained by another executor, and `told` says why.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import first_line
from ..core.local_rule import LocalRule
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.fused import numba
from ..vector.process import trim_memory
from .batched.channels_last import is_worthwhile
from .batched.conv.numba import few_channels
from .batched.equivalence import check_equivalence, relative_distance, with_rounding_noise
from .batched.trace import NoBatchingRule, NotStackable
from .batched.trainer import BatchedTrainer
from .base import Executor

__all__ = ["AutoExecutor"]


class BatchConfig(NamedTuple):
    """How clients may be stacked: lanes, clients a stack at most (None: as memory allows), whose convolutions."""

    lanes: int
    size: int | None
    own_conv: str = ""


_STEPS = 4  # of a trial
_FEWEST, _MOST = 4, 32  # clients of a trial; on a processor as many as take _SHORT seconds one by one
_TRIES = 3  # one by one, before and after the others
_CLOSE, _SHORT, _AGAIN = 1.3, 0.05, 5  # a way so close to the best is tried again; more often if it takes few seconds
_TINY, _QUICK = 0.005, 0.5  # seconds: a visit of a small model; a trial that making programs is a large part of
_ALIKE = {torch.float64: 1e-6, torch.float32: 2e-2}  # of a delta's norm, after a few steps: a ReLU may flip
_ROUGHLY = 0.1  # with reduced precision
_TIMES, _MOST_APART = 4, 0.5  # as far as a client is from itself after a change in the last digits, but no further
_COMPILED = ", compiled"
_CACHED = 8  # clients whose images a processor's cache holds
_WORTH = 1.1  # times as fast: less is not worth other roundings
_FOUND: dict[Hashable, tuple[BatchConfig, float]] = {}  # by kind of run, in this process
_SOMETIMES, _WHILE = 8, 2.0  # runs, seconds of one: what was traced is garbage then, which Python is slow to look for
_over = count(1)


class AutoExecutor:
    """`forced`: stack whenever it is possible, however fast; else only where it is faster than `otherwise`.

    `at_a_time`: how many clients that one trains in the time of one.
    """

    def __init__(
        self,
        bound: FlatModel,
        *,
        rule: LocalRule,
        work: LocalWork,
        seed: int,
        lanes: int,
        always_batch: bool,
        fallback: Callable[[], Executor],
        at_a_time: int = 1,
        precision: str = "float32",
        compiled: bool = False,
    ):
        self._bound, self._rule, self._work, self._seed, self._forced = bound, rule, work, seed, always_batch
        self._otherwise, self._at_a_time = fallback, at_a_time
        self._rough, self._precision, self._compile, self._lanes = precision != "float32", precision, compiled, lanes
        self._waiting: dict[int, tuple[float, Ticket, Mapping[str, Tensor]]] = {}
        self._done: dict[int, LocalResult] = {}
        self._began = time.perf_counter()
        self._chosen = self._singly = False  # an operation has no form for stacks of more than one
        self._trainer: BatchedTrainer | None = None
        self._other: Executor | None = None
        self.description = ""
        try:
            self._trainer = self._made()
        except NotStackable as e:
            self._give_up(str(e))

    def _made(self, *, own_conv: str = "", compiled: bool = False) -> BatchedTrainer:
        bound, precision = self._bound, self._precision
        return BatchedTrainer(
            bound, rule=self._rule, work=self._work, seed=self._seed, lanes=self._lanes, compiled=compiled,
            bf16=precision == "bf16", own_conv=own_conv,
            channels_last=compiled and self._rough and bound.flat.is_cuda and is_worthwhile(bound.layout),
        )  # fmt: skip

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        if self._other is not None:
            self._other.submit(ticket, memory, due)
        else:
            self._waiting[ticket.number] = (due, ticket, memory)

    def collect(self, number: int) -> LocalResult:
        if number not in self._done and self._other is None:
            try:
                self._train()
            except NotStackable as e:
                self._give_up(str(e))
            except torch.OutOfMemoryError:
                self._give_up("the device has not the memory for it")
        if number in self._done:
            return self._done.pop(number)
        assert self._other is not None
        return self._other.collect(number)

    def _train(self) -> None:
        assert self._trainer is not None
        soonest = sorted((due, n) for n, (due, *_) in self._waiting.items())
        jobs = [_job(*self._waiting[n][1:]) for _, n in soonest]
        if not self._chosen:
            self._choose(jobs)
            self._chosen = True
            if self._bound.flat.is_cuda:
                gc.collect()  # what was tried takes up memory
        self._done |= zip((j.number for j in jobs), self._trained(jobs), strict=True)
        self._waiting.clear()

    def _trained(self, jobs: Sequence[VisitJob]) -> Sequence[LocalResult]:
        """In smaller stacks, and in memory that is asked for anew, where there is too little: others may take of it.

        What cannot be compiled after all is trained as it was traced.
        """
        assert self._trainer is not None
        size: int | None
        while True:
            try:
                return self._trainer.train(jobs)
            except torch.OutOfMemoryError:
                before = self._trainer
                if before.size == 1:
                    raise
                compiled, size = before.compiled, max(1, (before.size or len(jobs)) // 2)
            except NotStackable as e:
                before = self._trainer
                if not before.compiled:
                    raise
                compiled, size = False, before.size
                self.description = self.description.replace(_COMPILED, f", no longer compiled: {first_line(e)}")
            self._trainer = self._made(own_conv=before.own_conv, compiled=compiled)
            self._trainer.lanes, self._trainer.size = before.lanes, size
            del before
            gc.collect()
            torch.cuda.empty_cache()

    def _give_up(self, why: str) -> None:
        self.description = f"clients are not trained together: {why}"
        self._trainer = None  # before processes are forked: what was traced and tried is in nobody's way
        self._other = self._otherwise()
        for due, ticket, memory in self._waiting.values():
            self._other.submit(ticket, memory, due)
        self._waiting.clear()

    # Which way

    def _choose(self, jobs: Sequence[VisitJob]) -> None:
        assert self._trainer is not None
        few, work = jobs[:_MOST], replace(self._work, epochs=None, steps=_STEPS)
        sizes = {j.number: len(self._bound.task.clients[j.client][0]) for j in few}
        two = [few[0], min(few, key=lambda j: sizes[j.number])][: len(few)]
        given: dict[str, Any] = {"rule": self._rule, "work": self._work, "seed": self._seed}
        check_equivalence(
            self._bound, few, ragged=self._trainer.masks, **given
        )  # first: what a model remembers is as it was made
        trim_memory()
        alone = [train(j, self._bound, rule=self._rule, work=work, seed=self._seed) for j in two]
        if self._trainer.masks and not self._trainer.means():
            raise NotStackable("its loss is not the mean of the examples' losses, and clients differ in size")
        try:
            self._must_agree(two, alone, work, self._trainer)
        except NoBatchingRule:
            self._singly = True
            self._must_agree(two, alone, work, self._trainer)
        kind, trainers = self._kind(few, sizes), {"": self._trainer}
        if not self._singly and (whose := self._own_conv()) and (kind not in _FOUND or _FOUND[kind][0].own_conv):
            ours = self._made(own_conv=whose)
            with contextlib.suppress(NotStackable):
                self._must_agree(two, alone, work, ours)
                trainers[whose] = ours
        if kind not in _FOUND or _FOUND[kind][0].own_conv not in trainers:
            _FOUND[kind] = self._tried(trainers, few, work)
        how, faster = _FOUND[kind]
        self._trainer = trainer = trainers[how.own_conv]
        trainer.lanes, trainer.size = how.lanes, how.size
        more = f", convolutions by {how.own_conv}" if how.own_conv else ""
        if self._compile:
            self._trainer, times, told = self._compiled(trainer, jobs, work)
            faster, more = faster * times, more + told
        lanes = self._trainer.lanes
        if not self._forced and faster < _WORTH * self._at_a_time:
            others = "one by one" if self._at_a_time == 1 else f"one, and {self._at_a_time} processes train"
            raise NotStackable(f"a step of a stack is {faster:.1f} times as fast as {others} here")
        stack = "all who wait in a stack" if lanes == 1 else "a stack a lane"
        if how.size is not None:
            stack = "one client a stack" if how.size == 1 else f"up to {how.size} a stack"
        more = ("" if lanes == 1 else f", {lanes} lanes") + more
        self.description = (
            f"clients are trained together ({stack}{more}): a step is {faster:.1f} times as fast as alone"
        )

    def _compiled(
        self, plain: BatchedTrainer, jobs: Sequence[VisitJob], work: LocalWork
    ) -> tuple[BatchedTrainer, float, str]:
        """The way that was found, compiled, how many times as fast it is, and what to tell; where it is no faster, or

        cannot be had, as it was. Other ways are not compiled: each takes as long again.
        """
        made = self._made(own_conv=plain.own_conv, compiled=True)
        made.lanes, made.size = min(plain.lanes, made.most_lanes), plain.size
        ends, short = [jobs[0], jobs[-1]], [t.with_max_steps(_STEPS) for t in (plain, made)]
        try:
            found = [trainer.train(jobs) for trainer in short][1]
            theirs = [train(j, self._bound, rule=self._rule, work=work, seed=self._seed) for j in ends]
            self._compared(ends, theirs, [found[0], found[-1]], work)
        except (NotStackable, torch.OutOfMemoryError) as e:
            return plain, 1.0, f", not compiled: {first_line(e)}"
        took = [min(_seconds(trainer.train, jobs) for _ in range(_TRIES)) for trainer in short]
        times = took[0] / took[1]
        if times < 1:
            return plain, 1.0, f", not compiled, which would be {times:.1f} times as fast"
        return made, times, _COMPILED

    def _own_conv(self) -> str:
        """What our kernels for its convolutions are written in, where there are such convolutions, and that is here."""
        flat, filters = self._bound.flat, [b.shape for b in self._bound.layout.layers if len(b.shape) == 4]
        if flat.dtype != torch.float32 or self._precision == "bf16":
            return ""
        if flat.is_cuda:
            return "Triton" if filters and find_spec("triton") is not None else ""
        few = any(few_channels(shape) for shape in filters)
        return "numba" if few and numba("tarry.executors.batched.conv.numba_kernels") is not None else ""

    def _kind(self, few: Sequence[VisitJob], sizes: Mapping[int, int]) -> Hashable:
        """Runs of one kind in one process are tried once: a table's runs differ in seeds and settings alone."""
        bound, work, trainer = self._bound, self._work, self._trainer
        assert trainer is not None
        shapes = (tuple(b.shape for b in bound.layout.layers), tuple(bound.task.clients[few[0].client][0].shape[1:]))
        kinds, loss = tuple(type(m) for m in bound.module.modules()), getattr(bound.task.loss, "__qualname__", "")
        model = (kinds, shapes, str(bound.flat.device), bound.flat.dtype, bound.task.name, loss, bound.task.draws)
        about = tuple(sorted({n.bit_length() for n in sizes.values()}))
        try:
            rule: Any = hash(self._rule)
        except TypeError:
            rule = type(self._rule)
        return (*model, rule, type(work.optimiser), work.batch, about, len(few), trainer.most_lanes, self._precision)

    def _tried(
        self, trainers: Mapping[str, BatchedTrainer], few: Sequence[VisitJob], work: LocalWork
    ) -> tuple[BatchConfig, float]:
        """The fastest way, and how many times as fast as one by one it is.

        What else the machine does only adds to a time: the shortest of a few counts.
        """

        def alone(job: VisitJob) -> LocalResult:
            return train(job, self._bound, rule=self._rule, work=work, seed=self._seed)

        trials = {own: trainer.with_max_steps(_STEPS) for own, trainer in trainers.items()}

        def together(how: BatchConfig) -> Sequence[LocalResult]:
            trial = trials[how.own_conv]
            trial.lanes, trial.size = how.lanes, how.size
            return trial.train(few)

        on_gpu, one_by_one, took = self._bound.flat.is_cuda, list[float](), dict[BatchConfig, float]()
        one_by_one += [_seconds(alone, few[0]) for _ in range(_TRIES)]
        if not on_gpu:
            few = few[: max(_FEWEST, int(_SHORT / min(one_by_one)))]
        ends = [few[0], few[-1]]
        theirs, refused = [alone(job) for job in ends], ""
        for how in self._ways(len(few), own_conv=[whose for whose in trials if whose]):
            try:
                began = time.perf_counter()
                found = together(how)
                first = time.perf_counter() - began
                self._compared(ends, theirs, [found[0], found[-1]], work)  # a program is made for each size
                took[how] = _seconds(together, how) if on_gpu or first < _QUICK else first  # what is made is so now
            except (NotStackable, torch.OutOfMemoryError) as e:
                refused = str(e)
                continue
            for _ in range(_AGAIN if took[how] < _SHORT else 1):
                if took[how] < _CLOSE * min(took.values()):
                    took[how] = min(took[how], _seconds(together, how))
        if not took:
            raise NotStackable(refused)
        one_by_one += [_seconds(alone, few[0]) for _ in range(_TRIES)]
        best = min(took, key=lambda how: took[how])
        if not on_gpu and min(one_by_one) < _TINY:  # calls are what takes time, and they get quicker
            trials[best.own_conv].compile_programs()
            took[best] = min(_seconds(together, best) for _ in range(_AGAIN))
        return best, min(one_by_one) * len(few) / took[best]

    def _ways(self, n: int, *, own_conv: Sequence[str]) -> Iterator[BatchConfig]:
        assert self._trainer is not None
        most = self._trainer.most_lanes
        lanes = [k for k in sorted({2, 4, most}) if 1 < k <= min(most, n)]
        if self._singly:
            yield from (BatchConfig(k, 1) for k in (1, *lanes))
            return
        yield BatchConfig(1, None)
        yield from (BatchConfig(k, size) for k in lanes for size in (None, 1))
        yield from [BatchConfig(1, 1)] if most == 1 else []
        size = None if self._bound.flat.is_cuda else _CACHED
        for whose in own_conv:
            yield from (BatchConfig(k, size, whose) for k in (1, *lanes[-1:]))

    def _must_agree(
        self, jobs: Sequence[VisitJob], alone: Sequence[LocalResult], work: LocalWork, trainer: BatchedTrainer
    ) -> None:
        """A few steps of each, in one stack; and padded, where others may be though these are not."""
        for padding in (0, 1) if trainer.masks else (0,):
            short = trainer.with_max_steps(_STEPS, padding=padding)
            short.lanes, short.size = 1, 1 if self._singly else None
            self._compared(jobs, alone, short.train(jobs), work)

    def _compared(
        self, jobs: Sequence[VisitJob], alone: Sequence[LocalResult], stacked: Sequence[LocalResult], work: LocalWork
    ) -> None:
        for job, a, b in zip(jobs, alone, stacked, strict=True):
            far, limit = (
                relative_distance(a.delta, b.delta),
                _ROUGHLY if self._rough else _ALIKE.get(a.delta.dtype, _ROUGHLY),
            )
            if not a.finite or far <= limit:
                continue
            if not far <= min(_MOST_APART, _TIMES * self._shaken(job, a, work)):
                raise NotStackable(
                    f"a client's update differs by {far:.1g} of its size when trained with others; is the loss the mean"
                    " of the examples' losses, and does each example's output depend on it alone?"
                )

    def _shaken(self, job: VisitJob, trained: LocalResult, work: LocalWork) -> float:
        """How far the client comes from itself when what it is sent changes in the last digits: what rounding does."""
        other = train(with_rounding_noise(job, self._seed), self._bound, rule=self._rule, work=work, seed=self._seed)
        return relative_distance(trained.delta, other.delta)

    def close(self) -> None:
        self._waiting.clear()
        self._done.clear()
        if self._trainer is not None:
            self._trainer = None
            if next(_over) % _SOMETIMES == 0 or time.perf_counter() - self._began > _WHILE:
                gc.collect()
        if self._other is not None:
            self._other.close()


def _job(t: Ticket, memory: Mapping[str, Tensor]) -> VisitJob:
    return VisitJob(t.number, t.client, t.visit, t.sent, t.payload, memory, t.version)


def _seconds(work: Callable[[Any], object], what: Any) -> float:
    """Until its numbers are there: a Trained holds a loss that was asked for."""
    began = time.perf_counter()
    work(what)
    return time.perf_counter() - began
