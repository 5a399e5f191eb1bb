"""Monitor of training: it reports failed training when it happens, in one warning for each kind of failure."""

from __future__ import annotations

import logging
from collections import Counter
from math import isfinite, sqrt
from typing import Protocol

from ..core.metric import CurvePoint
from ..core.rejections import Reason
from ..core.server import Server

__all__ = ["SCORES_AT_CHANCE", "Monitor", "Monitored", "chance_limit", "stays_at_chance"]

log = logging.getLogger("tarry")

SCORES_AT_CHANCE = 5  # scores in a row that count as no progress
_STEPS = 10  # of the server, before which no run is judged


class Monitored(Protocol):
    """The counters of a simulator or a federation that are looked at."""

    time: float
    rejected: int
    rejections: dict[int, Counter[Reason]]  # by client
    curve: list[CurvePoint]
    server: Server


def chance_limit(majority: float | None, examples: int) -> float | None:
    """Return the accuracy up to which a model may be guessing: two standard errors above the majority class.

    None if the task is not scored by accuracy, or if the majority class alone is nearly always right.
    """
    if majority is None or examples == 0:
        return None
    limit = majority + 2 * sqrt(majority * (1 - majority) / examples)
    return limit if limit < 1 else None


def stays_at_chance(run: Monitored, limit: float | None) -> bool:
    """Return whether the last scores are at most `limit`.

    That counts only after ten server steps, and if the first of these scores came after as many updates as clients.
    """
    last = run.curve[-SCORES_AT_CHANCE:]
    if limit is None or run.server.version < _STEPS or len(last) < SCORES_AT_CHANCE:
        return False
    if last[0].updates < run.server.n_clients:
        return False
    return all(point.accuracy is not None and point.accuracy <= limit for point in last)


def _why(run: Monitored) -> str:
    reasons = {reason for counts in run.rejections.values() for reason in counts}
    if reasons == {Reason.NOT_FINITE}:
        return "because it was not finite (NaN or infinity)"
    return f"({', '.join(sorted(reasons))})"


class Monitor:
    """Logs a warning when updates are rejected, the loss is not finite, or accuracy stays at chance level."""

    def __init__(self, name: str, limit: float | None):
        self._name, self._limit = name, limit
        self._scores = 0  # that were looked at
        self._reported = set[str]()

    def update(self, run: Monitored) -> None:
        """Look at a run after an instant; two comparisons where nothing is new."""
        if run.rejected and "rejected" not in self._reported:
            self._report("rejected", run.time, f"a client's update was rejected {_why(run)}")
        if len(run.curve) == self._scores:
            return
        self._scores = len(run.curve)
        last = run.curve[-1]
        if last.loss is not None and not isfinite(last.loss):
            self._report("loss", run.time, "the loss of the global model on the test set is not a finite number")
        elif stays_at_chance(run, self._limit):
            self._report(
                "chance",
                run.time,
                f"accuracy is {last.accuracy:.4f} and has stayed at chance level in the last {SCORES_AT_CHANCE} scores",
            )

    def _report(self, kind: str, time: float, what: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            log.warning("%s: at %g s %s; a smaller learning rate may help", self._name, time, what)
