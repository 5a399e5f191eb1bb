"""The head is the last map that runs, in whatever order a model declares its maps and whatever else it declares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.layout import Kind, Layout
from tarry.runs.build import build_run

F64 = torch.float64


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4, dtype=F64), nn.Linear(4, 3, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(x)))
        return out


class HeadFirst(Plain):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.head, self.body = nn.Linear(4, 3, dtype=F64), nn.Linear(3, 4, dtype=F64)


class Spare(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 3, dtype=F64)


def task(kind: type[Plain]) -> tarry.Task:
    """The same weights and examples for all."""
    g = torch.Generator().manual_seed(5)
    net = kind()
    for name, p in sorted(net.named_parameters()):
        p.data = torch.randn(p.shape, generator=g, dtype=F64) if not name.startswith("spare") else p.data
    g.manual_seed(6)
    data = [(torch.randn(6, 3, generator=g, dtype=F64), torch.randint(3, (6,), generator=g)) for _ in range(3)]
    return tarry.Task("fooling", model=net, loss=nn.functional.cross_entropy, clients=data, test=data[0])


def ended(method: str, kind: type[Plain], **more: Any) -> dict[str, Tensor]:
    """The weights of body and head after three rounds, by name."""
    of = task(kind)
    result = tarry.run(method, of, delay=[1.0] * 3, rounds=3, steps=3, batch=4, lr=0.2, dtype="float64", seed=2, **more)
    assert result.weights is not None
    views = Layout.of(of.model).views(result.weights)  # type: ignore[arg-type]
    return {name: value for name, value in views.items() if not name.startswith("spare")}


@pytest.mark.parametrize("kind", [HeadFirst, Spare])
@pytest.mark.parametrize(
    "method", ["fedsol", "fedsol:part=body", "fedsol:proximal=moon,part=all", "moon:mu=5", "fedbabu", "fedavg"]
)
def test_a_model_may_declare_its_head_first_or_a_map_that_it_never_runs(method: str, kind: type[Plain]) -> None:
    torch.testing.assert_close(ended(method, kind), ended(method, Plain), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [Plain, HeadFirst, Spare])
def test_what_clients_make_of_the_answer_is_by_the_head_that_runs(kind: type[Plain]) -> None:
    """The head alone is tuned, and neighbors are looked for by what goes into it."""
    for method in ("fedbabu:tune=head", "knn-per"):
        scores = [
            tarry.run(
                method, task(k), delay=[1.0] * 3, rounds=2, lr=0.2, dtype="float64", personalize=2
            ).personalization
            for k in (kind, Plain)
        ]
        assert scores[0] == scores[1]


class Restless(Plain):
    """Whatever a pass may move: statistics, a count, dropout's draws and its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.passes = nn.BatchNorm1d(4, dtype=F64), nn.Dropout(0.5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x) + self.norm(self.drop(self.body(x)))[:, :3] + torch.rand(3, dtype=F64)


def test_looking_for_the_head_moves_nothing() -> None:
    net = Restless()
    net.drop.eval()
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    layout = Layout.of(net, torch.ones(1, 3, dtype=F64))
    torch.testing.assert_close(torch.rand(2), expected, rtol=0, atol=0)
    torch.testing.assert_close(dict(net.state_dict()), weights, rtol=0, atol=0)
    assert (net.passes, net.training, net.drop.training) == (0, True, False)
    assert {b.name for b in layout.blocks if b.kind is Kind.HEAD} == {"body.weight", "body.bias"}, "it runs once more"


class Around(nn.Module):
    """A map of its own around others, and one whose weights are used past its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.where = nn.Parameter(torch.zeros(1, 4))
        self.hidden = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(x) + self.where)
        return out


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.first.weight.T @ self.last.weight.T


@pytest.mark.parametrize(
    ("net", "head"), [(Around(), "out"), (Bare(), "last")], ids=["weights of the whole", "no map is run as such"]
)
def test_weights_of_a_whole_come_before_its_maps_and_where_no_map_runs_the_last_declared_is_the_head(
    net: nn.Module, head: str
) -> None:
    layout = Layout.of(net, torch.ones(2, 3))
    assert {b.name for b in layout.blocks if b.kind is Kind.HEAD} == {f"{head}.weight", f"{head}.bias"}


def test_a_run_looks_at_the_tasks_own_inputs() -> None:
    made = build_run(Spec.of({"task": task(HeadFirst), "method": "fedbabu", "dtype": "float64"}))
    assert [b.name for b in made.layout.layers if b.kind is Kind.HEAD] == ["head.weight", "head.bias"]
