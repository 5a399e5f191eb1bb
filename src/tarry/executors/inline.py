"""Inline: trains visits one by one in this process, by the plain training loop. The reference for other executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..core.local_rule import LocalRule
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from .base import visit_job

__all__ = ["Inline"]


class Inline:
    """Trains a visit when its result is collected."""

    def __init__(self, model: FlatModel, *, rule: LocalRule, work: LocalWork, seed: int):
        self._model, self._rule, self._work, self._seed = model, rule, work, seed
        self._waiting: dict[int, VisitJob] = {}
        self.description = ""

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:  # noqa: ARG002 - of the protocol
        self._waiting[ticket.number] = visit_job(ticket, memory)

    def collect(self, number: int) -> LocalResult:
        return train(self._waiting.pop(number), self._model, rule=self._rule, work=self._work, seed=self._seed)

    def save(self) -> Any:
        """Return None: a result depends on its ticket alone."""
        return None

    def load(self, saved: Any) -> None:
        """Do nothing: whatever was trained ahead by another executor is trained again."""

    def close(self) -> None:
        self._waiting.clear()
