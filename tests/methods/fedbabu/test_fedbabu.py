"""FedBABU against its twin: the body moves, the head never."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

import tarry
from tarry import Layout
from tarry.core.errors import BadInput
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedbabu.reference import descend_body
from tests.reference.match import Case, cases, check, few


@few
@given(cases())
def test_fedbabu_is_its_twin(case: Case) -> None:
    problem = case.problem
    check(
        "fedbabu",
        case,
        FedAvg(problem.w0, case.sizes),
        train=lambda m, w: descend_body(problem, m, w, steps=case.steps, lr=case.lr),
    )


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        body = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU())
        return nn.Sequential(body, nn.Linear(5, 3)).double()


def task(module: nn.Module | None = None) -> tarry.Task:
    g = torch.Generator().manual_seed(6)
    data = [(torch.randn(n, 3, generator=g), torch.randint(3, (n,), generator=g)) for n in (8, 12, 6)]
    test = (torch.randn(60, 3, generator=g), torch.randint(3, (60,), generator=g))
    return tarry.Task("net", module or net(), nn.functional.cross_entropy, clients=data, test=test)


RUN: dict[str, Any] = {
    "dtype": "float64",
    "delay": [[1.0], [2.0, 1.0], [1.5]],
    "steps": 3,
    "batch": 4,
    "lr": 0.1,
    "rounds": 5,
}
HARD = [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adamw", "weight_decay": 0.1, "lr": 0.01}]


def split(weights: Tensor | None) -> dict[str, Tensor]:
    assert weights is not None
    return Layout.of(net()).views(weights)


@pytest.mark.parametrize("changes", HARD, ids=str)
def test_it_is_fedavg_of_a_model_whose_head_is_frozen(changes: dict[str, Any]) -> None:
    """Frozen: requires_grad is off, and it does not travel. Weights and running statistics of the body agree."""
    frozen = net()
    for p in frozen[1].parameters():  # type: ignore[index]
        p.requires_grad_(False)
    ours = tarry.run("fedbabu", task(), **{**RUN, **changes})
    theirs = tarry.run("fedavg", task(frozen), **{**RUN, **changes})
    assert theirs.weights is not None
    body, first = split(ours.weights), dict(net().named_parameters())
    for name, value in Layout.of(frozen).views(theirs.weights).items():
        torch.testing.assert_close(body.pop(name), value, rtol=1e-12, atol=1e-14)
    assert set(body) == {"1.weight", "1.bias"}
    assert all(torch.equal(value, first[name].detach()) for name, value in body.items())


@pytest.mark.parametrize("server", ["fedasync", "fedbuff:buffer=2", "orthofl", "asgd"])
def test_the_head_stays_to_the_bit_under_any_server(server: str) -> None:
    weights = split(tarry.run(f"{server}+local=fedbabu", task(), **{**RUN, "momentum": 0.9}).weights)
    first = dict(net().named_parameters())
    assert all(torch.equal(weights[name], first[name].detach()) for name in ("1.weight", "1.bias"))
    assert not torch.equal(weights["0.0.weight"], first["0.0.weight"].detach())


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_clients_tune_what_they_are_told_to(tune: str) -> None:
    """By hand: a batch of everything, two epochs; parameters of the other side get no step."""
    settings: dict[str, Any] = {**RUN, "batch": "all", "personalize": 2, "lr": 2.0}
    result = tarry.run({"name": "fedbabu", "tune": tune}, task(), **settings)
    assert result.personalization is not None
    problem, test = task(), task().test
    assert test is not None
    found = []
    for x, y in problem.clients:
        model = copy.deepcopy(net())
        with torch.no_grad():
            for name, value in split(result.weights).items():
                model.get_parameter(name).copy_(value) if "running" not in name else model.get_buffer(name).copy_(value)
        side = {"all": model, "head": model[1], "body": model[0]}[tune]  # type: ignore[index]
        solver = torch.optim.SGD(side.parameters(), lr=2.0)
        for _ in range(2):
            model.zero_grad()
            nn.functional.cross_entropy(model(x.double()), y).backward()
            solver.step()
        right = (model.eval()(test[0].double()).argmax(1) == test[1]).double()
        shares = torch.bincount(y, minlength=3) / len(y)
        found.append(sum(shares[c].item() * right[test[1] == c].mean().item() for c in range(3)))
    assert result.personalization["after"]["per_client"] == pytest.approx(found, rel=1e-6)
    assert result.personalization["after"]["per_client"] != pytest.approx(
        result.personalization["before"]["per_client"]
    )


@pytest.mark.parametrize(
    ("module", "why"), [(nn.Linear(3, 3), "all of the model is head"), (nn.BatchNorm1d(3), "no linear or conv map")]
)
def test_a_model_without_two_sides_is_refused(module: nn.Module, why: str) -> None:
    with pytest.raises(BadInput, match=rf"method='fedbabu': .*{why}.*use method='fedavg'"):
        tarry.run("fedbabu", task(module), **RUN)
    with pytest.raises(BadInput, match=rf"local='fedbabu': .*{why}.*use local='fedavg'"):
        tarry.run("fedasync", task(module), local="fedbabu", **RUN)
