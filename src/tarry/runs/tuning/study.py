"""Studies: every method of a comparison gets the same number of trials, and the best settings are kept.

OUT/study.json        what is tuned: methods, spaces, search, seeds and settings
OUT/LABEL/seed-N/     the runs of the trials, as in a comparison; a study that is begun again reads or resumes them
OUT/trials.csv        a row for each trial
OUT/tuned.toml        the tuned settings, written last

Trials are functions of the study and of the results of earlier trials. Those of random search and of a grid go
together; of Optuna, trial k of all methods goes together, after all trials k − 1. So workers change no trial.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ...config.components import CROSSES, Choice
from ...config.grid import MOST_RUNS, expand_grid, with_values
from ...config.keywords import Named, SharedSettings, lists_keywords
from ...config.spec import Spec
from ...core.errors import BadInput, errors_as_keywords
from ...core.method import Method
from ...core.metric import ACCURACY, Metric
from ...core.rng import Stream, key
from ...core.task import Task
from ...record.lock import FolderLock
from ...record.result import Result
from ...record.shapes import anything, read_record, table_of
from ...record.storage import TEXT_LIMIT, make_folder, write_atomic
from ...report.tables import summarize, to_json
from ..compare import write_command
from ..jobs import check_folder, run_folder_of, run_jobs
from ..parallel import ShowProgress
from ..progress_bars import comparison_bar
from ..run import Progress
from ..simulation import build_simulation
from ..specs import specs_of
from ..tracking import ComparisonTracking, GroupRecord
from .search import Search, TrialPoint, is_known_before, next_point, points
from .space import Space, defaults, parse_space, space_of
from .trials import TuningTrial, run_trial, trial_of
from .tuned_file import TUNED, shared_settings, write_tuned
from .tuning import MethodTrials, Tuning

__all__ = ["TuningStudy", "make_study", "run_study", "tune"]

_SEARCHES = ("random", "grid", "optuna")
_STUDY = "study.json"
_VALIDATION = 0.2  # share of the training examples, if neither --validation nor the task says otherwise


@dataclass(frozen=True)
class StudiedMethod:
    """A method of a study: its settings, its spec at the defaults, and its space."""

    given: Mapping[str, Any]  # method, and the parts of a cross
    spec: Spec
    space: Space


@dataclass(frozen=True)
class TuningStudy:
    """A study before it is run."""

    methods: tuple[StudiedMethod, ...]
    settings: Mapping[str, Any]  # as they were given, without methods
    trials: int
    seeds: tuple[int, ...]
    search: Search
    search_seed: int

    @property
    def n_runs(self) -> int:
        """Return the number of runs, at most."""
        return len(self.methods) * self.trials * len(self.seeds)

    def definition(self) -> dict[str, Any]:
        """Return what the trials depend on, as in study.json."""
        first = self.methods[0].spec
        return {
            "search": self.search,
            "search_seed": self.search_seed,
            "trials": self.trials,
            "seeds": list(self.seeds),
            "spaces": {m.spec.label: {name: str(d) for name, d in m.space.items()} for m in self.methods},
            "settings": shared_settings(first),
        }


@lists_keywords(SharedSettings)
def tune(
    methods: Sequence[Named | Method],
    task: Named | Task = "digits",
    *,
    trials: int = 12,
    seeds: Iterable[int] = (1000, 1001),
    search: Search = "random",
    space: Mapping[str, Any] | None = None,
    search_seed: int = 0,
    out: str | Path | None = None,
    workers: int = 1,
    progress: bool | ShowProgress | None = None,
    **settings: Unpack[SharedSettings],
) -> Tuning:
    """Give every method the same number of trials over its search space; return the best settings of each.

    `space` changes the spaces: {"lr": "0.001..1:log", "method.mu": [0.01, 0.1, 1]}. Trials are compared by the final
    score on validation data, as the mean over `seeds`, which no comparison with the tuned settings may use. With `out`
    the same call resumes a study that was interrupted.

    >>> tuning = tarry.tune(["fedavg", "fedprox:mu=0.1"], "digits", trials=2, seeds=[1000], clients=3, updates=3)
    >>> [len(method.trials) for method in tuning.methods], list(tuning.best["fedprox:mu=0.1"])
    ([2, 2], ['lr'])
    """
    with errors_as_keywords():
        given = {"task": task, **settings}
        study = make_study(methods, given, trials, seeds, search, space or {}, search_seed)
        with comparison_bar(progress, study.n_runs) as show:
            return run_study(study, out=None if out is None else Path(out), workers=workers, progress=show)


def make_study(
    methods: Sequence[Any],
    settings: Mapping[str, Any],
    trials: int,
    seeds: Iterable[int],
    search: str,
    space: Mapping[str, Any],
    search_seed: int = 0,
    skipped: list[str] | None = None,
) -> TuningStudy:
    """Return a study of methods; raise BadInput for settings that do not fit. `skipped`: as for `specs_of`."""
    seeds = tuple(seeds)
    problems = [] if trials >= 1 else [f"--trials {trials}: must be 1 or more"]
    problems += [] if search in _SEARCHES else [f"--search {search}: must be {', '.join(_SEARCHES)}"]
    problems += [] if methods and seeds else ["a study needs at least one --method and one of --seeds"]
    if len(grid := expand_grid(settings)) > 1:
        for axis in grid[0]["axes"].split(","):
            problems.append(
                f"--{axis}: a study has one value of it; --space {axis}=... gives a range or several values"
            )
    if problems:
        raise BadInput(problems)
    settings = _with_validation(methods, seeds[0], settings)
    specs = specs_of(methods, seeds[:1], dict(settings), skipped)
    changes = parse_space(space, specs)
    found = tuple(StudiedMethod(_given(spec), spec, space_of(spec, changes)) for spec in specs)
    study = TuningStudy(found, settings, trials, seeds, search, search_seed)  # type: ignore[arg-type]
    if study.n_runs > MOST_RUNS:
        raise BadInput(f"--trials {trials}: {study.n_runs:,} runs, and a study has at most {MOST_RUNS:,}")
    return study


def _with_validation(methods: Sequence[Any], seed: int, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with a validation set, unless they or the task have one."""
    if settings.get("validation") is not None:
        return settings
    first = specs_of(methods, [seed], dict(settings))[0]
    own = build_simulation(first).built.task.validation
    return settings if own is not None else {**settings, "validation": _VALIDATION}


def _given(spec: Spec) -> dict[str, Any]:
    """Return the method of a spec and what it is crossed with, as settings."""
    found = {group: getattr(spec, group) for group in ("method", *CROSSES)}
    return {group: value for group, value in found.items() if value is not None}


def run_study(
    study: TuningStudy,
    *,
    out: Path | None = None,
    workers: int = 1,
    progress: ShowProgress | None = None,
    command: str = "",
    from_here: str | None = None,
) -> Tuning:
    """Run or resume a study. `command` is part of its record; `from_here` is the one that resumes it in its folder."""
    if workers < 1:
        raise BadInput(f"--workers {workers}: must be 1 or more")
    with contextlib.ExitStack() as stack:
        if out is not None:
            make_folder(out)
            stack.callback(FolderLock(out, f"--out {out}: another process or thread is at work on this study").close)
            _bind(out, study)
            if from_here is not None:
                write_command(out, from_here)
        first = study.methods[0].spec
        tracking = None if first.track is None else ComparisonTracking(first, out)
        group = None if tracking is None else tracking.record
        runner = _Runner(study, out, workers, progress or (lambda *_: None), group)
        trials = runner.run()
        metric = next((run.metric for run in runner.results.values() if run.finished), ACCURACY)
        tuning = _tuning(study, trials, metric, out, command)
        if out is not None:
            _write_tables(out, tuning, runner.results)
        if tracking is not None and (finished := [run for run in runner.results.values() if run.finished]):
            tracking.end(finished, summarize(finished))
    return tuning


def _bind(out: Path, study: TuningStudy) -> None:
    """Write what is tuned, or compare it with what the folder holds."""
    path, here = out / _STUDY, study.definition()
    if path.is_file():
        there = read_record(path, table_of(anything), TEXT_LIMIT)
        free = ("trials",) if study.search != "grid" else ()
        wanted = json.loads(json.dumps(here))
        if differ := [name for name in wanted if name not in free and there.get(name) != wanted[name]]:
            raise BadInput(f"--out {out}: it holds a study with other {', '.join(differ)}; name another folder")
    elif any(path.name != ".lock" for path in out.iterdir()):
        raise BadInput(f"--out {out}: it is not empty and holds no study; name another folder")
    write_atomic(path, (json.dumps(here, indent=1) + "\n").encode())


class _Runner:
    """The runs of a study, a generation of trials after the other."""

    def __init__(
        self, study: TuningStudy, out: Path | None, workers: int, show: ShowProgress, group: GroupRecord | None = None
    ):
        self._study, self._out, self._workers, self._show = study, out, workers, show
        self._one = run_trial if group is None else partial(run_trial, group=group)
        self._key = key(study.search_seed, Stream.DISPATCH)
        self._done = 0  # runs of earlier generations
        self.results: dict[tuple[str, int], Result] = {}  # by label and seed

    def run(self) -> list[list[TuningTrial]]:
        """Return the trials of every method."""
        study, found = self._study, [list[TuningTrial]() for _ in self._study.methods]
        if is_known_before(study.search):
            wanted = [points(study.search, m.space, study.trials, self._key, self._defaults(m)) for m in study.methods]
            return self._generation(wanted, found)
        for _ in range(study.trials):
            wanted = [[self._next(m, tried)] for m, tried in zip(study.methods, found, strict=True)]
            found = self._generation(wanted, found)
        return found

    def _defaults(self, method: StudiedMethod) -> dict[str, Any]:
        return defaults(method.spec, method.space)

    def _next(self, method: StudiedMethod, tried: Sequence[TuningTrial]) -> TrialPoint:
        history = [(t.point, t.score) for t in tried]
        return next_point(method.space, history, self._key, self._defaults(method))

    def _generation(
        self, wanted: Sequence[Sequence[TrialPoint]], found: list[list[TuningTrial]]
    ) -> list[list[TuningTrial]]:
        """Run the trials at these points; return them after those that there are."""
        specs = [
            [self._specs(m, p) for p in of_method] for m, of_method in zip(self._study.methods, wanted, strict=True)
        ]
        self._run([spec for of_method in specs for of_point in of_method for spec in of_point])
        return [
            [*before, *(self._trial(len(before) + i, p, s) for i, (p, s) in enumerate(zip(ps, ss, strict=True)))]
            for before, ps, ss in zip(found, wanted, specs, strict=True)
        ]

    def _trial(self, number: int, point: TrialPoint, specs: Sequence[Spec]) -> TuningTrial:
        return trial_of(number, point, [self.results[spec.label, spec.seed] for spec in specs])

    def _specs(self, method: StudiedMethod, point: TrialPoint) -> list[Spec]:
        axes = ",".join(name for name in point if not name.startswith("method."))
        settings = with_values({**self._study.settings, **method.given, "axes": axes}, point)
        return [Spec.of({**settings, "seed": seed}) for seed in self._study.seeds]

    def _run(self, specs: Sequence[Spec]) -> None:
        """Run those that there is no result of."""
        new = {(s.label, s.seed): s for s in specs if (s.label, s.seed) not in self.results}
        if not new:
            return
        jobs = [(spec, None if self._out is None else run_folder_of(self._out, spec)) for spec in new.values()]
        for spec, folder in jobs:
            check_folder(spec, folder, self._out)
        before = self._done

        def show(index: int, spec: Spec, progress: Progress) -> None:
            self._show(before + index, spec, progress)

        results = run_jobs(jobs, workers=self._workers, show=show, one=self._one)
        self.results |= dict(zip(new, results, strict=True))
        self._done += len(jobs)


def _tuning(
    study: TuningStudy, trials: Sequence[Sequence[TuningTrial]], metric: Metric, out: Path | None, command: str
) -> Tuning:
    first = study.methods[0].spec
    found = tuple(
        MethodTrials(m.spec.label, _plain(m.given), m.space, tuple(of_method))
        for m, of_method in zip(study.methods, trials, strict=True)
    )
    return Tuning(
        methods=found,
        task=first.name_of("task").partition(":")[0],
        search=study.search,
        trials=study.trials,
        seeds=study.seeds,
        metric=metric.description,
        settings=shared_settings(first),
        objects=tuple(name for name in first.objects() if name not in ("method", *CROSSES)),
        command=command,
        out=out,
    )


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that can be written down: tables in place of choices, without Python objects."""
    return {name: {"name": c.name, **c.params} for name, c in given.items() if isinstance(c, Choice)}


def _write_tables(out: Path, tuning: Tuning, results: Mapping[tuple[str, int], Result]) -> None:
    """Write the table of the trials, that of the runs as in a comparison, and the tuned settings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("method", "trial", "status", "score", "settings", "error"))
    for method in tuning.methods:
        for t in method.trials:
            score = "" if t.score is None else repr(t.score)
            writer.writerow((method.label, t.number, t.status, score, json.dumps(t.point), t.error))
    write_atomic(out / "trials.csv", text.getvalue().encode())
    if finished := [run for run in results.values() if run.finished]:
        write_atomic(out / "compare.json", to_json(summarize(finished)).encode())
    write_tuned(out / TUNED, tuning)
