"""Numba kernels for convolutions with few channels on a CPU, for a stack of clients, each with its own filters.

CPU libraries vectorize over sixteen channels, so images with one or six channels use a small part of a register. Here
examples are innermost, [clients, channels, height, width × examples]: the inputs of a tap along a line of places are
one contiguous run, and those of the next tap are the same run, shifted.

    correlate            a line of outputs is a sum of such runs
    correlate_filters    the gradient of a tap is a product of two of them

Two outputs and up to five taps are computed at a time, so that a number that is read serves ten products. Lines above
and below an image are skipped; left and right of it there is padding already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_HOW: Any = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


@njit(**_HOW)
def correlate(x, w, out, n, up):
    """[c, inputs, lines, run] with [c, outputs, inputs, height, width], `up` lines of padding → [c, outputs, …]"""
    clients, outputs, inputs, height, width = w.shape
    lines, spare = x.shape[2], np.empty(out.shape[3], x.dtype)
    for c in range(clients):
        for o in range(0, outputs, 2):
            p = min(o + 1, outputs - 1)
            for h in range(out.shape[2]):
                y = out[c, o, h]
                z = out[c, p, h] if p > o else spare
                y[:] = 0
                z[:] = 0
                for i in range(inputs):
                    for a in range(max(0, up - h), min(height, lines + up - h)):
                        run, k = x[c, i, h + a - up], 0
                        while k + 5 <= width:
                            _five(y, z, run[k * n :], n, w[c, o, i, a, k:], w[c, p, i, a, k:])
                            k += 5
                        while k + 3 <= width:
                            _three(y, z, run[k * n :], n, w[c, o, i, a, k:], w[c, p, i, a, k:])
                            k += 3
                        while k < width:
                            _one(y, z, run[k * n :], w[c, o, i, a, k], w[c, p, i, a, k])
                            k += 1


@njit(**_HOW)
def correlate_filters(x, g, out, n, up):
    """[c, inputs, lines, run] with [c, outputs, lines, run] → [c, outputs, inputs, height, width]"""
    clients, outputs, inputs, height, width = out.shape
    for c in range(clients):
        for o in range(0, outputs, 2):
            p = min(o + 1, outputs - 1)
            for i in range(inputs):
                for a in range(height):
                    k = 0
                    while k + 5 <= width:
                        _five_taps(x[c, i], g[c, o], g[c, p], out[c, o, i, a, k:], out[c, p, i, a, k:], n, a - up, k)
                        k += 5
                    while k + 3 <= width:
                        _three_taps(x[c, i], g[c, o], g[c, p], out[c, o, i, a, k:], out[c, p, i, a, k:], n, a - up, k)
                        k += 3
                    while k < width:
                        _one_tap(x[c, i], g[c, o], g[c, p], out[c, o, i, a, k:], out[c, p, i, a, k:], n, a - up, k)
                        k += 1


@njit(inline="always", **_HOW)
def _five(y, z, x, n, a, b):
    a0, a1, a2, a3, a4 = a[0], a[1], a[2], a[3], a[4]
    b0, b1, b2, b3, b4 = b[0], b[1], b[2], b[3], b[4]
    x1, x2, x3, x4 = x[n:], x[2 * n :], x[3 * n :], x[4 * n :]
    for v in range(len(y)):
        p, q, r, s, t = x[v], x1[v], x2[v], x3[v], x4[v]
        y[v] += a0 * p + a1 * q + a2 * r + a3 * s + a4 * t
        z[v] += b0 * p + b1 * q + b2 * r + b3 * s + b4 * t


@njit(inline="always", **_HOW)
def _three(y, z, x, n, a, b):
    a0, a1, a2, b0, b1, b2 = a[0], a[1], a[2], b[0], b[1], b[2]
    x1, x2 = x[n:], x[2 * n :]
    for v in range(len(y)):
        p, q, r = x[v], x1[v], x2[v]
        y[v] += a0 * p + a1 * q + a2 * r
        z[v] += b0 * p + b1 * q + b2 * r


@njit(inline="always", **_HOW)
def _one(y, z, x, a, b):
    for v in range(len(y)):
        y[v] += a * x[v]
        z[v] += b * x[v]


@njit(inline="always", **_HOW)
def _five_taps(x, g, f, to, other, n, down, k):
    a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = x.dtype.type(0)
    for h in range(max(0, -down), min(g.shape[0], x.shape[0] - down)):
        y, z, x0 = g[h], f[h], x[h + down][k * n :]
        x1, x2, x3, x4 = x0[n:], x0[2 * n :], x0[3 * n :], x0[4 * n :]
        for v in range(len(y)):
            d, e, p, q, r, s, t = y[v], z[v], x0[v], x1[v], x2[v], x3[v], x4[v]
            a0 += d * p
            a1 += d * q
            a2 += d * r
            a3 += d * s
            a4 += d * t
            b0 += e * p
            b1 += e * q
            b2 += e * r
            b3 += e * s
            b4 += e * t
    to[0], to[1], to[2], to[3], to[4] = a0, a1, a2, a3, a4
    other[0], other[1], other[2], other[3], other[4] = b0, b1, b2, b3, b4


@njit(inline="always", **_HOW)
def _three_taps(x, g, f, to, other, n, down, k):
    a0 = a1 = a2 = b0 = b1 = b2 = x.dtype.type(0)
    for h in range(max(0, -down), min(g.shape[0], x.shape[0] - down)):
        y, z, x0 = g[h], f[h], x[h + down][k * n :]
        x1, x2 = x0[n:], x0[2 * n :]
        for v in range(len(y)):
            d, e, p, q, r = y[v], z[v], x0[v], x1[v], x2[v]
            a0 += d * p
            a1 += d * q
            a2 += d * r
            b0 += e * p
            b1 += e * q
            b2 += e * r
    to[0], to[1], to[2] = a0, a1, a2
    other[0], other[1], other[2] = b0, b1, b2


@njit(inline="always", **_HOW)
def _one_tap(x, g, f, to, other, n, down, k):
    a = b = x.dtype.type(0)
    for h in range(max(0, -down), min(g.shape[0], x.shape[0] - down)):
        y, z, run = g[h], f[h], x[h + down][k * n :]
        for v in range(len(y)):
            a += y[v] * run[v]
            b += z[v] * run[v]
    to[0], other[0] = a, b
