"""One run or one study, done in whatever process this is: what is kept of it, or what went wrong."""

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

from ..core.errors import BadInput, Damaged, TarryError
from ..executors.timing import TrialCache
from ..runs.run import resume, run_spec
from ..tasks.data.sets import without_flags
from ..version import __version__
from .experiment import Cell
from .jobs import Asked, CellRun, Job, StudyRun
from .measures import Entry, kept
from .studies import STUDIES

__all__ = ["Failed", "Found", "Hear", "Outcome", "do", "forget"]

_CHECKPOINT = 60.0  # seconds between checkpoints
_OF_THIS_MACHINE = ("--out", "--results", "--within")
#: how far it is (a share), or something that a study tells
Hear = Callable[[float | str], None]


@dataclass(frozen=True)
class Found:
    """By a study."""

    result: Mapping[str, Any]
    made: Mapping[str, str]


@dataclass(frozen=True)
class Failed:
    text: str


Outcome = Entry | Found | Failed


def do(job: Job, asked: Asked, hear: Hear, trials: TrialCache | None = None) -> Outcome:
    """Nothing that goes wrong in it gets out, but for Ctrl-C."""
    try:
        with without_flags():
            return _study(job, asked, hear) if isinstance(job, StudyRun) else _run(job, asked, hear, trials)
    except TarryError as e:
        return Failed(str(e))
    except Exception as e:
        return Failed(f"{type(e).__name__}: {e}\n{traceback.format_exc()}")


def forget() -> None:
    """Give memory of the run before back: the next may be of another model."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _run(job: CellRun, asked: Asked, hear: Hear, trials: TrialCache | None) -> Entry:
    cell = job.cells[0][1]
    spec = cell.spec(job.seed, **_machine(cell, asked))
    result = None
    if job.folder is not None and (job.folder / "spec.toml").is_file():
        try:
            result = resume(job.folder, progress=lambda step: hear(step.fraction), trials=trials)
        except Damaged:
            shutil.rmtree(job.folder)
    if result is None:
        result = run_spec(spec, out=job.folder, progress=lambda step: hear(step.fraction), trials=trials)
    return kept(result, job.points, _made(asked))


def _machine(cell: Cell, asked: Asked) -> dict[str, Any]:
    """Where and how: as asked, else as the cell says, else what is usual."""
    usual: dict[str, Any] = {"checkpoint_every": _CHECKPOINT}
    usual |= {"executor": "auto"} if asked.device == "cuda" else {}
    asked_for: dict[str, Any] = {"device": asked.device, "executor": asked.executor, "precision": asked.precision}
    if asked.compile:
        asked_for |= {"compile": True, "executor": asked.executor or "batched"}
    return {k: v for k, v in usual.items() if k not in cell.settings} | {k: v for k, v in asked_for.items() if v}


def _study(job: StudyRun, asked: Asked, hear: Hear) -> Found:
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
        device=asked.device,
        folder=job.folder,
        tell=hear,
    )
    return Found(result, _made(asked))


def _made(asked: Asked) -> dict[str, str]:
    """By what, where and when."""
    device = torch.cuda.get_device_name() if asked.device == "cuda" else _processor()
    made = {"tarry": __version__, "commit": _commit(), "torch": torch.__version__, "device": device}
    return {**made, "date": datetime.now(UTC).date().isoformat(), "command": _elsewhere(asked.command)}


def _elsewhere(command: str) -> str:
    """Without the folders and the hours of this machine, which say nothing elsewhere."""
    words, left = list[str](), iter(shlex.split(command))
    for word in left:
        if word in _OF_THIS_MACHINE:
            next(left, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in _OF_THIS_MACHINE)):
            words.append(word)
    return shlex.join(words)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "cpu"


def _commit() -> str:
    """Of the checkout that this is, with a + where sources differ from it; empty where it is none."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return ""
    git = ["git", "-C", str(here)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "src"], capture_output=True, timeout=10)
        return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
    return ""
