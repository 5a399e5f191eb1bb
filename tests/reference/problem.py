"""A small regression shared out to clients, twice: as a torch module for the library, and by hand in numpy.

    z = (x U) ⊙ g,   o = z·v + c,   loss = ½ mean (o − y)²      four layers: U, v, c and g

g belongs to a normalization module (used as a bare scale), so a method that treats such layers apart is seen doing it.
A blind client's inputs are all 0: only its c has a gradient, so three of its layers never move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import tarry
from tests.helpers.models import half_mean_square

Vec = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """One tensor's stretch of the flat weights."""

    at: slice
    norm: bool = False


class Net(nn.Module):
    def __init__(self, U: Vec, v: Vec, c: Vec, g: Vec):
        super().__init__()
        self.U = nn.Parameter(torch.from_numpy(U.copy()))
        self.v = nn.Parameter(torch.from_numpy(v.copy()))
        self.c = nn.Parameter(torch.from_numpy(c.copy()))
        self.norm = nn.LayerNorm(len(g), bias=False, dtype=torch.float64)
        self.norm.weight.data = torch.from_numpy(g.copy())

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.U) * self.norm.weight) @ self.v + self.c


@dataclass(frozen=True)
class Problem:
    """Inputs (n × p) and targets (n) of every client; first weights, flat; p inputs, h hidden."""

    p: int
    h: int
    data: Sequence[tuple[Vec, Vec]]
    w0: Vec

    @classmethod
    def draw(cls, seed: int, *, p: int, h: int, sizes: Sequence[int], blind: bool = False) -> Problem:
        rng = np.random.default_rng(seed)
        data = []
        for n in sizes:
            x, truth = rng.uniform(-1, 1, size=(n, p)), rng.normal(size=p)  # every client has a truth of its own
            data.append((x, x @ truth + rng.normal()))
        if blind:
            x, y = data[0]
            data[0] = (np.zeros_like(x), y)
        return cls(p, h, data, rng.uniform(-1, 1, size=p * h + h + 1 + h))

    @property
    def sizes(self) -> list[int]:
        return [len(y) for _, y in self.data]

    @property
    def layers(self) -> list[Layer]:
        ends = np.cumsum([0, self.p * self.h, self.h, 1, self.h])
        at = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        return [Layer(at[0]), Layer(at[1]), Layer(at[2]), Layer(at[3], norm=True)]

    def parts(self, w: Vec) -> tuple[Vec, Vec, Vec, Vec]:
        U, v, c, g = (w[layer.at] for layer in self.layers)
        return U.reshape(self.p, self.h), v, c, g

    def gradient(self, m: int, w: Vec) -> Vec:
        """Of client m's loss, by the chain rule."""
        (x, y), (U, v, c, g) = self.data[m], self.parts(w)
        hidden = x @ U
        z = hidden * g
        r = (z @ v + c - y) / len(y)
        dz = np.outer(r, v)
        return np.concatenate([(x.T @ (dz * g)).ravel(), z.T @ r, [r.sum()], (dz * hidden).sum(axis=0)])

    def task(self) -> tarry.Task:
        clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.data]
        return tarry.Task(
            "twin", model=Net(*self.parts(self.w0)), loss=half_mean_square, clients=clients, metrics=["loss"]
        )
