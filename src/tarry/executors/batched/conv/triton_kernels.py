"""Triton kernels for convolutions of a stack of clients, each with its own filters, on a GPU.

To cuDNN such a convolution is one of many groups, for which its kernels are slow. Here the inputs of a filter at a
place form a row, as in im2col, channels innermost; a tile of such rows is read directly from the images and multiplied:

    correlate            [places, row] × [row, outputs]
    correlate_filters    [row, places] × [places, outputs]     by runs of places, which are summed afterwards

Tensor cores need the summed dimension to be contiguous: channels are last for the first kernel; for the second, which
sums over places, examples are, because filters then move by whole runs of examples. Images are padded already. `how` is
the precision of products: tf32; tf32x3, three of these for single precision; or ieee.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ....core.errors import first_line
from ..trace import NotStackable

__all__ = ["Tile", "correlate", "correlate_filters"]

_ENOUGH = 1024  # programs that keep a GPU busy
_SHORTEST = 512  # places, at least, of a program
_LONG = 256  # length of a row


class Tile(NamedTuple):
    """The block sizes of a program."""

    places: int
    outputs: int
    row: int
    warps: int = 4
    stages: int = 3


@triton.jit
def _correlate(
    x, w, out, n_places,
    AT: tl.constexpr, ACROSS: tl.constexpr, SIDE: tl.constexpr,  # places of an image, of a line; columns of a place
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    WIDTH: tl.constexpr, K: tl.constexpr,  # of a filter; of a row
    BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    who = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    here, r = p < n_places, p % AT
    first = (((p // AT) * H + r // ACROSS) * W + (r % ACROSS) * SIDE) * I
    xs = x + who * (n_places // AT) * (H * W * I) + first[:, None]
    ws = w + who * (O * K) + o[None, :] * K
    total = tl.zeros((BP, BO), dtype=tl.float32)
    for s in range((K + BK - 1) // BK):
        k = s * BK + tl.arange(0, BK)
        tap = k // I
        at = ((tap // WIDTH) * W + tap % WIDTH) * I + k % I
        a = tl.load(xs + at[None, :], mask=here[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(ws + k[:, None], mask=(k < K)[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=HOW)
    ys = out + who * n_places * O + p[:, None] * O + o[None, :]
    tl.store(ys, total, mask=here[:, None] & (o < O)[None, :])


@triton.jit
def _correlate_filters(
    x, g, out,
    N: tl.constexpr, AT: tl.constexpr, ACROSS: tl.constexpr,  # examples; places of an image, of a line
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    WIDTH: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,  # of a part
    BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    who, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    n_tiles: tl.constexpr = (K + BK - 1) // BK
    o = (tl.program_id(0) // n_tiles) * BO + tl.arange(0, BO)
    k = (tl.program_id(0) % n_tiles) * BK + tl.arange(0, BK)
    tap = k // I
    at = ((k % I) * H + tap // WIDTH) * W + tap % WIDTH
    xs = x + who * (I * H * W * N) + (at * N)[:, None]
    gs = g + who * (O * AT * N) + (o * (AT * N))[:, None]
    total = tl.zeros((BK, BO), dtype=tl.float32)
    for s in range(STEPS):
        p = (part * STEPS + s) * BP + tl.arange(0, BP)  # place by place, and there example by example
        here, r = p < AT * N, p // N
        first = ((r // ACROSS) * W + r % ACROSS) * N + p % N
        a = tl.load(xs + first[None, :], mask=(k < K)[:, None] & here[None, :], other=0.0)
        b = tl.load(gs + p[None, :], mask=(o < O)[:, None] & here[None, :], other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=HOW)
    ys = out + (part * tl.num_programs(2) + who) * (O * K) + o[None, :] * K + k[:, None]
    tl.store(ys, total, mask=(k < K)[:, None] & (o < O)[None, :])


def correlate(x: Tensor, w: Tensor, size: tuple[int, int], side: int, how: str, tile: Tile | None = None) -> Tensor:
    """[clients, examples, height, width, inputs] with [clients, outputs, row] → […, down, across, outputs]

    A place is `side` columns wide: filters of so many more columns, and outputs for each of its columns.
    """
    clients, n, h, width, inputs = x.shape
    outputs, down, across = w.shape[1], h - size[0] + 1, (width - size[1]) // side + 1
    out = x.new_empty(clients, n, down, across, outputs)
    places, row = n * down * across, w.shape[2]
    tile = tile or Tile(128, _power(outputs, 16, 64), 32)
    grid = (triton.cdiv(places, tile.places), triton.cdiv(outputs, tile.outputs), clients)
    sizes = (down * across, across, side, h, width, inputs, outputs, size[1], row)
    _launch(_correlate, grid, tile, how, x.contiguous(), w.contiguous(), out, places, *sizes)
    return out


def correlate_filters(x: Tensor, grad: Tensor, size: tuple[int, int], how: str, tile: Tile | None = None) -> Tensor:
    """The filters' gradient: [clients, inputs, height, width, examples] with [clients, outputs, down, across, examples]
    → [clients, outputs, row]
    """
    clients, inputs, h, width, n = x.shape
    outputs, down, across = grad.shape[1:4]
    places, row = n * down * across, size[0] * size[1] * inputs
    if tile is None:
        tile = Tile(32, _power(outputs, 16, 64), *((64, 4) if row < _LONG else (128, 8 if how == "tf32x3" else 4)))
    tiles = triton.cdiv(outputs, tile.outputs) * triton.cdiv(row, tile.row)
    parts = max(1, min(places // _SHORTEST, _ENOUGH // (tiles * clients)))
    steps = triton.cdiv(places, parts * tile.places)
    parts = triton.cdiv(places, steps * tile.places)
    out = x.new_empty(parts, clients, outputs, row)
    sizes = (n, down * across, across, h, width, inputs, outputs, size[1], row, steps)
    _launch(_correlate_filters, (tiles, parts, clients), tile, how, x.contiguous(), grad.contiguous(), out, *sizes)
    return out[0] if parts == 1 else out.sum(0)


def _launch(kernel: Any, grid: tuple[int, int, int], tile: Tile, how: str, *args: Any) -> None:
    blocks = (tile.places, tile.outputs, tile.row)
    try:
        kernel[grid](*args, *blocks, how, num_warps=tile.warps, num_stages=tile.stages)
    except Exception as e:  # a GPU with less shared memory, or without such products
        raise NotStackable(f"Triton cannot compile this kernel here ({type(e).__name__}: {first_line(e)})") from e


def _power(n: int, least: int, most: int) -> int:
    """Return the next power of two, within bounds."""
    return min(max(int(triton.next_power_of_2(n)), least), most)
