"""Crop, flip and cutout: what each does to an image, by hand, and what they promise as functions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tarry.tasks import tasks
from tarry.tasks.data.augment import Augment, crop_and_flip, fedsol
from tests.tasks.data.file_writers import made

EVERY = [
    Augment(pad=4),
    Augment(flip=True),
    Augment(hole=4),
    Augment(pad=2, mirror=True),
    Augment(pad=4, flip=True, hole=8, fill=(-1.0, 0.5, 2.0)),
    Augment(pad=3, flip=True, mirror=True),
]


def batch(n: int = 6, side: int = 9) -> Tensor:
    return torch.randn(n, 3, side, side + 2, generator=torch.Generator().manual_seed(0))


def draws(n: int, k: int, seed: int = 1) -> Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed))


def naive(a: Augment, image: Any, u: list[float]) -> Any:
    """One image, pixel by pixel, with numpy's own padding and slicing."""
    c, h, w = image.shape
    u = list(u)
    if a.pad:
        top, left = (int(u.pop(0) * (2 * a.pad + 1)) for _ in range(2))
        if a.mirror:
            around = np.pad(image, ((0, 0), (a.pad, a.pad), (a.pad, a.pad)), mode="reflect")
        else:
            fill = np.broadcast_to(np.array(a.fill, image.dtype), (c,))
            around = np.broadcast_to(fill[:, None, None], (c, h + 2 * a.pad, w + 2 * a.pad)).copy()
            around[:, a.pad : a.pad + h, a.pad : a.pad + w] = image
        image = around[:, top : top + h, left : left + w]
    if a.flip and u.pop(0) < 0.5:
        image = image[:, :, ::-1]
    image = image.copy()
    if a.hole:
        row, column = int(u.pop(0) * h), int(u.pop(0) * w)
        half = a.hole // 2
        image[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    assert not u
    return image


@pytest.mark.parametrize("a", [*EVERY, Augment(pad=5, mirror=True)])
@pytest.mark.parametrize("side", [1, 2, 4, 9])  # also of an image smaller than what lies around it
def test_every_augmentation_does_what_a_naive_one_does(a: Augment, side: int) -> None:
    x, u = batch(40, side), draws(40, a.n_draws)
    got = a(x, u)
    for image, numbers, result in zip(x, u, got, strict=True):
        assert np.array_equal(naive(a, image.numpy(), numbers.tolist()), result.numpy())


@given(st.integers(0, 8), st.integers(0, 8))
def test_a_crop_moves_the_image_and_the_middle_one_leaves_it(down: int, right: int) -> None:
    x = batch(1)
    u = torch.tensor([[(down + 0.5) / 9, (right + 0.5) / 9]])
    got = Augment(pad=4, fill=(7.0,))(x, u)
    if (down, right) == (4, 4):
        assert torch.equal(got, x)
    outside = sum((max(0, 4 - down), max(0, down - 4)))
    rows = (got == 7).all(dim=(0, 1, 3)).sum()
    assert rows == outside


def test_a_crop_of_no_shift_is_the_image_itself_with_mirrored_edges_too() -> None:
    x, u = batch(), torch.full((6, 2), 0.5)
    assert torch.equal(Augment(pad=4)(x, u), x)
    assert torch.equal(Augment(pad=4, mirror=True)(x, u), x)


def test_a_flip_exactly_reverses_and_twice_is_nothing() -> None:
    x = batch()
    yes, no = torch.full((6, 1), 0.49), torch.full((6, 1), 0.5)
    flip = Augment(flip=True)
    assert torch.equal(flip(x, yes), x.flip(-1))
    assert torch.equal(flip(x, no), x)
    assert torch.equal(flip(flip(x, yes), yes), x)
    mixed = flip(x, torch.tensor([[0.1], [0.9], [0.1], [0.9], [0.1], [0.9]]))
    assert torch.equal(mixed[::2], x[::2].flip(-1))
    assert torch.equal(mixed[1::2], x[1::2])


@given(st.integers(0, 31), st.integers(0, 31))
def test_cutout_takes_a_square_as_far_as_it_lies_inside(row: int, column: int) -> None:
    x = torch.ones(1, 3, 32, 32)
    got = Augment(hole=16)(x, torch.tensor([[(row + 0.5) / 32, (column + 0.5) / 32]]))
    height, width = (min(32, at + 8) - max(0, at - 8) for at in (row, column))
    assert (got == 0).sum() == 3 * height * width
    assert (got[0, 0] == got[0, 2]).all()


@pytest.mark.parametrize("a", EVERY)
def test_equal_draws_give_equal_images_one_by_one_or_together(a: Augment) -> None:
    x, u = batch(), draws(6, a.n_draws)
    together = a(x, u)
    assert torch.equal(together, a(x.clone(), u.clone()))
    assert torch.equal(together, torch.cat([a(x[i : i + 1], u[i : i + 1]) for i in range(6)]))
    other = a(x, draws(6, a.n_draws, seed=2))
    assert not torch.equal(together, other)


@pytest.mark.parametrize("a", EVERY)
def test_it_runs_under_vmap_with_equal_results(a: Augment) -> None:
    x, u = batch(12).unflatten(0, (3, 4)), draws(12, a.n_draws).unflatten(0, (3, 4))
    together = torch.func.vmap(a)(x, u)
    assert torch.equal(together, torch.stack([a(x[i], u[i]) for i in range(3)]))


@pytest.mark.parametrize("a", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_type_are_kept_the_input_is_not_touched_and_it_pickles(a: Augment, dtype: torch.dtype) -> None:
    x, u = batch().to(dtype), draws(6, a.n_draws)
    before = x.clone()
    got = pickle.loads(pickle.dumps(a))(x, u)  # noqa: S301
    assert (got.shape, got.dtype, got.device) == (x.shape, dtype, x.device)
    assert torch.equal(x, before)


@pytest.mark.parametrize("a", EVERY)
def test_no_value_is_read_back_so_that_a_graph_can_be_recorded(a: Augment) -> None:
    with torch.device("meta"):
        got = a(torch.empty(6, 3, 9, 11), torch.empty(6, a.n_draws))
    assert got.shape == (6, 3, 9, 11)


@pytest.mark.parametrize("a", EVERY)
def test_the_ends_of_the_draws_stay_inside(a: Augment) -> None:
    below = np.nextafter(np.float32(1), np.float32(0)).item()
    for value in (0.0, below):
        x, u = batch(), torch.full((6, a.n_draws), value)
        for image, result in zip(x, a(x, u), strict=True):
            assert np.array_equal(naive(a, image.numpy(), [value] * a.n_draws), result.numpy())


#: FedSOL, App. B.2: crop, flip, cutout, mirrored
PAPER = {
    "mnist": (True, True, False, False),
    "cifar10": (True, True, True, False),
    "svhn": (True, True, False, False),
    "cinic10": (True, True, False, True),
    "pathmnist": (False, True, False, False),
    "tissuemnist": (False, True, False, False),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_task_augments_as_fedsol_says(folder: Path, name: str) -> None:
    gray = name in ("mnist", "tissuemnist")
    side = 28 if "mnist" in name else 32
    m = made(side, side, classes=8) if gray else made(side, side, 3, classes=8)
    np.savez(folder / f"{name}.npz", x_train=m.x_train, y_train=m.y_train, x_test=m.x_test, y_test=m.y_test)
    plain, task = tasks.build(name), tasks.build(name, augment="fedsol", rgb=gray)
    assert (plain.augment, plain.n_draws) == (None, 0)
    assert isinstance(task.augment, Augment)
    crop, flip, cutout, mirror = PAPER[name]
    a = task.augment
    assert (a.pad, a.flip, a.hole, a.mirror) == (4 * crop, flip, 16 * cutout, mirror)
    assert task.n_draws == 2 * crop + flip + 2 * cutout
    assert task.train is not None
    x = task.train[0]
    assert task.augment(x, draws(len(x), task.n_draws)).shape == x.shape
    if crop and not mirror:  # what lies around the image is black, as black as it is normalized
        scaled = m.x_train.astype(np.float64) / 255
        axes = (0, 1, 2)
        black = -scaled.mean(axes) / scaled.std(axes)
        assert np.allclose(a.fill, black, atol=1e-5)
        assert len(a.fill) == 3


def test_larger_images_are_augmented_in_proportion() -> None:
    assert fedsol("tiny_imagenet", 64, (0.0,)) == Augment(8, True, 32)
    assert fedsol("stl10", 96, (0.0,)) == Augment(12, True, 48)
    assert fedsol("cifar100", 32, (0.0,)) == Augment(4, True, 16)
    assert fedsol("fashion_mnist", 28, (0.0,)) == fedsol("femnist", 28, (0.0,)) == Augment(4, True)


def test_crop_and_flip_cut_nothing_out() -> None:
    assert crop_and_flip(32, (0.5,)) == Augment(4, True, 0, (0.5,))
    assert crop_and_flip(64, (0.0,)) == Augment(8, True)
