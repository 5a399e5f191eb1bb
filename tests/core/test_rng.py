from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core import rng
from tarry.core.rng import Stream

MASK = (1 << 64) - 1
keys = st.integers(0, MASK)


def splitmix64(state: int) -> tuple[int, int]:
    """One step of the published generator: new state, output."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def test_the_generator_still_gives_the_numbers_it_gave_when_runs_were_recorded():
    assert rng.key(0) == 16294208416658607535  # SplitMix64's well-known first output for state 0
    assert rng.key(7, Stream.ORDER, 3, 2) == 16024556262172223188
    assert rng.key(-1, 5) == 2841415184624655396
    k = rng.key(1, 2, 3)
    assert rng.uniform(k) == 0.5211329322530508
    assert rng.normal(k) == 0.052997203969237884
    assert [rng.below(rng.extend(k, i), 100) for i in range(8)] == [2, 97, 40, 14, 16, 56, 21, 66]
    assert rng.permutation(k, 10).tolist() == [1, 4, 5, 7, 0, 3, 6, 9, 8, 2]
    assert rng.generator(k).integers(0, 1000, 5).tolist() == [226, 776, 73, 28, 203]


def test_a_key_is_splitmix64_with_the_counters_taken_in_one_after_another():
    assert rng.key(12) == splitmix64(12)[1]
    z = rng.key(12)
    for part in (3, 0, 99):
        z = splitmix64((z + part * 0x9E3779B97F4A7C15) & MASK)[1]
    assert rng.key(12, 3, 0, 99) == z


@given(st.integers(-(2**63), 2**63), st.lists(st.integers(0, 2**40), max_size=4), st.integers(0, 2**40))
def test_extending_a_key_is_making_it_with_one_more_part(seed, parts, last):
    assert rng.key(seed, *parts, last) == rng.extend(rng.key(seed, *parts), last)
    assert 0 <= rng.key(seed, *parts) <= MASK


def test_every_argument_of_a_key_and_its_place_matter():
    made = [rng.key(a, b, c) for a in range(12) for b in range(12) for c in range(12)]
    made += [rng.key(a, b) for a in range(12) for b in range(12)] + [rng.key(a) for a in range(12)]
    assert len(set(made)) == len(made)


def test_streams_of_one_seed_share_no_numbers():
    assert len({s.value for s in Stream}) == len(Stream)
    drawn = [rng.uniform(rng.key(5, s, c, v)) for s in Stream for c in range(20) for v in range(20)]
    assert len(set(drawn)) == len(drawn)
    assert abs(float(np.corrcoef(np.reshape(drawn, (len(Stream), -1))[:2])[0, 1])) < 0.2


@given(keys)
def test_drawing_is_a_function_of_the_key_alone(k):
    first = (rng.uniform(k), rng.below(k, 17), rng.permutation(k, 5).tolist(), rng.generator(k).random())
    np.random.default_rng(0).random()
    rng.uniform(k ^ 1)
    assert first == (rng.uniform(k), rng.below(k, 17), rng.permutation(k, 5).tolist(), rng.generator(k).random())


@given(keys)
def test_uniform_is_strictly_between_0_and_1_and_normal_finite(k):
    assert 0.0 < rng.uniform(k) < 1.0
    assert abs(rng.normal(k)) < 9


def test_the_extreme_keys_stay_inside():
    for k in (0, MASK):
        assert 0.0 < rng.uniform(k) < 1.0
        assert rng.below(k, 10) == (0 if k == 0 else 9)


def test_uniform_and_normal_have_the_moments_of_their_names():
    u = np.array([rng.uniform(rng.key(3, i)) for i in range(20_000)])
    assert u.mean() == pytest.approx(0.5, abs=0.01)
    assert u.var() == pytest.approx(1 / 12, abs=0.005)
    z = np.array([rng.normal(rng.key(4, i)) for i in range(20_000)])
    assert z.mean() == pytest.approx(0, abs=0.03)
    assert z.std() == pytest.approx(1, abs=0.03)


@given(keys, st.integers(1, 10**12))
def test_below_is_in_range_for_any_key(k, n):
    assert 0 <= rng.below(k, n) < n


def test_below_gives_every_number_alike():
    counts = Counter(rng.below(rng.key(9, i), 7) for i in range(14_000))
    assert set(counts) == set(range(7))
    assert all(abs(c - 2000) < 200 for c in counts.values())


@settings(max_examples=60)
@given(keys, st.integers(0, 300))
def test_a_permutation_holds_every_number_once(k, n):
    order = rng.permutation(k, n)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_all_orders_of_four_come_up_alike():
    counts = Counter(tuple(rng.permutation(rng.key(2, i), 4).tolist()) for i in range(24 * 300))
    assert set(counts) == set(permutations(range(4)))
    assert all(abs(c - 300) < 90 for c in counts.values())


def test_permutations_of_neighboring_keys_have_nothing_to_do_with_each_other():
    n = 2000
    a, b = rng.permutation(rng.key(1, 0), n), rng.permutation(rng.key(1, 1), n)
    assert (a == b).sum() < 10
    assert abs(float(np.corrcoef(a, b)[0, 1])) < 0.1
    assert (rng.permutation(100, n) == rng.permutation(101, n)).sum() < 10


def test_generators_of_different_keys_draw_different_numbers():
    draws = {tuple(rng.generator(rng.key(0, Stream.PARTITION, i)).integers(0, 2**32, 3)) for i in range(50)}
    assert len(draws) == 50
