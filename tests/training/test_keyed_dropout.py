"""Dropout by a key: what is left out is a function of the step and of the place, and of nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tarry.core import rng
from tarry.training.keyed_dropout import KeyedDropout, uses_dropout


def mask(key: int, shape: tuple[int, ...], share: float = 0.5, *, pass_index: int = 0, skip: int = 0) -> Tensor:
    made = KeyedDropout()
    made.begin(key, pass_index)
    with made:
        for _ in range(skip):
            torch.empty(2).bernoulli_(0.5)
        return torch.empty(shape).bernoulli_(share)


@pytest.mark.parametrize("shape", [(), (5,), (4, 6), (3, 4, 2, 5), (6, 3, 1, 1)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_key_in_a_tensor_says_the_same_as_a_number(shape: tuple[int, ...], share: float) -> None:
    for key in (rng.key(1, 2), rng.key(3)):
        made = KeyedDropout()
        made.begin(torch.tensor((key + 2**63) % 2**64 - 2**63), 1)
        with made:
            torch.empty(2).bernoulli_(0.5)
            found = torch.empty(shape).bernoulli_(share)
        assert torch.equal(found, mask(key, shape, share, pass_index=1, skip=1))
        assert set(found.unique().tolist()) <= {0.0, 1.0}
        if share in (0.0, 1.0):
            assert (found == share).all()


def test_a_place_is_kept_or_not_however_large_the_tensor_around_it() -> None:
    large = mask(7, (6, 9, 11))
    assert torch.equal(mask(7, (4, 5, 3)), large[:4, :5, :3])


def test_steps_laps_and_draws_differ() -> None:
    seen = [mask(1, (8, 16)), mask(2, (8, 16)), mask(1, (8, 16), pass_index=1), mask(1, (8, 16), skip=1)]
    assert len({tuple(t.flatten().tolist()) for t in seen}) == 4


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_should_be_and_neighbors_know_nothing_of_each_other(share: float) -> None:
    a, b = (mask(k, (64, 64, 128), share).double() - share for k in (11, 12))
    deviation = math.sqrt(share * (1 - share))

    def far(values: Tensor, size: float) -> float:
        return abs(values.mean().item()) / size * math.sqrt(values.numel())

    assert far(a, deviation) < 4
    pairs = [a * b, a[1:] * a[:-1], a[:, 1:] * a[:, :-1], a[..., 1:] * a[..., :-1], a[..., 16:] * a[..., :-16]]
    assert max(far(pair, deviation**2) for pair in pairs) < 4
    for along, n in enumerate(a.shape):
        assert 0.9 < a.sum(along).var().item() / deviation**2 / n < 1.1


def test_both_ways_in_which_torch_drops_are_seen() -> None:
    x, made = torch.rand(4, 6) + 1, KeyedDropout()
    made.begin(5)
    with made:
        one = torch.nn.functional.dropout(x, 0.25)
    made.begin(5)
    with made:
        other, mask = torch.native_dropout(x, 0.25, True)
    torch.testing.assert_close(one, other)
    assert torch.equal(mask, other != 0)
    torch.testing.assert_close(other[mask], x[mask] / 0.75)
    made.begin(5)
    leaf = x.clone().requires_grad_()
    with made:
        out = torch.native_dropout(leaf, 0.25, True)[0]
    torch.testing.assert_close(torch.autograd.grad(out.sum(), leaf)[0], mask / 0.75)
    with made:
        assert torch.equal(torch.native_dropout(x, 0.25, False)[0], x)


def test_aside_nothing_is_drawn_and_without_a_key_torch_draws() -> None:
    made = KeyedDropout()
    made.begin(5)
    with made:
        with made.without_advancing():
            first = torch.empty(50).bernoulli_(0.5)
        assert torch.equal(torch.empty(50).bernoulli_(0.5), first)
    made.begin(None)
    torch.manual_seed(1)
    plain = torch.empty(50).bernoulli_(0.5)
    torch.manual_seed(1)
    with made:
        assert torch.equal(torch.empty(50).bernoulli_(0.5), plain)


class DropPath(nn.Module):
    drop_prob = 0.1


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout2d(0.5), True),
        (DropPath(), True),
        (nn.ReLU(), False),
        (nn.LSTM(2, 2, 2, dropout=0.1), True),
        (nn.LSTM(2, 2, 2), False),
        (nn.MultiheadAttention(2, 1, dropout=0.2), True),
    ],
)
def test_who_leaves_something_out(module: nn.Module, said: bool) -> None:
    assert uses_dropout(nn.Sequential(nn.Linear(2, 2), module)) is said
