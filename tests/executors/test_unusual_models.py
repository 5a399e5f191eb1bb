"""Models that do unusual things with what they are given: whoever trains them, the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tarry
from tests.helpers.models import random_clients


def clients(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return random_clients(sizes, 6, 3, seed=0)


def weights(model: Callable[[], nn.Module], executor: str, **more: Any) -> Tensor:
    given: dict[str, Any] = {"clients": clients(40, 33, 20), "test": clients(30)[0], **more}
    task = tarry.Task(
        "odd", model=model, loss=more.pop("loss", cross_entropy), **{k: given[k] for k in given if k != "loss"}
    )
    settings: dict[str, Any] = {"updates": 9, "batch": 64, "epochs": 3, "lr": 0.1, "delay": [10, 20, 30]}
    return tarry.run("fedasync", task, executor=executor, workers=2 if executor == "pool" else 1, **settings).weights


class Shrinks(nn.Module):
    """Writes to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x.mul_(0.9))
        return out


class Remembers(nn.Module):
    """Puts another tensor in the place of its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        self.register_buffer("m", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.m = 0.9 * self.m + 0.1 * x.detach().mean(0)
        out: Tensor = self.a(x - self.m)
        return out


@pytest.mark.parametrize(
    "model",
    [Shrinks, Remembers, lambda: nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(6, 3))],
    ids=["writes to inputs", "puts others in place", "drops in place"],
)
def test_processes_come_to_the_same_bits_and_stacks_to_about_them(model: Callable[[], nn.Module]) -> None:
    alone = weights(model, "inline")
    assert torch.equal(weights(model, "pool"), alone)
    torch.testing.assert_close(weights(model, "batched"), alone, rtol=1e-4, atol=1e-6)


def test_statistics_that_are_put_in_place_of_others_are_learnt() -> None:
    """A reference in plain torch: one client, whose model is taken as it is."""
    ((x, y),) = clients(16)
    torch.manual_seed(3)
    module = Remembers()
    plain, first = Remembers(), {k: v.clone() for k, v in module.state_dict().items()}
    plain.load_state_dict(first)
    for _ in range(4):
        plain.zero_grad()
        cross_entropy(plain(x), y).backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
    task = tarry.Task("odd", model=module, loss=cross_entropy, clients=[(x, y)])
    made = tarry.run("fedavg", task, rounds=1, epochs=4, batch="all", lr=0.1, delay=[1.0])
    expected = torch.cat([t.reshape(-1) for t in (*plain.parameters(), plain.m)])
    torch.testing.assert_close(made.weights, expected)


def test_nobodys_examples_are_written_to() -> None:
    given, test = clients(40, 33, 20), clients(30)[0]
    for executor in ("inline", "batched"):
        weights(Shrinks, executor, clients=given, test=test)
        for mine, before in zip([*given, test], [*clients(40, 33, 20), clients(30)[0]], strict=True):
            assert torch.equal(mine[0], before[0])


def test_whole_numbers_are_augmented_by_fractions() -> None:
    seen: list[Tensor] = []
    g = torch.Generator().manual_seed(1)
    given = [(torch.randint(1, 50, (n, 5), generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (20, 20, 15)]

    def noted(x: Tensor, d: Tensor) -> Tensor:
        seen.append(d)
        return torch.where(d > 0.9, 0, x)

    def bag() -> nn.Module:
        return nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 3))

    more = {"clients": given, "test": given[0], "augment": noted, "n_draws": 5}
    alone = weights(bag, "inline", **more)
    assert all(0 < d.mean() < 1 for d in seen)
    torch.testing.assert_close(weights(bag, "batched", **more), alone, rtol=1e-4, atol=1e-6)


def test_a_model_that_is_made_at_its_first_example_is_drawn_from_the_seed() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))

    first = weights(lazy, "inline")
    torch.rand(7)
    assert torch.equal(weights(lazy, "inline"), first)


def test_targets_may_be_true_or_false() -> None:
    given = [(x, y == 1) for x, y in clients(20, 20, 20)]

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(z, y.long())

    assert weights(lambda: nn.Linear(6, 2), "inline", clients=given, test=given[0], loss=loss).isfinite().all()


@pytest.mark.parametrize("executor", ["inline", "pool", "ray"])
def test_what_a_person_did_wrong_is_told_alike_by_whoever_trains(executor: str) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    task = tarry.Task("odd", model=normed, loss=cross_entropy, clients=clients(9, 9))
    with pytest.raises(tarry.BadInput) as told:
        tarry.run("fedasync", task, executor=executor, workers=2 if executor != "inline" else 1, updates=2, batch=8)
    assert len(told.value.problems) == 1
    assert "has 9 examples, so a batch is left with one" in told.value.problems[0]
    assert "Traceback" not in str(told.value)
