"""FedNTD against its twin, and what it promises; and its loss as FedSOL's proximal loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.local_rule import VisitInput
from tarry.core.optim import make_optimizer
from tarry.parts.proximal import NTD, WholePasses
from tarry.training.flat_model import FlatModel
from tarry.training.visit import BatchIterator, LocalWork
from tests.helpers.by_flags import build_by_flags
from tests.methods.fedasync.reference import FedAsync, polynomial
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedntd.reference import Client, SOLClient
from tests.methods.fedsol.test_fedsol import Classified
from tests.methods.fedsol.test_fedsol import cases as of_two_or_more
from tests.reference.match import check, events_of, visits_of
from tests.reference.problem import Vec

some = settings(max_examples=5, derandomize=True, deadline=None, database=None)
Choice = dict[str, Any]
F64 = torch.float64
cases = of_two_or_more().map(lambda case: replace(case, k=case.k + 1))


def trained_by(case: Classified, client: Any) -> Any:
    def train(m: int, w: Vec) -> Vec:
        out: Vec = client.train(m, w, steps=case.steps, lr=case.lr)
        return out

    return train


@pytest.mark.parametrize("choice", [{}, {"beta": 0.3, "temperature": 3.0}, {"temperature": 0.5}], ids=str)
@some
@given(case=cases, lost=st.frozensets(visits_of(2), max_size=3))
def test_it_is_its_twin(choice: Choice, case: Classified, lost: frozenset[tuple[int, int]]) -> None:
    case = replace(case, lost=lost)
    train = trained_by(case, Client(case.problem, **choice))
    check({"name": "fedntd", **choice}, case, FedAvg(case.problem.w0, case.sizes), train=train)


@some
@given(case=cases)
def test_weighing_all_alike_and_under_fedasyncs_server_it_is_its_twin(case: Classified) -> None:
    train = trained_by(case, Client(case.problem))
    check({"name": "fedntd", "weighting": "uniform"}, case, FedAvg(case.problem.w0, [1] * len(case.sizes)), train=train)
    method = replace(tarry.methods.build("fedasync", alpha=0.5), local=tarry.methods.build("fedntd").local)
    check(method, case, FedAsync(case.problem.w0, 0.5, polynomial(0.5)), train=train)


# As FedSOL's proximal loss


@pytest.mark.parametrize(
    "choice",
    [
        {"rho": 0.5},
        {"rho": 0.5, "part": "all", "temperature": 1.0},
        {"rho": 0.2, "part": "body", "adaptive": False},
        {"rho": 0.5, "adaptive": False},
        {"strategy": "A3", "part": "all", "rho": 0.2, "beta": 0.5, "norm": "dim0"},
        {"strategy": "A4", "rho": 0.2},
        {"strategy": "projection"},
    ],
    ids=str,
)
@settings(some, max_examples=3)
@given(case=cases)
def test_fedsol_with_this_proximal_loss_is_its_twin(choice: Choice, case: Classified) -> None:
    train = trained_by(case, SOLClient(case.problem, **choice))
    method = {"name": "fedsol", "proximal": "ntd", **choice}
    check(method, case, FedAvg(case.problem.w0, case.sizes), train=train)


@some
@given(case=cases)
def test_the_auxiliary_strategy_of_fedsol_is_fedntd(case: Classified) -> None:
    """A5 makes two passes where FedNTD makes one."""
    sol = {"name": "fedsol", "strategy": "A5", "proximal": "ntd", "temperature": 2.0, "beta": 0.7}
    ours = events_of({"name": "fedntd", "temperature": 2.0, "beta": 0.7}, case)
    for a, b in zip(ours, events_of(sol, case), strict=True):
        torch.testing.assert_close(a.weights, b.weights, rtol=1e-11, atol=1e-13)


# The loss itself


def bound_to(net: nn.Module, x: Tensor, y: Tensor) -> FlatModel:
    task = tarry.Task("one", model=net, loss=cross_entropy, clients=[(x, y)])
    bound = FlatModel(copy.deepcopy(net), Layout.of(net), task, make_optimizer("sgd", lr=0.1))
    bound.visit = BatchIterator(bound.flat.clone(), (x, y), LocalWork(bound.optimizer, steps=1, epochs=None), 0)
    return bound


def test_by_hand() -> None:
    """Outputs are the weights. Received (0, log 2, 0), true class 0: q̃^g = (2/3, 1/3) of classes 1 and 2.

    At z = (9, 0, 0), q̃ = (½, ½): ∇ = (0, ½ − 2/3, ½ − 1/3), KL = (2/3) log (4/3) + (1/3) log (2/3).
    """
    net = nn.Linear(1, 3, bias=False, dtype=F64)
    net.weight.data = torch.tensor([[1.0], [2.0], [1.0]], dtype=F64).log()
    x, y = torch.ones(1, 1, dtype=F64), torch.tensor([0])
    bound = bound_to(net, x, y)
    w = torch.tensor([9.0, 0.0, 0.0], dtype=F64)
    g, value = NTD().on((x, y), {}, bound).gradient(WholePasses(bound, x), w)
    torch.testing.assert_close(g, torch.tensor([0.0, -1 / 6, 1 / 6], dtype=F64))
    p = torch.tensor([2.0, 1.0], dtype=F64) / 3
    torch.testing.assert_close(value, (p * (p / 0.5).log()).sum())


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_it_is_the_authors_form_of_it_with_the_received_model_in_use_and_one_pass_at_w(temperature: float) -> None:
    """Logits gathered at the not-true classes, a copy in evaluation mode for a teacher, and one backward pass."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5)).double()
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 4, generator=g, dtype=F64), torch.randint(5, (8,), generator=g)
    bound, layout = bound_to(net, x, y), Layout.of(net)
    received = bound.flat.clone()
    w = layout.params(received) + 0.3 * torch.randn(layout.n_params, generator=g, dtype=F64)

    local = tarry.methods.build("fedntd", beta=0.4, temperature=temperature).local
    start, context = local.begin(VisitInput(received, {}, {}, layout))
    moved, _, loss = local.step(w, (x, y), context, local.init(w, context, bound), bound)

    student = copy.deepcopy(net).train()
    nn.utils.vector_to_parameters(w, student.parameters())
    others = torch.tensor([[c for c in range(5) if c != label] for label in y.tolist()])
    z = student(x)
    theirs = softmax(copy.deepcopy(net).eval()(x).detach().gather(1, others) / temperature, 1)
    ours = log_softmax(z.gather(1, others) / temperature, 1)
    (cross_entropy(z, y) + 0.4 * temperature**2 * kl_div(ours, theirs, reduction="batchmean")).backward()
    direction = torch.cat([p.grad.reshape(-1) for p in student.parameters() if p.grad is not None])
    torch.testing.assert_close((w - moved) / 0.1, direction, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(loss, cross_entropy(z, y).detach())
    assert torch.equal(start, received)
    assert bound.module[1].num_batches_tracked == 1
    torch.testing.assert_close(bound.flat[layout.n_params :], layout.read(student, F64)[layout.n_params :])


def test_where_a_visit_begins_the_gradient_is_0_to_the_bit() -> None:
    """Whoever divides it by its norm would else follow rounding errors."""
    g = torch.Generator().manual_seed(5)
    net = nn.Linear(7, 10)
    x, y = torch.randn(30, 7, generator=g), torch.randint(10, (30,), generator=g)
    bound = bound_to(net, x, y)
    for temperature in (0.3, 1.0, 3.0):
        found, value = NTD(temperature).on((x, y), {}, bound).gradient(WholePasses(bound, x), bound.flat.clone())
        assert not found.any()
        assert abs(value) < 1e-6


def test_a_sequence_has_a_true_class_at_every_place() -> None:
    """Outputs batch × length × classes: as if every place were an example."""
    g = torch.Generator().manual_seed(6)
    net = nn.Linear(3, 4, dtype=F64)
    x, y = torch.randn(2, 5, 3, generator=g, dtype=F64), torch.randint(4, (2, 5), generator=g)
    w = torch.randn(16, generator=g, dtype=F64)
    found = []
    for batch in ((x, y), (x.flatten(0, 1), y.flatten())):
        bound = bound_to(net, *batch)
        found.append(NTD(2.0).on(batch, {}, bound).gradient(WholePasses(bound, batch[0]), w))
    torch.testing.assert_close(*found)


# Collapses and rejections


def task_of(classes: int, labels: Tensor, loss: Any = cross_entropy) -> tarry.Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, classes))
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    return tarry.Task(
        "small", model=net, loss=loss, clients=[(x[:6], labels[:6]), (x[6:], labels[6:])], metrics=["loss"]
    )


def test_without_its_weight_it_is_fedavg_to_the_bit() -> None:
    how: Choice = {"delay": [1.0, 2.0], "rounds": 3, "epochs": 2, "batch": 3, "lr": 0.1, "momentum": 0.9}
    task = task_of(3, torch.arange(12) % 3)
    shas = [
        tarry.run(m, task, **how).weights_sha256
        for m in ("fedavg", {"name": "fedntd", "beta": 0.0}, {"name": "fedntd", "beta": 0.01})
    ]
    assert shas[0] == shas[1] != shas[2]


@pytest.mark.parametrize(
    ("classes", "labels", "loss"),
    [
        (2, torch.arange(12) % 2, cross_entropy),
        (3, torch.rand(12, 3, generator=torch.Generator().manual_seed(1)), nn.functional.mse_loss),
        (3, torch.arange(36).view(12, 3) % 2, lambda z, y: nn.functional.mse_loss(z, y.to(z.dtype))),
    ],
    ids=["two-classes", "no-classes", "several-labels"],
)
@pytest.mark.parametrize(
    ("method", "flag"),
    [("fedntd", "method='fedntd'"), ("fedsol:proximal=ntd,adaptive=false", "method.proximal='ntd'")],
)
def test_fewer_than_three_classes_are_refused(method: str, flag: str, classes: int, labels: Tensor, loss: Any) -> None:
    with pytest.raises(BadInput, match=rf"{flag}: compares .*classes.*; use another task"):
        tarry.run(method, task_of(classes, labels, loss), delay=[1.0, 2.0], rounds=2, steps=3)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"beta": -1.0}, ["--method.beta -1.0: must be 0 or more"]),
        ({"temperature": 0.0}, ["--method.temperature 0.0: must be above 0"]),
    ],
)
def test_what_cannot_be_is_refused(params: Choice, said: list[str]) -> None:
    with pytest.raises(BadInput) as e:
        build_by_flags(tarry.methods, "fedntd", **params)
    assert list(e.value.problems) == said
