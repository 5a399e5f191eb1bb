"""Small models, ordinary modules all of them.

mlp         one hidden layer
lenet5      LeCun et al. 1998 as OrthoFL trains it: no biases, average pooling, ReLU, no padding; 44,190 weights
            for 1×28×28 images of 10 classes (150 + 2,400 + 30,720 + 10,080 + 840)
cnn         McMahan et al. 2017, also FedSOL's: two padded 5×5 convolutions with max-pooling, two fully connected
            layers; 1,663,370 weights for 1×28×28 images of 10 classes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from torch import Tensor, nn

from ..core.errors import BadInput, near

__all__ = ["LeNet5", "McMahanCNN", "mlp", "model_for"]

Shape = tuple[int, ...]


def mlp(in_features: int, hidden: int, classes: int) -> nn.Sequential:
    """in_features → hidden → classes with a ReLU between; examples of any shape are flattened first."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class LeNet5(nn.Module):
    """Images of `shape` (channels, height, width), each side at least 16, to `classes` outputs."""

    smallest = 16

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10):
        super().__init__()
        channels, *sides = shape
        h, w = (((side - 4) // 2 - 4) // 2 for side in sides)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, bias=False),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5, bias=False),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * h * w, 120, bias=False),
            nn.ReLU(),
            nn.Linear(120, 84, bias=False),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class McMahanCNN(nn.Module):
    """Images of `shape` (channels, height, width), each side at least 4, to `classes` outputs."""

    smallest = 4

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10):
        super().__init__()
        channels, h, w = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (h // 4) * (w // 4), 512),
            nn.ReLU(),
        )
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


_CONVOLUTIONAL: dict[str, type[LeNet5] | type[McMahanCNN]] = {"lenet5": LeNet5, "cnn": McMahanCNN}


def model_for(name: str, shape: Shape, classes: int, *, hidden: int = 64) -> Callable[[], nn.Module]:
    """A factory (it pickles) of the model `name` for examples of `shape`; `hidden` is the mlp's layer."""
    if name == "mlp":
        if hidden < 1:
            raise BadInput(f"--task.hidden {hidden}: must be 1 or more")
        return partial(mlp, prod(shape), hidden, classes)
    if name not in _CONVOLUTIONAL:
        raise BadInput(f"--task.model {name}: there is no such model.{near(name, ['mlp', *_CONVOLUTIONAL])}")
    model = _CONVOLUTIONAL[name]
    if len(shape) != 3 or min(shape[1:]) < model.smallest:
        side = model.smallest
        raise BadInput(
            f"--task.model {name}: wants images, channels × height × width, of at least {side}×{side} pixels;"
            f" an example here is {'×'.join(map(str, shape))}. Use --task.model mlp."
        )
    return partial(model, shape, classes)
