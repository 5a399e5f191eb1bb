"""Budget: when a run stops."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import BadInput

__all__ = ["Budget", "Score"]

Score = tuple[float | None, float]  # accuracy, loss


@dataclass(frozen=True)
class Budget:
    """Limits of a run: seconds, accepted updates, server steps, test accuracy. The first one reached ends the run."""

    time: float | None = None
    updates: int | None = None
    rounds: int | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        given = {k: v for k, v in vars(self).items() if v is not None}
        if not given:
            raise BadInput("a run needs a budget: --time, --updates, --rounds or --target")
        problems = [f"--{k} {v}: must be above 0" for k, v in given.items() if not v > 0]
        if self.target is not None and len(given) == 1:
            problems.append("--target: give --time, --updates or --rounds too, in case it is never reached")
        if problems:
            raise BadInput(problems)
