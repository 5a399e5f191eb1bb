"""FedAdam, FedYogi, FedAdagrad and FedAvgM against their twins, by hand, and what they promise."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.state_tree import tensors
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import Shift, batchnorm_net, half_square, random_clients
from tests.methods.fadas.reference import FADAS
from tests.methods.fedopt.reference import Adaptive, InRounds, Momentum, Optimizer
from tests.reference.match import Case, cases, check, few, weights_after_arrivals

some = settings(few, max_examples=8)

NAMED: list[tuple[dict[str, Any], Any]] = [
    ({"name": "fedadam"}, lambda: Adaptive("adam", eta=0.01)),
    ({"name": "fedyogi"}, lambda: Adaptive("yogi", eta=0.01)),
    ({"name": "fedadagrad"}, lambda: Adaptive("adagrad", eta=0.1, beta1=0.0)),
    ({"name": "fedavgm"}, Momentum),
    ({"name": "fedavgm", "beta": 0.5, "eta": 0.3}, lambda: Momentum(beta=0.5, eta=0.3)),
    ({"name": "fedavgm", "nesterov": True}, lambda: Momentum(nesterov=True)),
    (
        {"name": "fedadam", "eta": 0.1, "beta1": 0.5, "beta2": 0.3, "eps": 0.05},
        lambda: Adaptive("adam", eta=0.1, beta1=0.5, beta2=0.3, tau=0.05),
    ),
    (
        {"name": "fedyogi", "eta": 0.1, "beta1": 0.0, "beta2": 0.3, "eps": 0.05},
        lambda: Adaptive("yogi", eta=0.1, beta1=0.0, beta2=0.3, tau=0.05),
    ),
    (
        {"name": "fedadagrad", "eta": 0.05, "beta1": 0.7, "eps": 0.01},
        lambda: Adaptive("adagrad", eta=0.05, beta1=0.7, tau=0.01),
    ),
]
named = pytest.mark.parametrize(
    ("method", "optimizer"), NAMED, ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else ""
)


@named
@some
@given(case=cases())
def test_a_server_optimizer_is_its_twin(method: dict[str, Any], optimizer: Any, case: Case) -> None:
    check(method, case, InRounds(case.problem.w0, case.sizes, optimizer()))


@some
@given(cases(losses=True))
def test_nobody_who_is_lost_is_waited_for(case: Case) -> None:
    check("fedadam", case, InRounds(case.problem.w0, case.sizes, Adaptive("adam", eta=0.01)))


@some
@given(cases(), st.sampled_from([("fedyogi", Adaptive), ("fedavgm", Momentum)]))
def test_two_a_round_that_weigh_alike_are_their_twin(case: Case, which: tuple[str, Any]) -> None:
    name, made = which
    optimizer: Optimizer = made("yogi", eta=0.01) if made is Adaptive else made()
    twin = InRounds(case.problem.w0, [1] * len(case.sizes), optimizer)
    check({"name": name, "weighting": "uniform"}, case, twin, concurrency=2)


# Under other servers


@some
@given(cases(), st.integers(1, 4))
def test_adam_under_a_buffer_is_fadas_without_its_maximum(case: Case, K: int) -> None:
    twin = FADAS(case.problem.w0, M=K, eta=0.01, eps=1e-3, v=1e-6, maximum=False)
    check(f"fedbuff:buffer={K},a=0+step=fedadam", case, twin)


@some
@given(cases(losses=True))
def test_adam_at_every_arrival_takes_fedasyncs_displacements(case: Case) -> None:
    twin = FADAS(case.problem.w0, M=1, eta=0.03, eps=1e-3, v=1e-6, maximum=False)
    check("fedasync+step=fedadam:eta=0.03", case, twin)


PLAIN = Case(
    seed=3,
    p=2,
    h=3,
    sizes=[2, 5, 3],
    durations=[[1.0], [1.5, 0.5], [3.0]],
    steps=2,
    lr=0.05,
    updates=20,
    blind=False,
)


@pytest.mark.parametrize("step", ["fedadam", "fedyogi", "fedadagrad", "fedavgm"])
def test_a_discount_counts_at_every_arrival_as_it_does_in_a_buffer_of_one(step: str) -> None:
    one = weights_after_arrivals(f"fedbuff:buffer=1+step={step}", PLAIN)
    torch.testing.assert_close(
        one, weights_after_arrivals(f"asgd+correct=fedbuff+step={step}", PLAIN), rtol=1e-13, atol=0
    )
    assert not torch.allclose(one[-1], weights_after_arrivals(f"asgd+step={step}", PLAIN)[-1], rtol=1e-4)


# By hand: one client, ½ (θ − 4)² from θ = 0, one step of length ½ a round, so Δ = (4 − θ)/2


def walk(method: Any, rounds: int) -> list[float]:
    task = tarry.Task("point", model=Shift([0.0]), loss=half_square, clients=[(torch.zeros(1), torch.full((1,), 4.0))])
    seen: list[tarry.Event] = []
    tarry.run(method, task, dtype="float64", steps=1, lr=0.5, delay=[1.0], rounds=rounds, callbacks=[seen.append])
    return [e.weights.item() for e in seen if e.kind == "arrival"]


def test_fedadams_first_step_by_hand() -> None:
    """Δ = 2:  m = 0.1·2,  v = 0.99·10⁻⁶ + 0.01·4"""
    assert walk("fedadam", 1) == pytest.approx([0.01 * 0.2 / (sqrt(0.04000099) + 0.001)], rel=1e-14)


def test_fedyogis_first_step_by_hand() -> None:
    """Δ² = 4 > v = 10⁻⁶, so v grows by 0.01·4."""
    assert walk("fedyogi", 1) == pytest.approx([0.01 * 0.2 / (sqrt(0.040001) + 0.001)], rel=1e-14)


def test_fedyogi_shrinks_v_by_no_more_than_the_square() -> None:
    """ε = 3, so v = 9 > Δ² = 4: v = 9 − ½·4 = 7, where Adam has ½·9 + ½·4 = 6½.   β1 = 0: m = 2"""
    assert walk("fedyogi:eta=1,beta1=0,beta2=0.5,eps=3", 1) == pytest.approx([2 / (sqrt(7) + 3)], rel=1e-14)
    assert walk("fedadam:eta=1,beta1=0,beta2=0.5,eps=3", 1) == pytest.approx([2 / (sqrt(6.5) + 3)], rel=1e-14)


def test_fedadagrad_by_hand() -> None:
    """v = 10⁻⁶ + 4, m = Δ = 2 (β1 = 0); then Δ = (4 − θ)/2 and v grows by its square."""
    first = 0.1 * 2 / (sqrt(4.000001) + 0.001)
    delta = (4 - first) / 2
    second = first + 0.1 * delta / (sqrt(4.000001 + delta**2) + 0.001)
    assert walk("fedadagrad", 2) == pytest.approx([first, second], rel=1e-14)


def test_fedavgm_by_hand() -> None:
    """β = ½.  Δ = 2, v = 2;  Δ = 1, v = 1 + 1;  Δ = 0, v = 1;  Δ = −½, v = −½ + ½

    Nesterov's:  Δ = 2, v = 2, θ = 2 + 1;  Δ = ½, v = ½ + 1, θ = 3 + ½ + ¾
    """
    assert walk("fedavgm:beta=0.5", 4) == [2, 4, 5, 5]
    assert walk("fedavgm:beta=0.5,nesterov=true", 2) == [3, 4.25]


# Laws


def batchnorm_task() -> tarry.Task:
    """Four clients of unequal sizes, and a model with running statistics."""
    data = random_clients((6, 9, 12, 15), 3, 2, seed=9, scales=(6, 9, 12, 15))
    module = batchnorm_net(3, 4, 2, momentum=0.5, seed=8)
    return tarry.Task("normed", model=module, loss=nn.functional.cross_entropy, clients=data)


TASK, N_STATS = batchnorm_task(), 8
SETUP: dict[str, Any] = {"delay": [1.0, 2.0, 2.0, 3.0], "dtype": "float64", "steps": 3, "batch": 6, "lr": 0.1}


def rounds(method: Any, n: int = 8, **more: Any) -> list[Tensor]:
    seen: list[tarry.Event] = []
    tarry.run(method, TASK, rounds=n, callbacks=[seen.append], **SETUP, **more)
    return [e.weights for e in seen if e.stepped]


@pytest.mark.parametrize("more", [{}, {"concurrency": 2, "failure_rate": 0.2}], ids=["all", "some"])
@pytest.mark.parametrize("form", ["beta=0", "beta=0,nesterov=true"])
def test_fedavgm_without_momentum_is_fedavg_to_the_bit(form: str, more: dict[str, Any]) -> None:
    ours, theirs = rounds(f"fedavgm:{form}", **more), rounds("fedavg", **more)
    assert len(ours) >= 7
    assert all(map(torch.equal, ours, theirs))


def test_statistics_take_no_moments_and_go_all_the_way_to_the_mean_after_an_adaptive_step() -> None:
    """From the same weights a round gives the same statistics as FedAvg's; its rate is no share of a way."""
    for name in ("fedadam", "fedyogi", "fedadagrad"):
        first, mean = rounds(name, 1)[0], rounds("fedavg", 1)[0]
        torch.testing.assert_close(first[-N_STATS:], mean[-N_STATS:], rtol=1e-13, atol=0)
        assert not torch.allclose(first[:-N_STATS], mean[:-N_STATS], rtol=1e-3)


def test_statistics_go_etas_share_of_the_way_under_fedavgm_and_never_further_than_the_mean() -> None:
    before = tarry.Layout.of(TASK.model).read(TASK.model, torch.float64)  # type: ignore[arg-type]
    mean = rounds("fedavg", 1)[0][-N_STATS:]
    for eta, share in ((0.25, 0.25), (1.0, 1.0), (3.0, 1.0)):
        ours = rounds(f"fedavgm:eta={eta}", 1)[0][-N_STATS:]
        torch.testing.assert_close(ours, torch.lerp(before[-N_STATS:], mean, share), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("name", "copies"), [("fedadam", 2), ("fedyogi", 2), ("fedadagrad", 1), ("fedavgm", 1)])
def test_the_server_keeps_so_many_copies_of_the_trained_weights(name: str, copies: int) -> None:
    made = build_run(Spec.of({"method": name, "task": TASK, "rounds": 2, **SETUP}))
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [])
    sim.run()
    executor.close()
    kept = [t for t in tensors(sim.server.state["step"]) if t.ndim]
    assert [len(t) for t in kept] == [made.layout.n_params] * copies


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("fedadam", {"eta": 0.0}, "--method.eta 0.0"),
        ("fedadam", {"beta1": 1.0}, "--method.beta1 1.0"),
        ("fedadam", {"beta2": 1.0}, "--method.beta2 1.0"),
        ("fedyogi", {"beta2": -0.1}, "--method.beta2 -0.1"),
        ("fedadagrad", {"eps": 0.0}, "--method.eps 0.0"),
        ("fedavgm", {"beta": 1.0}, "--method.beta 1.0"),
        ("fedavgm", {"eta": -1.0}, "--method.eta -1.0"),
    ],
)
def test_what_cannot_be_is_refused(name: str, params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, name, **params)
