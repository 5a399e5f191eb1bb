"""Whether a model fits the examples: what does not is refused, with a way out."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import interpolate

from ...core.errors import BadInput
from .registry import ExampleShape

__all__ = ["Enlarged", "check_at_least", "check_image_shape", "check_series_shape", "check_token_shape"]


def check_at_least(flag: str, value: float, least: int) -> None:
    if value < least:
        raise BadInput(f"--task.{flag} {value}: must be {least} or more")


def check_image_shape(name: str, shape: ExampleShape, smallest: int) -> ExampleShape:
    """Channels, height, width."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
        raise BadInput(
            f"--task.model {name}: wants images, channels × height × width, of at least {smallest}×{smallest} pixels;"
            f" an example here is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return shape


def check_series_shape(name: str, shape: ExampleShape, shortest: int) -> tuple[int, int]:
    """Channels and steps of a series, which may be stored either way round: the longer side is time."""
    if len(shape) != 2 or min(shape) < 1 or max(shape) < shortest:
        raise BadInput(
            f"--task.model {name}: wants series, channels × steps or steps × channels, of at least {shortest} steps;"
            f" an example here is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return min(shape), max(shape)


def check_token_shape(name: str, shape: ExampleShape, shortest: int) -> int:
    """The length of a text."""
    if len(shape) != 1 or shape[0] < shortest:
        raise BadInput(
            f"--task.model {name}: wants texts as lists of at least {shortest} token numbers, padded with 0;"
            f" an example here is {_describe(shape)}. Use {_suggest(shape)}."
        )
    return shape[0]


def _describe(shape: ExampleShape) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _suggest(shape: ExampleShape) -> str:
    if len(shape) == 3 and min(shape[1:]) >= 4:
        return "--task.model mlp or cnn"
    return "--task.model mlp"


class Enlarged(nn.Module):
    """Images smaller than `side` become side × side, each pixel its nearest one's value; larger ones stay as they are.

    FedSOL (App. B.1) makes 32×32 out of 28×28 in this way for models that halve an image five times.
    """

    def __init__(self, shape: ExampleShape, side: int):
        super().__init__()
        h, w = shape[1:]
        self.sides = (max(h, side), max(w, side))
        self.needed = self.sides != (h, w)

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.sides, mode="nearest") if self.needed else x
