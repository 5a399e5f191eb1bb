"""Simulation: the executor and the simulator of a run, and what is measured when it is over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.spec import Spec
from ..core import rng
from ..core.events import Event
from ..core.idle_clients import IdleClients
from ..core.rejections import Reason
from ..core.rng import Stream
from ..delays.base import Delay
from ..engine.diagnostics import DiagnosticsLog
from ..engine.model_monitor import ModelMonitor
from ..executors.auto import AutoExecutor
from ..executors.base import Executor
from ..executors.inline import Inline
from ..executors.pool import Pool
from ..executors.ray import Ray
from ..executors.ray_cluster import check as check_ray
from ..executors.timing import RecordedChoice, TrialCache
from ..sim.simulator import Simulator
from ..trackers.tracker import Tracker
from .build import BuiltRun, build_run
from .personalize import OnClientDone, personalize
from .signals import WAITING
from .speed_groups import by_speed, validator
from .tracking import build_trackers

__all__ = ["Simulation", "build_simulation"]

_STREAMS = 4  # CUDA streams that stacks may be spread over


@dataclass(frozen=True)
class Recorded:
    """Decisions of the gate in the record of a federation."""

    rejection: Callable[[int, int], Reason | None]  # of a client's visit
    monitor: ModelMonitor | None


def build_simulation(spec: Spec) -> Simulation:
    """Build and check everything that the spec names, and the Ray cluster if it asks for one."""
    if spec.executor == "ray":
        check_ray(spec.address)
    return Simulation(build_run(spec), build_trackers(spec))


@dataclass(frozen=True)
class Simulation:
    """A built run on the virtual clock."""

    built: BuiltRun
    trackers: Mapping[str, Tracker] = field(default_factory=dict)  # by how they are written

    def executor(
        self, trials: TrialCache | None = None, on_choice: Callable[[RecordedChoice], None] | None = None
    ) -> Executor:
        """The executor that the spec asks for. `on_choice` is called when it has chosen how to train."""
        s = self.built.spec
        if s.executor in ("batched", "auto"):
            return self._auto(trials, on_choice)
        if s.executor == "ray":
            return self._ray()
        return self._pool() if s.executor == "pool" or s.workers > 1 else self._inline()

    def _auto(self, trials: TrialCache | None, on_choice: Callable[[RecordedChoice], None] | None) -> Executor:
        b, s = self.built, self.built.spec
        return AutoExecutor(
            b.bound(),
            rule=b.method.local,
            work=b.work,
            seed=s.seed,
            lanes=s.workers if s.device == "cpu" or s.workers > 1 else _STREAMS,
            always_batch=s.executor == "batched",
            fallback=self._pool if s.workers > 1 and s.device == "cpu" else self._inline,
            at_a_time=min(s.workers, _available_cores()) if s.device == "cpu" else 1,
            precision=s.precision,
            compiled=s.compile,
            trials=trials,
            on_choice=on_choice,
        )

    def _ray(self) -> Executor:
        b, s = self.built, self.built.spec
        return Ray(
            b.module,
            b.layout,
            b.task,
            rule=b.method.local,
            work=b.work,
            seed=s.seed,
            workers=s.workers,
            lookahead=s.lookahead,
            precision=s.precision,
            address=s.address,
            gpus=s.gpu_share,
        )

    def _pool(self) -> Executor:
        b, s = self.built, self.built.spec
        return Pool(
            b.module,
            b.layout,
            b.task,
            rule=b.method.local,
            work=b.work,
            seed=s.seed,
            workers=s.workers,
            lookahead=s.lookahead,
            bf16=s.precision == "bf16",
            timeout=s.worker_timeout,
        )

    def _inline(self) -> Executor:
        b, s = self.built, self.built.spec
        return Inline(b.bound(), rule=b.method.local, work=b.work, seed=s.seed)

    def simulator(
        self,
        executor: Executor,
        listeners: list[Callable[[Event], None]],
        cache: Path | None = None,
        *,
        recorded: Recorded | None = None,
    ) -> Simulator:
        """A simulator at time 0; `cache` is the folder for client state that does not fit into memory.

        `recorded`: what the gate of a federation decided, in place of a gate.
        """
        b, s, n = self.built, self.built.spec, len(self.built.task.clients)
        away = b.availability.absent_at_start if b.availability is not None else ()
        return Simulator(
            b.server(cache),
            executor,
            b.delay,
            roster=IdleClients(n, s.concurrency or n, away),
            budget=b.budget,
            evaluate=b.evaluator(),
            eval_every=b.eval_every,
            availability=b.availability,
            fails=_failures(s.failure_rate, s.seed, b.delay),
            rejects=None if recorded is None else recorded.rejection,
            gate=b.gate() if recorded is None else None,
            monitor=b.monitor() if recorded is None else recorded.monitor,
            measure=b.health_measure(),
            early_stopping=b.early_stopping(),
            strict=s.strict,
            diagnostics=self._diagnostics_log(),
            room=b.room(cache),
            listeners=listeners,
            waiting=WAITING,
        )

    def _diagnostics_log(self) -> DiagnosticsLog | None:
        """A log with bins of a fiftieth of the time budget, or of the time between evaluations."""
        b = self.built
        if not b.spec.diagnose:
            return None
        every = b.budget.time / 50 if b.budget.time is not None else b.eval_every
        return DiagnosticsLog(every, validator(b.task.during_run, b.accuracy_model(), b.spec.seed))

    def diagnostics(self, sim: Simulator) -> dict[str, Any] | None:
        """Return the measurements of --diagnose, and the accuracy on fast and slow clients' examples."""
        if sim.engine.diagnostics is None:
            return None
        bound, answer = self.built.accuracy_model(), sim.server.output_weights
        accuracy = sim.engine.curve[-1].accuracy if sim.engine.curve else None
        by = by_speed(
            self.built.task.during_run,
            sim.engine.diagnostics,
            lambda w, data: bound.evaluate(w, data).get("accuracy"),
            answer,
            accuracy,
        )
        layers = [b.name for b in self.built.layout.layers]
        return {**sim.engine.diagnostics.summary(), "layers": layers, "by_speed": by}

    def personalization(self, sim: Simulator, on_progress: OnClientDone) -> dict[str, Any] | None:
        """Clients' own accuracy at the end of the run; None without --personalize."""
        b = self.built
        if b.spec.personalize is None:
            return None
        return personalize(
            sim.server,
            b.bound(),
            sim.engine.result_weights,
            work=b.work,
            epochs=b.spec.personalize,
            seed=b.spec.seed,
            on_progress=on_progress,
            time=sim.time,
        )


def _failures(rate: float, seed: int, delay: Delay) -> Callable[[int, int], bool] | None:
    """Which visits are lost: those of a replayed trace, or visits drawn at `rate`."""
    replayed: Callable[[int, int], bool] | None = getattr(delay, "lost", None)
    if rate == 0:
        return replayed
    return lambda client, visit: rng.uniform(rng.key(seed, Stream.FAILURE, client, visit)) < rate


def _available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
