"""Jobs: the runs of a comparison or a study, each in a folder of its own, several at a time."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config.spec import Spec
from ..core.errors import (
    BadInput,
    DamagedFile,
)
from ..executors.timing import TrialCache
from ..record.digests import EXECUTION_SETTINGS
from ..record.result import Result
from ..record.run_folder import RunFolder, object_comments
from .named_files import changed_files
from .parallel import Jobs, RunOne, ShowProgress, run_in_processes
from .parallel_ray import run_on_ray
from .run import Progress, resume_folder, run_spec
from .tracking import GroupRecord

__all__ = ["check_folder", "run_folder_of", "run_jobs", "run_or_resume"]


def run_jobs(
    jobs: Jobs, *, workers: int, show: ShowProgress, one: RunOne | None = None, group: GroupRecord | None = None
) -> list[Result]:
    """Return the results of runs, of which `workers` go at a time; `one` does a run in place of `run_or_resume`.

    `group` is the comparison as the trackers of its runs know it.
    """
    first, run_one = jobs[0][0], one or partial(run_or_resume, group=group)
    if first.executor == "ray":
        return _on_ray(jobs, workers, show, run_one)
    if workers == 1 or len(jobs) == 1 or not sys.platform.startswith("linux"):
        alone = one or partial(run_or_resume, trials=TrialCache(), group=group)
        return [alone(s, f, lambda p, i=i, s=s: show(i, s, p)) for i, (s, f) in enumerate(jobs)]  # type: ignore[misc]
    at_once, timeout = min(workers, len(jobs)), first.worker_timeout
    return run_in_processes(jobs, one=run_one, workers=at_once, show=show, timeout=timeout)


def run_folder_of(out: Path, spec: Spec) -> Path:
    """Return the folder of a run below that of its comparison."""
    return out / re.sub(r"[^A-Za-z0-9.=_-]+", "-", spec.label) / f"seed-{spec.seed}"


def check_folder(spec: Spec, folder: Path | None, out: Path | None) -> None:
    """Raise BadInput if the folder of a run holds another run, or a file that its settings name has changed."""
    if folder is None or not RunFolder(folder).spec.is_file():
        return
    try:
        there, here = _what_matters(RunFolder(folder).spec_text()), _what_matters(spec.to_toml())
    except (ValueError, RecursionError) as e:
        raise DamagedFile(f"{folder / 'spec.toml'} cannot be read: {e}; remove {folder} to run it again") from e
    if differ := [k for k in there | here if there.get(k) != here.get(k)]:
        differences = "; ".join(f"{k} {_format(there.get(k))} there, {_format(here.get(k))} here" for k in differ)
        raise BadInput(
            f"--out {out}: it holds {spec.label}, seed {spec.seed}, with other settings ({differences});"
            " name another folder with --out"
        )
    if edited := changed_files(folder, spec):
        since = f"is not what it was when {spec.label}, seed {spec.seed}, was run there"
        way_out = f"name another --out, or remove {out} to run all again"
        raise BadInput([f"--out {out}: --{s} {file} {since}; {way_out}" for s, file in edited.items()])


def _what_matters(toml: str) -> dict[str, Any]:
    """The settings that change results, by name; a Python object by its comment."""
    out: dict[str, Any] = {}
    for name, value in tomllib.loads(toml).items():
        table = value if isinstance(value, dict) else {"name": value}
        out |= {name if k == "name" else f"{name}.{k}": v for k, v in table.items()}
    out |= object_comments(toml)
    return {k: v for k, v in out.items() if k not in EXECUTION_SETTINGS}


def _format(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def run_or_resume(
    spec: Spec,
    folder: Path | None,
    progress: Callable[[Progress], None],
    trials: TrialCache | None = None,
    group: GroupRecord | None = None,
) -> Result:
    """Run a spec, or resume or read the run in its folder. `trials`: choices of executors that several runs share."""
    if folder is None or not RunFolder(folder).spec.is_file():
        return run_spec(spec, out=folder, progress=progress, trials=trials, group=group)
    objects = {name: getattr(spec, name) for name in (*spec.objects(), "track")}
    result = resume_folder(folder, progress=progress, trials=trials, group=group, **objects)
    result = replace(result, target=spec.target)  # an earlier version stored none
    progress(Progress(1.0, result.virtual_time, result.updates, result.final_score, result.metric))
    return result


def _on_ray(jobs: Jobs, workers: int, show: ShowProgress, one: RunOne) -> list[Result]:
    """Each run is one task of the cluster and trains its clients in its own process."""
    first = jobs[0][0]
    alone = [(replace(s, executor=None, workers=1, address=None, gpus=None), folder) for s, folder in jobs]
    return run_on_ray(alone, one=one, workers=workers, show=show, address=first.address, gpus=first.gpu_share)
