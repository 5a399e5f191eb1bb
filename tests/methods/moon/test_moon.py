"""MOON against its twin, and what it promises; and its loss as FedSOL's proximal loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.optim import make_optimizer
from tarry.core.tickets import VisitJob
from tarry.parts.proximal import MOON, WholePasses
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import batchnorm_net, random_clients
from tests.methods.fedasync.reference import FedAsync, polynomial
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedsol.test_fedsol import Classified
from tests.methods.fedsol.test_fedsol import cases as of_one_or_more
from tests.methods.moon.reference import Client, ServerWithMemory, SOLClient
from tests.reference.loop import Twin
from tests.reference.match import check, events_of, visits_of
from tests.reference.problem import Problem, Vec

some = settings(max_examples=5, derandomize=True, deadline=None, database=None)
Choice = dict[str, Any]
F64 = torch.float64
#: two features or more: the cosine of one is a sign
cases = of_one_or_more().map(lambda case: replace(case, h=case.h + 1))


def run_both(method: Any, case: Classified, server: Twin, **choice: Any) -> None:
    twin = ServerWithMemory(server)
    client = Client(case.problem, twin, **choice)

    def train(m: int, w: Vec) -> Vec:
        return client.train(m, w, steps=case.steps, lr=case.lr)

    check(method, case, twin, train=train)


@pytest.mark.parametrize("choice", [{}, {"mu": 5.0, "temperature": 1.0}, {"mu": 0.1, "temperature": 0.2}], ids=str)
@some
@given(case=cases, lost=st.frozensets(visits_of(2), max_size=3))
def test_it_is_its_twin(choice: Choice, case: Classified, lost: frozenset[tuple[int, int]]) -> None:
    """Who is lost keeps the older of its models."""
    case = replace(case, lost=lost)
    run_both({"name": "moon", **choice}, case, FedAvg(case.problem.w0, case.sizes), **choice)


@some
@given(case=cases)
def test_weighing_all_alike_and_under_fedasyncs_server_it_is_its_twin(case: Classified) -> None:
    run_both({"name": "moon", "weighting": "uniform"}, case, FedAvg(case.problem.w0, [1] * len(case.sizes)))
    method = replace(tarry.methods.build("fedasync", alpha=0.5), local=tarry.methods.build("moon").local)
    run_both(method, case, FedAsync(case.problem.w0, 0.5, polynomial(0.5)))


# As FedSOL's proximal loss


@pytest.mark.parametrize(
    "choice",
    [
        {"part": "all", "rho": 0.5},
        {"part": "all", "rho": 0.2, "adaptive": False, "temperature": 0.5},
        {"part": "body", "rho": 0.5, "norm": "dim0"},
        {"part": "body", "rho": 0.2, "adaptive": False},
        {"strategy": "A3", "part": "all", "rho": 0.2, "beta": 0.5},
        {"strategy": "A4", "rho": 0.2, "adaptive": False},
        {"strategy": "projection"},
    ],
    ids=str,
)
@settings(some, max_examples=3)
@given(case=cases)
def test_fedsol_with_this_proximal_loss_is_its_twin(choice: Choice, case: Classified) -> None:
    """It pushes away from the previous model where a visit begins, too."""
    case = replace(case, updates=case.updates + len(case.sizes))
    twin = ServerWithMemory(FedAvg(case.problem.w0, case.sizes))
    client = SOLClient(case.problem, previous=twin.previous, **choice)

    def train(m: int, w: Vec) -> Vec:
        return client.train(m, w, steps=case.steps, lr=case.lr)

    check({"name": "fedsol", "proximal": "moon", **choice}, case, twin, train=train)


@some
@given(case=cases)
def test_the_auxiliary_strategy_of_fedsol_is_moon(case: Classified) -> None:
    """A5 makes two passes where MOON makes one."""
    sol = {"name": "fedsol", "strategy": "A5", "proximal": "moon", "temperature": 0.3, "beta": 0.7}
    ours = events_of({"name": "moon", "temperature": 0.3, "mu": 0.7}, case)
    for a, b in zip(ours, events_of(sol, case), strict=True):
        torch.testing.assert_close(a.weights, b.weights, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("strategy", ["A1", "A2", "A3", "A6"])
def test_fedsol_does_not_perturb_a_head_that_features_do_not_depend_on(strategy: str) -> None:
    task = normed_task()
    with pytest.raises(BadInput, match=r"method.part='head': .* nothing would be perturbed; use method.part='all'"):
        tarry.run({"name": "fedsol", "proximal": "moon", "strategy": strategy}, task, delay=[1.0, 2.0], rounds=1)


# The loss itself


def bound_to(net: nn.Module, x: Tensor, y: Tensor) -> FlatModel:
    task = tarry.Task("one", model=net, loss=cross_entropy, clients=[(x, y)])
    return FlatModel(copy.deepcopy(net), Layout.of(net), task, make_optimizer("sgd", lr=0.1))


def plain(first: list[list[float]]) -> nn.Module:
    """Features are W x."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False)).double()
    net[0].weight.data = torch.tensor(first, dtype=F64)
    return net


def contrast(at: list[list[float]], received: list[list[float]], previous: list[list[float]]) -> tuple[Tensor, Tensor]:
    """(∇ in W, ℓ_con) at x = (1, 0), whose features are W's first column."""
    x, y = torch.tensor([[1.0, 0.0]], dtype=F64), torch.tensor([0])
    net = plain(at)
    bound, layout = bound_to(net, x, y), Layout.of(net)
    head = torch.cat([p.reshape(-1) for p in net[1].parameters()])
    w, w_g, w_prev = (torch.cat([torch.tensor(v, dtype=F64).reshape(-1), head]) for v in (at, received, previous))
    context = {"received": w_g, "previous": w_prev}
    g, value = MOON().on((x, y), context, bound).gradient(WholePasses(bound, x), w)
    assert not g[layout.layers[0].stop :].any(), "nothing reaches the head"
    return g[:4].view(2, 2), value


def test_by_hand() -> None:
    """z = z_prev = (1, 0), z_glob = (0, 1): s_prev = 1, s_glob = 0, ℓ_con = log(1 + e²).

    ∂s_prev/∂z = 0, ∂s_glob/∂z = (0, 1): ∇_z = −2 e²/(1 + e²) (0, 1), straight towards z_glob.
    """
    east, north = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    g, value = contrast(east, north, east)
    torch.testing.assert_close(value, torch.tensor(log(1 + exp(2)), dtype=F64))
    torch.testing.assert_close(g, torch.tensor([[0.0, 0.0], [-2 * exp(2) / (1 + exp(2)), 0.0]], dtype=F64))


def test_where_received_and_previous_model_agree_it_is_log_2_without_a_gradient() -> None:
    """Whatever z."""
    g, value = contrast([[0.3, 0.0], [-0.8, 1.0]], [[1.0, 0.0], [0.7, 1.0]], [[1.0, 0.0], [0.7, 1.0]])
    torch.testing.assert_close(value, torch.tensor(log(2), dtype=F64))
    assert not g.any()


@pytest.mark.parametrize("which", ["at", "received", "previous"])
def test_features_of_nothing_have_no_direction(which: str) -> None:
    """Their cosine with anything is 0; they are not pulled anywhere."""
    models = {
        "at": [[1.0, 0.0], [0.5, 1.0]],
        "received": [[0.0, 1.0], [1.0, 0.0]],
        "previous": [[1.0, 0.0], [0.0, 1.0]],
    }
    models[which] = [[0.0, 0.0], [0.0, 0.0]]
    g, value = contrast(**models)
    assert torch.isfinite(g).all()
    if which == "at":
        assert not g.any()
        torch.testing.assert_close(value, torch.tensor(log(2), dtype=F64))


def test_it_is_the_authors_form_of_it_with_other_models_in_use_and_one_pass_at_w() -> None:
    """A cross-entropy over two cosines, copies in evaluation mode, and one backward pass."""
    net, g = batchnorm_net(4, 5, 3, activation=nn.Tanh, seed=6).double(), torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 4, generator=g, dtype=F64), torch.randint(3, (8,), generator=g)
    bound, layout = bound_to(net, x, y), Layout.of(net)
    received = bound.flat.clone()
    previous, w = (received + 0.3 * torch.rand(layout.size, generator=g, dtype=F64) for _ in range(2))
    w = layout.params(w)
    local, passes = tarry.methods.build("moon", mu=0.4, temperature=0.7).local, list[bool]()
    bound.module.register_forward_pre_hook(lambda module, _: passes.append(module.training))
    bound.load(received)
    context = {"received": received, "previous": previous}
    moved, _, loss = local.step(w, (x, y), context, local.init(w, context, bound), bound)
    assert passes.count(True) == 1
    assert passes.count(False) == 2

    def features(vec: Tensor, *, train: bool) -> tuple[nn.Module, Tensor]:
        own = bound_to(net, x, y)
        own.load(vec)
        module = own.module.train(train)
        return module, module[:-1](x)

    student, r = features(torch.cat([w, received[layout.n_params :]]), train=True)
    (_, r_g), (_, r_prev) = features(received, train=False), features(previous, train=False)
    z = student[-1](r)
    pair = torch.stack([cosine_similarity(r, v.detach()) for v in (r_g, r_prev)], 1) / 0.7
    nowhere = torch.zeros(8, dtype=torch.int64)
    (cross_entropy(z, y) + 0.4 * cross_entropy(pair, nowhere)).backward()
    direction = torch.cat([p.grad.reshape(-1) for p in student.parameters() if p.grad is not None])
    torch.testing.assert_close((w - moved) / 0.1, direction, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(loss, cross_entropy(z, y).detach())
    assert bound.module[1].num_batches_tracked == 1
    torch.testing.assert_close(bound.flat[layout.n_params :], layout.read(student, F64)[layout.n_params :])


# First visits, memory, collapses


def normed_task(*more: nn.Module) -> tarry.Task:
    data = random_clients((6, 10), 4, 3, seed=0)
    model = batchnorm_net(4, 5, 3, *more, activation=nn.Tanh, seed=6)
    return tarry.Task("normed", model=model, loss=cross_entropy, clients=data)


HOW: Choice = {"delay": [1.0, 2.0], "epochs": 2, "batch": 4, "lr": 0.1, "momentum": 0.9}


def test_a_first_visit_is_plain_and_a_second_is_not() -> None:
    """To the bit, dropout and all: asking other models draws nothing."""

    def sha(method: Any, rounds: int) -> str:
        return tarry.run(method, normed_task(nn.Dropout(0.3)), rounds=rounds, **HOW).weights_sha256

    strong = {"name": "moon", "mu": 50.0}
    assert sha(strong, 1) == sha("fedavg", 1)
    assert sha(strong, 2) != sha("fedavg", 2)
    assert sha({"name": "moon", "mu": 0.0}, 3) == sha("fedavg", 3)


def test_a_second_visit_ends_nearer_to_the_received_features_than_to_the_previous_ones() -> None:
    """A heavy μ: the cosine with what was received rises, the one with the previous model falls."""
    task = normed_task()
    layout, x = Layout.of(task.model), task.clients[0][0]
    received = layout.read(task.model, torch.float32)
    previous = received + torch.randn(layout.size, generator=torch.Generator().manual_seed(1)).abs()
    work = LocalWork(make_optimizer("sgd", lr=0.1), epochs=None, steps=30)

    def apart(mu: float) -> float:
        """s_glob − s_prev in the end."""
        bound = FlatModel(copy.deepcopy(task.model), layout, task, work.optimizer)
        local = tarry.methods.build("moon", mu=mu).local
        end = (
            received
            + train(
                VisitJob(0, 0, 1, received, memory={"previous": previous}), bound, rule=local, work=work, seed=0
            ).delta
        )
        r, r_g, r_prev = (bound.features(v, x) for v in (end, received, previous))
        return (cosine_similarity(r, r_g) - cosine_similarity(r, r_prev)).mean().item()

    assert apart(20.0) > apart(0.0) + 0.05


def test_a_client_keeps_the_model_it_ended_with_and_the_server_no_more_than_fedavgs() -> None:
    """Weights and running statistics; after two rounds, of the second."""
    ends: dict[int, Tensor] = {}

    def look(update: Any, _: Any) -> Any:
        ends[update.ticket.client] = update.local
        return update

    method = replace(tarry.methods.build("moon"), correct=tarry.stateless(look))
    made = build_run(Spec.of({"method": method, "task": normed_task(), "rounds": 2, **HOW}))
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [])
    sim.run()
    executor.close()
    assert set(sim._memories) == {"previous"}
    kept = sim._memories["previous"]
    for client, end in ends.items():
        torch.testing.assert_close(kept.get(client), end, rtol=1e-6, atol=1e-7)
    peaks = [tarry.run(name, normed_task(), rounds=2, **HOW).peak_server_bytes for name in ("moon", "fedavg")]
    assert peaks[0] == peaks[1]


# What cannot be


class Bare(nn.Module):
    """Weights and no map."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.theta


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (Bare(), "the last linear or conv map, and the model has none; use another model"),
        (nn.Linear(2, 2), "the last linear or conv map, and nothing is trained before it; use another model"),
    ],
)
@pytest.mark.parametrize(
    ("method", "flag"),
    [
        ("moon", "method='moon'"),
        ("fedavg+local=moon", "local='moon'"),
        ("fedsol:proximal=moon,part=all", "method.proximal='moon'"),
    ],
)
def test_a_model_without_trained_features_is_refused(method: str, flag: str, net: nn.Module, said: str) -> None:
    task = tarry.Task("featureless", model=net, loss=cross_entropy, clients=[(torch.eye(2), torch.arange(2))])
    with pytest.raises(BadInput, match=rf"{flag}: compares what goes into {said}"):
        tarry.run(method, task, delay=[1.0], rounds=1)


@pytest.mark.parametrize("method", ["moon", "fedsol:proximal=moon,part=all"])
def test_a_model_whose_head_is_not_a_module_of_its_own_is_refused_at_the_first_visit(method: str) -> None:
    task = Problem.draw(0, p=3, h=2, sizes=[5, 5]).task()
    with pytest.raises(BadInput, match=r"task='twin': its model has no last map of its own"):
        tarry.run(method, task, dtype="float64", delay=[1.0, 1.0], rounds=1, steps=2)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"mu": -1.0}, ["--method.mu -1.0: must be 0 or more"]),
        ({"temperature": 0.0}, ["--method.temperature 0.0: must be above 0"]),
    ],
)
def test_what_cannot_be_is_refused(params: Choice, said: list[str]) -> None:
    with pytest.raises(BadInput) as e:
        build_by_flags(tarry.methods, "moon", **params)
    assert list(e.value.problems) == said
