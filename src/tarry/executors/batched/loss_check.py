"""Whether a loss is the mean of its examples' losses: only then may rows of a batch count for nothing.

It is asked about outputs and targets alone, as a whole and one by one, in double precision where it lets us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

__all__ = ["is_example_mean"]

_SOME, _MOST_MORE, _NUMBERS = 64, 1024, 1 << 24  # examples to try a loss on, and columns; more, with so many outputs
_FEW, _RANGE = 16, 1 << 20  # numbers of a column that are looked for each; from the lowest to the highest
_IGNORED = -100  # a target that cross_entropy leaves out


def is_example_mean(
    loss: Callable[[Any, Any], Tensor], outputs: Callable[[Tensor], Any], y: Tensor, *, cuda: bool
) -> bool:
    """Of a task's loss, a model's outputs for the examples at some places, and everybody's targets."""
    if loss is cross_entropy and not y.is_floating_point():  # it is, of what is not ignored
        ignored = (y == _IGNORED).flatten(1).sum(1) if y.ndim > 1 else y.new_zeros(1)
        return bool((ignored == ignored[0]).all())
    at, more = _some(y)
    z = outputs(at)
    if not isinstance(z, Tensor) or z.shape[:1] != at.shape:
        return True  # told when it is tried
    rows = torch.cat([at, more[: _NUMBERS // max(1, z[0].numel())]])
    z, y = z[torch.arange(len(rows), device=z.device) % len(at)], y[rows]  # a loss knows outputs and targets alone
    for spread in _spreads(z, y, cuda=cuda):
        exact = [t.double() if t.is_floating_point() else t for t in spread]
        for found in (_agrees(loss, *given) for given in (exact, spread)):
            if found is not None:
                return found
    return True


def _agrees(loss: Callable[[Any, Any], Tensor], z: Tensor, y: Tensor) -> bool | None:
    """None where it cannot be told: it has tensors of another type in it, or makes no number of these outputs."""
    try:
        whole, each = loss(z, y), torch.stack([loss(z[i, None], y[i, None]) for i in range(len(z))]).mean()
    except Exception:
        return None
    within = 1e-9 if whole.dtype == torch.float64 else 1e-5
    return bool(torch.isclose(whole, each, rtol=within, atol=within)) if whole.isfinite() else None


def _spreads(z: Tensor, y: Tensor, *, cuda: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs to try a loss on, with their targets: spread, for all of them may be about the same.

    The last ones are no larger than they were: a loss of numbers between 0 and 1 refuses others. On a GPU it does so in
    a way that ends the process, so that the rest is tried on a processor.
    """
    wave = torch.arange(z.numel(), device=z.device).view_as(z).sin()
    for times, plus in ((1, wave), (1.5 + wave, 0), (0.5 + wave / 2, 0)):
        spread = z * times + plus
        yield (spread.cpu(), y.cpu()) if cuda else (spread, y)
    if cuda:
        yield spread, y  # it may have tensors of a GPU in it


def _some(y: Tensor) -> tuple[Tensor, Tensor]:
    """Where some examples are: of everywhere; and those of rare targets, which a loss may weigh in another way.

    These are one of every whole number that there is, and of a column the lowest and the highest, and one of every
    number where these are few.
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
    """Rows, one for every number that there is in any of them."""
    numbers: Any = (table.double() if table.is_floating_point() else table.long()).numpy()
    if table.is_floating_point() or numbers.max() - numbers.min() > _RANGE:
        return torch.from_numpy(np.unique(numbers, return_index=True)[1]) // table.shape[1]
    seen = np.full(numbers.max() - numbers.min() + 1, -1)  # far quicker than to sort a corpus
    seen[numbers - numbers.min()] = np.arange(len(table))[:, None]
    return torch.from_numpy(seen[seen >= 0])
