"""AutoExecutor: trains all waiting clients at once, where that gives the same numbers, in the way that is fastest here.

Before the first training it tries a few steps. In double precision, where rounding explains nothing, clients one by one
and stacked must agree (batched.equivalence); in the precision of the run they must agree as far as rounding allows.
Then it times the ways to stack clients (timing.choose): how many clients a stack, how many lanes, whose convolutions.
`description` says what was chosen. Clients that cannot be stacked (a model that looks at values, a rule that decides in
Python) are trained by another executor, and `description` says why.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..core.errors import first_line
from ..core.local_rule import LocalRule
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.fused import numba
from ..vector.process import trim_memory
from .base import Executor, visit_job
from .batched.channels_last import is_worthwhile
from .batched.conv.numba import few_channels
from .batched.equivalence import Tolerance, check_equivalence
from .batched.trace import NoBatchingRule, NotStackable
from .batched.trainer import BatchedTrainer
from .timing import TRIES, BatchConfig, RecordedChoice, TimingChoice, Trial, TrialCache, choose, seconds

__all__ = ["AutoExecutor"]

_STEPS = 4  # of a trial
_MOST = 32  # clients of a trial
_COMPILED = ", compiled"
_ALONE = "clients are not trained together"
_CACHED = 8  # clients whose images fit a processor's cache
_WORTH = 1.1  # times as fast: a smaller gain is not worth other roundings
_COLLECT_EVERY, _LONG_RUN = 8, 2.0  # runs, seconds of a run, after which traced programs are garbage to be collected
_closed = count(1)


class AutoExecutor:
    """Executor that stacks clients where that is possible and faster than `fallback`.

    `always_batch`: stack wherever it is possible, however fast. `at_a_time`: how many clients the fallback trains at a
    time. `trials`: choices of earlier runs of the same kind, which are not timed again. `on_choice` is called with the
    choice before the first stack is trained.

    Rounding depends on which clients are in a stack. Therefore `save` holds the results that were trained ahead of
    need, the choice, and the sizes of later stacks: a resumed run trains the stacks of the uninterrupted run.
    """

    def __init__(
        self,
        model: FlatModel,
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
        trials: TrialCache | None = None,
        on_choice: Callable[[RecordedChoice], None] | None = None,
    ):
        self._model, self._rule, self._work, self._seed, self._always_batch = model, rule, work, seed, always_batch
        self._fallback, self._at_a_time = fallback, at_a_time
        self._rough, self._precision, self._compile, self._lanes = precision != "float32", precision, compiled, lanes
        self._tolerance = Tolerance(model, rule, seed, rough=self._rough)
        self._trials = TrialCache() if trials is None else trials
        self._waiting: dict[int, tuple[float, Ticket, Mapping[str, Tensor]]] = {}
        self._done: dict[int, LocalResult] = {}
        self._began = time.perf_counter()
        self._choice: RecordedChoice | None = None
        self._on_choice = on_choice
        self._one_a_stack = False  # an operation has no batching rule
        self._trainer: BatchedTrainer | None = None
        self._other: Executor | None = None
        self.description = ""
        try:
            self._trainer = self._new_trainer()
        except NotStackable as e:
            self._fall_back(str(e))

    def _new_trainer(self, *, own_conv: str = "", compiled: bool = False) -> BatchedTrainer:
        model, precision = self._model, self._precision
        return BatchedTrainer(
            model, rule=self._rule, work=self._work, seed=self._seed, lanes=self._lanes, compiled=compiled,
            bf16=precision == "bf16", own_conv=own_conv,
            channels_last=compiled and self._rough and model.flat.is_cuda and is_worthwhile(model.layout),
        )  # fmt: skip

    def save(self) -> dict[str, Any]:
        """Return the choice, the results that are not collected yet, and what decides the sizes of later stacks."""
        choice = None if self._choice is None else self._choice.dump()
        return {"choice": choice, "done": dict(self._done), "trainer": self._trainer and self._trainer.save()}

    def load(self, saved: Any) -> None:
        """Continue from a saved record; one of another kind of executor is None and changes nothing."""
        if saved is None:
            return
        if saved["choice"] is not None:
            self.load_choice(RecordedChoice.of(saved["choice"]))
        self._done = {int(n): LocalResult(*result) for n, result in saved["done"].items()}
        if self._trainer is not None and saved["trainer"] is not None:
            if self._trainer.compiled and not saved["trainer"]["compiled"]:  # it failed to compile later
                self._replace_trainer(compiled=False)
            self._trainer.load(saved["trainer"])

    def load_choice(self, choice: RecordedChoice) -> None:
        """Train as an earlier part of the run did, without trials."""
        if choice.config is None and self._other is None:
            self._fall_back(choice.description)
        elif choice.config is not None and self._trainer is not None:
            self._replace_trainer(choice.config.own_conv, compiled=choice.compiled)
            self._trainer.lanes = min(choice.config.lanes, self._trainer.most_lanes)
            self._trainer.size = choice.config.size
        self._choice, self.description = choice, choice.description

    def _replace_trainer(self, own_conv: str | None = None, *, compiled: bool) -> None:
        assert self._trainer is not None
        before = self._trainer
        self._trainer = self._new_trainer(own_conv=before.own_conv if own_conv is None else own_conv, compiled=compiled)
        self._trainer.lanes, self._trainer.size = before.lanes, before.size

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        if ticket.number in self._done:
            return  # trained ahead of need before the run was interrupted
        if self._other is not None:
            self._other.submit(ticket, memory, due)
        else:
            self._waiting[ticket.number] = (due, ticket, memory)

    def collect(self, number: int) -> LocalResult:
        if number not in self._done and self._other is None:
            try:
                self._train()
            except NotStackable as e:
                self._fall_back(str(e))
            except torch.OutOfMemoryError:
                self._fall_back("the device has not the memory for it")
        if number in self._done:
            return self._done.pop(number)
        assert self._other is not None
        return self._other.collect(number)

    def _train(self) -> None:
        """Train all waiting clients."""
        assert self._trainer is not None
        soonest = sorted((due, n) for n, (due, *_) in self._waiting.items())
        jobs = [visit_job(*self._waiting[n][1:]) for _, n in soonest]
        if self._choice is None:
            self._choose(jobs)
            if self._model.flat.is_cuda:
                gc.collect()  # the trials' programs take up memory
        self._done |= zip((j.number for j in jobs), self._train_in_memory(jobs), strict=True)
        self._waiting.clear()

    def _train_in_memory(self, jobs: Sequence[VisitJob]) -> Sequence[LocalResult]:
        """Train the jobs; in smaller stacks and with new buffers where memory runs out, which other programs may take.

        Steps that cannot be compiled after all are run as traced.
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
            self._trainer = self._new_trainer(own_conv=before.own_conv, compiled=compiled)
            self._trainer.lanes, self._trainer.size = before.lanes, size
            del before
            gc.collect()
            torch.cuda.empty_cache()

    def _fall_back(self, why: str) -> None:
        self.description = why if why.startswith(_ALONE) else f"{_ALONE}: {why}"
        self._record(None)
        self._trainer = None  # before processes are forked, which need no traced programs
        self._other = self._fallback()
        for due, ticket, memory in self._waiting.values():
            self._other.submit(ticket, memory, due)
        self._waiting.clear()

    # The choice

    def _choose(self, jobs: Sequence[VisitJob]) -> None:
        """Set the trainer and the description; raise NotStackable where the fallback is to train."""
        assert self._trainer is not None
        few, work = jobs[:_MOST], replace(self._work, epochs=None, steps=_STEPS)
        sizes = {j.number: len(self._model.task.clients[j.client][0]) for j in few}
        trainers = self._agreeing_trainers(few, sizes, work)
        kind, known = self._kind(few, sizes), self._trials.choices
        if kind not in known or known[kind].config.own_conv not in trainers:
            known[kind] = self._fastest_way(trainers, few, work)
        choice = known[kind]
        self._trainer = trainer = trainers[choice.config.own_conv]
        trainer.lanes, trainer.size = choice.config.lanes, choice.config.size
        if self._compile:
            self._trainer, speedup, found = self._compile_trainer(trainer, jobs, work)
            config = choice.config._replace(lanes=self._trainer.lanes)
            choice = TimingChoice(config, choice.speedup * speedup, found)
        if not self._always_batch and choice.speedup < _WORTH * self._at_a_time:
            others = "one by one" if self._at_a_time == 1 else f"one, and {self._at_a_time} processes train"
            raise NotStackable(f"a step of a stack is {choice.speedup:.1f} times as fast as {others} here")
        self.description = choice.describe()
        self._record(choice.config._replace(lanes=self._trainer.lanes, size=self._trainer.size))

    def _record(self, config: BatchConfig | None) -> None:
        """Record the first choice of the run before anything is trained by it."""
        if self._choice is None:
            compiled = self._trainer is not None and self._trainer.compiled
            self._choice = RecordedChoice(config, config is not None and compiled, self.description)
            if self._on_choice is not None:
                self._on_choice(self._choice)

    def _agreeing_trainers(
        self, few: Sequence[VisitJob], sizes: Mapping[int, int], work: LocalWork
    ) -> dict[str, BatchedTrainer]:
        """Return the trainers whose results agree with those of one by one, by the kernels of their convolutions."""
        assert self._trainer is not None
        two = [few[0], min(few, key=lambda j: sizes[j.number])][: len(few)]
        given: dict[str, Any] = {"rule": self._rule, "work": self._work, "seed": self._seed}
        # before all else: the model has not trained yet, so whatever it keeps in Python is as built
        check_equivalence(self._model, few, ragged=self._trainer.masks, **given)
        trim_memory()
        alone = [self._train_alone(j, work) for j in two]
        if self._trainer.masks and not self._trainer.loss_is_mean():
            raise NotStackable("its loss is not the mean of the examples' losses, and clients differ in size")
        try:
            self._check_agreement(two, alone, work, self._trainer)
        except NoBatchingRule:
            self._one_a_stack = True
            self._check_agreement(two, alone, work, self._trainer)
        trainers, known = {"": self._trainer}, self._trials.choices.get(self._kind(few, sizes))
        if not self._one_a_stack and (own_conv := self._own_conv()) and (known is None or known.config.own_conv):
            other = self._new_trainer(own_conv=own_conv)
            with contextlib.suppress(NotStackable):
                self._check_agreement(two, alone, work, other)
                trainers[own_conv] = other
        return trainers

    def _train_alone(self, job: VisitJob, work: LocalWork) -> LocalResult:
        return train(job, self._model, rule=self._rule, work=work, seed=self._seed)

    def _compile_trainer(
        self, plain: BatchedTrainer, jobs: Sequence[VisitJob], work: LocalWork
    ) -> tuple[BatchedTrainer, float, str]:
        """Return the chosen trainer compiled, how many times as fast it is, and words on that for the description.

        Where it is not faster, or cannot be compiled, return the plain one. Other ways are not compiled: each would
        take as long again.
        """
        made = self._new_trainer(own_conv=plain.own_conv, compiled=True)
        made.lanes, made.size = min(plain.lanes, made.most_lanes), plain.size
        ends, short = [jobs[0], jobs[-1]], [t.with_max_steps(_STEPS) for t in (plain, made)]
        try:
            found = [trainer.train(jobs) for trainer in short][1]
            expected = [self._train_alone(j, work) for j in ends]
            self._tolerance.check(ends, expected, [found[0], found[-1]], work)
        except (NotStackable, torch.OutOfMemoryError) as e:
            return plain, 1.0, f", not compiled: {first_line(e)}"
        took = [min(seconds(trainer.train, jobs) for _ in range(TRIES)) for trainer in short]
        times = took[0] / took[1]
        if times < 1:
            return plain, 1.0, f", not compiled, which would be {times:.1f} times as fast"
        return made, times, _COMPILED

    def _own_conv(self) -> str:
        """Return in what our kernels for the model's convolutions are written; "" where there are none for them."""
        flat, filters = self._model.flat, [b.shape for b in self._model.layout.layers if len(b.shape) == 4]
        if flat.dtype != torch.float32 or self._precision == "bf16":
            return ""
        if flat.is_cuda:
            return "Triton" if filters and find_spec("triton") is not None else ""
        few = any(few_channels(shape) for shape in filters)
        return "numba" if few and numba("tarry.executors.batched.conv.numba_kernels") is not None else ""

    def _kind(self, few: Sequence[VisitJob], sizes: Mapping[int, int]) -> Hashable:
        """Return the same key for runs that may share a choice: they differ in seeds and settings alone."""
        model, work, trainer = self._model, self._work, self._trainer
        assert trainer is not None
        shapes = (tuple(b.shape for b in model.layout.layers), tuple(model.task.clients[few[0].client][0].shape[1:]))
        kinds, loss = tuple(type(m) for m in model.module.modules()), getattr(model.task.loss, "__qualname__", "")
        of_model = (kinds, shapes, str(model.flat.device), model.flat.dtype, model.task.name, loss, model.task.n_draws)
        magnitudes = tuple(sorted({n.bit_length() for n in sizes.values()}))
        try:
            rule: Any = hash(self._rule)
        except TypeError:
            rule = type(self._rule)
        about = (rule, type(work.optimizer), work.batch, magnitudes, len(few), trainer.most_lanes, self._precision)
        return (*of_model, *about)

    def _fastest_way(
        self, trainers: Mapping[str, BatchedTrainer], few: Sequence[VisitJob], work: LocalWork
    ) -> TimingChoice:
        """Return the fastest way to stack clients."""
        trials = {own_conv: trainer.with_max_steps(_STEPS) for own_conv, trainer in trainers.items()}

        def together(way: BatchConfig, jobs: Sequence[VisitJob]) -> Sequence[LocalResult]:
            trial = trials[way.own_conv]
            trial.lanes, trial.size = way.lanes, way.size
            return trial.train(jobs)

        def compare(jobs: Sequence[VisitJob], alone: Sequence[LocalResult], stacked: Sequence[LocalResult]) -> None:
            self._tolerance.check(jobs, alone, stacked, work)

        trial = Trial(
            alone=lambda job: self._train_alone(job, work),
            together=together,
            compare=compare,
            compile_programs=lambda way: trials[way.own_conv].compile_programs(),
            on_gpu=self._model.flat.is_cuda,
        )
        own_convs = [own_conv for own_conv in trials if own_conv]
        return choose(lambda n: self._ways(n, own_conv=own_convs), few, trial)

    def _ways(self, n: int, *, own_conv: Sequence[str]) -> Iterator[BatchConfig]:
        """Yield the ways to stack n clients that are worth a trial."""
        assert self._trainer is not None
        most = self._trainer.most_lanes
        lanes = [k for k in sorted({2, 4, most}) if 1 < k <= min(most, n)]
        if self._one_a_stack:
            yield from (BatchConfig(k, 1) for k in (1, *lanes))
            return
        yield BatchConfig(1, None)
        yield from (BatchConfig(k, size) for k in lanes for size in (None, 1))
        yield from [BatchConfig(1, 1)] if most == 1 else []
        size = None if self._model.flat.is_cuda else _CACHED
        for kernels in own_conv:
            yield from (BatchConfig(k, size, kernels) for k in (1, *lanes[-1:]))

    def _check_agreement(
        self, jobs: Sequence[VisitJob], alone: Sequence[LocalResult], work: LocalWork, trainer: BatchedTrainer
    ) -> None:
        """Compare a few steps of clients in one stack; padded too, where other clients' batches may need padding."""
        for padding in (0, 1) if trainer.masks else (0,):
            short = trainer.with_max_steps(_STEPS, padding=padding)
            short.lanes, short.size = 1, 1 if self._one_a_stack else None
            self._tolerance.check(jobs, alone, short.train(jobs), work)

    def close(self) -> None:
        self._waiting.clear()
        self._done.clear()
        if self._trainer is not None:
            self._trainer = None
            if next(_closed) % _COLLECT_EVERY == 0 or time.perf_counter() - self._began > _LONG_RUN:
                gc.collect()  # traced programs are garbage now, which Python is slow to collect by itself
        if self._other is not None:
            self._other.close()
