"""Proofs of a run: digests of what visits were given and returned, and a sample of visits to train again.

    OUT/events.jsonl                  the row of an arrival has `sent` and `delta`, digests of the two vectors
    OUT/proofs/TICKET.safetensors     one visit of the sample: its weights, payload and memory, and its result

The sample is drawn by a hash of the seed and the ticket number, so a resumed run has the same one. It holds --proofs
visits (8), in at most 256 MB: fewer visits of a large model. A proof holds the digest of the settings of its run.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DamagedFile
from ..core.storage import files_in, storage_errors
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..executors.base import Executor, visit_job
from ..record import checkpoint
from ..record.digests import digest_of_vector
from ..record.storage import make_folder

__all__ = ["ProofExecutor", "ProofSample", "load_proof", "write_proof"]

_LIMIT = 256 << 20  # bytes of all proofs of a run
_REMEDY = "restore it from a copy, or delete it to go on with fewer proofs"


class ProofSample:
    """The visits of a run with the smallest hashes. They are in memory until `write`.

    The proofs that are in the folder are read, so that a resumed run does not bind its result to a damaged one.
    `timed`: the learning rate changes, so that a visit also depends on the time of its hand-out.
    """

    def __init__(self, folder: Path, most: int, seed: int, settings: str, *, timed: bool = False):
        self._folder, self._most, self._seed, self._settings = folder, most, seed, settings
        self._timed = timed
        self._written = {load_proof(path, settings)[0].number for path in files_in(folder, "*.safetensors")}
        self._new: dict[int, tuple[VisitJob, LocalResult]] = {}

    def offer(self, job: VisitJob, result: LocalResult) -> None:
        """Add a visit if it belongs to the sample so far, in place of the one with the largest hash."""
        most = min(self._most, _LIMIT // max(1, _bytes_of(job) + _bytes_of(result)))
        numbers = {*self._written, *self._new}
        if most == 0 or (job.number not in numbers and len(numbers) >= most and self._hash(job.number) > self._hash(
            max(numbers, key=self._hash)
        )):  # fmt: skip
            return
        memory = {name: row.clone() for name, row in job.memory.items()}  # the row is overwritten by the result's
        self._new[job.number] = job._replace(memory=memory), result
        for number in sorted({*numbers, job.number}, key=self._hash)[most:]:
            self._new.pop(number, None)
            if number in self._written:
                self._written.discard(number)
                with storage_errors(self._folder, "cleaned"):
                    self._path(number).unlink(missing_ok=True)

    def write(self) -> None:
        """Write the visits that were added since the last call."""
        if self._new:
            make_folder(self._folder)
        for number, (job, result) in self._new.items():
            write_proof(self._path(number), self._settings, job, result, timed=self._timed)
            self._written.add(number)
        self._new.clear()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"

    def _hash(self, number: int) -> bytes:
        return hashlib.blake2b(f"{self._seed} {number}".encode(), digest_size=8).digest()


class ProofExecutor:
    """An executor that another one trains for. `digests` has those of the visits collected last, by ticket number."""

    def __init__(self, executor: Executor, sample: ProofSample):
        self._inner, self._sample = executor, sample
        self._given: dict[int, tuple[Ticket, Mapping[str, Tensor]]] = {}
        self._known: dict[int, tuple[weakref.ref[Tensor], str]] = {}  # of weights that several clients are sent
        self.digests: dict[int, dict[str, str]] = {}
        self.description = executor.description

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._given[ticket.number] = ticket, memory
        self._inner.submit(ticket, memory, due)

    def collect(self, number: int) -> LocalResult:
        result = self._inner.collect(number)
        self.description = self._inner.description
        ticket, memory = self._given.pop(number)
        self.digests.clear()
        self.digests[number] = {"sent": self._digest_of_sent(ticket.sent), "delta": digest_of_vector(result.delta)}
        self._sample.offer(visit_job(ticket, memory), result)
        return result

    def _digest_of_sent(self, sent: Tensor) -> str:
        found = self._known.get(id(sent))
        if found is None or found[0]() is not sent:
            self._known = {i: entry for i, entry in self._known.items() if entry[0]() is not None}
            self._known[id(sent)] = found = (weakref.ref(sent), digest_of_vector(sent))
        return found[1]

    def write(self) -> None:
        """Write the proofs of the visits collected so far."""
        self._sample.write()

    def save(self) -> Any:
        return self._inner.save()

    def load(self, saved: Any) -> None:
        self._inner.load(saved)
        self.description = self._inner.description

    def close(self) -> None:
        self._inner.close()


def write_proof(path: Path, settings: str, job: VisitJob, result: LocalResult, *, timed: bool = False) -> None:
    """Write a visit and its result; `settings` is the digest of the run's settings. `timed`: with the visit's time."""
    visit = job._asdict()
    if not timed:
        del visit["time"]
    checkpoint.write(path, {"settings": settings, "job": visit, "result": result._asdict()})


def load_proof(path: Path, settings: str) -> tuple[VisitJob, LocalResult]:
    """Return the visit and the result of a proof; raise DamagedFile if it holds none, or one of another run."""
    record = checkpoint.load(path, remedy=_REMEDY)
    with checkpoint.fitting(path, _REMEDY):
        job, result = VisitJob(**record["job"]), LocalResult(**record["result"])
        if not all(isinstance(t, Tensor) and t.ndim == 1 for t in (job.sent, result.delta)):
            raise TypeError("no vectors")
        if path.stem != f"{job.number:08d}":
            raise ValueError(f"it is of visit {job.number}")
        if record["settings"] != settings:
            raise DamagedFile(f"{path}: it is of a run with other settings; {_REMEDY}")
    return job, result


def _bytes_of(record: VisitJob | LocalResult) -> int:
    return sum(t.nbytes for value in record for t in (value.values() if isinstance(value, Mapping) else [value])
               if isinstance(t, torch.Tensor))  # fmt: skip
