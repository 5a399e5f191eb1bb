"""OrthoFL (Orthogonal Calibration for Asynchronous Federated Learning), Algorithms 1 and 2, its ablations, its code.

    β_t = β s^(−a), s = t − τ                 t: this update's number; τ: that of m's last (0 for a first contact at 0)
    W(t+) = (1 − β_t) W(t) + β_t W_m(t)                                                                    Eq. 3
    Δ_m = W_m(t) − W_m(τ+)       Δ = W(t) − W(τ+)                                                          Eq. 4, 5
    Δ⊥ = Δ − (Δ·Δ_m)/(Δ_m·Δ_m) Δ_m, layer by layer; Δ where Δ_m = 0                                        Eq. 6
    W_m(t+) = W_m(t) + Δ⊥                                                                                  Eq. 7

A client whose work is lost starts again from where it did, or from W if it never yet answered.
s − 1 is the library's staleness (0 = fresh), and what `receive` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tests.reference.problem import Layer, Vec


def reject(shift: Vec, own: Vec, layers: Sequence[Layer]) -> Vec:
    """Eq. 6."""
    out = shift.copy()
    for layer in layers:
        d, d_m = shift[layer.at], own[layer.at]
        if np.any(d_m != 0):
            out[layer.at] = d - (d @ d_m) / (d_m @ d_m) * d_m
    return out


def without_span(x: Vec, others: Sequence[Vec], layers: Sequence[Layer]) -> tuple[Vec, float]:
    """x less its least-squares fit by the others, layer by layer; and how near to dependent the others are."""
    out, nearest = x.copy(), 1.0
    for layer in layers:
        if moved := [o[layer.at] for o in others if np.any(o[layer.at] != 0)]:
            A = np.stack(moved, axis=1)
            fit, _, _, singular = np.linalg.lstsq(A, x[layer.at], rcond=None)
            out[layer.at] = x[layer.at] - A @ fit
            nearest = min(nearest, singular[-1] / singular[0])
    return out, nearest


class Algorithm1:
    """Server-side orthogonalisation; `layers` is None for no projection, one whole-vector layer for `full`.

    no-average   W(t+) = W_m(t) + Δ⊥, and whoever starts gets it: clients and server share their weights (Sec. 5.3)
    pairwise     W_m(t+) = W_m(τ+) + Δ + what of Δ_m is outside the span of the other clients' latest updates
    """

    in_rounds = False

    def __init__(
        self,
        w: Vec,
        layers: Sequence[Layer] | None,
        *,
        beta: float = 0.6,
        a: float = 0.5,
        ablation: Literal["none", "no-average", "pairwise"] = "none",
    ):
        self.w, self.layers, self.beta, self.a, self.ablation = w, layers, beta, a, ablation
        self.t = 0  # updates so far
        self.tau: dict[int, int] = {}
        self.own: dict[int, Vec] = {}  # W_m(τ+)
        self.anchor: dict[int, Vec] = {}  # W(τ+)
        self.latest: dict[int, Vec] = {}  # Δ_m of everybody's last update, for `pairwise`
        self.nearest = 1.0  # `pairwise`: how near to dependent those ever were; a span is not defined near 0

    def start(self, m: int) -> Vec:
        if m not in self.own or self.ablation == "no-average":
            self.tau[m], self.own[m], self.anchor[m] = self.t, self.w, self.w
        return self.own[m]

    def receive(self, m: int, W_m: Vec) -> int:
        self.t += 1
        s = self.t - self.tau[m]
        beta_t = self.beta * s**-self.a
        shift, own = self.w - self.anchor[m], W_m - self.own[m]
        if self.ablation == "pairwise":
            others = [d for k, d in sorted(self.latest.items()) if k != m]
            rest, nearest = without_span(own, others, self.layers or [])
            start, self.nearest = self.own[m] + shift + rest, min(nearest, self.nearest)
        else:
            start = W_m + (shift if self.layers is None else reject(shift, own, self.layers))
        self.w = start if self.ablation == "no-average" else (1 - beta_t) * self.w + beta_t * W_m
        self.latest[m] = own
        self.tau[m], self.own[m], self.anchor[m] = self.t, start, self.w
        return s - 1

    def lose(self, m: int) -> None:
        if m not in self.latest:
            del self.own[m]


class _Client:
    """A client of Algorithm 2: keeps W_global, its W_m and its Δ_m between its visits."""

    def __init__(self, w0: Vec):
        self.W_global, self.W_m, self.own, self.init = w0, w0, np.zeros_like(w0), w0

    def begin(self, beta_t: float, W_tilde: Vec, layers: Sequence[Layer]) -> None:
        """The head of ClientUpdate(m, β_t, W̃_global), up to W_m^init."""
        shift = W_tilde - self.W_global
        self.W_global = (1 - beta_t) * W_tilde + beta_t * self.W_m
        self.init = self.W_m + reject(shift, self.own, layers)

    def end(self, W_m: Vec) -> None:
        """Its last lines."""
        self.W_m, self.own = W_m, W_m - self.init


class Algorithm2:
    """Client-side orthogonalisation: the server keeps nothing but W, t, and who talked to it when."""

    in_rounds = False

    def __init__(self, w: Vec, layers: Sequence[Layer], *, beta: float = 0.6, a: float = 0.5):
        self.w, self.layers, self.beta, self.a = w, layers, beta, a
        self.t = 0
        self.tau: dict[int, int] = {}
        self.clients: dict[int, _Client] = {}
        self.answered: set[int] = set()
        self.message: dict[int, tuple[float, Vec]] = {}  # β_t and W(t), on their way to m

    def start(self, m: int) -> Vec:
        if m not in self.clients:
            self.tau[m], self.clients[m] = self.t, _Client(self.w)
        elif m in self.message:
            self.clients[m].begin(*self.message.pop(m), self.layers)
        return self.clients[m].init

    def receive(self, m: int, W_m: Vec) -> int:
        self.clients[m].end(W_m)
        self.t += 1
        s = self.t - self.tau[m]
        beta_t = self.beta * s**-self.a
        self.message[m] = (beta_t, self.w)
        self.w = (1 - beta_t) * self.w + beta_t * W_m
        self.tau[m] = self.t
        self.answered.add(m)
        return s - 1

    def lose(self, m: int) -> None:
        if m not in self.answered:
            del self.clients[m]


class Released:
    """What the authors' code does: a second model V that clients receive; W (here w) is only evaluated.

    On arrival of x:  V ← x + reject(V − V_m; x − V_m) per tensor, normalization tensors: V ← x;  V_m ← V goes back
                      W ← (1 − α) W + α x,  α = 0.6 (d + 1)^(−0.5), d = arrivals since m's last; the very first: α = 1
    """

    in_rounds = False

    def __init__(self, w: Vec, layers: Sequence[Layer], *, beta: float = 0.6, a: float = 0.5):
        self.w, self.layers, self.beta, self.a = w, layers, beta, a
        self.V, self.t = w, 0
        self.V_m: dict[int, Vec] = {}
        self.last: dict[int, int] = {}

    def start(self, m: int) -> Vec:
        if m not in self.V_m:
            self.V_m[m], self.last[m] = self.V, self.t
        return self.V_m[m]

    def receive(self, m: int, x: Vec) -> int:
        d = self.t - self.last[m]
        alpha = 1.0 if self.t == 0 else self.beta * (d + 1) ** -self.a
        self.w = (1 - alpha) * self.w + alpha * x
        V = x.copy()
        for layer in self.layers:
            shift, own = (self.V - self.V_m[m])[layer.at], (x - self.V_m[m])[layer.at]
            if not layer.norm:
                V[layer.at] += shift - (shift @ own) / (own @ own + 1e-19) * own
        self.t += 1
        self.V, self.V_m[m], self.last[m] = V, V, self.t
        return d

    def lose(self, m: int) -> None:
        pass
