from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.rng import Stream, visit_keys
from tarry.delays import distributions
from tarry.delays import papers as paper_delays  # noqa: F401  (registers its delays)
from tarry.delays.base import ClientPopulation, Delay, assign_profiles, delays
from tarry.delays.distributions import bandwidth, normal, scripted
from tests.helpers.by_flags import build_by_flags

GENERIC = ["constant", "normal", "lognormal", "half-normal", "uniform", "exponential", "pareto", "bandwidth"]
RANDOM = ["normal", "lognormal", "half-normal", "uniform", "exponential", "pareto"]
NO_FILE = [name for name in delays if name not in ("empirical", "trace", "scripted")]


def a_population(n: int = 20, seed: int = 7, model_bytes: int = 1_000_000, epochs: float = 1.0) -> ClientPopulation:
    return ClientPopulation(n, range(10, 10 + n), model_bytes, seed, epochs)


def build(name: str, population: ClientPopulation | None = None, **params: object) -> Delay:
    return delays.build(name, **params)(population or a_population())


def draws(delay: Delay, clients: int = 20, visits: int = 2000) -> np.ndarray:
    return np.array([delay(client, visit) for client in range(clients) for visit in range(visits)])


def test_a_visit_key_is_the_key_of_seed_stream_client_and_visit():
    for seed in (0, 7, -3, 2**63):
        visit_key = visit_keys(seed, Stream.DELAY)
        for client, visit in [(0, 0), (0, 1), (1, 0), (999_999, 12_345)]:
            assert visit_key(client, visit) == rng.key(seed, Stream.DELAY, client, visit)


@pytest.mark.parametrize("name", NO_FILE)
def test_a_delay_is_a_function_of_client_and_visit_in_any_order(name):
    delay, again = build(name), build(name)
    in_turn = {(client, visit): delay(client, visit) for client in range(20) for visit in range(20)}
    asked = list(in_turn) * 2
    random.Random(3).shuffle(asked)
    assert all(again(*pair) == in_turn[pair] for pair in asked)


@pytest.mark.parametrize("name", [n for n in NO_FILE if n not in ("constant", "bandwidth")])
def test_another_seed_gives_other_durations(name):
    one, other = build(name, a_population(seed=1)), build(name, a_population(seed=2))
    assert draws(one, visits=5).tolist() != draws(other, visits=5).tolist()


@pytest.mark.parametrize("name", RANDOM)
def test_visits_and_clients_draw_numbers_of_their_own(name):
    values = draws(build(name), visits=50)
    assert len(set(values.tolist())) == len(values)


def test_constant_takes_the_same_time_at_every_visit():
    delay = build("constant", seconds="2.5")
    assert {delay(c, v) for c in range(20) for v in range(3)} == {2.5}


CLOSED_FORMS = [
    ("normal", {"mean": 100, "sd": 10}, scipy.stats.norm(100, 10), 100, 10),
    (
        "lognormal",
        {"mean": 40, "sd": 30},
        scipy.stats.lognorm(math.sqrt(math.log(25 / 16)), scale=40 / math.sqrt(25 / 16)),
        40,
        30,
    ),
    (
        "half-normal",
        {"mean": 40},
        scipy.stats.halfnorm(0, 40 * math.sqrt(math.pi / 2)),
        40,
        40 * math.sqrt(math.pi / 2 - 1),
    ),
    ("uniform", {"low": 3, "high": 15}, scipy.stats.uniform(3, 12), 9, math.sqrt(12)),
    ("exponential", {"mean": 25}, scipy.stats.expon(0, 25), 25, 25),
    ("pareto", {"minimum": 10, "shape": 5}, scipy.stats.pareto(5, scale=10), 12.5, math.sqrt(100 * 5 / (16 * 3))),
]


@pytest.mark.parametrize(("name", "params", "law", "mean", "sd"), CLOSED_FORMS, ids=[c[0] for c in CLOSED_FORMS])
def test_durations_follow_the_named_distribution(name, params, law, mean, sd):
    values = draws(build(name, **params))
    assert values.mean() == pytest.approx(mean, abs=4 * sd / math.sqrt(len(values)))
    assert values.std() == pytest.approx(sd, rel=0.05)
    assert scipy.stats.kstest(values, law.cdf).pvalue > 0.01


@pytest.mark.parametrize("name", [n for n in RANDOM if n != "pareto"])
def test_defaults_have_a_mean_of_100_seconds(name):
    assert draws(build(name)).mean() == pytest.approx(100, rel=0.03)


def test_a_normal_draw_of_0_or_less_becomes_the_mean():
    delay = build("normal", mean=1, sd=10)
    for visit in range(200):
        plain = 1 + 10 * rng.normal(rng.key(7, Stream.DELAY, 4, visit))
        assert delay(4, visit) == (plain if plain > 0 else 1)
    values = draws(delay)
    assert np.mean(values == 1) == pytest.approx(scipy.stats.norm.cdf(-0.1), abs=0.01)
    assert values.mean() == pytest.approx(1 + 10 * scipy.stats.norm.pdf(0.1), abs=0.15)


def test_spread_scales_mean_and_sd_of_a_client_alike():
    population = a_population(2000)
    factor = [normal(mean=1, sd=0, spread=0.5)(population)(client, 0) for client in range(2000)]
    typical, spread = normal(mean=50, sd=40)(population), normal(mean=50, sd=40, spread=0.5)(population)
    for client in range(0, 2000, 40):
        for visit in range(10):
            assert spread(client, visit) == pytest.approx(factor[client] * typical(client, visit), rel=1e-12)
    logs = np.log(factor)
    assert logs.mean() == pytest.approx(0, abs=0.05)
    assert logs.std() == pytest.approx(0.5, rel=0.06)


def test_bandwidth_adds_computing_and_both_transfers():
    population = ClientPopulation(2, [100, 0], model_bytes=500_000, seed=1, epochs=3)
    delay = bandwidth(seconds_per_sample=0.02, down_mbps=8, up_mbps=2)(population)
    assert delay(0, 0) == pytest.approx(100 * 3 * 0.02 + 4e6 / 8e6 + 4e6 / 2e6)
    assert delay(1, 9) == pytest.approx(2.5)


def test_bandwidth_spread_changes_the_computing_time_only():
    slow_links = {"down_mbps": 1e-3, "up_mbps": 1e-3}
    population = ClientPopulation(3000, [10] * 2999 + [0], model_bytes=125, seed=3)
    delay = bandwidth(seconds_per_sample=0.1, spread=0.7, **slow_links)(population)
    logs = np.log([delay(client, 0) - 2 for client in range(2999)])
    assert logs.mean() == pytest.approx(0, abs=0.06)
    assert logs.std() == pytest.approx(0.7, rel=0.06)
    assert delay(2999, 0) == pytest.approx(2)


def speeds_file(folder: Path, *kbps: object) -> str:
    path = folder / "speeds.csv"
    path.write_text("case,client,mean_kbps,samples_kbps\n" + "".join(f"1,{i},{v},1 2\n" for i, v in enumerate(kbps)))
    return str(path)


def test_measured_speeds_hold_for_both_ways_and_are_dealt_without_replacement(tmp_path):
    path = speeds_file(tmp_path, 1000, 2000, 4000, 8000)
    population = ClientPopulation(4, [0] * 4, model_bytes=1_000_000, seed=5)
    delay = bandwidth(down_mbps=1e-3, speeds=path)(population)
    assert sorted(delay(client, 0) for client in range(4)) == pytest.approx([2, 4, 8, 16])


def test_more_clients_than_measured_speeds_share_them(tmp_path):
    path = speeds_file(tmp_path, 1000, 2000)
    delay = bandwidth(speeds=path)(ClientPopulation(200, [0] * 200, model_bytes=1_000_000, seed=5))
    values = [round(delay(client, 0), 9) for client in range(200)]
    assert set(values) == {8, 16}
    assert 65 <= values.count(8) <= 135


def test_things_are_dealt_without_replacement_while_there_are_enough():
    assert sorted(assign_profiles(a_population(9), 9)) == list(range(9))
    assert len(set(assign_profiles(a_population(5), 9))) == 5
    assert assign_profiles(a_population(5, seed=1), 9) != assign_profiles(a_population(5, seed=2), 9)


def test_things_are_dealt_with_replacement_when_there_are_too_few():
    counts = np.bincount(assign_profiles(a_population(9000), 9), minlength=9)
    assert scipy.stats.chisquare(counts).pvalue > 0.01
    assert len(set(counts.tolist())) > 1


SECONDS = st.floats(1e-9, 1e15)


@given(
    mean=SECONDS,
    sd=st.floats(0, 1e15),
    spread=st.floats(0, 10),
    shape=st.floats(0.1, 1e15),
    seed=st.integers(0, 2**63),
    client=st.integers(0, 19),
    visit=st.integers(0, 10**9),
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_every_duration_is_above_0_and_finite(mean, sd, spread, shape, seed, client, visit):
    population = a_population(seed=seed, model_bytes=1)
    asked = {
        "constant": {"seconds": mean},
        "normal": {"mean": mean, "sd": sd, "spread": spread},
        "lognormal": {"mean": mean, "sd": sd},
        "half-normal": {"mean": mean},
        "uniform": {"low": min(mean, sd), "high": max(mean, sd)},
        "exponential": {"mean": mean},
        "pareto": {"minimum": mean, "shape": shape},
        "bandwidth": {"seconds_per_sample": mean, "down_mbps": mean, "up_mbps": mean, "spread": spread},
    }
    assert list(asked) == GENERIC
    for name, params in asked.items():
        assert 0 < build(name, population, **params)(client, visit) < math.inf, name


@pytest.mark.parametrize("u", [2.0**-53, 1 - 2.0**-53])
@pytest.mark.parametrize("name", RANDOM)
def test_the_rarest_draws_are_durations_too(name, u, monkeypatch):
    monkeypatch.setattr(distributions, "uniform", lambda _key: u)
    hardest = {"pareto": {"shape": 0.1}, "uniform": {"low": 0}, "lognormal": {"mean": 1e-9, "sd": 1e15}}
    assert 0 < build(name, **hardest.get(name, {}))(0, 0) < math.inf


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("constant", {"seconds": 0.0}, "--delay.seconds 0.0: must be from 1e-09 to 1e+15"),
        ("constant", {"seconds": math.inf}, "--delay.seconds inf: "),
        ("normal", {"mean": -5.0}, "--delay.mean -5.0: "),
        ("normal", {"sd": -1.0}, "--delay.sd -1.0: must be from 0 to 1e+15"),
        ("normal", {"spread": 11.0}, "--delay.spread 11.0: must be from 0 to 10"),
        ("lognormal", {"mean": math.nan}, "--delay.mean nan: "),
        ("lognormal", {"sd": -1.0}, "--delay.sd -1.0: "),
        ("half-normal", {"mean": 0.0}, "--delay.mean 0.0: "),
        ("uniform", {"low": -1.0}, "--delay.low -1.0: "),
        ("uniform", {"low": 9.0, "high": 3.0}, "--delay.low 9.0: must not be above --delay.high 3.0"),
        ("exponential", {"mean": 0.0}, "--delay.mean 0.0: "),
        ("pareto", {"minimum": 0.0}, "--delay.minimum 0.0: "),
        ("pareto", {"shape": 0.0}, "--delay.shape 0.0: must be from 0.1 to 1e+15"),
        ("bandwidth", {"seconds_per_sample": 0.0}, "--delay.seconds_per_sample 0.0: "),
        ("bandwidth", {"down_mbps": 0.0}, "--delay.down_mbps 0.0: "),
        ("bandwidth", {"up_mbps": -2.0}, "--delay.up_mbps -2.0: "),
        ("bandwidth", {"spread": -0.5}, "--delay.spread -0.5: "),
        ("bandwidth", {"speeds": "nowhere.csv"}, "--delay.speeds nowhere.csv: "),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_flag_and_value(name, params, problem):
    with pytest.raises(BadInput) as rejected:
        build_by_flags(delays, name, **params)
    assert rejected.value.problems[0].startswith(problem)
    assert len(rejected.value.problems) == 1


def test_all_wrong_parameters_are_named_at_once():
    with pytest.raises(BadInput) as rejected:
        build_by_flags(delays, "normal", mean=0, sd=-1, spread=-2)
    assert [p.split()[0] for p in rejected.value.problems] == ["--delay.mean", "--delay.sd", "--delay.spread"]


@pytest.mark.parametrize(
    ("value", "problem"), [("fast", "'fast' is not a number"), ("0", "mean_kbps 0: must"), ("nan", "mean_kbps nan")]
)
def test_a_bad_measured_speed_is_refused_with_its_line(tmp_path, value, problem):
    path = speeds_file(tmp_path, 1000, value)
    with pytest.raises(BadInput) as rejected:
        bandwidth(speeds=path)
    assert str(rejected.value).startswith(f"--delay.speeds {path}: line 3: {problem}")


def test_scripted_numbers_hold_at_every_visit_and_lists_are_run_through_again():
    delay = scripted([4, [1.0, 2.0, 3.5]])(a_population(2))
    assert [delay(0, v) for v in range(3)] == [4, 4, 4]
    assert [delay(1, v) for v in range(7)] == [1.0, 2.0, 3.5, 1.0, 2.0, 3.5, 1.0]


def test_scripted_clients_leave_at_the_end_of_their_list_when_asked():
    delay = scripted([4.0, (1.0, 2.0), []], end="leave")(a_population(3))
    assert delay(0, 1000) == 4
    assert [delay(1, v) for v in range(4)] == [1.0, 2.0, None, None]
    assert delay(2, 0) is None


@pytest.mark.parametrize("bad", [0.0, -3.0, math.inf, math.nan])
def test_a_scripted_duration_that_is_none_is_refused_by_client_visit_and_value(bad):
    with pytest.raises(BadInput, match=f"client 1, visit 2: {bad}: must be finite and above 0"):
        scripted([1.0, [1.0, 2.0, bad]])


def test_scripted_needs_one_entry_a_client():
    with pytest.raises(BadInput, match="2 entries for 3 clients"):
        scripted([1.0, 2.0])(a_population(3))


def test_scripted_cannot_repeat_an_empty_list_or_end_in_an_unknown_way():
    with pytest.raises(BadInput, match=r"client 1: \[\]: needs a duration"):
        scripted([1.0, []])
    with pytest.raises(BadInput, match="'stop': must be 'repeat' or 'leave'"):
        scripted([1.0], end="stop")  # type: ignore[arg-type]
