"""ResNet-18 for time series, used by OrthoFL on human activity. After K. He et al. 2016, Deep Residual Learning for
Image Recognition.

The structure is that of OrthoFL's public code: a stem of width 7 and stride 3; four stages of two blocks of two
convolutions of width 3; between stages a convolution of stride 2 that doubles the channels, not normalized; the mean of
each half of the remaining steps; no biases. The paper does not give the number of channels:

    width 10    117,410 weights, 118,630 with batch statistics: the 119K of the paper's Table 3      the default
    width 32    1,182,496 weights, 1,186,400 with batch statistics, ten times as many: the public code

(9 channels, 6 classes.) OrthoFL's code uses batch normalization, norm=batch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from .input_checks import check_at_least, check_series_shape
from .normalization import NormKind, norm_layer
from .registry import Build, ExampleShape, models
from .resnet import Width

__all__ = ["ResNet1D"]


class ResNet1D(nn.Module):
    """Series of `shape`, channels × steps or steps × channels (the longer side is time), to `classes` outputs."""

    shortest = 31  # steps that leave two at the end, one per half

    def __init__(self, shape: ExampleShape = (9, 128), classes: int = 6, *, norm: str = "group", width: int = 10):
        super().__init__()
        self.steps_first = shape[0] > shape[1]
        layers: list[nn.Module] = [
            nn.Conv1d(min(shape), width, 7, stride=3, bias=False),
            norm_layer(norm, width, dims=1),
            nn.ReLU(),
        ]
        for stage in range(4):
            if stage > 0:
                layers += [nn.Conv1d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.ReLU()]
                width *= 2
            layers += [_ResidualBlock1D(width, norm), _ResidualBlock1D(width, norm)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.features(x.transpose(1, 2) if self.steps_first else x)
        n = z.shape[-1]
        halves = z[..., : (n + 1) // 2].mean(-1), z[..., n // 2 :].mean(-1)  # an odd middle is in both
        out: Tensor = self.head(torch.stack(halves, -1).flatten(1))
        return out


class _ResidualBlock1D(nn.Module):
    def __init__(self, width: int, norm: str):
        super().__init__()
        self.first = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.first_norm = norm_layer(norm, width, dims=1)
        self.second = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.second_norm = norm_layer(norm, width, dims=1)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(out)) + x)


@models.register("resnet18-1d", paper="He et al. 2016, Deep Residual Learning; OrthoFL's form of it for series")
def _resnet18_1d(shape: ExampleShape, classes: int, *, norm: NormKind = "group", width: Width = 10) -> Build:
    """ResNet-18 for time series, used by OrthoFL on human activity; its public code has --task.width 32."""
    check_at_least("width", width, 2)
    check_series_shape("resnet18-1d", shape, ResNet1D.shortest)
    return partial(ResNet1D, shape, classes, norm=norm, width=width)
