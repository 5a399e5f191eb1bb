"""Worker: a client proves its identity, trains tickets and evaluates weights; from fields and arrays to the same.

The weights that come back are those of training.visit.train for (seed, client, visit): what a simulator would train.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core.local_rule import LocalRule
from ...core.tickets import NOTHING, VisitJob
from ...training.determinism import deterministic
from ...training.flat_model import FlatModel
from ...training.visit import LocalWork, train
from ..protocol import EXTRA, PAYLOAD, tensor_of
from ..server.registration import statement
from ..wire import Array, FieldValue
from .client_store import ClientStore

__all__ = ["Worker", "prove_identity"]

Fields = dict[str, FieldValue]
Arrays = dict[str, Array]


def prove_identity(store: ClientStore, fields: Mapping[str, Any], *, node: int, name: str, place: int | None) -> Fields:
    """Return the client's name, signed with its key, and the place it wants, if it wants one."""
    what = statement(str(fields["federation"]), str(fields["nonce"]), node, name)
    key, signature = store.sign(what)
    return {"name": name, "key": key, "signature": signature, "place": -1 if place is None else place}


@dataclass
class Worker:
    """All that training needs beside the ticket."""

    bound: FlatModel
    rule: LocalRule
    work: LocalWork
    seed: int
    store: ClientStore
    min_seconds: Callable[[int, int], float | None] | None = None  # of a visit (client, visit), to try slow clients out

    def train(self, fields: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[Fields, Arrays]:
        """Train a ticket; return the fields and arrays of the reply."""
        began = time.perf_counter()
        client, visit, memory_visit = int(fields["client"]), int(fields["visit"]), int(fields["kept"])
        federation = str(fields["federation"])
        memory = self.store.load_memory(federation, memory_visit)
        payload = {k.removeprefix(PAYLOAD): self._to_device(a) for k, a in arrays.items() if k.startswith(PAYLOAD)}
        job = VisitJob(
            int(fields["number"]),
            client,
            visit,
            self._to_device(arrays["weights"]),
            payload,
            NOTHING if memory is None else {k: t.to(self.bound.flat.device) for k, t in memory.items()},
            int(fields["version"]),
            float(fields["time"]),
        )
        with deterministic():
            result = train(job, self.bound, rule=self.rule, work=self.work, seed=self.seed)
        if result.memory:
            self.store.save_memory(federation, visit, {k: t.cpu() for k, t in result.memory.items()})
        seconds = self.min_seconds(client, visit) if self.min_seconds is not None else None
        if seconds is not None:
            time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
        reply: Fields = {
            "number": int(fields["number"]),
            "token": str(fields["token"]),
            "num-examples": result.n_examples,
            "num-steps": result.n_steps,
            "loss": result.loss,
            "train-seconds": time.perf_counter() - began,
            "keeps-memory": bool(result.memory),
            "memory-lost": memory_visit >= 0 and memory is None,
        }
        extras = {EXTRA + k: v.cpu().numpy() for k, v in result.extras.items()}
        return reply, {"delta": result.delta.cpu().numpy(), **extras}

    def evaluate(self, fields: Mapping[str, Any], arrays: Mapping[str, Array]) -> Fields:
        """Evaluate the weights on this client's own examples."""
        examples = self.bound.task.clients[int(fields["client"])]
        scores = self.bound.evaluate(self._to_device(arrays["weights"]), examples)
        others = {name: value for name, value in scores.items() if name != "loss"}
        return {"num-examples": len(examples[0]), "loss": scores["loss"], **others}

    def _to_device(self, array: Array) -> Tensor:
        return tensor_of(array).to(self.bound.flat.device)
