"""Train a finished or unfinished run again, in part or whole, and compare with its record.

A proof holds a visit and its result. Its digests are compared with the log's, then the visit is trained by the plain
training loop. On a CPU the result is the same to the bit unless clients were trained together; then, and on a GPU, it
agrees up to rounding: the norm of the difference is at most 1e-3 of the update's (docs/speed.md).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.spec import Spec
from ..core.errors import BadInput, DamagedFile, StorageError
from ..core.storage import files_in
from ..core.tickets import LocalResult, VisitJob
from ..executors.timing import RecordedChoice
from ..record.consistency import Check
from ..record.digests import digest_of_vector
from ..record.result import Result
from ..record.rows import read_events
from ..record.run_folder import RunFolder
from ..training.determinism import deterministic, generator_restored
from ..training.visit import train
from .build import build_run
from .named_files import changed_files
from .proofs import load_proof
from .run import run_spec
from .stored_spec import errors_of_stored_settings, stored_spec

__all__ = ["rerun_proofs", "rerun_whole"]

_ROUNDING = 1e-3  # of an update's norm


def rerun_proofs(path: Path, objects: Mapping[str, Any]) -> Iterator[Check]:
    """Yield a check for each proof of a run: its digests are those of the log, and training gives its result."""
    folder = RunFolder(path)
    proofs = files_in(folder.proofs, "*.safetensors")
    if not proofs:
        yield Check("proofs", True, "this run has no proofs (--proofs 0, or a model of more than 256 MB)")
        return
    spec = _spec(folder, objects)
    with errors_of_stored_settings(folder.spec, objects):
        built = build_run(replace(spec, executor=None, workers=1, address=None, gpus=None, lookahead=0, compile=False))
    rows = {r["ticket"]: r for r in read_events(folder.events) if "delta" in r}
    exact, model = _is_exact(folder, spec), built.bound()
    with contextlib.ExitStack() as stack:
        stack.enter_context(deterministic(exact=spec.precision == "float32"))
        stack.enter_context(generator_restored())
        for proof in proofs:
            try:
                job, stored = load_proof(proof, folder.meta().settings_sha256)
            except (DamagedFile, StorageError) as e:
                yield Check(proof.name, False, str(e))
                continue
            if (row := rows.get(job.number)) is None:
                if folder.is_finished():
                    yield Check(proof.name, False, f"{proof}: the log has no arrival of ticket {job.number}")
                continue  # of a visit after the newest checkpoint of an unfinished run
            if (row["sent"], row["delta"]) != (digest_of_vector(job.sent), digest_of_vector(stored.delta)):
                yield Check(proof.name, False, f"{proof}: it is not the visit of ticket {job.number} in the log")
                continue
            job = VisitJob(*(_moved(x, spec.device) for x in job))
            trained = train(job, model, rule=built.method.local, work=built.work, seed=spec.seed)
            yield _compare(proof, job, stored, trained, exact=exact)


def rerun_whole(path: Path, objects: Mapping[str, Any]) -> Check:
    """Repeat a finished run and compare the weights."""
    folder = RunFolder(path)
    if not folder.is_finished():
        raise BadInput(f"{path}: the run is not finished; `tarry resume {path}` finishes it")
    spec, result = _spec(folder, objects), Result.read(path)
    with tempfile.TemporaryDirectory() as scratch:
        again = run_spec(spec, out=Path(scratch) / "run", executor_from=folder)
        if again.weights_sha256 == result.weights_sha256:
            return Check("rerun", True, f"the whole run gives the same weights again ({result.updates:,} updates)")
        first = _first_difference(folder, RunFolder(Path(scratch) / "run"))
    more = "" if _is_exact(folder, spec) else "; up to rounding only, as clients were trained together or on a GPU"
    return Check("rerun", False, f"{path}: the run gives other weights{first}{more}")


def _spec(folder: RunFolder, objects: Mapping[str, Any]) -> Spec:
    wanted = folder.meta().objects
    if missing := [name for name in wanted if name not in objects]:
        raise BadInput(
            f"{folder.path}: this run was given a Python object as {', '.join(missing)}; verify it from Python:"
            f" tarry.verify({str(folder.path)!r}, rerun=True, {', '.join(f'{m}=...' for m in missing)})"
        )
    spec = stored_spec(folder.spec, folder.settings(), {name: objects[name] for name in wanted})
    if edited := changed_files(folder.path, spec):
        raise BadInput(
            [f"{folder.path}: --{s} {file} is not what it was when this run began" for s, file in edited.items()]
        )
    return replace(spec, track=None)  # a check is no run to be tracked


def _is_exact(folder: RunFolder, spec: Spec) -> bool:
    """Return whether a visit that is trained alone gives the same bits as in the run."""
    if spec.device != "cpu":
        return False
    if not folder.executor.is_file():
        return True
    return RecordedChoice.read(folder.executor).config is None


def _compare(proof: Path, job: VisitJob, stored: LocalResult, trained: LocalResult, *, exact: bool) -> Check:
    who = f"client {job.client}, visit {job.visit} (ticket {job.number})"
    if digest_of_vector(trained.delta) == digest_of_vector(stored.delta):
        return Check(proof.name, True, f"{who} gives the same update to the bit")
    before, now = stored.delta.cpu().double(), trained.delta.cpu().double()
    if before.shape != now.shape:
        return Check(proof.name, False, f"{proof}: {who} gives an update of another size")
    distance = float(torch.linalg.vector_norm(before - now) / torch.linalg.vector_norm(before).clamp_min(1e-30))
    if not exact and distance <= _ROUNDING:
        return Check(proof.name, True, f"{who} gives the same update up to rounding ({distance:.1e} of its norm)")
    return Check(proof.name, False, f"{proof}: {who} gives another update ({distance:.1e} of its norm)")


def _moved(x: Any, device: str) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    return {k: _moved(v, device) for k, v in x.items()} if isinstance(x, Mapping) else x


def _first_difference(before: RunFolder, now: RunFolder) -> str:
    for a, b in zip(read_events(before.events), read_events(now.events), strict=False):
        if (a["kind"], a.get("ticket"), a.get("delta")) != (b["kind"], b.get("ticket"), b.get("delta")):
            return f", first at ticket {a.get('ticket', -1)} ({a['kind']} at {a['time']:g} s)"
    return ""
