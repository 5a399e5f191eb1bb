"""Budget: when a run stops."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import BadInput
from ..core.metric import ACCURACY, Metric

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """Limits of a run: seconds, accepted updates, server steps, score. The first one reached ends the run.

    `metric` is the score: a target of a metric whose lower values are better is reached from above.
    """

    time: float | None = None
    updates: int | None = None
    rounds: int | None = None
    target: float | None = None
    metric: Metric = ACCURACY

    def __post_init__(self) -> None:
        given = {k: v for k, v in vars(self).items() if v is not None and k != "metric"}
        if not given:
            raise BadInput("a run needs a budget: --time, --updates, --rounds or --target")
        positive = {k: v for k, v in given.items() if k != "target" or self.metric.is_share}
        problems = [f"--{k} {v}: must be above 0" for k, v in positive.items() if not v > 0]
        problems += [] if self.target is None else self._target_problems(self.target)
        if self.target is not None and len(given) == 1:
            problems.append("--target: give --time, --updates or --rounds too, in case it is never reached")
        if problems:
            raise BadInput(problems)

    def _target_problems(self, target: float) -> list[str]:
        best, name = self.metric.best, self.metric.name
        if best is None or self.metric.sign * target <= self.metric.sign * best:
            return []
        hint = "; 0.9 stands for 90 %" if self.metric.is_share else ""
        return [
            f"--target {target:g}: {name} is at {'most' if self.metric.higher_is_better else 'least'} {best:g}{hint}"
        ]
