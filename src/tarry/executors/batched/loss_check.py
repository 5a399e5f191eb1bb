"""Check whether a loss is the mean of its examples' losses: only then may rows of a batch be masked.

The loss is computed of outputs and targets, for a batch and one by one, in double precision where that works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

__all__ = ["is_example_mean"]

_SOME, _MOST_MORE, _NUMBERS = 64, 1024, 1 << 24  # examples and columns to try; most rare targets; most outputs of these
_FEW, _RANGE = 16, 1 << 20  # values of a column that are all tried; range of integers that is tabulated
_IGNORED = -100  # a target that cross_entropy leaves out


def is_example_mean(
    loss: Callable[[Any, Any], Tensor], outputs: Callable[[Tensor], Any], y: Tensor, *, cuda: bool
) -> bool:
    """Return whether it is. `outputs`: the model's, for examples given by index; `y`: the targets of all clients."""
    if loss is cross_entropy and not y.is_floating_point():  # it is, over the targets that are not ignored
        ignored = (y == _IGNORED).flatten(1).sum(1) if y.ndim > 1 else y.new_zeros(1)
        return bool((ignored == ignored[0]).all())
    at, more = _some(y)
    z = outputs(at)
    if not isinstance(z, Tensor) or z.shape[:1] != at.shape:
        return True  # the equivalence check finds out
    rows = torch.cat([at, more[: _NUMBERS // max(1, z[0].numel())]])
    z, y = z[torch.arange(len(rows), device=z.device) % len(at)], y[rows]  # outputs need not belong to the targets
    for spread in _spreads(z, y, cuda=cuda):
        exact = [t.double() if t.is_floating_point() else t for t in spread]
        for found in (_agrees(loss, *given) for given in (exact, spread)):
            if found is not None:
                return found
    return True


def _agrees(loss: Callable[[Any, Any], Tensor], z: Tensor, y: Tensor) -> bool | None:
    """Return None where this is unknown: the loss holds tensors of another type, or is not finite."""
    try:
        whole, each = loss(z, y), torch.stack([loss(z[i, None], y[i, None]) for i in range(len(z))]).mean()
    except Exception:
        return None
    within = 1e-9 if whole.dtype == torch.float64 else 1e-5
    return bool(torch.isclose(whole, each, rtol=within, atol=within)) if whole.isfinite() else None


def _spreads(z: Tensor, y: Tensor, *, cuda: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs with their targets, spread out because all outputs may be nearly equal.

    The last ones are not larger than given: a loss of probabilities rejects numbers above 1. On a GPU that ends the
    process, so the others are tried on a CPU.
    """
    wave = torch.arange(z.numel(), device=z.device).view_as(z).sin()
    for times, plus in ((1, wave), (1.5 + wave, 0), (0.5 + wave / 2, 0)):
        spread = z * times + plus
        yield (spread.cpu(), y.cpu()) if cuda else (spread, y)
    if cuda:
        yield spread, y  # the loss may hold tensors on the GPU


def _some(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices of evenly spread examples, and of examples with rare targets, which a loss may weigh differently.

    The latter are one for every integer target, the lowest and highest of each column, and one for every value of a
    column with few values.
    """
    at = torch.linspace(0, len(y) - 1, min(len(y), _SOME)).long()
    table = (y.flatten(1) if y.ndim > 1 else y[:, None]).cpu()
    found = [] if y.is_floating_point() else [_one_of_each(table)]
    drawn = table[at].sort(0).values
    few = (drawn[1:] != drawn[:-1]).sum(0).lt(_FEW).nonzero()[:, 0]
    columns = few[torch.linspace(0, len(few) - 1, min(len(few), _SOME)).long()].tolist()
    found += [_one_of_each(table[:, [c]])[: _MOST_MORE // len(columns)] for c in columns]
    found += [of(0) for of in (table.argmin, table.argmax)] if y.is_floating_point() else []
    rows = list(dict.fromkeys(torch.cat(found).tolist()))[:_MOST_MORE]
    return at.to(y.device), torch.tensor(rows, dtype=torch.long, device=y.device)


def _one_of_each(table: Tensor) -> Tensor:
    """Return row indices, one for every value in the table."""
    numbers: Any = (table.double() if table.is_floating_point() else table.long()).numpy()
    if table.is_floating_point() or numbers.max() - numbers.min() > _RANGE:
        return torch.from_numpy(np.unique(numbers, return_index=True)[1]) // table.shape[1]
    seen = np.full(numbers.max() - numbers.min() + 1, -1)  # much faster than sorting a corpus
    seen[numbers - numbers.min()] = np.arange(len(table))[:, None]
    return torch.from_numpy(seen[seen >= 0])
