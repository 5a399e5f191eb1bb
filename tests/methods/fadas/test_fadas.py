"""FADAS against its twin, by hand, and what it promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.core.errors import BadInput
from tests.helpers.models import InnerProduct, Shift, half_square
from tests.methods.fadas.reference import FADAS
from tests.reference.match import Case, cases, check, events_of, few, weights_after_arrivals

some = settings(few, max_examples=12)


@some
@given(cases())
def test_at_its_defaults_it_is_its_twin(case: Case) -> None:
    check("fadas", case, FADAS(case.problem.w0, eta=1e-4))


@some
@given(st.one_of(cases(), cases(losses=True)), st.integers(1, 4), st.sampled_from([0, 1, 2]))
def test_with_a_scaled_rate_it_is_its_twin(case: Case, M: int, tau_c: int) -> None:
    method = {"name": "fadas", "buffer": M, "eta": 0.02, "delay": "scaled", "tau_c": tau_c}
    check(method, case, FADAS(case.problem.w0, M=M, eta=0.02, delay="scaled", tau_c=tau_c))


@some
@given(cases())
def test_delay_adaptive_at_its_defaults_it_is_its_twin(case: Case) -> None:
    """η = 10⁻³, τ_c = 1."""
    check({"name": "fadas", "delay": "scaled"}, case, FADAS(case.problem.w0, eta=1e-3, delay="scaled", tau_c=1))


@some
@given(cases(), st.integers(1, 3), st.sampled_from([0, 2]))
def test_with_a_capped_rate_it_is_its_twin(case: Case, M: int, tau_c: int) -> None:
    """η = 0.4 is cut down by delays of three steps and more. ε is large, so that the steps are not."""
    how: dict[str, Any] = {"eta": 0.4, "delay": "capped", "tau_c": tau_c, "eps": 1.0}
    check({"name": "fadas", "buffer": M, **how}, case, FADAS(case.problem.w0, M=M, **how))


@some
@given(cases(), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.5]))
def test_with_two_at_a_time_and_other_decays_it_is_its_twin(case: Case, beta1: float, beta2: float) -> None:
    how = {"eta": 0.01, "beta1": beta1, "beta2": beta2, "eps": 1e-3}
    check({"name": "fadas", "buffer": 2, **how}, case, FADAS(case.problem.w0, M=2, **how), concurrency=2)


# Under other servers


@some
@given(cases())
def test_its_step_at_every_arrival_goes_by_that_arrivals_delay(case: Case) -> None:
    twin = FADAS(case.problem.w0, M=1, eta=0.02, delay="scaled", tau_c=0)
    check("asgd+step=fadas:eta=0.02,delay=scaled,tau_c=0", case, twin)


PLAIN = Case(
    seed=3, p=2, h=3, sizes=[2, 5, 3], durations=[[1.0], [1.5, 0.5], [5.0]], steps=2, lr=0.05, updates=30, blind=False
)


def same(one: Any, other: Any) -> None:
    a, b = weights_after_arrivals(one, PLAIN), weights_after_arrivals(other, PLAIN)
    assert not torch.allclose(a[-1], a[0], rtol=1e-3), "something was learnt"
    assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("delay", ["ignored", "capped", "scaled"])
def test_it_is_a_buffer_and_a_step(delay: str) -> None:
    how = f"eta=0.4,delay={delay}"
    same(f"fadas:buffer=2,{how}", f"asgd+aggregate=fadas:buffer=2+step=fadas:{how}")
    if delay == "ignored":
        same(f"fadas:buffer=2,{how}", f"fedbuff:buffer=2,a=0+step=fadas:{how}")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedbuff+step=fadas:delay=scaled", r"step='fadas:delay=[a-z]*': .*longest delay.*; leave out step"),
        ("fedavg+step=fadas:delay=capped", r"step='fadas:delay=[a-z]*': .*longest delay.*; leave out step"),
        ("fadas:delay=scaled+aggregate=fedbuff", r"aggregate='fedbuff': .*longest delay.*; leave out aggregate"),
    ],
)
def test_a_delay_adaptive_step_is_refused_where_it_would_not_hear_of_delays(method: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        weights_after_arrivals(method, PLAIN)


def test_it_may_be_distilled_and_still_hears_of_delays() -> None:
    task = tarry.Task("three", model=Three(), loss=nn.functional.cross_entropy, clients=THREE, unlabeled=THREE[0][0])
    shas = {
        delay: tarry.run(f"fadas:buffer=2,eta=0.1,delay={delay}+distill=fedecho:lr=0.01", task, **SLOW).weights_sha256
        for delay in ("ignored", "scaled")
    }
    assert shas["ignored"] != shas["scaled"]


SLOW: dict[str, Any] = {"delay": [[1.0], [1.5], [6.0]], "updates": 24, "steps": 1}
THREE = [(torch.randn(4, 2, generator=torch.Generator().manual_seed(k)), torch.arange(4) % 2) for k in range(3)]


class Three(nn.Sequential):
    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(nn.Linear(2, 2))


# Laws


@pytest.mark.parametrize("delay", ["capped", "scaled"])
def test_where_no_delay_exceeds_tau_c_it_does_not_adapt(delay: str) -> None:
    late = max(e.staleness for e in events_of("fadas:buffer=2,eta=0.4", PLAIN) if e.kind == "arrival")
    assert late >= 3
    same(f"fadas:buffer=2,eta=0.4,delay={delay},tau_c={late}", "fadas:buffer=2,eta=0.4")
    adapting = weights_after_arrivals(f"fadas:buffer=2,eta=0.4,delay={delay},tau_c={late - 1}", PLAIN)
    assert not torch.allclose(adapting[-1], weights_after_arrivals("fadas:buffer=2,eta=0.4", PLAIN)[-1], rtol=1e-3)


def test_as_printed_a_rate_below_every_1_over_tau_is_never_cut() -> None:
    same("fadas:buffer=2,eta=0.01,delay=capped,tau_c=0", "fadas:buffer=2,eta=0.01")


def downhill(outputs: Tensor, targets: Tensor) -> Tensor:
    """−x·w has the same gradient everywhere: every displacement of every client is the same."""
    return -(outputs * targets).mean()


def on_a_slope(method: str, x: tuple[float, ...] = (1.0, -2.0, 0.5)) -> list[Tensor]:
    data = [(torch.tensor([x]), torch.ones(1))] * 3
    task = tarry.Task("slope", model=InnerProduct([0.0, 0.0, 0.0]), loss=downhill, clients=data, metrics=["loss"])
    seen: list[tarry.Event] = []
    setup: dict[str, Any] = {"dtype": "float64", "steps": 1, "lr": 1.0, "delay": [[1.0], [1.5], [2.5]], "updates": 40}
    tarry.run(method, task, callbacks=[seen.append], **setup)
    return [e.weights for e in seen if e.stepped]


def test_while_displacements_do_not_shrink_it_is_adam_under_a_buffer() -> None:
    """v only rises, so its maximum is itself. FedAdam's v begins at ε² = 10⁻¹⁶, FADAS's at 0."""
    ours = on_a_slope("fadas:buffer=2,eta=0.1")
    torch.testing.assert_close(
        ours, on_a_slope("fedbuff:buffer=2,a=0+step=fedadam:eta=0.1,eps=1e-8"), rtol=1e-12, atol=0
    )
    assert len(ours) == 20


def test_its_first_step_is_eta_long_whatever_the_displacement() -> None:
    """m = 0.1 Δ and √v̂ = 0.1 |Δ|, so each weight moves by η in the direction of its Δ."""
    expected = torch.tensor([0.1, -0.1, 0.1], dtype=torch.float64)
    for scale in (1.0, 50.0):
        x = (scale, -2 * scale, 0.5 * scale)
        torch.testing.assert_close(on_a_slope("fadas:buffer=2,eta=0.1", x)[0], expected, rtol=1e-6, atol=0)


def walk(method: str, delay: list[list[float]], updates: int) -> list[tuple[int, float]]:
    """(staleness, θ) of every arrival: ½ (θ − 4)² for all, from θ = 0, one step of length ½ a visit: Δ = (4 − θ)/2."""
    data = [(torch.zeros(1), torch.full((1,), 4.0))] * len(delay)
    task = tarry.Task("points", model=Shift([0.0]), loss=half_square, clients=data, metrics=["loss"])
    seen: list[tarry.Event] = []
    tarry.run(method, task, dtype="float64", steps=1, lr=0.5, delay=delay, updates=updates, callbacks=[seen.append])
    return [(e.staleness, e.weights.item()) for e in seen if e.kind == "arrival"]


def test_its_maximum_by_hand() -> None:
    """β1 = 0, β2 = ¾, ε = 1, η = 2.

    Δ = 2      v = ¼·4 = 1               v̂ = 1    θ = 0 + 2·2/2 = 2
    Δ = 1      v = ¾·1 + ¼·1 = 1         v̂ = 1    θ = 2 + 2·1/2 = 3
    Δ = ½      v = ¾·1 + ¼·¼ = 13/16     v̂ = 1    θ = 3 + 2·½/2 = 3½      Adam would go further
    """
    got = walk("fadas:buffer=1,beta1=0,beta2=0.75,eps=1,eta=2", [[1.0]], 3)
    assert got == [(0, 2.0), (0, 3.0), (0, 3.5)]


@pytest.mark.parametrize(("delay", "eta_t"), [("ignored", 2.0), ("capped", 0.5), ("scaled", 1.0)])
def test_its_rate_by_hand(delay: str, eta_t: float) -> None:
    """β1 = 0, β2 = ¾, ε = 1, η = 2, τ_c = 1, M = 1; a client of 1 s and one of 3 s, which is handed θ = 0.

    1 s   A   Δ = 2      v̂ = 1                     τ = 0    θ = 2
    2 s   A   Δ = 1      v̂ = 1                     τ = 0    θ = 3
    3 s   B   Δ = 2      v̂ = ¾·1 + ¼·4 = 7/4       τ = 2    η_t = 2, min(2, ½) or 2/2
    """
    got = walk(f"fadas:buffer=1,beta1=0,beta2=0.75,eps=1,eta=2,delay={delay}", [[1.0], [3.0]], 3)
    assert got[:2] == [(0, 2.0), (0, 3.0)]
    assert got[2] == (2, pytest.approx(3 + eta_t * 2 / (1.75**0.5 + 1), rel=1e-14))


def test_a_buffers_longest_delay_counts_and_is_forgotten_with_it() -> None:
    """β1 = β2 = 0, ε = 2, η = 2, τ_c = 0, M = 2; a client of 1 s and one of 5 s. v̂ = 4 from the first step on.

    1, 2 s   A from 0       Δ = 2, 2                         θ = 0 + 2·2/4 = 1
    3, 4 s   A from 1       Δ = 3/2, 3/2                     θ = 1 + 2·(3/2)/4 = 7/4
    5 s      B from 0, A    Δ = 2, 9/8    τ = 2, 0           θ = 7/4 + (2/2)·(25/16)/4 = 137/64
    6, 7 s   A              Δ = 119/128, twice, and fresh    θ = 137/64 + 2·(119/128)/4 = 667/256
    """
    got = walk("fadas:buffer=2,beta1=0,beta2=0,eps=2,eta=2,delay=scaled,tau_c=0", [[1.0], [5.0]], 8)
    assert [tau for tau, _ in got] == [0, 0, 0, 0, 2, 0, 0, 0]
    assert [theta for _, theta in got] == [0, 1, 1, 7 / 4, 7 / 4, 137 / 64, 137 / 64, 667 / 256]
