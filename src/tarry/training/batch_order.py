"""The order of a visit's examples and the random numbers that augment them: functions of a key, for every executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..core import rng

if TYPE_CHECKING:
    from .visit import LocalWork

__all__ = ["augmentation_draws", "epoch_orders"]


def epoch_orders(n: int, work: LocalWork, key: int) -> Iterator[tuple[npt.NDArray[np.int64] | None, int]]:
    """Yield for every epoch a new order of n examples, and how many batches of it are used.

    The order is None where one batch holds all examples, in stored order.
    """
    steps, per_epoch, whole = work.n_steps(n), work.n_batches(n), work.batch is None or work.batch >= n
    for epoch, first in enumerate(range(0, steps, per_epoch)):
        yield None if whole else rng.permutation(rng.key(key, epoch), n), min(steps - first, per_epoch)


def augmentation_draws(n: int, width: int, key: int, epoch: int) -> npt.NDArray[np.float32]:
    """Return the numbers that augment n examples in an epoch, a row an example."""
    return rng.uniforms(rng.key(key, epoch, 1), n, width)
