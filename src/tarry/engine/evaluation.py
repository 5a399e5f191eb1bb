"""Evaluation of the output weights: when a score is due, and the score itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from torch import Tensor

from ..core.errors import BadInput
from ..core.metric import Scores
from .engine import Engine

__all__ = ["MOST_EVALUATIONS", "Evaluation"]

MOST_EVALUATIONS = 10_000_000  # of one run


class Evaluation:
    """Scores are due at time 0 and every `every` seconds after it; never if nothing is evaluated.

    Without a test set `evaluate` is None, and `measure` gives the monitor of the model a number in place of a loss.
    """

    def __init__(
        self,
        engine: Engine,
        evaluate: Callable[[Tensor], Scores] | None,
        every: float,
        measure: Callable[[Tensor], float] | None = None,
    ):
        self._engine, self._evaluate, self._every = engine, evaluate, every
        self._measure = measure if evaluate is None else None

    @property
    def is_on(self) -> bool:
        """Return whether anything is evaluated at all."""
        return self._evaluate is not None or self._measure is not None

    @property
    def next_due(self) -> float:
        """The time of the next score. Every score so far is a point of the engine's curve."""
        if not self.is_on:
            return inf
        count = len(self._engine.curve)
        return count * self._every if count else 0.0

    def due(self, time: float, *, inclusive: bool) -> Iterator[float]:
        """Yield the times of scores due up to `time`; the caller records each score before it asks for the next.

        None is due before a model whose loss has exploded is restored.
        """
        if time > MOST_EVALUATIONS * self._every:
            raise BadInput(
                f"--eval-every {self._every:g}: these are more than {MOST_EVALUATIONS:,} evaluations in {time:g}"
                f" virtual seconds; evaluate every {time / MOST_EVALUATIONS * 1.01:.1g} seconds or more"
            )
        while (due := self.next_due) < time or (inclusive and due == time):
            if self._engine.next_restore < inf:
                return
            yield due

    def score(self) -> tuple[Scores, float | None]:
        """Return the metrics of the output weights, and what the monitor judges: the loss.

        They are those of the last evaluation if no step was made since.
        """
        engine = self._engine
        if self._measure is not None:
            return {}, self._measure(engine.server.output_weights)
        assert self._evaluate is not None
        if not engine.is_unscored:
            last = engine.curve[-1]
            return last.metrics, last.loss  # type: ignore[return-value]
        scores = self._evaluate(engine.server.output_weights)
        return scores, scores.get("loss")
