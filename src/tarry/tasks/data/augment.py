"""Random crop, flip and cutout as pure functions of a batch and its random numbers.

    augment(x, u) → x          x: B×C×H×W,  u: B×draws, uniform in [0, 1)

Equal u give equal images on every device. No branch depends on a value and nothing is copied to the host, so the
functions run under `torch.func.vmap` and inside a CUDA graph.

`crop_and_flip(side, black)` is the usual augmentation of CIFAR; the authors' code of OrthoFL has it.
`fedsol(name, side, black)` is the augmentation of FedSOL (Lee et al. 2024, App. B.2), in this order:
    crop      a window of the image's size from the image padded with black (CINIC-10: mirrored at its edge)
    flip      left to right with probability ½
    cutout    set a square around a random pixel to 0, the mean, within the image (DeVries, Taylor 2017)
The paper gives no sizes. 4 pixels of padding and 16 of cutout are those of the authors' code. Against the paper, the
code also applies cutout to MNIST; here the paper is followed. Sets that FedSOL does not train on are treated like the
most similar one: Fashion-MNIST and FEMNIST like MNIST; CIFAR-100, STL10 and Tiny-ImageNet like CIFAR-10, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Augment", "crop_and_flip", "fedsol"]


@dataclass(frozen=True)
class Augment:
    """Crop (if `pad`), flip (if `flip`), cutout (if `hole`), in this order. A disabled step uses no random numbers."""

    pad: int = 0  # pixels around the image that a crop may reach into
    flip: bool = False
    hole: int = 0  # side of the square that is cut out
    fill: tuple[float, ...] = (0.0,)  # what lies around the image, for every channel (or one for all)
    mirror: bool = False  # the image mirrored at its edge lies around it instead

    @property
    def n_draws(self) -> int:
        """Number of uniform random numbers per image."""
        return 2 * (self.pad > 0) + self.flip + 2 * (self.hole > 0)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        rows = torch.arange(height, device=x.device).expand(len(x), -1)
        columns = torch.arange(width, device=x.device).expand(len(x), -1)
        drawn = iter(u.unbind(1))
        if self.pad:
            rows = rows + _pick(next(drawn), 2 * self.pad + 1)[:, None] - self.pad
            columns = columns + _pick(next(drawn), 2 * self.pad + 1)[:, None] - self.pad
        if self.flip:
            columns = torch.where(next(drawn)[:, None] < 0.5, columns.flip(1), columns)
        if self.pad or self.flip:
            x = self._gather(x, rows, columns)
        if self.hole:
            x = _cutout(x, _pick(next(drawn), height), _pick(next(drawn), width), self.hole)
        return x

    def _gather(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the pixels of x at these rows and columns; pixels outside the image get the fill value."""
        height, width = x.shape[-2:]
        is_outside = _is_outside(rows, height)[:, None, :, None] | _is_outside(columns, width)[:, None, None, :]
        place = _reflect(rows, height)[:, :, None] * width + _reflect(columns, width)[:, None, :]
        index = place.flatten(1)[:, None].expand(-1, x.shape[1], -1)
        shifted = x.flatten(2).gather(2, index).view(x.shape)
        if self.mirror or not self.pad:
            return shifted
        # no copy from the host: a graph may record it
        fill = torch.cat([x.new_full((1,), value) for value in self.fill])
        return torch.where(is_outside, fill[:, None, None], shifted)


def crop_and_flip(side: int, black: tuple[float, ...]) -> Augment:
    """Return a crop from the image padded by an eighth of its side, 4 pixels of 32, and a flip."""
    return Augment(side // 8, flip=True, fill=black)


def fedsol(name: str, side: int, black: tuple[float, ...]) -> Augment:
    """Return FedSOL's augmentation for the set `name` with images of this side; `black` is a normalized black pixel."""
    pad = side // 8 if side > 32 else 4
    if name in ("pathmnist", "tissuemnist"):
        return Augment(flip=True)
    if name == "cinic10":
        return Augment(pad, flip=True, mirror=True)
    hole = side // 2 if name in ("cifar10", "cifar100", "stl10", "tiny_imagenet") else 0
    return Augment(pad, flip=True, hole=hole, fill=black)


def _pick(u: Tensor, n: int) -> Tensor:
    """Return integers 0 … n − 1 from numbers in [0, 1). The product may round up to n, hence the clamp."""
    return (u * n).floor().clamp(0, n - 1).long()


def _is_outside(at: Tensor, n: int) -> Tensor:
    return (at < 0) | (at >= n)


def _reflect(at: Tensor, n: int) -> Tensor:
    """Return indices reflected at the edge pixels as often as needed: −1 becomes 1, n becomes n − 2."""
    there_and_back = max(2 * (n - 1), 1)
    at = at % there_and_back
    return torch.where(at >= n, there_and_back - at, at)


def _cutout(x: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Set the rows and columns from center − side/2 up to (not including) center + side/2 to 0."""
    hit = []
    for center, n in ((row, x.shape[-2]), (column, x.shape[-1])):
        distance = torch.arange(n, device=x.device) - center[:, None]
        hit.append((distance >= -(side // 2)) & (distance < side // 2))
    inside = hit[0][:, None, :, None] & hit[1][:, None, None, :]
    return x.masked_fill(inside, 0)
