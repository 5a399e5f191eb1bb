"""Work on one job, a run or a study, in this process: its result or its error."""

from __future__ import annotations

import contextlib
import gc
import shlex
import shutil
import subprocess
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..core.errors import BadInput, DamagedFile, TarryError
from ..executors.timing import TrialCache
from ..runs.run import resume_folder, run_spec
from ..tasks.data.sets import without_flags
from ..version import __version__
from .experiment import Cell
from .jobs import CellRun, ReproduceJob, StudyRun
from .measures import StoredRun, to_entry
from .options import ReproduceOptions
from .studies import STUDIES

__all__ = ["JobFailure", "JobResult", "OnProgress", "StudyResult", "do", "forget", "processor"]

_CHECKPOINT = 60.0  # seconds between checkpoints
_OF_THIS_MACHINE = ("--out", "--results", "--within", "--stop")
#: called with the progress (a share) or a message of a study
OnProgress = Callable[[float | str], None]


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, and the command and machine that made it."""

    result: Mapping[str, Any]
    made: Mapping[str, str]


@dataclass(frozen=True)
class JobFailure:
    text: str


JobResult = StoredRun | StudyResult | JobFailure


def do(
    job: ReproduceJob, options: ReproduceOptions, on_progress: OnProgress, trials: TrialCache | None = None
) -> JobResult:
    """Return the result of a job; an exception other than Ctrl-C becomes a `JobFailure`."""
    try:
        with without_flags():
            return (
                _study(job, options, on_progress)
                if isinstance(job, StudyRun)
                else _run(job, options, on_progress, trials)
            )
    except TarryError as e:
        return JobFailure(str(e))
    except Exception as e:
        return JobFailure(f"{type(e).__name__}: {e}\n{traceback.format_exc()}")


def forget() -> None:
    """Free the memory of the last job: the next may have another model."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _run(job: CellRun, options: ReproduceOptions, on_progress: OnProgress, trials: TrialCache | None) -> StoredRun:
    cell = job.cells[0][1]
    spec = cell.spec(job.seed, **_machine(cell, options))
    result = None
    if job.folder is not None and (job.folder / "spec.toml").is_file():
        try:
            result = resume_folder(job.folder, progress=lambda step: on_progress(step.fraction), trials=trials)
        except DamagedFile:
            shutil.rmtree(job.folder)
    if result is None:
        result = run_spec(spec, out=job.folder, progress=lambda step: on_progress(step.fraction), trials=trials)
    return to_entry(result, job.points, _provenance(options))


def _machine(cell: Cell, options: ReproduceOptions) -> dict[str, Any]:
    """Return the settings of the machine: those of the flags, else of the cell, else defaults."""
    defaults: dict[str, Any] = {"checkpoint_every": _CHECKPOINT}
    defaults |= {"executor": "auto"} if options.device == "cuda" else {}
    flags: dict[str, Any] = {"device": options.device, "executor": options.executor, "precision": options.precision}
    if options.compile:
        flags |= {"compile": True, "executor": options.executor or "batched"}
    return {k: v for k, v in defaults.items() if k not in cell.settings} | {k: v for k, v in flags.items() if v}


def _study(job: StudyRun, options: ReproduceOptions, on_progress: OnProgress) -> StudyResult:
    name = STUDIES[job.study]
    try:
        module = import_module(name)
    except ModuleNotFoundError as e:
        raise BadInput(f"{e.name} is needed for it: pip install {e.name}") from e
    job.folder.mkdir(parents=True, exist_ok=True)
    result = module.run(
        dict(job.options),
        quick=job.size == "quick",
        seeds=job.seeds,
        device=options.device,
        folder=job.folder,
        tell=on_progress,
    )
    return StudyResult(result, _provenance(options))


def _provenance(options: ReproduceOptions) -> dict[str, str]:
    """Return version, commit, torch, device, date and command."""
    device = torch.cuda.get_device_name() if options.device == "cuda" else processor()
    made = {"tarry": __version__, "commit": _commit(), "torch": torch.__version__, "device": device}
    return {**made, "date": datetime.now(UTC).date().isoformat(), "command": _portable_command(options.command)}


def _portable_command(command: str) -> str:
    """Return the command without folders and time limits, which mean nothing on another machine."""
    words, left = list[str](), iter(shlex.split(command))
    for word in left:
        if word in _OF_THIS_MACHINE:
            next(left, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in _OF_THIS_MACHINE)):
            words.append(word)
    return shlex.join(words)


def processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "cpu"


def _commit() -> str:
    """Return the commit of this checkout, with a + if sources are changed; "" without a checkout."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return ""
    git = ["git", "-C", str(here)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "src"], capture_output=True, timeout=10)
        return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
    return ""
