from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import scipy.stats

from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.rng import Stream
from tarry.delays.base import ClientPopulation, Delay, delays
from tarry.delays.papers import PROFILES, Groups, fadas, fedecho_large, fedogd_l1, rpi_moments, rpi_percentile
from tests.helpers.by_flags import build_by_flags


def a_population(n: int, seed: int = 7, samples: list[int] | None = None) -> ClientPopulation:
    return ClientPopulation(n, samples or [100] * n, 1000, seed)


def profile_of(delay: Delay, client: int, seed: int) -> tuple[float, float]:
    """(mean, sd) of a client, solved from its two slowest visits and the normal numbers that were behind them."""
    visits = sorted(range(50), key=lambda v: -delay(client, v))[:2]
    (d1, z1), (d2, z2) = [(delay(client, v), rng.normal(rng.key(seed, Stream.DELAY, client, v))) for v in visits]
    sd = (d1 - d2) / (z1 - z2)
    return round(d1 - sd * z1, 6), round(sd, 6)


def test_nine_rpi_clients_get_the_nine_profiles():
    delay = delays.build("orthofl-rpi")(a_population(9))
    assert sorted(profile_of(delay, c, 7) for c in range(9)) == sorted(PROFILES)


def test_fewer_rpi_clients_get_different_profiles_and_a_seed_its_own():
    def dealt(seed: int) -> list[tuple[float, float]]:
        delay = delays.build("orthofl-rpi")(a_population(5, seed))
        return [profile_of(delay, c, seed) for c in range(5)]

    assert len(set(dealt(1))) == 5
    assert dealt(1) != dealt(2)


def test_more_rpi_clients_draw_profiles_with_replacement():
    delay = delays.build("orthofl-rpi")(a_population(900))
    counts = [0] * 9
    for client in range(900):
        counts[PROFILES.index(profile_of(delay, client, 7))] += 1
    assert scipy.stats.chisquare(counts).pvalue > 0.01
    assert len(set(counts)) > 1


def test_an_rpi_draw_of_0_or_less_becomes_the_mean_of_the_profile():
    delay = delays.build("orthofl-rpi")(a_population(9))
    replaced = 0
    for client in range(9):
        mean, sd = profile_of(delay, client, 7)
        for visit in range(300):
            plain = mean + sd * rng.normal(rng.key(7, Stream.DELAY, client, visit))
            replaced += plain <= 0
            assert delay(client, visit) == pytest.approx(plain if plain > 0 else mean, rel=1e-9)
    assert replaced > 100


def monte_carlo_rounds() -> np.ndarray:
    generator = np.random.default_rng(11)
    rounds = [generator.normal(mean, sd, 400_000) for mean, sd in PROFILES]
    return np.concatenate([np.where(r > 0, r, mean) for r, (mean, _) in zip(rounds, PROFILES, strict=True)])


def test_moments_and_percentiles_of_the_rpi_rounds_agree_with_monte_carlo():
    rounds = monte_carlo_rounds()
    mean, sd = rpi_moments()
    assert mean == pytest.approx(rounds.mean(), abs=0.6)
    assert sd == pytest.approx(rounds.std(), abs=0.6)
    assert rpi_percentile(5) == pytest.approx(np.quantile(rounds, 0.05), abs=0.6)
    assert rpi_percentile(95) == pytest.approx(np.quantile(rounds, 0.95), abs=1.5)
    # the rounds that were ≤ 0 make up a step at 96 s, so a whole range of percentages has that percentile
    step = [np.mean(rounds < 96) * 100 + 0.1, np.mean(rounds <= 96) * 100 - 0.1]
    assert step[1] - step[0] > 2
    assert [rpi_percentile(p) for p in step] == pytest.approx([96, 96])


def test_the_derived_distributions_have_the_numbers_in_their_help():
    mean, sd = rpi_moments()
    sigma = math.sqrt(math.log(sd**2 / mean**2 + 1))
    stated = {
        "orthofl-rpi-lognormal": [f"{mean:.2f}", f"{sd:.2f}", f"{math.log(mean) - sigma**2 / 2:.4f}", f"{sigma:.4f}"],
        "orthofl-rpi-half-normal": [f"{mean:.2f}", f"{mean * math.sqrt(math.pi / 2):.2f}", f"{sd:.2f}"],
        "orthofl-rpi-uniform": [f"{rpi_percentile(5):.2f}", f"{rpi_percentile(95):.2f}"],
    }
    for name, numbers in stated.items():
        assert all(number in delays[name].doc for number in numbers), name
    assert (mean, sd) == pytest.approx((318.11, 262.69), abs=0.005)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("orthofl-rpi-lognormal", scipy.stats.lognorm(0.72106, scale=math.exp(5.50244))),
        ("orthofl-rpi-half-normal", scipy.stats.halfnorm(0, 398.69)),
        ("orthofl-rpi-uniform", scipy.stats.uniform(50.02, 932.19 - 50.02)),
    ],
)
def test_the_derived_distributions_are_those_of_appendix_d4(name, law):
    delay = delays.build(name)(a_population(10))
    values = [delay(client, visit) for client in range(10) for visit in range(2000)]
    assert scipy.stats.kstest(values, law.cdf).pvalue > 0.01


BOUNDS = {"large": [(10, 20), (30, 50), (500, 800)], "mild": [(10, 20), (30, 50), (100, 200)]}


def class_of(delay: Delay, client: int, severity: str = "large", visits: int = 1) -> int:
    """The class whose bounds hold all visits of a client."""
    values = [delay(client, visit) for visit in range(visits)]
    return next(k for k, (low, high) in enumerate(BOUNDS[severity]) if all(low < v < high for v in values))


def classes(delay: Delay, n: int, severity: str = "large") -> list[int]:
    return [class_of(delay, client, severity) for client in range(n)]


@pytest.mark.parametrize("severity", ["large", "mild"])
def test_fedecho_has_at_most_a_tenth_long_and_a_third_medium(severity):
    for n, long, medium in [(50, 5, 16), (10, 1, 3), (9, 0, 3), (2, 0, 0)]:
        found = classes(delays.build(f"fedecho-{severity}")(a_population(n)), n, severity)
        assert [found.count(k) for k in range(3)] == [n - long - medium, medium, long]


@pytest.mark.parametrize("name", ["fedecho-large", "fedecho-mild", "fadas"])
def test_a_client_stays_in_its_class_and_redraws_its_duration(name):
    severity = "mild" if name == "fedecho-mild" else "large"
    delay = delays.build(name)(a_population(50))
    for client in range(50):
        low, high = BOUNDS[severity][class_of(delay, client, severity, visits=200)]
        shares = [(delay(client, visit) - low) / (high - low) for visit in range(200)]
        assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-4


def test_fedecho_with_gamma_0_goes_by_the_number_of_examples_alone():
    samples = [100 + 7 * c % 50 for c in range(50)]
    by_size = sorted(range(50), key=lambda c: -samples[c])
    for seed in (1, 2):
        found = classes(fedecho_large(gamma=0)(a_population(50, seed, samples)), 50)
        assert [found[c] for c in by_size] == [2] * 5 + [1] * 16 + [0] * 29


def test_fedecho_ranks_by_mid_rank_plus_gamma_times_a_uniform_number():
    samples, gamma = [10] * 30 + [20] * 5 + [30] * 15, 0.7
    u = rng.generator(rng.key(7, Stream.FLEET)).random(50)
    score = [(scipy.stats.rankdata(samples)[c] - 0.5) / 50 + gamma * u[c] for c in range(50)]
    slowest_first = sorted(range(50), key=lambda c: -score[c])
    found = classes(fedecho_large(gamma=gamma)(a_population(50, samples=samples)), 50)
    assert [found[c] for c in slowest_first] == [2] * 5 + [1] * 16 + [0] * 29


def long_clients_mean_rank(gamma: float) -> float:
    found = classes(fedecho_large(gamma=gamma)(a_population(2000, 3, list(range(2000)))), 2000)
    return float(np.mean([c / 2000 for c, k in enumerate(found) if k == 2]))


def test_fedecho_depends_on_the_examples_less_and_less_as_gamma_grows():
    ranks = [long_clients_mean_rank(gamma) for gamma in (0, 0.5, 1, 4, 1e9)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] == pytest.approx(0.95, abs=0.001)
    assert ranks[-1] == pytest.approx(0.5, abs=4 * 0.289 / math.sqrt(200))


def test_fedecho_clients_of_one_size_are_told_apart_by_chance_and_not_by_number():
    first = [classes(fedecho_large(gamma=0)(a_population(1000, seed)), 1000) for seed in (1, 2)]
    assert first[0] != first[1]
    long = [c for c, k in enumerate(first[0]) if k == 2]
    assert np.mean(long) == pytest.approx(500, abs=4 * 289 / math.sqrt(100))


@pytest.mark.parametrize("gamma", [0.01, 1.0, 5.0])
def test_fadas_classes_are_the_largest_part_of_a_dirichlet_draw(gamma):
    found = classes(fadas(gamma=gamma)(a_population(4000)), 4000)
    parts = np.random.default_rng(5).gamma([3 * gamma, 2 * gamma, gamma], size=(400_000, 3))
    expected = np.bincount(parts.argmax(1), minlength=3) / 400_000
    assert scipy.stats.chisquare(np.bincount(found, minlength=3), expected * 4000).pvalue > 0.01


def test_fadas_gamma_small_means_3_to_2_to_1_and_large_means_all_short():
    found = classes(fadas(gamma=1e-9)(a_population(3000)), 3000)
    assert scipy.stats.chisquare(np.bincount(found), [1500, 1000, 500]).pvalue > 0.01
    assert set(classes(fadas(gamma=1e6)(a_population(300)), 300)) == {0}


def test_fadas_severity_says_how_long_long_is():
    population = a_population(300)
    large, mild = fadas()(population), fadas(severity="mild")(population)
    assert classes(large, 300) == classes(mild, 300, "mild")


@pytest.mark.parametrize(
    ("name", "n", "counts"),
    [
        ("fedogd-l1", 50, [30, 10, 10]),
        ("fedogd-l2", 50, [20, 15, 15]),
        ("fedogd-l3", 50, [10, 20, 20]),
        ("fedogd-l1", 7, [4, 2, 1]),
        ("fedogd-l3", 3, [1, 1, 1]),
        ("fedogd-l2", 1, [1, 0, 0]),
    ],
)
def test_fedogd_groups_have_exactly_their_shares_by_largest_remainder(name, n, counts):
    delay = delays.build(name, r=2)(a_population(n))
    groups = [delay.group(client, 0) for client in range(n)]
    assert [groups.count(g) for g in range(3)] == counts
    assert [delay(client, 0) for client in range(n)] == [(2, 6, 10)[g] for g in groups]
    assert [delay.group(client, 99) for client in range(n)] == groups


def test_fedogd_draws_who_is_in_which_group():
    groups = [[fedogd_l1()(a_population(50, seed)).group(client, 0) for client in range(50)] for seed in (1, 2)]
    assert groups[0] != groups[1]
    assert groups[0] != sorted(groups[0])


def naive_groups(
    population: ClientPopulation, shares: tuple[int, ...], change: float, client: int, visits: int
) -> list[int]:
    """Forward from the first visit, with a chance of a fresh deal at each later one."""
    groups = [Groups(population, shares, r=1, change=0).group(client, 0)]
    for visit in range(1, visits):
        u = rng.uniform(rng.key(population.seed, Stream.FLEET, client, visit))
        percent = 100 * u / change
        fresh = 0 if percent < shares[0] else 1 if percent < shares[0] + shares[1] else 2
        groups.append(fresh if u < change else groups[-1])
    return groups


@pytest.mark.parametrize("change", [0.02, 0.3, 1.0])
def test_fedogd_group_is_the_one_dealt_at_the_latest_change(change):
    population, shares = a_population(10), (40, 30, 30)
    expected = {c: naive_groups(population, shares, change, c, 120) for c in range(10)}
    assert any(len(set(groups)) == 3 for groups in expected.values())
    in_turn, shuffled = Groups(population, shares, r=1, change=change), Groups(population, shares, r=1, change=change)
    assert {c: [in_turn.group(c, v) for v in range(120)] for c in range(10)} == expected
    pairs = list(itertools.product(range(10), range(120)))
    random.Random(1).shuffle(pairs)
    assert all(shuffled.group(c, v) == expected[c][v] for c, v in pairs)
    assert Groups(population, shares, r=1, change=change).group(3, 119) == expected[3][119]


def test_fedogd_clients_change_as_often_as_asked_and_the_shares_last():
    delay = fedogd_l1(change=0.2)(a_population(50))
    groups = np.array([[delay.group(c, v) for v in range(800)] for c in range(50)])
    moved = np.mean(groups[:, 1:] != groups[:, :-1])
    assert moved == pytest.approx(0.2 * (1 - 0.6**2 - 0.2**2 - 0.2**2), abs=0.01)
    assert np.bincount(groups[:, 100:].ravel()) / groups[:, 100:].size == pytest.approx([0.6, 0.2, 0.2], abs=0.02)


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("fedecho-large", {"gamma": -1.0}, "--delay.gamma -1.0: must be from 0 to 1e+09"),
        ("fedecho-mild", {"gamma": math.inf}, "--delay.gamma inf: "),
        ("fadas", {"gamma": 0.0}, "--delay.gamma 0.0: must be from 1e-09 to 1e+09"),
        ("fadas", {"severity": "huge"}, "--delay.severity huge: wants large | mild"),
        ("fedogd-l1", {"r": 0.0}, "--delay.r 0.0: "),
        ("fedogd-l2", {"change": 1.5}, "--delay.change 1.5: must be from 0 to 1"),
        ("fedogd-l3", {"change": math.nan}, "--delay.change nan: "),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_flag_and_value(name, params, problem):
    with pytest.raises(BadInput) as rejected:
        build_by_flags(delays, name, **params)
    assert str(rejected.value).startswith(problem)


def test_every_delay_of_a_paper_names_it():
    names = [n for n in delays if n.startswith(("orthofl", "fedecho", "fadas", "fedogd"))]
    assert len(names) == 10
    assert all(len(delays[name].paper) > 30 for name in names)


@pytest.mark.parametrize("name", ["orthofl-rpi-lognormal", "orthofl-rpi-half-normal", "orthofl-rpi-uniform"])
def test_derived_delays_are_drawn_for_each_visit_or_once_for_each_client(name: str) -> None:
    each, once = (delays.build(name, per=per)(a_population(500)) for per in ("visit", "client"))
    assert delays.build(name)(a_population(500))(3, 4) == each(3, 4)
    kept = [once(c, 0) for c in range(500)]
    assert all(once(c, v) == kept[c] for c in range(500) for v in (1, 7))
    assert len(set(kept)) == 500
    assert scipy.stats.ks_2samp(kept, [each(c, 1) for c in range(500)]).pvalue > 0.01
