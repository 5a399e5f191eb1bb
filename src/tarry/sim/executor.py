"""Who trains the clients in flight. In virtual time a visit's outcome depends on its job alone, so when and where it is
trained, and how many are trained ahead of need, changes nothing."""

from __future__ import annotations

from typing import Protocol

from ..core.client import Bound, Job, Trained, Work, train
from ..core.local import LocalRule

__all__ = ["Executor", "Inline"]


class Executor(Protocol):
    """Jobs go in when handed out, with the moment they are due; outcomes are asked for at that moment."""

    def submit(self, job: Job, due: float) -> None: ...

    def collect(self, number: int) -> Trained: ...

    def close(self) -> None: ...


class Inline:
    """One by one in this process: the readable twin. `lookahead` more are trained when one is needed."""

    def __init__(self, bound: Bound, *, rule: LocalRule, work: Work, seed: int, lookahead: int = 0):
        self._bound, self._rule, self._work, self._seed, self._lookahead = bound, rule, work, seed, lookahead
        self._jobs: dict[int, tuple[float, Job]] = {}
        self._done: dict[int, Trained] = {}

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.number] = (due, job)

    def collect(self, number: int) -> Trained:
        if number not in self._done:
            self._train(number)
            if self._lookahead:
                for _, ahead in sorted((due, n) for n, (due, _) in self._jobs.items())[: self._lookahead]:
                    self._train(ahead)
        return self._done.pop(number)

    def _train(self, number: int) -> None:
        _, job = self._jobs.pop(number)
        self._done[number] = train(job, self._bound, rule=self._rule, work=self._work, seed=self._seed)

    def close(self) -> None:
        self._jobs.clear()
        self._done.clear()
