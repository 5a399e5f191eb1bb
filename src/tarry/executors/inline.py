"""Who trains the clients in flight. In virtual time a visit's outcome depends on its job alone, so when and where it is
trained, and how many are trained ahead of need, changes nothing."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, Protocol

from torch import Tensor

from ..core.errors import BadInput, TarryError
from ..core.local_rule import LocalRule
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train

__all__ = ["Executor", "RemoteError", "Inline"]


class Executor(Protocol):
    """Tickets go in with what the client kept and the moment they are due; outcomes are asked for at that moment."""

    description: str  # what was chosen, where there was a choice

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None: ...

    def collect(self, number: int) -> LocalResult: ...

    def close(self) -> None: ...


class RemoteError(NamedTuple):
    """What a worker sends back in the place of an outcome."""

    text: str
    problems: tuple[str, ...] = ()  # of a person's doing, as it would be told without workers

    @classmethod
    def from_exception(cls, e: Exception) -> RemoteError:
        """To be called where it is caught."""
        problems = e.problems if isinstance(e, BadInput) else ()
        return cls(f"{type(e).__name__}: {e}\n{traceback.format_exc()}", problems)

    def reraise(self, where: str) -> NoReturn:
        if self.problems:
            raise BadInput(self.problems)
        raise TarryError(f"training failed in {where}: {self.text}")


class Inline:
    """One by one in this process: the readable twin. `lookahead` more are trained when one is needed."""

    def __init__(self, bound: FlatModel, *, rule: LocalRule, work: LocalWork, seed: int, lookahead: int = 0):
        self._bound, self._rule, self._work, self._seed, self._lookahead = bound, rule, work, seed, lookahead
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
        _, t, memory = self._waiting.pop(number)
        job = VisitJob(number, t.client, t.visit, t.sent, t.payload, memory, t.version)
        self._done[number] = train(job, self._bound, rule=self._rule, work=self._work, seed=self._seed)

    def close(self) -> None:
        self._waiting.clear()
        self._done.clear()
