"""Batches in columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tarry.core.optim import make_optimizer
from tarry.executors.batched.schedule import SizeBuckets, padded_size, schedule
from tarry.training.batch_order import epoch_orders
from tarry.training.visit import LocalWork

HERE = torch.zeros(0)


def work(**how: int | None) -> LocalWork:
    return LocalWork(make_optimizer("sgd", lr=0.1), **{"epochs": None, "steps": None, "batch": None, **how})  # type: ignore[arg-type]


def test_an_order_is_every_example_once_an_epoch_and_fresh() -> None:
    epochs = list(epoch_orders(10, work(epochs=3, batch=4), key=5))
    assert [count for _, count in epochs] == [3, 3, 3]
    seen = [order.tolist() for order, _ in epochs if order is not None]
    assert all(sorted(o) == list(range(10)) for o in seen)
    assert len({tuple(o) for o in seen}) == 3
    assert [count for _, count in epoch_orders(10, work(steps=4, batch=4), key=5)] == [3, 1]
    assert list(epoch_orders(4, work(epochs=2, batch=4), key=5)) == [(None, 1), (None, 1)]


def test_everybody_has_its_own_batches_in_its_own_order() -> None:
    how = work(epochs=2, batch=4)
    clients = [(10, 100, 7), (8, 200, 8), (3, 300, 9)]
    plan = schedule(clients, how, passes=1, width=4, like=HERE)
    assert plan.passes == [(0, 0, 6)]
    assert plan.rows is not None
    for c, (n, offset, key) in enumerate(clients):
        batches = []
        for order, count in epoch_orders(n, how, key):
            examples = np.arange(n) if order is None else order
            batches += [(examples[i * 4 : (i + 1) * 4] + offset).tolist() for i in range(count)]
        for s in range(6):
            mine = plan.at[c, s][plan.rows[c, s]].tolist()
            assert mine == (batches[s] if s < len(batches) else [])
    assert plan.active is not None
    assert plan.active.sum(1).tolist() == [6, 4, 2]


def test_with_several_laps_an_epoch_begins_in_one_column_for_all() -> None:
    plan = schedule([(10, 0, 7), (3, 10, 8)], work(epochs=2, batch=4), passes=2, width=4, like=HERE)
    assert plan.passes == [(0, 0, 3), (1, 0, 3), (0, 3, 3), (1, 3, 3)]
    assert plan.active is not None
    assert plan.active.tolist() == [[True] * 6, [True, False, False, True, False, False]]
    assert plan.cuts == {}


def test_nothing_is_masked_where_all_batches_are_whole() -> None:
    plan = schedule([(8, 0, 7), (8, 8, 8)], work(epochs=1, batch=4), passes=1, width=4, like=HERE)
    assert not plan.ragged
    assert plan.at.shape == (2, 2, 4)


def test_places_left_over_repeat_the_first_client() -> None:
    plan = schedule([(8, 8 * i, i) for i in range(9)], work(epochs=1, batch=4), passes=1, width=4, like=HERE)
    assert len(plan.at) == 10
    assert torch.equal(plan.at[9], plan.at[0])
    assert not plan.ragged


@pytest.mark.parametrize("n", range(1, 200))
def test_at_most_a_quarter_more_clients_are_computed_than_there_are(n: int) -> None:
    assert n <= padded_size(n) <= max(n, 5 / 4 * n)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_two_steps_are_computed_for_one_that_counts(seed: int) -> None:
    """And a quarter more for places left over."""
    draw = np.random.default_rng(seed)
    sizes = sorted((int(4 * 2 ** draw.uniform(0, 8)) for _ in range(int(draw.integers(1, 60)))), reverse=True)
    how = work(epochs=1, batch=4)
    plan = schedule([(n, 0, i) for i, n in enumerate(sizes)], how, passes=1, width=4, like=HERE)
    counted = sum(how.n_steps(n) for n in sizes)
    now, computed = len(plan.at), 0
    for s in range(plan.at.shape[1]):
        now = plan.cuts.get(s, now)
        alive = sum(how.n_steps(n) > s for n in sizes)
        assert alive <= now
        computed += now
    assert computed <= 2 * 5 / 4 * counted


@pytest.mark.parametrize("seed", range(20))
def test_where_sizes_are_compiled_there_are_few_of_them_however_many_wait(seed: int) -> None:
    draw, few = np.random.default_rng(seed), SizeBuckets()
    asked = [int(n) for n in np.exp(draw.uniform(0, np.log(300), 400))]
    made = set[int]()
    for i, n in enumerate(asked):
        size = few(n) if i % 2 else few.left(n)
        assert n <= size <= max(8, 4 * n)
        made.add(size)
    assert len(made) <= 6 + 4
    assert {few(n) for n in asked} <= made
    assert SizeBuckets()(1) == 1  # a client a stack stays that


@pytest.mark.parametrize(("clients", "lanes"), [(25, 4), (10, 4), (50, 8), (100, 1), (112, 4), (101, 4)])
def test_a_compiled_stack_is_filled_up_by_a_tenth_at_most_while_there_are_few_sizes(clients: int, lanes: int) -> None:
    few, dealt = SizeBuckets(), [len(range(i, clients, lanes)) for i in range(lanes)]
    few(112)  # earlier there were more
    for _ in range(2):
        sizes = [few(n, lanes=lanes) for n in dealt]
        assert all(n <= size <= 1.1 * n for n, size in zip(dealt, sizes, strict=True))
        assert len(set(sizes)) <= 2


def test_a_compiled_stack_is_filled_up_to_what_fits_and_that_is_a_size_like_others() -> None:
    few = SizeBuckets()
    assert [few(n, lanes=8) for n in (10, 9, 8, 7, 6, 5, 4)] == [10, 9, 8, 7, 6, 5, 5]  # a handful; then one of those
    assert few(30, most=37) == 32
    assert few(33, most=37) == 37, "twice as many as the next below would be more than fits"
    assert few(35, most=37) == 37
    assert few(35, most=35) == 35


def test_a_few_clients_take_as_long_as_some_more_and_no_size_of_their_own() -> None:
    few = SizeBuckets()
    assert [few(n) for n in (5, 3, 1, 7, 5, 8)] == [5, 5, 5, 8, 5, 8]
    assert few(6, most=7) == 7
    together = SizeBuckets()
    assert [together(n, lanes=4) for n in (3, 3, 2, 2, 1)] == [3, 3, 2, 2, 2], "those of all lanes are some more"


def test_what_is_left_of_a_compiled_stack_takes_no_size_for_each_time_it_is_halved() -> None:
    how, few = work(epochs=1, batch=4), SizeBuckets()
    clients = [(4 * (i + 1), 0, i) for i in reversed(range(100))]  # one is done in every column
    plan = schedule(clients, how, passes=1, width=4, like=HERE, fill=few, left=few.left)
    assert list(plan.cuts.values()) == [24, 8]
    for column, size in plan.cuts.items():
        assert 100 - column <= size
    assert [few(n) for n in (100, 24, 8)] == [100, 24, 8]


def test_examples_may_be_told_to_count_though_all_do() -> None:
    how, clients = work(epochs=1, batch=4), [(8, 0, 7), (8, 8, 8)]
    plan = schedule(clients, how, passes=1, width=4, like=HERE, masked=True)
    assert plan.ragged
    assert plan.rows is not None
    assert bool(plan.rows.all())
