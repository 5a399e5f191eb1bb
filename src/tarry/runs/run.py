"""Run one spec, in memory or in a folder (record.run_folder), and resume a run with the same weights to the bit."""

from __future__ import annotations

import contextlib
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from ..config.keywords import Named, Settings, lists_keywords
from ..config.number_errors import errors_of_extreme_numbers
from ..config.spec import Spec
from ..core.errors import BadInput, DamagedFile, StorageError, WorkerDied, errors_as_keywords, warn_of
from ..core.events import Event
from ..core.method import Method
from ..core.metric import ACCURACY, Metric
from ..core.task import Task
from ..executors.timing import RecordedChoice, TrialCache
from ..record import checkpoint
from ..record.binding import seal
from ..record.digests import EXECUTION_SETTINGS, file_digests
from ..record.result import Result, write_result
from ..record.rows import Mark, Recorder
from ..record.run_folder import RunFolder
from ..record.storage import TEXT_LIMIT, read_bytes, write_atomic
from ..sim.simulator import Simulator
from ..training.determinism import deterministic, generator_restored
from .arrivals import write_arrivals
from .monitor import Monitor, chance_limit
from .named_files import changed_files, files_of
from .notices import result_notices
from .progress_bars import run_bar
from .proofs import ProofExecutor, ProofSample
from .result import FolderModel, make_result
from .signals import WAITING, Interrupted, check, deferred
from .simulation import Simulation, build_simulation
from .stored_spec import errors_of_stored_settings, stored_spec
from .task_metrics import majority_accuracy
from .tracking import GroupRecord, Tracking

__all__ = ["Progress", "resume", "resume_folder", "run", "run_spec"]

Callback = Callable[[Event], None]
#: execution settings of other executors, which an executor that is given to `resume` does not take
_FOREIGN = {
    "inline": ("workers", "lookahead", "address", "gpus", "compile"),
    "pool": ("address", "gpus", "compile"),
    "ray": ("compile",),
    "batched": ("lookahead", "address", "gpus"),
    "auto": ("lookahead", "address", "gpus"),
}


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    >>> shown = []
    >>> result = tarry.run("fedasync", "digits", clients=3, updates=5, progress=shown.append)
    >>> shown[-1].fraction, shown[-1].updates
    (1.0, 5)
    """

    fraction: float
    time: float
    updates: int
    score: float | None  # of the last evaluation
    metric: Metric = field(default=ACCURACY, repr=False)  # what the score is
    personalized: float | None = None  # when the run is over: the share of clients that are done (--personalize)


@lists_keywords(Settings)
def run(
    method: Named | Method | None = None,
    task: Named | Task = "digits",
    *,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | Callable[[Progress], None] | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Run one method on one task under the virtual clock.

    `tarry.settings()` lists the settings (lr=0.1, time=5000, delay="orthofl-rpi", ...). A method, task, partition
    or delay is a name, a table {"name": ..., parameters}, or an object; `delay` may also be a list of durations per
    client, or a function (client, visit) → seconds. Callbacks see every event with the global weights after it.
    `progress`: True shows a bar, and a function is called with the progress; by default notebooks show a bar.

    >>> result = tarry.run("orthofl", "digits", time=2000, seed=1)
    >>> result.seed, len(result.weights_sha256)
    (1, 64)
    """
    chosen = {} if method is None else {"method": method}
    with errors_as_keywords():
        spec = Spec.of({**chosen, "task": task, **settings})
        with run_bar(progress, spec.label) as show:
            result = run_spec(spec, out=None if out is None else Path(out), callbacks=callbacks, progress=show)
    warn_of(result.warnings, stacklevel=2)
    return result


def resume(
    out: str | Path,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool | Callable[[Progress], None] | None = None,
    **objects: Any,
) -> Result:
    """Finish the run in a folder, with the same weights as without the interruption.

    They are the same to the bit on a CPU of the same kind with the same torch, and agree up to rounding on a GPU.

    A run that was given Python objects (a Task, a Method, a delay function) needs the same ones again, by keyword.
    Where clients are trained may differ (`workers`, `executor`, `address`, `gpus`, `lookahead`, `worker_timeout`,
    `checkpoint_every`, `cache_limit`): it changes no result, but for rounding from where on they are trained together
    or no longer so.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = tarry.run("fedasync", "digits", clients=3, updates=5, out=f"{folder}/run")
    ...     again = tarry.resume(f"{folder}/run")
    >>> again.weights_sha256 == first.weights_sha256
    True
    """
    with errors_as_keywords(), run_bar(progress, Path(out).name) as show:
        result = resume_folder(Path(out), callbacks=callbacks, progress=show, **objects)
    warn_of(result.warnings, stacklevel=2)
    return result


def resume_folder(
    folder: Path,
    *,
    callbacks: Sequence[Callback] = (),
    progress: Callable[[Progress], None] | None = None,
    trials: TrialCache | None = None,
    group: GroupRecord | None = None,
    **objects: Any,
) -> Result:
    """Finish the run in a folder. `trials`: choices of executors that several runs share.

    `group`: the comparison that trackers put it in.
    """
    run_folder = RunFolder(folder)
    if not run_folder.spec.is_file():
        raise BadInput(f"{folder}: there is no run here (no spec.toml)")
    before, meta = run_folder.settings(), run_folder.meta()
    wanted = meta.objects
    if missing := [w for w in wanted if w not in objects]:
        raise BadInput(
            f"{folder}: this run was given a Python object as {', '.join(missing)}; "
            f"resume it from Python: tarry.resume({str(folder)!r}, {', '.join(f'{m}=...' for m in missing)})"
        )
    if fixed := [o for o in objects if o not in wanted and o not in EXECUTION_SETTINGS]:
        raise BadInput(f"{folder}: {fixed[0]} is part of what is being resumed and cannot change")
    if run_folder.is_finished():
        return _finished_result(run_folder, objects)
    foreign = _FOREIGN.get(objects.get("executor", ""), ())
    spec = stored_spec(run_folder.spec, {k: v for k, v in before.items() if k not in foreign}, objects)
    if edited := changed_files(folder, spec):
        way_out = "put that back, or start a new run with another --out"
        raise BadInput(
            [f"{folder}: --{s} {file} is not what it was when this run began; {way_out}" for s, file in edited.items()]
        )
    with errors_of_stored_settings(run_folder.spec, objects):
        simulation = build_simulation(spec)
    with contextlib.closing(run_folder.lock()):
        if run_folder.is_finished():  # by another process, a moment ago
            return _finished_result(run_folder, objects)
        return RunSession(simulation, run_folder, callbacks, progress, trials, group).run()


def _finished_result(folder: RunFolder, objects: Mapping[str, Any]) -> Result:
    folder.remove_cache()
    return replace(Result.read(folder.path), builder=FolderModel(folder.path, objects))


def run_spec(
    spec: Spec,
    *,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Callable[[Progress], None] | None = None,
    trials: TrialCache | None = None,
    executor_from: RunFolder | None = None,
    group: GroupRecord | None = None,
) -> Result:
    """Run a spec; with `out`, in a folder of its own. `trials`: choices of executors that several runs share.

    `executor_from`: a run whose choice of the executor is taken. `group`: the comparison that trackers put it in.
    """
    found = {} if out is None else file_digests(files_of(spec))  # before they are read, so that no edit goes unseen
    simulation = build_simulation(spec)
    if out is None:
        return RunSession(simulation, None, callbacks, progress, trials, group).run()
    folder = RunFolder(out)
    with contextlib.closing(folder.claim(spec.to_toml(), objects=spec.objects(), files=found)):
        if executor_from is not None and executor_from.executor.is_file():
            write_atomic(folder.executor, read_bytes(executor_from.executor, TEXT_LIMIT))
        return RunSession(simulation, folder, callbacks, progress, trials, group).run()


class RunSession:
    """One process's share of a run: from the start or the newest checkpoint to the end. The caller holds the folder."""

    def __init__(
        self,
        simulation: Simulation,
        folder: RunFolder | None,
        callbacks: Sequence[Callback],
        progress: Callable[[Progress], None] | None,
        trials: TrialCache | None,
        group: GroupRecord | None = None,
    ):
        self.simulation, self.built, self.folder, self.progress = simulation, simulation.built, folder, progress
        self.checkpoints = None if folder is None else checkpoint.Checkpoints(folder.checkpoints)
        self.trials = trials
        self.callbacks = list(callbacks)
        self.began, self.saved_wall, self.count = clock.perf_counter(), 0.0, 0
        self.last_saved = self.last_shown = self.last_flushed = self.began
        self.recorder: Recorder | None = None
        self.proofs: ProofExecutor | None = None
        spec, task = self.built.spec, self.built.task.during_run
        self.chance = chance_limit(majority_accuracy(task), 0 if task.test is None else len(task.test[1]))
        self.monitor = Monitor(f"{spec.label}, seed {spec.seed}", self.chance)
        self.tracking = self._tracking(group) if simulation.trackers else None

    def _tracking(self, group: GroupRecord | None) -> Tracking:
        return Tracking(
            self.built.spec,
            self.simulation.trackers,
            task=self.built.task.name,
            folder=None if self.folder is None else self.folder.path,
            group=group,
            layers=[layer.name for layer in self.built.layout.layers],
            wall=self._wall,
        )

    def run(self) -> Result:
        """Run to the end; an error of the disk or of the workers says how to continue."""
        try:
            with errors_of_extreme_numbers(self.built.spec):
                return self._run()
        except StorageError as e:
            if self.folder is None:
                raise
            raise StorageError(f"{e}, then `tarry resume {self.folder.path}` continues this run") from e
        except WorkerDied as e:
            if self.folder is None:
                raise
            raise WorkerDied(f"{e}; its record is kept") from e

    def _run(self) -> Result:
        with contextlib.ExitStack() as stack:
            stack.enter_context(deterministic(exact=self.built.spec.precision == "float32"))
            stack.enter_context(generator_restored())
            saved: Any = None
            tracked: Any = None  # the points in the checkpoint
            if self.folder is not None:
                newest, saved, mark = self._newest_checkpoint(self.folder)
                self.recorder = Recorder(self.folder.events, mark)
                stack.callback(self.recorder.close)
            executor = self.simulation.executor(self.trials, None if self.folder is None else self._write_choice)
            stack.callback(executor.close)
            if self.folder is not None and self.recorder is not None and self.built.spec.proofs:
                spec, timed = self.built.spec, self.built.work.optimizer_at is not None
                sample = ProofSample(self.folder.proofs, spec.proofs, spec.seed, self.settings_sha256, timed=timed)
                executor = self.proofs = ProofExecutor(executor, sample)
                self.recorder.extras = self.proofs.digests
            own = [listener for listener in (self.recorder, self.tracking) if listener is not None]
            listeners: list[Callback] = [*own, *self.callbacks]
            sim = self.simulation.simulator(executor, listeners, None if self.folder is None else self.folder.cache)
            if saved is None and self.folder is not None and self.folder.executor.is_file():
                executor.load(self._read_choice(self.folder.executor))
            if saved is not None:
                with checkpoint.fitting(newest):
                    executor.load(saved["executor"])
                    sim.load(saved["simulator"])
                    self.saved_wall, self.count = float(saved["wall"]), int(saved["count"])
                    tracked = saved.get("tracking")
                    if isinstance(record := saved["executor"], dict) and record.get("choice"):
                        self._write_choice(RecordedChoice.of(record["choice"]))  # the result is bound to that file
            if self.tracking is not None:
                stack.callback(self.tracking.end, None)
                self.tracking.begin(sim.engine, tracked, resumed=saved is not None)
            saved = None  # the weights of long ago are not kept for the rest of the run
            try:
                with deferred():
                    sim.run(on_instant=lambda: self._after_instant(sim))
                    result = self._finish(sim)
            except Interrupted:
                if self.folder is not None:
                    self._checkpoint(sim)
                raise
            sim.close()  # only after success: a run that is resumed needs the files of its tables
            return result

    def _newest_checkpoint(self, folder: RunFolder) -> tuple[Path, Any, Mark]:
        """Return the newest checkpoint, its record and its mark in the log; DamagedFile if it is another run's."""
        self.settings_sha256 = folder.meta().settings_sha256
        path = checkpoint.latest(folder.checkpoints)
        if path is None:
            return folder.checkpoints, None, Mark()
        saved = checkpoint.load(path, self.built.spec.device)
        with checkpoint.fitting(path):
            if saved["settings"] != self.settings_sha256:
                raise DamagedFile(
                    f"{path}: it is of a run with other settings; restore the checkpoints of this run, or delete"
                    f" {folder.checkpoints} to run it from the start"
                )
            return path, saved, Mark(int(saved["rows"]), int(saved["crc"]))

    def _write_choice(self, choice: RecordedChoice) -> None:
        assert self.folder is not None
        write_atomic(self.folder.executor, seal({**choice.dump(), "settings": self.settings_sha256}))

    def _read_choice(self, path: Path) -> dict[str, Any]:
        """Return the record of an executor that has chosen but trained nothing that a checkpoint holds."""
        try:
            choice = RecordedChoice.read(path, self.settings_sha256)
        except DamagedFile as e:
            raise DamagedFile(f"{e}; delete it to choose again") from e
        return {"choice": choice.dump(), "done": {}, "trainer": None}

    def _wall(self) -> float:
        return self.saved_wall + clock.perf_counter() - self.began

    def _after_instant(self, sim: Simulator) -> None:
        check()
        self.monitor.update(sim.engine)
        now = clock.perf_counter()
        if self.folder is not None and now - self.last_saved >= self.built.spec.checkpoint_every:
            self._checkpoint(sim)
            self.last_saved = clock.perf_counter()
        if self.recorder is not None and now - self.last_flushed >= 1.0:  # for `tarry watch`
            self.last_flushed = now
            self.recorder.flush()
        if self.progress is not None and now - self.last_shown >= 0.2:
            self.last_shown = now
            self.progress(_how_far(sim))

    def _report_personalization(self, sim: Simulator, done: int) -> None:
        now = clock.perf_counter()
        if self.progress is not None and now - self.last_shown >= 0.2:
            self.last_shown = now
            self.progress(replace(_how_far(sim), fraction=1.0, personalized=done / len(self.built.task.clients)))

    def _checkpoint(self, sim: Simulator) -> None:
        assert self.checkpoints is not None
        assert self.recorder is not None
        self.count += 1
        if self.proofs is not None:
            self.proofs.write()
        mark = self.recorder.sync()
        state = {
            "settings": self.settings_sha256,
            "simulator": sim.save(),
            "executor": sim.executor.save(),
            "rows": mark.nbytes,
            "crc": mark.crc,
            "wall": self._wall(),
            "count": self.count,
            **({} if self.tracking is None else {"tracking": self.tracking.save()}),
        }
        self.checkpoints.save(self.count, state)

    def _finish(self, sim: Simulator) -> Result:
        with WAITING:
            test = self.built.test_scores(sim.engine.result_weights)
            personalization = self.simulation.personalization(sim, lambda n: self._report_personalization(sim, n))
            result = make_result(
                self.built,
                sim.engine,
                wall_s=self._wall(),
                warnings=[*self.built.notices, *result_notices(sim, self.chance)],
                executor_info=sim.executor.description,
                diagnostics=self.simulation.diagnostics(sim),
                personalization=personalization,
                test=test,
                out=None if self.folder is None else self.folder.path,
            )
        if self.folder is not None:
            self._write(result, sim)
        if self.tracking is not None:
            self.tracking.end(result)
        if self.progress is not None:
            self.progress(replace(_how_far(sim), fraction=1.0))
        return result

    def _write(self, result: Result, sim: Simulator) -> None:
        assert self.folder is not None
        assert self.recorder is not None
        if self.proofs is not None:
            self.proofs.write()
        self.recorder.sync()
        write_arrivals(self.folder, any_lost=sim.engine.lost > 0)
        write_result(self.folder.path, result)


def _how_far(sim: Simulator) -> Progress:
    b = sim.budget
    shares = [
        sim.time / b.time if b.time else 0.0,
        sim.engine.updates / b.updates if b.updates else 0.0,
        sim.server.version / b.rounds if b.rounds else 0.0,
    ]
    score = sim.engine.curve[-1].score if sim.engine.curve else None
    return Progress(min(max(shares), 1.0), sim.time, sim.engine.updates, score, b.metric)
