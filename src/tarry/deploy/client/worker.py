"""A client's side of it: who it is, and a visit trained as under the virtual clock, from words and arrays to the same.

The weights that come back are those of core.client.train for (seed, client, visit): what a simulator would train.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.local_rule import LocalRule
from ...core.tickets import NOTHING, VisitJob
from ...training.determinism import deterministic
from ...training.flat_model import FlatModel
from ...training.visit import LocalWork, train
from ..protocol import EXTRA, PAYLOAD
from ..server.identities import statement
from ..wire import Array, Word
from .client_store import Home

__all__ = ["Worker", "hello"]

Words = dict[str, Word]
Arrays = dict[str, Array]


def hello(home: Home, words: Mapping[str, Any], *, node: int, name: str, place: int | None) -> Words:
    """Who this client is, proved by its key; `place`: the one it wants, where it wants one."""
    what = statement(str(words["federation"]), str(words["nonce"]), node, name)
    key, signature = home.sign(what)
    return {"name": name, "key": key, "signature": signature, "place": -1 if place is None else place}


@dataclass
class Worker:
    """What it takes to train: everything but the ticket."""

    bound: FlatModel
    rule: LocalRule
    work: LocalWork
    seed: int
    home: Home
    sleeps: Callable[[int, int], float | None] | None = None  # to try slow clients out

    def train(self, words: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[Words, Arrays]:
        """A visit."""
        began = time.perf_counter()
        client, visit, kept = int(words["client"]), int(words["visit"]), int(words["kept"])
        federation = str(words["federation"])
        memory = self.home.recall(federation, kept)
        payload = {k.removeprefix(PAYLOAD): self._there(a) for k, a in arrays.items() if k.startswith(PAYLOAD)}
        job = VisitJob(
            int(words["number"]),
            client,
            visit,
            self._there(arrays["weights"]),
            payload,
            NOTHING if memory is None else {k: t.to(self.bound.flat.device) for k, t in memory.items()},
            int(words["version"]),
        )
        with deterministic():
            trained = train(job, self.bound, rule=self.rule, work=self.work, seed=self.seed)
        if trained.memory:
            self.home.keep(federation, visit, {k: t.cpu() for k, t in trained.memory.items()})
        seconds = self.sleeps(client, visit) if self.sleeps is not None else None
        if seconds is not None:
            time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
        back: Words = {
            "number": int(words["number"]),
            "token": str(words["token"]),
            "num-examples": trained.n_examples,
            "num-steps": trained.n_steps,
            "loss": trained.loss,
            "took": time.perf_counter() - began,
            "keeps": bool(trained.memory),
            "forgot": kept >= 0 and memory is None,
        }
        extras = {EXTRA + k: v.cpu().numpy() for k, v in trained.extras.items()}
        return back, {"delta": trained.delta.cpu().numpy(), **extras}

    def evaluate(self, words: Mapping[str, Any], arrays: Mapping[str, Array]) -> Words:
        """How the weights do on this client's own examples."""
        examples = self.bound.task.clients[int(words["client"])]
        accuracy, loss = self.bound.evaluate(self._there(arrays["weights"]), examples)
        told: Words = {"num-examples": len(examples[0]), "loss": loss}
        return told if accuracy is None else {**told, "accuracy": accuracy}

    def _there(self, array: Array) -> Tensor:
        """On the device that trains."""
        return torch.tensor(array, device=self.bound.flat.device)
