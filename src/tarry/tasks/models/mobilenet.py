"""MobileNetV2 for small images. M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen 2018, MobileNetV2: Inverted
Residuals and Linear Bottlenecks.

The structure is that of OrthoFL's public code for CIFAR-100, 2.4M (2,412,112) weights: the stem and the second stage do
not halve a 32×32 image; ReLU replaces the paper's ReLU6; a block of stride 1 that changes the number of channels has a
1×1 convolution as shortcut, where the paper has none; no bias in the head. That code uses batch normalization,
norm=batch. From 64×64 pixels on, the stem halves the image, as in the paper.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from .input_checks import check_image_shape
from .normalization import NormKind, norm_layer
from .registry import Build, ExampleShape, models

__all__ = ["MobileNetV2"]

#: Table 2 of the paper: expansion t, channels c, blocks n, stride s of the first (the second stage's is 1, not 2)
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_FIRST, _LAST = 32, 1280
_LARGE = 64  # pixels per side from which the stem halves the image


class MobileNetV2(nn.Module):
    """Images of `shape` (channels, height, width) to `classes` outputs."""

    smallest = 8

    def __init__(self, shape: ExampleShape = (3, 32, 32), classes: int = 100, *, norm: str = "group"):
        super().__init__()
        stride = 2 if min(shape[1:]) >= _LARGE else 1
        layers: list[nn.Module] = [
            nn.Conv2d(shape[0], _FIRST, 3, stride=stride, padding=1, bias=False),
            norm_layer(norm, _FIRST),
            nn.ReLU(),
        ]
        channels = _FIRST
        for t, c, n, s in _STAGES:
            for k in range(n):
                layers.append(_InvertedResidual(channels, c, expansion=t, stride=s if k == 0 else 1, norm=norm))
                channels = c
        layers += [nn.Conv2d(channels, _LAST, 1, bias=False), norm_layer(norm, _LAST), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(_LAST, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).mean((2, 3)))
        return out


class _InvertedResidual(nn.Module):
    """Inverted residual block: widen by `expansion`, depthwise 3×3 convolution, narrow again without a ReLU."""

    def __init__(self, channels: int, out: int, *, expansion: int, stride: int, norm: str):
        super().__init__()
        wide = expansion * channels
        self.expand = nn.Conv2d(channels, wide, 1, bias=False)
        self.expand_norm = norm_layer(norm, wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False)
        self.depthwise_norm = norm_layer(norm, wide)
        self.project = nn.Conv2d(wide, out, 1, bias=False)
        self.project_norm = norm_layer(norm, out)
        self.shortcut: nn.Module | None = None
        if stride == 1:
            same = channels == out
            self.shortcut = (
                nn.Identity() if same else nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), norm_layer(norm, out))
            )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = relu(self.expand_norm(self.expand(x)))
        z = relu(self.depthwise_norm(self.depthwise(z)))
        z = self.project_norm(self.project(z))  # no ReLU: a linear bottleneck
        return z if self.shortcut is None else z + self.shortcut(x)


@models.register("mobilenetv2", paper="Sandler et al. 2018, MobileNetV2: Inverted Residuals and Linear Bottlenecks")
def _mobilenetv2(shape: ExampleShape, classes: int, *, norm: NormKind = "group") -> Build:
    """MobileNetV2 for small images, used by OrthoFL on CIFAR-100."""
    return partial(MobileNetV2, check_image_shape("mobilenetv2", shape, MobileNetV2.smallest), classes, norm=norm)
