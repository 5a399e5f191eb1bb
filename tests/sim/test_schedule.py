"""Batches in columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tarry.core.client import Work
from tarry.core.optim import optimiser
from tarry.core.visits import orders
from tarry.sim.schedule import Few, padded, schedule

HERE = torch.zeros(0)


def work(**how: int | None) -> Work:
    return Work(optimiser("sgd", lr=0.1), **{"epochs": None, "steps": None, "batch": None, **how})  # type: ignore[arg-type]


def test_an_order_is_every_example_once_an_epoch_and_fresh() -> None:
    epochs = list(orders(10, work(epochs=3, batch=4), key=5))
    assert [count for _, count in epochs] == [3, 3, 3]
    seen = [order.tolist() for order, _ in epochs if order is not None]
    assert all(sorted(o) == list(range(10)) for o in seen)
    assert len({tuple(o) for o in seen}) == 3
    assert [count for _, count in orders(10, work(steps=4, batch=4), key=5)] == [3, 1]
    assert list(orders(4, work(epochs=2, batch=4), key=5)) == [(None, 1), (None, 1)]


def test_everybody_has_its_own_batches_in_its_own_order() -> None:
    how = work(epochs=2, batch=4)
    clients = [(10, 100, 7), (8, 200, 8), (3, 300, 9)]
    plan = schedule(clients, how, laps=1, width=4, like=HERE)
    assert plan.laps == [(0, 0, 6)]
    assert plan.rows is not None
    for c, (n, offset, key) in enumerate(clients):
        batches = []
        for order, count in orders(n, how, key):
            examples = np.arange(n) if order is None else order
            batches += [(examples[i * 4 : (i + 1) * 4] + offset).tolist() for i in range(count)]
        for s in range(6):
            mine = plan.at[c, s][plan.rows[c, s]].tolist()
            assert mine == (batches[s] if s < len(batches) else [])
    assert plan.active is not None
    assert plan.active.sum(1).tolist() == [6, 4, 2]


def test_with_several_laps_an_epoch_begins_in_one_column_for_all() -> None:
    plan = schedule([(10, 0, 7), (3, 10, 8)], work(epochs=2, batch=4), laps=2, width=4, like=HERE)
    assert plan.laps == [(0, 0, 3), (1, 0, 3), (0, 3, 3), (1, 3, 3)]
    assert plan.active is not None
    assert plan.active.tolist() == [[True] * 6, [True, False, False, True, False, False]]
    assert plan.cuts == {}


def test_nothing_is_masked_where_all_batches_are_whole() -> None:
    plan = schedule([(8, 0, 7), (8, 8, 8)], work(epochs=1, batch=4), laps=1, width=4, like=HERE)
    assert not plan.ragged
    assert plan.at.shape == (2, 2, 4)


def test_places_left_over_repeat_the_first_client() -> None:
    plan = schedule([(8, 8 * i, i) for i in range(9)], work(epochs=1, batch=4), laps=1, width=4, like=HERE)
    assert len(plan.at) == 10
    assert torch.equal(plan.at[9], plan.at[0])
    assert not plan.ragged


@pytest.mark.parametrize("n", range(1, 200))
def test_at_most_a_quarter_more_clients_are_computed_than_there_are(n: int) -> None:
    assert n <= padded(n) <= max(n, 5 / 4 * n)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_two_steps_are_computed_for_one_that_counts(seed: int) -> None:
    """And a quarter more for places left over."""
    draw = np.random.default_rng(seed)
    sizes = sorted((int(4 * 2 ** draw.uniform(0, 8)) for _ in range(int(draw.integers(1, 60)))), reverse=True)
    how = work(epochs=1, batch=4)
    plan = schedule([(n, 0, i) for i, n in enumerate(sizes)], how, laps=1, width=4, like=HERE)
    counted = sum(how.n_steps(n) for n in sizes)
    now, computed = len(plan.at), 0
    for s in range(plan.at.shape[1]):
        now = plan.cuts.get(s, now)
        alive = sum(how.n_steps(n) > s for n in sizes)
        assert alive <= now
        computed += now
    assert computed <= 2 * 5 / 4 * counted


@pytest.mark.parametrize("seed", range(20))
def test_where_sizes_are_compiled_a_handful_is_enough(seed: int) -> None:
    draw, few = np.random.default_rng(seed), Few()
    asked = [int(n) for n in np.exp(draw.uniform(0, np.log(300), 200))]
    made = {n: few(n) for n in asked}
    assert all(n <= made[n] <= max(8, 4 * n) for n in asked)
    assert len(set(made.values())) <= 8
    assert Few()(1) == 1  # a client a stack stays that


def test_examples_may_be_told_to_count_though_all_do() -> None:
    how, clients = work(epochs=1, batch=4), [(8, 0, 7), (8, 8, 8)]
    plan = schedule(clients, how, laps=1, width=4, like=HERE, masked=True)
    assert plan.ragged
    assert plan.rows is not None
    assert bool(plan.rows.all())
