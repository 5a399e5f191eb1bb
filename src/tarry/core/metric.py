"""Metrics: named numbers that say how well a model's outputs fit the targets of all test examples.

    Metric("f1", macro_f1)                              a function (outputs, targets) → number of all examples at once
    Metric("error", streaming=Mean, higher_is_better=False, unit="kW")   an accumulator, which is given them in chunks

`tarry.metrics` lists those that have names. The first metric of a run is its score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .errors import BadInput
from .one_line import short_text

__all__ = ["ACCURACY", "LOSS", "SHARE", "Accumulator", "CurvePoint", "Metric", "Scores", "other_metrics"]

#: the value of each metric by name; NaN where it is not defined
Scores = Mapping[str, float]
SHARE = "%"  # the unit of a metric between 0 and 1 that is shown in per cent
_NAME = re.compile(r"[^\W\d][\w.@-]*")
_LONGEST_NAME = 40
_TAKEN = ("time", "updates", "score", "metrics", "label", "seed")  # names of other columns


class Accumulator(Protocol):
    """State of a metric after some chunks of a test set; `value` is the metric over all of them.

    One that computes several metrics at once returns a table of them by name.
    """

    def update(self, outputs: Tensor, targets: Tensor, /) -> None: ...
    def value(self) -> Any: ...


@dataclass(frozen=True)
class Metric:
    """A number that says how well outputs fit targets: its name, direction and unit, and how it is computed.

    `function(outputs, targets)` gets the outputs and targets of all test examples. `streaming()` returns an object
    with `update(outputs, targets)`, called for each chunk of examples, and `value()`. One of the two is given.
    `best` is the best value that is possible. The unit "%" is that of shares between 0 and 1: 0.912 is shown as 91.2 %.

    >>> def hits(outputs, targets):
    ...     return (outputs.argmax(1) == targets).float().mean()
    >>> hits = tarry.Metric("hits", hits, unit="%")
    >>> hits, tarry.metrics["rmse"]().higher_is_better
    (Metric('hits', higher is better, in %), False)
    >>> result = tarry.run("fedasync", "digits", clients=3, updates=6, metric=hits)
    >>> result.curve[-1].score == result.curve[-1].metrics["hits"]
    True
    """

    name: str
    function: Callable[[Tensor, Tensor], Any] | None = field(default=None, compare=False)
    streaming: Callable[[], Accumulator] | None = field(default=None, compare=False)
    higher_is_better: bool = True
    unit: str = ""
    best: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise BadInput(
                f"--metric {short_text(self.name)}: a name of a metric begins with a letter and has at most"
                f" {_LONGEST_NAME} letters, digits and the signs _ . - @"
            )
        if self.name in _TAKEN:
            raise BadInput(f"--metric {self.name}: results have another column of this name; name it otherwise")
        if self.function is not None and self.streaming is not None:
            raise BadInput(f"--metric {self.name}: it has a function and an accumulator; give one of them")
        if self.unit == SHARE and self.best is None:
            object.__setattr__(self, "best", 1.0 if self.higher_is_better else 0.0)

    def __repr__(self) -> str:
        direction = "higher" if self.higher_is_better else "lower"
        return f"Metric({self.name!r}, {direction} is better{f', in {self.unit}' if self.unit else ''})"

    @property
    def is_share(self) -> bool:
        """Return whether values lie between 0 and 1 and are shown in per cent.

        >>> tarry.metrics["accuracy"]().is_share, tarry.metrics["f1"]().is_share
        (True, False)
        """
        return self.unit == SHARE

    @property
    def heading(self) -> str:
        """The name and the unit, as a column is called.

        >>> tarry.metrics["accuracy"]().heading, tarry.metrics["f1"]().heading
        ('accuracy %', 'f1')
        """
        if self.is_share:
            return f"{self.name} %"
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def sign(self) -> int:
        """1 where higher is better, else −1: the value times the sign is the better the higher it is.

        >>> tarry.metrics["accuracy"]().sign, tarry.metrics["loss"]().sign
        (1, -1)
        """
        return 1 if self.higher_is_better else -1

    def reaches(self, value: float | None, target: float) -> bool:
        """Return whether a value is as good as the target, or better.

        >>> tarry.metrics["rmse"]().reaches(2.5, 3.0), tarry.metrics["accuracy"]().reaches(0.8, 0.9)
        (True, False)
        """
        return value is not None and self.sign * value >= self.sign * target

    def text(self, value: float) -> str:
        """Return the name, the value and the unit in a few words.

        >>> tarry.metrics["accuracy"]().text(0.91234), tarry.metrics["rmse"]().text(12.3456)
        ('accuracy 0.912', 'rmse 12.35')
        """
        if self.is_share:
            return f"{self.name} {value:.3f}"
        return f"{self.name} {value:.4g}{f' {self.unit}' if self.unit else ''}"

    def number(self, value: float) -> str:
        """Return a value with its unit, as in a sentence.

        >>> tarry.metrics["accuracy"]().number(0.91234), tarry.metrics["f1"]().number(0.91234)
        ('91.2 %', '0.9123')
        """
        if self.is_share:
            return f"{100 * value:.1f} %"
        return f"{self.plain(value)}{f' {self.unit}' if self.unit else ''}"

    def plain(self, value: float) -> str:
        """Return a value as in a column of a table, whose heading has the unit.

        >>> tarry.metrics["accuracy"]().plain(0.91234), tarry.metrics["f1"]().plain(0.91234)
        ('91.2', '0.9123')
        """
        if self.is_share:
            return f"{100 * value:.1f}"
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:.5g}"

    @property
    def description(self) -> Metric:
        """The metric without what computes it: what results hold, and files.

        >>> tarry.metrics["f1"]().description == tarry.metrics["f1"]()
        True
        """
        return replace(self, function=None, streaming=None)

    def check_value(self, value: Any) -> float:
        """Return a value as a float; raise BadInput if it is not one number, or no share where it should be one.

        >>> tarry.metrics["accuracy"]().check_value(42)
        Traceback (most recent call last):
        tarry.core.errors.BadInput: --metric accuracy: it returned 42, and a share (unit "%") is between 0 and 1;
            divide a count by the number of examples
        """
        try:
            if isinstance(value, str | bytes | bool) or (isinstance(value, Tensor) and value.numel() != 1):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError) as e:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise BadInput(f"--metric {self.name}: it returned {what}; it should return one number") from e
        if self.is_share and isfinite(number) and not -1e-9 <= number <= 1 + 1e-9:
            raise BadInput(
                f'--metric {self.name}: it returned {number:g}, and a share (unit "{SHARE}") is between 0 and 1;'
                " divide a count by the number of examples"
            )
        return number


ACCURACY = Metric("accuracy", unit=SHARE)
#: the mean of the task's loss; it is recorded in any case
LOSS = Metric("loss", higher_is_better=False)


class CurvePoint(NamedTuple):
    """An evaluation of the global model: one point of `Result.curve`. `score` is the value of the first metric.

    >>> point = tarry.CurvePoint(200.0, 14, score=0.41, loss=0.66, metrics={"f1": 0.41, "auroc": 0.9, "loss": 0.66})
    >>> point.score, point.metrics["auroc"], point.accuracy
    (0.41, 0.9, None)
    """

    time: float
    updates: int
    score: float | None
    loss: float | None
    metrics: Mapping[str, float | None]  # every metric by name, the loss among them

    @property
    def accuracy(self) -> float | None:
        """The accuracy, if it was measured.

        >>> tarry.CurvePoint(200.0, 14, score=0.81, loss=0.66, metrics={"accuracy": 0.81, "loss": 0.66}).accuracy
        0.81
        """
        return self.metrics.get("accuracy")

    @classmethod
    def of(cls, time: float, updates: int, metrics: Mapping[str, float | None], first: str) -> CurvePoint:
        """Return the point of these metrics; `first` is the name of the one that is the score.

        >>> tarry.CurvePoint.of(200.0, 14, {"accuracy": 0.81, "loss": 0.66}, "loss").score
        0.66
        """
        return cls(time, updates, metrics.get(first), metrics.get("loss"), metrics)

    def to_row(self) -> list[Any]:
        """Return the point as it is stored: time, updates, accuracy, loss, and a table of the other metrics if any.

        >>> tarry.CurvePoint.of(200.0, 14, {"accuracy": 0.81, "loss": 0.66}, "accuracy").to_row()
        [200.0, 14, 0.81, 0.66]
        """
        others = other_metrics(self.metrics)
        return [self.time, self.updates, self.accuracy, self.loss, *([others] if others else [])]

    @classmethod
    def from_row(cls, row: Sequence[Any], first: str) -> CurvePoint:
        """Return the point of a stored row.

        >>> tarry.CurvePoint.from_row([200.0, 14, 0.81, 0.66, {"f1": 0.7}], "f1").metrics
        {'accuracy': 0.81, 'loss': 0.66, 'f1': 0.7}
        """
        time, updates, accuracy, loss, *others = row
        usual = {name: x for name, x in (("accuracy", accuracy), ("loss", loss)) if x is not None}
        return cls.of(time, updates, {**usual, **(others[0] if others else {})}, first)


def other_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics besides accuracy and loss, which have columns of their own in files."""
    return {name: x for name, x in metrics.items() if name not in ("accuracy", "loss")}
