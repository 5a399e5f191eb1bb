"""Running medians of what clients report."""

from __future__ import annotations

import random

import pytest

from tarry.engine.typical_size import TypicalSize


def typical(**changed: float) -> TypicalSize:
    settings = {"multiple": 20.0, "own_multiple": 20.0, "at_first": 1000.0, **changed}
    return TypicalSize(settings["multiple"], settings["own_multiple"], at_first=settings["at_first"], clients=10)


def learned(sizes: TypicalSize, rounds: int, size: float = 1.0, *, clients: int = 10) -> TypicalSize:
    rng = random.Random(0)
    for _ in range(rounds):
        for client in range(clients):
            sizes.learn(client, size * rng.uniform(0.5, 2.0))
    return sizes


def test_before_enough_reports_of_three_clients_the_first_limit_holds():
    sizes = typical()
    for _ in range(3):
        sizes.learn(0, 1.0)
        sizes.learn(1, 1.0)
    assert sizes.limit(5) == 1000.0
    for _ in range(4):
        sizes.learn(2, 1.0)
    assert sizes.limit(5) == 20.0


def test_the_limit_is_a_multiple_of_the_median():
    assert 14 < learned(typical(), 30).limit(0) < 28


def test_one_report_hardly_moves_the_median_however_large_it_is():
    sizes = learned(typical(), 30)
    before = sizes.limit(99)
    sizes.learn(0, 1e30)
    assert before < sizes.limit(99) < 1.2 * before


def test_a_minority_does_not_carry_the_median_away():
    """Three of ten clients report whatever is just accepted, for ever."""
    sizes = learned(typical(), 10)
    rng = random.Random(1)
    for _ in range(500):
        for client in range(10):
            sizes.learn(client, 0.99 * sizes.limit(client) if client < 3 else rng.uniform(0.5, 2.0))
    assert sizes.limit(9) < 60


def test_a_client_that_reports_often_has_no_more_weight():
    sizes = learned(typical(), 10)
    rng = random.Random(1)
    for _ in range(100):
        for _ in range(50):
            sizes.learn(0, 0.99 * sizes.limit(0))
        for client in range(1, 10):
            sizes.learn(client, rng.uniform(0.5, 2.0))
    assert sizes.limit(9) < 60


def test_the_medians_follow_when_all_sizes_change():
    for change in (1 / 200, 50.0):
        sizes = learned(typical(), 10)
        learned(sizes, 40, change)
        assert 10 * change < sizes.limit(0) < 40 * change


def test_a_client_has_a_limit_of_its_own():
    sizes = learned(typical(), 20)
    for _ in range(10):
        sizes.learn(0, 0.01)
    assert sizes.limit(0) < 5.0 < sizes.limit(1)


@pytest.mark.parametrize("size", [0.0, float("inf"), float("nan"), -1.0])
def test_what_is_no_size_teaches_nothing(size):
    sizes = learned(typical(), 10)
    before = sizes.save()
    sizes.learn(0, size)
    assert sizes.save() == before


def test_a_loaded_record_goes_on_alike():
    sizes, again = learned(typical(), 7), typical()
    again.load(sizes.save())
    for one in (sizes, again):
        one.learn(3, 5.0)
    assert again.save() == sizes.save()
    assert again.limit(3) == sizes.limit(3)
