"""ResNet-18 and ResNet-34 for small images. K. He, X. Zhang, S. Ren, J. Sun 2016, Deep Residual Learning for Image
Recognition.

Four stages of blocks of two 3×3 convolutions, of 64, 128, 256, 512 channels. A block that halves the image has a 1×1
convolution in its shortcut. The stem is one 3×3 convolution without max-pooling: stride 1 for images below 64×64
(CIFAR's 32×32 reach the last stage as 4×4), stride 2 from 64×64 on (Tiny-ImageNet), so that a 64×64 image costs as
much as one of 32×32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from torch import Tensor, nn
from torch.nn.functional import relu

from .input_checks import check_at_least, check_image_shape
from .normalization import NormKind, norm_layer
from .registry import Build, ExampleShape, models

__all__ = ["ResNet"]

Width = Annotated[int, "Number of channels of the first stage; each later stage has twice as many"]
_LARGE = 64  # pixels per side from which the stem halves the image


class ResNet(nn.Module):
    """Images of `shape` (channels, height, width) to `classes` outputs; `blocks` in each of the four stages."""

    smallest = 8

    def __init__(
        self,
        blocks: Sequence[int],
        shape: ExampleShape = (3, 32, 32),
        classes: int = 10,
        *,
        norm: str = "group",
        width: int = 64,
    ):
        super().__init__()
        stride = 2 if min(shape[1:]) >= _LARGE else 1
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, stride=stride, padding=1, bias=False), norm_layer(norm, width), nn.ReLU()
        )
        channels, stages = width, []
        for i, n in enumerate(blocks):
            for k in range(n):
                stages.append(_ResidualBlock(channels, width << i, stride=2 if i > 0 and k == 0 else 1, norm=norm))
                channels = width << i
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return out


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, width: int, *, stride: int, norm: str):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = norm_layer(norm, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = norm_layer(norm, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            across = nn.Conv2d(channels, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(across, norm_layer(norm, width))

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(out)) + self.shortcut(x))


_HE = "He et al. 2016, Deep Residual Learning for Image Recognition"


@models.register("resnet18", paper=_HE)
def _resnet18(shape: ExampleShape, classes: int, *, norm: NormKind = "group", width: Width = 64) -> Build:
    """ResNet-18 for small images, used on CIFAR by FedEcho, FedSOL and Fed-OGD."""
    return _resnet("resnet18", (2, 2, 2, 2), shape, classes, norm, width)


@models.register("resnet34", paper=_HE)
def _resnet34(shape: ExampleShape, classes: int, *, norm: NormKind = "group", width: Width = 64) -> Build:
    """ResNet-34 for small images, used on Tiny-ImageNet by Fed-OGD."""
    return _resnet("resnet34", (3, 4, 6, 3), shape, classes, norm, width)


def _resnet(name: str, blocks: tuple[int, ...], shape: ExampleShape, classes: int, norm: str, width: int) -> Build:
    check_at_least("width", width, 2)
    return partial(ResNet, blocks, check_image_shape(name, shape, ResNet.smallest), classes, norm=norm, width=width)
