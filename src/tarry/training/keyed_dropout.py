"""KeyedDropout: dropout masks as a function of a key, equal for a client alone and in a stack.

torch draws from a generator in the order of calls, which clients in a stack do not have. Here a mask is a hash of the
step's key, the number of the draw in that step, and the coordinates of the unit. So rows that pad a batch, or columns
that pad its texts, change nothing for the others.

Draws are intercepted where they are computed (`aten.bernoulli_` on a CPU, `aten.native_dropout` on a GPU). This works
for layers of torch and of other libraries, and a tracer sees plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..core import rng

__all__ = ["KeyedDropout", "uses_dropout"]

_aten = torch.ops.aten
_LAPS = 1 << 20  # draws of a pass over a batch, at most
_WORD, _HALF = 1 << 64, 1 << 63
_ROUNDS = ((15, 0x2C1B3C6D), (12, 0x297A2D39))  # of C. Wellons' lowbias32, without the last shift


def uses_dropout(module: nn.Module) -> bool:
    """Return whether a module has a layer with dropout."""
    for m in module.modules():
        name, share = type(m).__name__, getattr(m, "dropout", 0)
        if ("Drop" in name or "StochasticDepth" in name) and getattr(m, "p", getattr(m, "drop_prob", 1)) != 0:
            return True
        if isinstance(share, float) and share > 0:  # of a recurrent layer, of attention
            return True
    return False


class KeyedDropout(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode around a training pass; `begin` sets the step. Without a key dropout draws as in torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import dynamo

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key: int | Tensor | None = None
        self._draw = 0

    def begin(self, key: int | Tensor | None, pass_index: int = 0) -> None:
        """Set the key of a step: an int, or an int64 tensor that holds it."""
        self.key, self._draw = key, pass_index * _LAPS

    @contextmanager
    def without_advancing(self) -> Iterator[None]:
        """Draw without advancing: the next draw after it is the same as the first one within it."""
        before = self._draw
        yield
        self._draw = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.key is not None and func is _aten.bernoulli_.float:
            mask = self._draw_mask(args[0], args[1] if len(args) > 1 else 0.5)
            return args[0].masked_fill_(mask, 1).masked_fill_(~mask, 0)  # not copy_, which cannot be stacked
        if self.key is not None and func is _aten.native_dropout.default and args[2] is not False:
            x, p = args[:2]
            mask = self._draw_mask(x, 1 - p)
            return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask
        return func(*args, **(kwargs or {}))

    def _draw_mask(self, like: Tensor, share: float) -> Tensor:
        """Return a mask with this share of ones."""
        assert self.key is not None
        draw, self._draw = self._draw, self._draw + 1
        if isinstance(self.key, int):
            seed: int | Tensor = _to_signed(rng.extend(self.key, draw))
        else:
            seed = _mix(self.key + _to_signed((draw + 1) * rng.GOLDEN))
        return _draw_hashes(tuple(like.shape) or (1,), seed, like.device).view(like.shape) >= _threshold(share)


def _draw_hashes(shape: tuple[int, ...], seed: int | Tensor, device: torch.device) -> Tensor:
    """Return 32-bit hashes of the coordinates of a tensor; the last coordinate is mixed with fewer operations."""
    *others, last = shape
    places = torch.zeros((), dtype=torch.int64, device=device) + seed
    for i, n in enumerate(others):
        along = torch.arange(n, dtype=torch.int64, device=device) * _to_signed(rng.key(i))
        places = places.unsqueeze(-1) + along
    words = (_mix(places) >> 32).to(torch.int32).unsqueeze(-1)
    words = words + torch.arange(last, dtype=torch.int32, device=device) * (rng.key(-1) % (1 << 31) | 1)
    for shift, factor in _ROUNDS:
        words = (words ^ ((words >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return words


def _mix(z: Tensor) -> Tensor:
    """The mixing function of core.rng, on signed integers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ _shift_right(z, shift)) * _to_signed(factor)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, by: int) -> Tensor:
    """Logical shift to the right."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _to_signed(word: int) -> int:
    return (word + _HALF) % _WORD - _HALF


def _threshold(share: float) -> int:
    """Return the signed 32-bit word above or at which lies this share of all words."""
    return min(round((1 - share) * (1 << 32)) - (1 << 31), (1 << 31) - 1)
