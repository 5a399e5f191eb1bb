"""Small models.

mlp         one hidden layer
lenet5      LeCun et al. 1998 as OrthoFL trains it: no biases, average pooling, ReLU, no padding; 44,190 weights
            for 1×28×28 images of 10 classes (150 + 2,400 + 30,720 + 10,080 + 840)
cnn         McMahan et al. 2017, also FedSOL's: two padded 5×5 convolutions with max-pooling, two fully connected
            layers; 1,663,370 weights for 1×28×28 images of 10 classes
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Annotated

from torch import Tensor, nn

from .input_checks import check_at_least, check_image_shape
from .registry import Build, ExampleShape, models

__all__ = ["LeNet5", "McMahanCNN", "mlp"]


def mlp(in_features: int, hidden: int, classes: int) -> nn.Sequential:
    """in_features → hidden → classes with a ReLU between; examples of any shape are flattened first."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class LeNet5(nn.Module):
    """Images of `shape` (channels, height, width), each side at least 16, to `classes` outputs."""

    smallest = 16

    def __init__(self, shape: ExampleShape = (1, 28, 28), classes: int = 10):
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

    def __init__(self, shape: ExampleShape = (1, 28, 28), classes: int = 10):
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


@models.register("mlp")
def _mlp(
    shape: ExampleShape, classes: int, *, hidden: Annotated[int, "Number of units of the hidden layer"] = 64
) -> Build:
    """One hidden layer, for examples of any shape."""
    check_at_least("hidden", hidden, 1)
    return partial(mlp, prod(shape), hidden, classes)


@models.register("lenet5", paper="LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition")
def _lenet5(shape: ExampleShape, classes: int) -> Build:
    """LeNet5 without biases, as OrthoFL trains it on MNIST."""
    return partial(LeNet5, check_image_shape("lenet5", shape, LeNet5.smallest), classes)


@models.register("cnn", paper="McMahan et al. 2017, Communication-Efficient Learning from Decentralized Data")
def _cnn(shape: ExampleShape, classes: int) -> Build:
    """FedAvg's convolutional network: two convolutions, two fully connected layers."""
    return partial(McMahanCNN, check_image_shape("cnn", shape, McMahanCNN.smallest), classes)
