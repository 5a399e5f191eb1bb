"""Inline: trains visits one by one in this process, by the plain training loop. The reference for other executors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..core.local_rule import LocalRule
from ..core.tickets import LocalResult, Ticket
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from .base import visit_job

__all__ = ["Inline"]


class Inline:
    """Trains a visit when its result is collected, and then the `lookahead` next ones that are due."""

    def __init__(self, model: FlatModel, *, rule: LocalRule, work: LocalWork, seed: int, lookahead: int = 0):
        self._model, self._rule, self._work, self._seed, self._lookahead = model, rule, work, seed, lookahead
        self._waiting: dict[int, tuple[float, Ticket, Mapping[str, Tensor]]] = {}
        self._done: dict[int, LocalResult] = {}
        self.description = ""

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._waiting[ticket.number] = (due, ticket, memory)

    def collect(self, number: int) -> LocalResult:
        if number not in self._done:
            self._train(number)
            if self._lookahead:
                for _, ahead in sorted((due, n) for n, (due, *_) in self._waiting.items())[: self._lookahead]:
                    self._train(ahead)
        return self._done.pop(number)

    def _train(self, number: int) -> None:
        _, ticket, memory = self._waiting.pop(number)
        job = visit_job(ticket, memory)
        self._done[number] = train(job, self._model, rule=self._rule, work=self._work, seed=self._seed)

    def close(self) -> None:
        self._waiting.clear()
        self._done.clear()
