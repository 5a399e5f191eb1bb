"""From a spec to the things it names; every problem is found here, before anything is written or trained."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..config.compose import PARTS, crossed
from ..config.spec import CROSSES, REGISTRIES, Choice, Spec, under_flag
from ..core import rng
from ..core.client_table import Room
from ..core.errors import BadInput
from ..core.events import Event
from ..core.idle_clients import Roster
from ..core.layout import Layout
from ..core.method import Horizon, Method, Personal
from ..core.rng import Stream
from ..core.server import Server
from ..core.task import Task
from ..delays.availability import Presence
from ..delays.base import Delay, Fleet, delays
from ..engine.diagnostics import Diary
from ..executors.auto import AutoExecutor
from ..executors.base import Executor
from ..executors.inline import Inline
from ..executors.pool import Pool
from ..executors.ray import Ray
from ..executors.ray_cluster import check as check_ray
from ..executors.timing import TrialCache
from ..sim.simulator import Budget, Score, Simulator
from ..tasks.data.sets import remarked
from ..training.flat_model import FlatModel, build_module
from ..training.server_model import FlatServerModel
from ..training.visit import LocalWork
from .build_task import dtype_of, limit_of, task_of, tried, with_unlabelled
from .notices import remarks
from .personalize import Told, check, personalise
from .speed_groups import by_speed, validator

__all__ = ["Plan", "plan"]

_STREAMS = 4  # of a GPU, that stacks may be spread over


@dataclass(frozen=True)
class Plan:
    """A run that can begin: everything built and checked, nothing started."""

    spec: Spec
    method: Method
    task: Task
    module: nn.Module
    layout: Layout
    work: LocalWork
    delay: Delay
    presence: Presence | None
    budget: Budget
    eval_every: float
    remarks: tuple[str, ...] = ()

    def executor(self, trials: TrialCache | None = None) -> Executor:
        s = self.spec
        if s.executor in ("batched", "auto"):
            plain = self._pool if s.workers > 1 and s.device == "cpu" else self._inline
            lanes = s.workers if s.device == "cpu" or s.workers > 1 else _STREAMS
            return AutoExecutor(
                self.bound(),
                rule=self.method.local,
                work=self.work,
                seed=s.seed,
                lanes=lanes,
                always_batch=s.executor == "batched",
                fallback=plain,
                at_a_time=min(s.workers, _cores()) if s.device == "cpu" else 1,
                precision=s.precision,
                compiled=s.compile,
                trials=trials,
            )
        if s.executor == "ray":
            return self._ray()
        return self._pool() if s.executor == "pool" or s.workers > 1 else self._inline()

    def _ray(self) -> Executor:
        s, what = self.spec, (self.module, self.layout, self.task)
        return Ray(
            *what,
            rule=self.method.local,
            work=self.work,
            seed=s.seed,
            workers=s.workers,
            lookahead=s.lookahead,
            precision=s.precision,
            address=s.address,
            gpus=s.gpu_share,
        )

    def _pool(self) -> Executor:
        s, what = self.spec, (self.module, self.layout, self.task)
        return Pool(
            *what,
            rule=self.method.local,
            work=self.work,
            seed=s.seed,
            workers=s.workers,
            lookahead=s.lookahead,
            bf16=s.precision == "bf16",
        )

    def _inline(self) -> Executor:
        s = self.spec
        return Inline(self.bound(), rule=self.method.local, work=self.work, seed=s.seed, lookahead=s.lookahead)

    def simulator(
        self, executor: Executor, listeners: list[Callable[[Event], None]], cache: Path | None = None
    ) -> Simulator:
        """Ready to run; `cache` is the folder for what does not fit into memory."""
        s, n = self.spec, len(self.task.clients)
        away = self.presence.absent_at_start if self.presence is not None else ()
        return Simulator(
            self.server(cache),
            executor,
            self.delay,
            roster=Roster(n, s.concurrency or n, away),
            budget=self.budget,
            evaluate=self.evaluator(),
            eval_every=self.eval_every,
            presence=self.presence,
            fails=_failures(s.failure_rate, s.seed, self.delay),
            strict=s.strict,
            diary=self._diary(),
            room=self._room(cache),
            listeners=listeners,
        )

    def server(self, cache: Path | None = None, *, n_clients: int | None = None) -> Server:
        """The method at work on the first weights: what a simulator and a deployment both drive."""
        s = self.spec
        decay = 1.0 if self.method.local.own_optimiser else s.lr_decay
        return Server(
            self.method,
            self._first(),
            layout=self.layout,
            n_clients=n_clients or len(self.task.clients),
            seed=s.seed,
            horizon=Horizon(self.budget.time, self.budget.updates, self.budget.rounds, decay),
            lab=FlatServerModel(self.bound()) if self.method.unlabelled else None,
            watch=s.diagnose,
            room=self._room(cache),
        )

    def _room(self, cache: Path | None) -> Room:
        return Room(self.spec.cache_limit * 1e6, cache)

    def _diary(self) -> Diary | None:
        """Notes in stretches of a fiftieth of the time budget, or of the time between evaluations."""
        s = self.spec
        if not s.diagnose:
            return None
        every = self.budget.time / 50 if self.budget.time is not None else self.eval_every
        return Diary(every, validator(self.task, self.bound(), s.seed))

    def diagnostics(self, sim: Simulator) -> dict[str, Any] | None:
        """What was noted on the way, and how the answer does on fast and slow clients' examples."""
        if sim.diary is None:
            return None
        bound, answer = self.bound(), sim.server.answer
        accuracy = sim.curve[-1][2] if sim.curve else None
        by = by_speed(self.task, sim.diary, lambda w, examples: bound.evaluate(w, examples)[0], answer, accuracy)
        layers = [b.name for b in self.layout.layers]
        return {**sim.diary.summary(), "layers": layers, "by_speed": by}

    def personal(self, sim: Simulator, told: Told) -> dict[str, Any] | None:
        """Clients' own accuracy when the run is over, if it was asked for; `told` hears how many are done."""
        epochs = self.spec.personalise
        if epochs is None:
            return None
        return personalise(
            sim.server,
            self.bound(),
            work=self.work,
            epochs=epochs,
            seed=self.spec.seed,
            told=told,
        )

    def _first(self) -> Tensor:
        """The first weights."""
        return self.layout.read(self.module, next(self.module.parameters()).dtype)

    def bound(self) -> FlatModel:
        """The model, bound to a vector of its own."""
        rough = self.spec.precision == "bf16"
        return FlatModel(copy.deepcopy(self.module), self.layout, self.task, self.work.optimiser, bf16=rough)

    def evaluator(self) -> Callable[[Tensor], Score] | None:
        """Accuracy and loss on the test set, where there is one."""
        test = self.task.test
        if test is None:
            return None
        bound = self.bound()
        return lambda weights: bound.evaluate(weights, test)


def plan(spec: Spec) -> Plan:
    """Build and check everything a spec names."""
    if spec.executor == "ray":
        check_ray(spec.address)
    method = _method(spec)
    with remarked(limit_of(spec)) as of_data:
        task = task_of(spec)
    chosen: str | None = None
    if method.unlabelled:
        task, chosen = with_unlabelled(task, spec)
    n = len(task.clients)
    if spec.concurrency is not None and spec.concurrency > n:
        raise BadInput(f"--concurrency {spec.concurrency}: there are only {n} clients; ask for at most that many")
    batch = None if spec.batch == "all" else spec.batch
    later = None if spec.lr_decay == 1 else spec.client_optimiser
    work = LocalWork(spec.client_optimiser(), epochs=spec.epochs, steps=spec.steps, batch=batch, optimizer_at=later)
    module = build_module(task, seed=spec.seed, dtype=dtype_of(spec)).to(spec.device)
    tried(task, module)
    layout = Layout.of(module, task.clients[0][0][:2].clone())
    with under_flag("local" if spec.local is not None else _flag(spec, "method")):
        method.local.check(layout, work.optimiser)
    _suited(spec, method, task)
    samples = [len(x) for x, _ in task.clients]
    size = layout.size * torch.finfo(dtype_of(spec)).bits // 8
    fleet = Fleet(n, samples, size, spec.seed, _epochs(work, samples))
    budget = Budget(spec.time, spec.updates, spec.rounds, spec.target)
    if spec.target is not None and (task.test is None or task.score is None):
        missing = "test set" if task.test is None else "score"
        raise BadInput(f"--target {spec.target}: task {task.name!r} has no {missing}; leave out --target")
    delay = _delay(spec, fleet)
    every, presence = _eval_every(spec, delay, n), _presence(spec, n)
    said = (*of_data, *remarks(spec, method, unlabelled=chosen), *_unscored(spec, method), *_replaced(spec, method))
    said += tuple(_absent(delay, n))
    made = Plan(spec, method, task, module, layout, work, delay, presence, budget, every, said)
    if spec.personalise is not None:
        with under_flag("local" if spec.local is not None else _flag(spec, "method")):
            check(spec.personalise, method.personal, made.bound(), made._first())
    return made


def _suited(spec: Spec, method: Method, task: Task) -> None:
    """Ask every part whether it makes anything of the task; told by the flag that brought the part in."""
    for cross, names in PARTS.items():
        with under_flag(cross if getattr(spec, cross) is not None else _flag(spec, "method")):
            for name in names:
                suits = getattr(getattr(method, name), "suits", None)
                if suits is not None:
                    suits(task)


def _unscored(spec: Spec, method: Method) -> list[str]:
    """That clients' own models are what a method is about, and nobody looks at them."""
    if spec.personalise is not None or method.personal == Personal():
        return []
    return [f"{spec.label} is about clients' own models: --personalise EPOCHS scores them"]


def _replaced(spec: Spec, method: Method) -> list[str]:
    """That a method is about what its clients make of the answer, and others do their part."""
    chosen = spec.method
    base = REGISTRIES["method"].build(chosen.name, chosen.params) if isinstance(chosen, Choice) else chosen
    about, now = (replace(m.personal, own=False) for m in (base, method))
    if spec.local is None or about in (Personal(), now):
        return []
    name = spec.name_of("method")
    return [f"--local {spec.name_of('local')} takes the place of {name}'s own clients: its server alone is left of it"]


def _method(spec: Spec) -> Method:
    """The method a spec names, crossed as it says, taking notes if it says so."""

    def made(group: str) -> Any:
        choice = getattr(spec, group)
        if not isinstance(choice, Choice):
            return choice
        with under_flag(_flag(spec, group)):
            return REGISTRIES[group].build(choice.name, choice.params)

    others = {part: other for part in PARTS if (other := made(part)) is not None}
    way = None if spec.manifold is None else (spec.name_of("manifold"), made("manifold"))
    labels = {group: spec.name_of(group) for group in ("method", "distil", *others)}
    method = crossed(made("method"), others, distil=made("distil"), manifold=way, labels=labels)
    if any(getattr(spec, cross) is not None for cross in CROSSES):
        method = replace(method, name=spec.label)
    return replace(method, local=replace(method.local, watch=True)) if spec.diagnose else method


def _flag(spec: Spec, group: str) -> str:
    return "server" if group == "method" and spec.server is not None else group


def _epochs(work: LocalWork, samples: list[int]) -> float:
    if work.epochs is not None:
        return float(work.epochs)
    mean = sum(samples) / len(samples)
    return (work.steps or 1) * min(work.batch or mean, mean) / mean


def _delay(spec: Spec, fleet: Fleet) -> Delay:
    if isinstance(spec.delay, Choice):
        return delays.build(spec.delay.name, spec.delay.params)(fleet)
    return spec.delay


def _presence(spec: Spec, n: int) -> Presence | None:
    if spec.presence is None:
        return None
    if isinstance(spec.presence, str):
        return Presence.read(spec.presence, n)
    windows = {int(c): [(float(a), float(b)) for a, b in w] for c, w in spec.presence.items()}
    if unknown := [c for c in windows if not 0 <= c < n]:
        raise BadInput(f"--presence: there is no client {unknown[0]}; clients are numbered 0 to {n - 1}")
    return Presence(windows)


def _failures(rate: float, seed: int, delay: Delay) -> Callable[[int, int], bool] | None:
    """Which visits are lost: those of a replayed trace, or drawn at the rate asked for."""
    replayed: Callable[[int, int], bool] | None = getattr(delay, "lost", None)
    if rate == 0:
        return replayed
    return lambda client, visit: rng.uniform(rng.key(seed, Stream.FAILURE, client, visit)) < rate


def _eval_every(spec: Spec, delay: Delay, n: int) -> float:
    """A fiftieth of the time budget, or the median first visit: about once a round."""
    if spec.eval_every is not None:
        return spec.eval_every
    if spec.time is not None:
        return spec.time / 50
    first = [d for c in range(min(n, 101)) if (d := delay(c, 0)) is not None]
    return median(first) if first else inf


def _absent(delay: Delay, n: int) -> list[str]:
    """That some clients have no visit in a record and take no part."""
    missing = getattr(delay, "absent", 0)
    return [f"--delay.path: {missing:,} of {n:,} clients are not in the record and take no part"] if missing else []


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
