"""Several methods, several seeds, the same everything else: tasks, partitions, first weights and delays.

Durations are a function of (seed, client, visit), so every method of a seed meets the same ones. Runs are independent
and go `workers` at a time; a comparison in a folder picks up what is there already. OUT/command.txt is what the
command line began it with.
"""

from __future__ import annotations

import multiprocessing as mp
import re
import sys
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..config.spec import Spec
from ..core.errors import BadInput, Damaged, TarryError, WorkerDied
from ..core.method import Method
from ..core.task import Task
from ..executors.timing import TrialCache
from ..methods import methods as registered
from ..record.files import FILES, changed
from ..record.result import Result, write_atomic
from ..report.formatting import number_of
from ..report.tables import Summary, summarise, to_json
from ..vector.process import tune_malloc
from .build import plan
from .parallel_ray import spread
from .run import CHANGE_NO_RESULT, Progress, files_of, resume, run_spec

__all__ = ["COMMAND", "Comparison", "compare", "compare_specs", "specs_of"]

COMMAND = "command.txt"
Show = Callable[[int, Spec, Progress], None]


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison: the runs, and the table made of them."""

    results: tuple[Result, ...]
    summary: Summary
    out: Path | None = None
    left_out: tuple[str, ...] = ()  # with `all`: the methods that the settings do not fit, and why
    found: tuple[str, ...] = ()  # what was in the folder already, and what of it cannot be vouched for


def compare(
    methods: Sequence[str | dict[str, Any] | Method],
    task: str | dict[str, Any] | Task = "digits",
    *,
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | None = None,
    workers: int = 1,
    progress: Show | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method with every seed; settings as for `run`.

    >>> c = compare(["fedavg", "fedasync"], "digits", seeds=[0], time=1000)
    >>> [row.label for row in c.summary.rows]
    ['fedavg', 'fedasync']
    """
    left_out: list[str] = []
    specs = specs_of(methods, seeds, {"task": task, **settings}, left_out)
    made = compare_specs(specs, out=None if out is None else Path(out), workers=workers, progress=progress)
    return replace(made, left_out=tuple(left_out))


def specs_of(
    methods: Sequence[Any], seeds: Iterable[int], settings: dict[str, Any], left_out: list[str] | None = None
) -> list[Spec]:
    """One spec a run; problems of all of them in one error.

    `all` among the methods stands for every one there is but those that these settings do not fit: `left_out` gets a
    line for each of them.
    """
    seeds, named = list(seeds), [m for m in methods if m != "all"]
    wanted = [*named, *(n for n in registered.names() if n not in named)] if len(named) < len(methods) else named
    if not wanted or not seeds:
        raise BadInput("a comparison needs at least one --method and one of --seeds")
    specs, misfits = list[Spec](), list[tuple[Any, tuple[str, ...]]]()
    for method in wanted:
        try:
            made = [Spec.of({**settings, "method": method, "seed": seed}) for seed in seeds]
            plan(made[0])
            specs += made
        except BadInput as e:
            misfits.append((method, e.problems))
    if refused := [m for m in misfits if not specs or m[0] in named]:
        raise BadInput(_told_once(refused, len(wanted)))
    if left_out is not None:
        left_out += [f"{method} is left out: {' '.join(problems)}" for method, problems in misfits]
    keys = [(s.label, s.seed) for s in specs]
    if twice := next((i for i, k in enumerate(keys) if k in keys[:i]), None):
        way_out = _apart(specs[twice]) if len(set(seeds)) == len(seeds) else "name every seed once"
        raise BadInput(f"--method {keys[twice][0]}: it is there twice with seed {keys[twice][1]}; {way_out}")
    return specs


def _apart(spec: Spec) -> str:
    """How a method gets a name of its own."""
    if isinstance(spec.method, Method):
        return (
            "give one another name, dataclasses.replace(method, name=...), or name its factory:"
            " 'FILE.py:FACTORY:PARAMETER=VALUE' is called by its parameters too"
        )
    if ".py:" in spec.method.name:
        return "leave one out, or call its factory otherwise"
    return "leave one out"


def _told_once(misfits: list[tuple[Any, tuple[str, ...]]], wanted: int) -> list[str]:
    """Every problem, with the methods that have it unless it says so itself or all have it."""
    whose: dict[str, list[str]] = {}
    for method, problems in misfits:
        for problem in problems:
            whose.setdefault(problem, []).append(str(getattr(method, "name", method)))
    clear = [p for p, names in whose.items() if len(names) == wanted or all(f"--method {n}:" in p for n in names)]
    return [p if p in clear else f"{p} (--method {', '.join(names)})" for p, names in whose.items()]


def compare_specs(
    specs: Sequence[Spec],
    *,
    out: Path | None = None,
    workers: int = 1,
    progress: Show | None = None,
    command: str | None = None,
) -> Comparison:
    """Run the specs, `workers` at a time; `command` is what goes on with them when they are interrupted."""
    if workers < 1:
        raise BadInput(f"--workers {workers}: must be 1 or more")
    if out is not None and (out / "spec.toml").is_file():
        raise BadInput(f"--out {out}: it holds a run; name another folder")
    folders = [None if out is None else out / _folder_name(s.label) / f"seed-{s.seed}" for s in specs]
    for i, (spec, folder) in enumerate(zip(specs, folders, strict=True)):
        _check_folder(spec, folder, out)
        if folder is not None and folder in folders[:i]:
            raise BadInput(f"--method {spec.label}: another method of this comparison would share the folder {folder}")
    show: Show = progress or (lambda *_: None)
    jobs = list(zip(specs, folders, strict=True))
    found = _found(jobs, out)
    if out is not None and command is not None:
        _keep(out, command)
    if specs[0].executor == "ray":
        results = _on_ray(jobs, workers, show)
    elif workers == 1 or len(jobs) == 1 or not sys.platform.startswith("linux"):
        trials = TrialCache()
        results = [_one(s, f, lambda p, i=i, s=s: show(i, s, p), trials) for i, (s, f) in enumerate(jobs)]  # type: ignore[misc]
    else:
        results = _several(jobs, min(workers, len(jobs)), show)
    summary = summarise(results)
    if out is not None:
        write_atomic(out / "compare.json", to_json(summary).encode())
    return Comparison(tuple(results), summary, out, found=found)


def _keep(out: Path, command: str) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / COMMAND, f"{command}\n".encode())
    except OSError as e:
        raise BadInput(f"--out {out}: it cannot be made ({e}); name another folder") from e


def _folder_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)


def _found(jobs: Sequence[tuple[Spec, Path | None]], out: Path | None) -> tuple[str, ...]:
    """How many runs are done already and since when; where what they were made of cannot be compared, that too."""
    done = [(s, f) for s, f in jobs if f is not None and (f / "result.json").is_file()]
    if not done:
        return ()
    made = sorted(datetime.fromtimestamp((f / "result.json").stat().st_mtime) for _, f in done)
    days = list(dict.fromkeys(f"{t:%Y-%m-%d %H:%M}" for t in (made[0], made[-1])))
    were = "was" if len(done) == 1 else "were"
    told = [f"{len(done)} of {number_of(len(jobs), 'run')} {were} there already ({out}), made {' to '.join(days)}"]
    objects = sorted({f"{group} {s.name_of(group)} (a Python object)" for s, _ in done for group in s.objects()})
    undigested = sorted({str(file) for s, f in done if not (f / FILES).is_file() for file in files_of(s).values()})
    if unsure := objects + undigested:
        told.append(
            f"whether {', '.join(unsure)} changed since then cannot be told; if so, name another --out or remove {out}"
        )
    if objects:
        warnings.warn("; ".join(told), stacklevel=4)
    return tuple(told)


def _check_folder(spec: Spec, folder: Path | None, out: Path | None) -> None:
    if folder is None or not (folder / "spec.toml").is_file():
        return
    try:
        there, here = _what_matters((folder / "spec.toml").read_text()), _what_matters(spec.to_toml())
    except ValueError as e:
        raise Damaged(f"{folder / 'spec.toml'} cannot be read: {e}; remove {folder} to run it anew") from e
    if differ := [k for k in there | here if there.get(k) != here.get(k)]:
        told = "; ".join(f"{k} {_shown(there.get(k))} there, {_shown(here.get(k))} here" for k in differ)
        raise BadInput(
            f"--out {out}: it holds {spec.label}, seed {spec.seed}, with other settings ({told});"
            " name another folder with --out"
        )
    if edited := changed(folder, files_of(spec)):
        since = f"is not what it was when {spec.label}, seed {spec.seed}, was run there"
        way_out = f"name another --out, or remove {out} to run all anew"
        raise BadInput([f"--out {out}: --{s} {file} {since}; {way_out}" for s, file in edited.items()])


def _what_matters(toml: str) -> dict[str, Any]:
    """The settings that change results, by name; a Python object by what is said of it."""
    out: dict[str, Any] = {}
    for name, value in tomllib.loads(toml).items():
        table = value if isinstance(value, dict) else {"name": value}
        out |= {name if k == "name" else f"{name}.{k}": v for k, v in table.items()}
    objects = (line[2:].partition(": ") for line in toml.splitlines() if line.startswith("# "))
    out |= {name: said for name, _, said in objects}
    return {k: v for k, v in out.items() if k not in CHANGE_NO_RESULT}


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one(
    spec: Spec, folder: Path | None, progress: Callable[[Progress], None], trials: TrialCache | None = None
) -> Result:
    if folder is None or not (folder / "spec.toml").is_file():
        return run_spec(spec, out=folder, progress=progress, trials=trials)
    objects = {name: getattr(spec, name) for name in spec.objects()}
    result = replace(
        resume(folder, progress=progress, trials=trials, **objects), target=spec.target
    )  # an older version kept none
    progress(Progress(1.0, result.virtual_time, result.updates, result.final_accuracy))
    return result


def _on_ray(jobs: Sequence[tuple[Spec, Path | None]], workers: int, show: Show) -> list[Result]:
    """Each run trains its clients itself, where it is."""
    first = jobs[0][0]
    alone = [(replace(s, executor=None, workers=1, address=None, gpus=None), folder) for s, folder in jobs]
    return spread(alone, one=_one, workers=workers, show=show, address=first.address, gpus=first.gpu_share)


def _child(conn: Connection, others: list[Connection], spec: Spec, folder: Path | None) -> None:
    for other in others:  # so that the pipe breaks, and this process ends, when the parent is killed
        other.close()
    torch.set_num_threads(1)
    tune_malloc()
    try:
        result = _one(spec, folder, lambda p: conn.send(p))
        weights = None if result.weights is None else result.weights.cpu().numpy()
        conn.send((replace(result, weights=None), weights))
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except TarryError as e:
        conn.send(str(e))
    except Exception as e:
        conn.send(f"the run of {spec.label}, seed {spec.seed}, failed: {e}\n{traceback.format_exc()}")


def _several(jobs: Sequence[tuple[Spec, Path | None]], workers: int, show: Show) -> list[Result]:
    """Runs in processes of their own, the longest waiting first."""
    context = mp.get_context("fork")
    waiting, running = list(enumerate(jobs)), dict[Connection, tuple[int, Any]]()
    results: dict[int, Result] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                index, (spec, folder) = waiting.pop(0)
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, [*running, mine], spec, folder))
                process.start()
                theirs.close()
                running[mine] = (index, process)
            for conn in wait(list(running)):
                assert isinstance(conn, Connection)
                index, process = running[conn]
                try:
                    message = conn.recv()
                except EOFError:
                    process.join()
                    raise WorkerDied(
                        f"the run of {jobs[index][0].label} was killed (code {process.exitcode})"
                    ) from None
                if isinstance(message, Progress):
                    show(index, jobs[index][0], message)
                    continue
                if isinstance(message, str):
                    raise TarryError(message)
                result, weights = message
                results[index] = replace(result, weights=None if weights is None else torch.from_numpy(weights))
                process.join()
                del running[conn]
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()
    return [results[i] for i in range(len(jobs))]
