"""Check that a model fits the examples. Error messages suggest another model."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import interpolate

from ...core.errors import BadInput
from .registry import ExampleShape

__all__ = ["Enlarged", "check_at_least", "check_image_shape", "check_series_shape", "check_token_shape"]


def check_at_least(flag: str, value: float, least: int) -> None:
    """Raise BadInput if the value of a flag is below its minimum."""
    if value < least:
        raise BadInput(f"--task.{flag} {value}: must be {least} or more")


def check_image_shape(name: str, shape: ExampleShape, smallest: int) -> ExampleShape:
    """Return the shape of an image. Raise BadInput for another shape or sides below `smallest` pixels."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
        raise BadInput(
            f"--task.model {name}: requires images, channels × height × width, of at least {smallest}×{smallest}"
            f" pixels; an example of this task is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return shape


def check_series_shape(name: str, shape: ExampleShape, shortest: int) -> tuple[int, int]:
    """Return channels and steps of a series. Both orders are accepted: the longer side is time."""
    if len(shape) != 2 or min(shape) < 1 or max(shape) < shortest:
        raise BadInput(
            f"--task.model {name}: requires series, channels × steps or steps × channels, of at least {shortest}"
            f" steps; an example of this task is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return min(shape), max(shape)


def check_token_shape(name: str, shape: ExampleShape, shortest: int) -> int:
    """Return the length of a text in tokens."""
    if len(shape) != 1 or shape[0] < shortest:
        raise BadInput(
            f"--task.model {name}: requires texts as lists of at least {shortest} token numbers, padded with 0;"
            f" an example of this task is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return shape[0]


def _describe(shape: ExampleShape) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _suggest(shape: ExampleShape) -> str:
    if len(shape) == 3 and min(shape[1:]) >= 4:
        return "--task.model mlp or cnn"
    return "--task.model mlp"


class Enlarged(nn.Module):
    """Enlarge images smaller than `side` to side × side by nearest-neighbor interpolation. Larger images do not change.

    FedSOL (App. B.1) enlarges 28×28 to 32×32 in this way for models that halve an image five times.
    """

    def __init__(self, shape: ExampleShape, side: int):
        super().__init__()
        h, w = shape[1:]
        self.sides = (max(h, side), max(w, side))
        self.needed = self.sides != (h, w)

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.sides, mode="nearest") if self.needed else x
