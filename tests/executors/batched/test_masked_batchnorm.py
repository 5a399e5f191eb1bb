"""Batch normalization in stacks: each client's own batches decide its mean, variance and running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule
from tarry.core.optim import Optimizer, make_optimizer
from tarry.core.tickets import LocalResult, VisitJob
from tarry.executors.batched.trace import NotStackable
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train

F64 = torch.float64
PAIRS = (3, 4, 6, 11)  # batches of 4: rests of 2 and 3, a client smaller than a batch
ALL = (3, 9, 4, 6, 13)  # and of a single example


class Twice(nn.Module):
    """One layer that is run twice in a pass, on different things."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.norm(self.first(x)).relu()))
        return out


class Scaled(nn.Module):
    """A floating-point buffer that is no statistic, beside one that is."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.rest = linear(nn.BatchNorm1d(6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rest(x * self.scale)
        return out


def linear(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), norm, nn.Tanh(), nn.Linear(6, 3))


def conv(dims: int, norm: nn.Module) -> nn.Module:
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    shape = {1: (1, 8), 2: (1, 4, 2), 3: (1, 2, 2, 2)}[dims]
    return nn.Sequential(
        nn.Unflatten(1, shape), kind(1, 5, 3, padding=1), norm, nn.Tanh(), nn.Flatten(), nn.Linear(40, 3)
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d, rows": (lambda: linear(nn.BatchNorm1d(6)), PAIRS),
    "1d, series": (lambda: conv(1, nn.BatchNorm1d(5, momentum=0.3)), ALL),
    "2d": (lambda: conv(2, nn.BatchNorm2d(5)), ALL),
    "3d": (lambda: conv(3, nn.BatchNorm3d(5, eps=1e-2)), ALL),
    "cumulative": (lambda: conv(2, nn.BatchNorm2d(5, momentum=None)), ALL),
    "cumulative rows": (lambda: linear(nn.BatchNorm1d(6, momentum=None, affine=False)), PAIRS),
    "still": (lambda: conv(2, nn.BatchNorm2d(5, momentum=0.0)), ALL),
    "no statistics": (lambda: conv(2, nn.BatchNorm2d(5, track_running_stats=False)), ALL),
    "not affine": (lambda: linear(nn.BatchNorm1d(6, affine=False)), PAIRS),
    "twice": (Twice, PAIRS),
    "a buffer beside": (Scaled, PAIRS),
}


def bound_of(
    net: Callable[[], nn.Module], sizes: tuple[int, ...], how: Optimizer, dtype: torch.dtype = F64
) -> FlatModel:
    g = torch.Generator().manual_seed(5)
    data = [(1 + torch.randn(n, 8, generator=g, dtype=dtype), torch.randint(3, (n,), generator=g)) for n in sizes]
    torch.manual_seed(0)
    module = net().to(dtype)
    for m in module.modules():
        if getattr(m, "running_mean", None) is not None:
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2)
            m.num_batches_tracked.fill_(3)
    task = tarry.Task("norms", model=module, loss=nn.functional.cross_entropy, clients=data)
    return FlatModel(module, Layout.of(module), task, how)


def jobs_of(bound: FlatModel) -> list[VisitJob]:
    return [VisitJob(7 * c, c, 3, bound.flat.clone(), version=c) for c in range(len(bound.task.clients))]


def both(
    bound: FlatModel, work: LocalWork, rule: LocalRule | None = None, **how: Any
) -> tuple[list[LocalResult], list[LocalResult]]:
    rule, jobs = rule or LocalRule(), jobs_of(bound)
    alone = [train(j, bound, rule=rule, work=work, seed=1) for j in jobs]
    return alone, BatchedTrainer(bound, rule=rule, work=work, seed=1, **how).train(jobs)


def assert_same_visits(
    bound: FlatModel, alone: list[LocalResult], together: list[LocalResult], within: float = 1e-9
) -> None:
    n = bound.layout.n_params
    for a, b in zip(alone, together, strict=True):
        assert a.delta[:n].norm() > 0
        assert (a.delta[:n] - b.delta[:n]).norm() <= within * a.delta[:n].norm()
        assert (a.delta[n:] - b.delta[n:]).norm() <= within * a.delta[n:].norm().clamp_min(1e-3)
        assert a.loss == pytest.approx(b.loss, rel=within)


def work(how: Optimizer | None = None, **more: Any) -> LocalWork:
    return LocalWork(how or make_optimizer("sgd", lr=0.1), **{"epochs": 2, "batch": 4, **more})


@pytest.mark.parametrize("name", NETS)
def test_every_kind_of_layer(name: str) -> None:
    bound = bound_of(*NETS[name], make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work()))


@pytest.mark.parametrize("ways", [{"size": 1}, {"size": 2}, {"lanes": 2}], ids=str)
@pytest.mark.parametrize("name", ["1d, rows", "cumulative"])
def test_stacks_of_every_size_on_every_lane(name: str, ways: dict[str, Any]) -> None:
    bound = bound_of(*NETS[name], make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work(), **ways))


def test_clients_smaller_than_others_batches() -> None:
    bound = bound_of(NETS["2d"][0], (1, 2, 3, 16), make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work(batch=None)))


def test_statistics_move_where_there_are_any() -> None:
    bound = bound_of(*NETS["2d"], make_optimizer("sgd", lr=0.1))
    for t in both(bound, work())[1]:
        assert t.delta[bound.layout.n_params :].abs().min() > 0


@pytest.mark.parametrize("name", ["2d", "cumulative"])
@pytest.mark.parametrize("size", [1, None])
def test_whole_batches_which_need_no_mask(name: str, size: int | None) -> None:
    bound = bound_of(NETS[name][0], (8, 8), make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work(epochs=3), size=size))


@pytest.mark.parametrize(
    "how",
    [make_optimizer("adam", lr=0.01), make_optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=0.01)],
    ids=lambda o: o.name,
)
@pytest.mark.parametrize("much", [{"epochs": None, "steps": 5}, {"epochs": 3}], ids=str)
def test_every_way_to_train(how: Optimizer, much: dict[str, Any]) -> None:
    bound = bound_of(*NETS["2d"], how)
    assert_same_visits(bound, *both(bound, work(how, **much)), within=1e-7)


def test_rates_that_differ() -> None:
    rates = [make_optimizer("sgd", lr=0.1 * 0.8**v) for v in range(20)]
    bound = bound_of(*NETS["cumulative"], rates[0])
    assert_same_visits(bound, *both(bound, work(rates[0], optimizer_at=lambda at: rates[at.version])))


def test_programs_that_have_become_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.executors.batched.programs._COMPILE_AFTER", 2)
    bound = bound_of(*NETS["2d"], make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work()))


@pytest.mark.parametrize(("bf16", "within"), [(False, 1e-4), (True, 0.1)])
@pytest.mark.parametrize("sizes", [ALL, (8, 8)], ids=["padded", "whole"])
def test_single_precision_and_bfloat16(bf16: bool, within: float, sizes: tuple[int, ...]) -> None:
    """FedNTD asks the received model, too, as in use."""
    bound = bound_of(NETS["2d"][0], sizes, make_optimizer("sgd", lr=0.1), torch.float32)
    bound._bf16 = bf16
    alone, together = both(bound, work(), tarry.methods.build("fedntd").local, bf16=bf16)
    for a, b in zip(alone, together, strict=True):
        assert (a.delta - b.delta).norm() <= within * a.delta.norm()


def test_a_batch_of_one_is_told_as_it_is_one_by_one() -> None:
    """Of linear layers: nothing is to be learnt from one value a channel."""
    bound = bound_of(NETS["1d, rows"][0], (4, 9, 8), make_optimizer("sgd", lr=0.1))
    trainer = BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1)
    with pytest.raises(NotStackable, match="a batch of one example"):
        trainer.train(jobs_of(bound))
    for executor in ("inline", "batched"):
        with pytest.raises(BadInput, match="batch=4: client 1 has 9 examples"):
            tarry.run("fedavg", bound.task, delay=[1, 1, 1], rounds=1, batch=4, dtype="float64", executor=executor)


class Own(nn.Module):
    """Keeps a mean of what it sees by itself, in place or anew."""

    seen: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
        self.in_place, self.map = in_place, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                moved = 0.9 * self.seen + 0.1 * x.mean(0)
                if self.in_place:
                    self.seen.copy_(moved)
                else:
                    self.seen = moved
        out: Tensor = self.map(x - self.seen)
        return out


def test_statistics_of_other_layers_are_stacked_where_nothing_is_padded() -> None:
    bound = bound_of(lambda: Own(in_place=True), (16, 16), make_optimizer("sgd", lr=0.1))
    assert_same_visits(bound, *both(bound, work(batch=8)))


@pytest.mark.parametrize("in_place", [True, False])
def test_statistics_of_other_layers_are_told_where_batches_are_padded(in_place: bool) -> None:
    bound = bound_of(lambda: Own(in_place), (7, 8, 16), make_optimizer("sgd", lr=0.1))
    with pytest.raises(NotStackable, match="in a layer of its own"):
        BatchedTrainer(bound, rule=LocalRule(), work=work(batch=8), seed=1).train(jobs_of(bound))
