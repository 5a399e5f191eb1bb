"""VGG-11 for small images. K. Simonyan, A. Zisserman 2014, Very Deep Convolutional Networks for Large-Scale Image
Recognition, configuration A: eight 3×3 convolutions, five halvings, then fully connected layers.

The two papers that use it for 32×32 images have the same eight convolutions, but different layers after them:

    OrthoFL     normalized convolutions, only the head, no biases anywhere    9.2M (9,228,352)    the default
    FedSOL      plain convolutions, two layers of 512 before the head, biases  9,750,922           norm=none, hidden=512

(according to their authors' public code; OrthoFL's uses batch normalization, norm=batch.) Images below 32×32 are
enlarged, as FedSOL does with 28×28. For larger images, the mean over the remaining pixels goes into the head.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from torch import Tensor, nn

from .input_checks import Enlarged, check_at_least, check_image_shape
from .normalization import norm_layer
from .registry import Build, ExampleShape, models

__all__ = ["VGG11"]

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a halving after each


class VGG11(nn.Module):
    """Images of `shape` (channels, height, width) to `classes` outputs."""

    smallest = 16

    def __init__(self, shape: ExampleShape = (3, 32, 32), classes: int = 10, *, norm: str = "group", hidden: int = 0):
        super().__init__()
        bias, channels = norm == "none", shape[0]
        layers: list[nn.Module] = [Enlarged(shape, 32)]
        for stage in _STAGES:
            for width in stage:
                layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=bias))
                if norm != "none":
                    layers.append(norm_layer(norm, width))
                layers.append(nn.ReLU())
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        between: list[nn.Module] = []
        for width in (hidden, hidden) if hidden else ():
            between += [nn.Linear(channels, width), nn.ReLU()]
            channels = width
        self.between = nn.Sequential(*between)
        self.head = nn.Linear(channels, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.between(self.features(x).mean((2, 3))))
        return out


@models.register("vgg11", paper="Simonyan & Zisserman 2014, Very Deep Convolutional Networks")
def _vgg11(
    shape: ExampleShape,
    classes: int,
    *,
    norm: Annotated[Literal["group", "batch", "none"], "Normalization after each convolution"] = "group",
    hidden: Annotated[
        int, "Number of units of the two layers before the head; 0 leaves them out (FedSOL: 512, with norm none)"
    ] = 0,
) -> Build:
    """VGG-11 for small images, used on CIFAR-10 by OrthoFL and, with other options, by FedSOL."""
    check_at_least("hidden", hidden, 0)
    return partial(VGG11, check_image_shape("vgg11", shape, VGG11.smallest), classes, norm=norm, hidden=hidden)
