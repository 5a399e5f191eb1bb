"""The schedule of a stack: its batches in columns. In column s each client makes a step on the examples at[:, s].

Where a rule makes one pass an epoch, the batches of a client follow each other without a gap. Where it makes more, an
epoch begins in the same column for all clients, so that they begin each pass together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core import rng
from ...training.batch_order import augmentation_draws, epoch_orders
from ...training.visit import LocalWork

__all__ = ["Schedule", "SizeBuckets", "padded_size", "schedule"]

_ANYHOW = 8  # minimum stack size: smaller stacks are not faster
_HANDFUL = 6  # stack sizes that may be added during a run
_LITTLE, _MUCH = 1.1, 4  # times the clients: how far stacks are filled up before a new size is added, and after


@dataclass(frozen=True)
class Schedule:
    """`at` [clients, columns, width]: examples; `drawn`: numbers that augment them; `keys` [clients, columns]: of
    dropout; `rows`: which examples count (None: all); `active`: whose step counts.
    """

    at: Tensor
    drawn: Tensor | None
    keys: Tensor | None
    rows: Tensor | None
    active: Tensor | None
    passes: list[tuple[int, int, int]]  # pass, first column, number of columns
    cuts: dict[int, int]  # size of the stack from a column on
    single: bool  # whether there is a batch of one example

    @property
    def ragged(self) -> bool:
        return self.rows is not None

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that a step needs of its batch."""
        return [t for t in (self.at, self.drawn, self.keys, self.rows, self.active) if t is not None]


def padded_size(n: int) -> int:
    """Return the stack size for n clients: at most a quarter more, of few different sizes, as each one is traced."""
    step = 1 << max(0, (n - 1).bit_length() - 3)
    return -(-n // step) * step


class SizeBuckets:
    """Stack sizes where each size is compiled, which takes longer than many steps of clients that do not count.

    A stack is filled up to a known size if that is little more work; else its own size is added. When there are six
    sizes, a stack is filled up to four times its clients before another size is added, of twice the size below.
    """

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, n: int, most: int = 1 << 62, lanes: int = 1) -> int:
        """Return the size for n clients. `most`: what fits, at least n; `lanes`: stacks that share a device."""
        anyhow = _ANYHOW // lanes
        if (known := self._known(n, min(most, max(anyhow, int(_LITTLE * n))))) is not None:
            return known
        if len(self.made) >= _HANDFUL:
            return self.left(n, most)
        self.made.append(min(most, max(n, anyhow)) if self.made else n)
        return self.made[-1]

    def left(self, n: int, most: int = 1 << 62) -> int:
        """Return the size for n clients that are left of a stack: few sizes, however often stacks are halved."""
        if (known := self._known(n, min(most, max(_ANYHOW, _MUCH * n)))) is not None:
            return known
        below = max((s for s in self.made if s < n), default=0)
        self.made.append(min(most, max(padded_size(n), 2 * below, _ANYHOW)))
        return self.made[-1]

    def _known(self, n: int, most: int) -> int | None:
        return min((s for s in self.made if n <= s <= most), default=None)


def schedule(
    clients: Sequence[tuple[int, int, int]],
    work: LocalWork,
    *,
    passes: int,
    width: int,
    like: Tensor,
    n_draws: int = 0,
    noise: Sequence[int] | None = None,
    fill: Callable[[int], int] = padded_size,
    left: Callable[[int], int] = padded_size,
    masked: bool = False,
) -> Schedule:
    """Return the schedule of clients, given as (number of examples, offset of the first, key of their order), those
    with the most steps first.

    `like`: device and type of the `n_draws` numbers that augment an example. `noise`: each client's dropout key.
    `fill`: stack size for a number of clients; `left`: for a number that is not done yet. `masked`: with a mask, though
    all examples count.
    """
    size = work.batch or width
    plans = [list(epoch_orders(n, work, key)) for n, _, key in clients]
    n_epochs = max(len(p) for p in plans)
    longest = [max(p[e][1] for p in plans if e < len(p)) for e in range(n_epochs)]
    begins = np.concatenate([[0], np.cumsum(longest)]).tolist()
    aligned = passes > 1
    n_columns = begins[-1] if aligned else max(sum(count for _, count in p) for p in plans)
    at = np.zeros((fill(len(clients)), n_columns, width), np.int64)
    rows = np.zeros(at.shape, bool)
    drawn, keys = np.zeros((*at.shape, n_draws), np.float32), np.zeros(at.shape[:2], np.uint64)
    for c, ((n, offset, key), plan) in enumerate(zip(clients, plans, strict=True)):
        column = 0
        for e, (order, count) in enumerate(plan):
            first = begins[e] if aligned else column
            _fill(at[c], rows[c], first, order, n, count, size)
            if n_draws:
                drawn[c, first : first + count] = augmentation_draws(n, n_draws, key, e)[at[c, first : first + count]]
            if noise is not None:
                keys[c, first : first + count] = [rng.extend(noise[c], column + i) for i in range(count)]
            column += count
        at[c] += offset
    for part in (at, rows, drawn, keys):
        part[len(clients) :] = part[0]
    if aligned:
        sequence = [(pass_index, begins[e], longest[e]) for e in range(n_epochs) for pass_index in range(passes)]
    else:
        sequence = [(0, 0, n_columns)]
    counts: Any = rows if masked or not rows.all() else None
    cuts = {} if aligned or counts is None else _cuts(np.any(rows[: len(clients)], axis=-1), len(at), left)
    return Schedule(
        torch.from_numpy(at).to(like.device),
        torch.from_numpy(drawn).to(like) if n_draws else None,
        None if noise is None else torch.from_numpy(keys.view(np.int64)).to(like.device),
        None if counts is None else torch.from_numpy(counts).to(like.device),
        None if counts is None else torch.from_numpy(counts.any(-1)).to(like.device),
        sequence,
        cuts,
        bool((rows.sum(-1) == 1).any()),
    )


def _fill(
    at: npt.NDArray[np.int64],
    rows: npt.NDArray[np.bool_],
    first: int,
    order: npt.NDArray[np.int64] | None,
    n: int,
    count: int,
    size: int,
) -> None:
    """Write a client's batches of an epoch from a column on. Padding repeats the first example of the batch."""
    examples = np.arange(n) if order is None else order
    whole = min(count, n // size)
    if whole:
        at[first : first + whole, :size] = examples[: whole * size].reshape(whole, size)
        rows[first : first + whole, :size] = True
    if count > whole:
        rest = examples[whole * size :]
        at[first + whole, : len(rest)], at[first + whole, len(rest) :] = rest, rest[0]
        rows[first + whole, : len(rest)] = True


def _cuts(active: npt.NDArray[np.bool_], now: int, left: Callable[[int], int]) -> dict[int, int]:
    """Return the columns from which on at most half of a stack of `now` clients still trains, and its size then."""
    cuts = {}
    for s, alive in enumerate(active.sum(0).tolist()):
        if 0 < alive <= now / 2 and left(alive) <= now / 2:
            now = cuts[s] = left(alive)
    return cuts
