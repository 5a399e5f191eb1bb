"""Numba kernels over model vectors: one pass over memory for what torch does in several.

Every kernel goes over the pieces first … last − 1 of its vectors (vector.fused), so that threads can share them. Sums
are kept by piece, so they do not depend on the number of threads. Results are those of torch up to rounding: sums have
another order, and products are added unrounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_HOW: Any = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


@njit(**_HOW)
def shift_weights(first, last, starts, stops, w, anchor, delta, sent, out, along, size):
    """out = sent + (w − anchor); by piece (w − anchor)·delta and delta·delta."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        W, A, D, S, Y = w[i:j], anchor[i:j], delta[i:j], sent[i:j], out[i:j]
        a = b = w.dtype.type(0)
        for k in range(len(W)):
            shift, d = W[k] - A[k], D[k]
            Y[k] = S[k] + shift
            a += shift * d
            b += d * d
        along[p], size[p] = a, b


@njit(**_HOW)
def shift_and_mix(first, last, starts, stops, w, anchor, delta, sent, out, t, new, along, size):
    """The same, and new = w + t (sent + delta − w)."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        W, A, D, S, Y, N = w[i:j], anchor[i:j], delta[i:j], sent[i:j], out[i:j], new[i:j]
        a = b = w.dtype.type(0)
        for k in range(len(W)):
            x, s, d = W[k], S[k], D[k]
            shift = x - A[k]
            Y[k] = s + shift
            N[k] = x + t * (s + d - x)
            a += shift * d
            b += d * d
        along[p], size[p] = a, b


@njit(**_HOW)
def accumulate(first, last, starts, stops, out, vec, share):
    """out += share vec, `share` by piece; from the last, which is still in the cache."""
    for p in range(last - 1, first - 1, -1):
        i, j = starts[p], stops[p]
        Y, V, s = out[i:j], vec[i:j], share[p]
        for k in range(len(Y)):
            Y[k] += s * V[k]


@njit(**_HOW)
def compute_drift(first, last, starts, stops, w, sent, delta, out, along, size, own):
    """out = w − sent; by piece out·delta, out·out and delta·delta."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        W, S, D, Y = w[i:j], sent[i:j], delta[i:j], out[i:j]
        a = b = c = w.dtype.type(0)
        for k in range(len(W)):
            g, d = W[k] - S[k], D[k]
            Y[k] = g
            a += g * d
            b += g * g
            c += d * d
        along[p], size[p], own[p] = a, b, c


@njit(**_HOW)
def compute_drift_and_control(
    first, last, starts, stops, w, sent, delta, control, out, along, size, own, control_delta, control_drift
):
    """The same, and by piece control·delta and control·out."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        W, S, D, B, Y = w[i:j], sent[i:j], delta[i:j], control[i:j], out[i:j]
        a = b = c = x = y = w.dtype.type(0)
        for k in range(len(W)):
            g, d, e = W[k] - S[k], D[k], B[k]
            Y[k] = g
            a += g * d
            b += g * g
            c += d * d
            x += e * d
            y += e * g
        along[p], size[p], own[p], control_delta[p], control_drift[p] = a, b, c, x, y


@njit(**_HOW)
def correct_with_control(first, last, starts, stops, delta, drift, control, lam, by_delta, by_drift, new, turned):
    """new = delta − lam drift and turned = control + by_delta delta + by_drift drift; from the last."""
    for p in range(last - 1, first - 1, -1):
        i, j = starts[p], stops[p]
        D, G, B, N, Y = delta[i:j], drift[i:j], control[i:j], new[i:j], turned[i:j]
        for k in range(len(D)):
            d, g = D[k], G[k]
            N[k] = d - lam * g
            Y[k] = B[k] + by_delta * d + by_drift * g


@njit(**_HOW)
def products(first, last, starts, stops, a, b, aa, bb, ab):
    """Compute a·a, b·b and a·b of each piece."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        A, B = a[i:j], b[i:j]
        x = y = z = a.dtype.type(0)
        for k in range(len(A)):
            u, v = A[k], B[k]
            x += u * u
            y += v * v
            z += u * v
        aa[p], bb[p], ab[p] = x, y, z


@njit(**_HOW)
def side_products(first, last, starts, stops, a, b, d, by_a, by_b, nn, na, da, dn):
    """Compute n·n, n·a, d·a and d·n of each piece, with n = by_a a + by_b b."""
    for p in range(last - 1, first - 1, -1):
        i, j = starts[p], stops[p]
        A, B, D = a[i:j], b[i:j], d[i:j]
        w = x = y = z = a.dtype.type(0)
        for k in range(len(A)):
            u, v = A[k], D[k]
            n = by_a * u + by_b * B[k]
            w += n * n
            x += n * u
            y += v * u
            z += v * n
        nn[p], na[p], da[p], dn[p] = w, x, y, z


@njit(**_HOW)
def combine(first, last, starts, stops, d, a, b, by_a, by_b, out):
    """out = d + by_a a + by_b b."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        D, A, B, Y = d[i:j], a[i:j], b[i:j], out[i:j]
        for k in range(len(D)):
            Y[k] = D[k] + by_a * A[k] + by_b * B[k]


@njit(**_HOW)
def combine_and_subtract(first, last, starts, stops, d, a, b, by_a, by_b, out, left):
    """The same, and left = d − out."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        D, A, B, Y, L = d[i:j], a[i:j], b[i:j], out[i:j], left[i:j]
        for k in range(len(D)):
            x = D[k]
            y = x + by_a * A[k] + by_b * B[k]
            Y[k] = y
            L[k] = x - y


@njit(**_HOW)
def average(first, last, starts, stops, total, new, scale, mass, out):
    """out = (total + scale new) / mass."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        T, N, Y = total[i:j], new[i:j], out[i:j]
        for k in range(len(T)):
            Y[k] = (T[k] + scale * N[k]) / mass


@njit(**_HOW)
def replace_row(first, last, starts, stops, total, new, old, mass, out):
    """out = total + mass (new − old), in the type of the total."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        T, N, G, Y = total[i:j], new[i:j], old[i:j], out[i:j]
        for k in range(len(T)):
            Y[k] = T[k] + mass * N[k] - mass * G[k]


@njit(**_HOW)
def weigh(first, last, starts, stops, a, b, by_a, by_b, out):
    """out = by_a a + by_b b, which may be of less precision."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        A, B, Y = a[i:j], b[i:j], out[i:j]
        for k in range(len(A)):
            Y[k] = by_a * A[k] + by_b * B[k]


@njit(**_HOW)
def adam_step(first, last, starts, stops, d, w, m, v, top, t, beta2, rest, eta, eps, keeps, new_m, new_v, new_top, out):
    """Move m toward d by t, v toward d² by rest; out = w + eta m / (√v + eps). `keeps`: v is the largest so far."""
    for p in range(first, last):
        i, j = starts[p], stops[p]
        D, W, M, V, T = d[i:j], w[i:j], m[i:j], v[i:j], top[i:j]
        NM, NV, NT, Y = new_m[i:j], new_v[i:j], new_top[i:j], out[i:j]
        for k in range(len(D)):
            x = D[k]
            a = M[k] + t * (x - M[k])
            b = beta2 * V[k] + rest * x * x
            NM[k] = a
            NV[k] = b
            if keeps:
                b = max(T[k], b)
                NT[k] = b
            Y[k] = W[k] + eta * a / (np.sqrt(b) + eps)
