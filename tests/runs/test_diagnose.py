"""--diagnose: what it measures, and that it changes nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry

SETTINGS: dict[str, Any] = {"delay": [[1.0], [1.0], [3.0], [5.0]], "time": 12.0, "steps": 2, "batch": 4, "lr": 0.1}


class Pooled(nn.Module):
    """Scores of the mean over a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scores(x.mean(1))
        return out


def sequences(*lengths: int) -> tarry.Task:
    """Clients whose examples lie sorted by class, as partitions leave them."""
    g = torch.Generator().manual_seed(0)
    data = []
    for length in lengths:
        y = torch.arange(40) // 20
        data.append((torch.randn(40, length, 3, generator=g) + y[:, None, None], y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = Pooled()
    test = (torch.randn(50, 4, 3, generator=g), torch.randint(2, (50,), generator=g))
    return tarry.Task("sequences", model=module, loss=nn.functional.cross_entropy, clients=data, test=test)


def right(weights: Tensor, examples: tuple[Tensor, Tensor]) -> tuple[int, int]:
    w, b = weights[:6].view(2, 3), weights[6:]
    x, y = examples
    return int(((x.mean(1) @ w.T + b).argmax(1) == y).sum()), len(y)


@pytest.mark.parametrize("lengths", [(4, 4, 4, 4), (3, 4, 5, 6)])
def test_the_variance_is_over_all_examples_of_fast_and_of_slow_clients(lengths: tuple[int, ...]) -> None:
    """½ (|a₁ − a|² + |a₂ − a|²); clients 0 and 1 take 1 s, the others 3 and 5."""
    task = sequences(*lengths)
    result = tarry.run("fedogd", task, diagnose=True, **SETTINGS)
    assert result.weights is not None
    assert result.diagnostics is not None
    by = result.diagnostics["by_speed"]
    a1, a2 = (
        sum(r for r, _ in group) / sum(n for _, n in group)
        for group in ([right(result.weights, task.clients[c]) for c in clients] for clients in ((0, 1), (2, 3)))
    )
    a = result.final_accuracy
    assert a is not None
    assert (by["active"]["clients"], by["stragglers"]["clients"]) == (2, 2)
    assert (by["active"]["accuracy"], by["stragglers"]["accuracy"]) == (a1, a2)
    assert by["variance"] == pytest.approx(((a1 - a) ** 2 + (a2 - a) ** 2) / 2)


def test_the_variance_on_test_examples_weighs_classes_as_the_groups_have_them() -> None:
    """Clients 0 and 1 have 3 of class 0 for each of class 1, the others 1 for 3."""
    task = sequences(4, 4, 4, 4)
    order = torch.arange(40)
    few = [torch.cat([order[:20], order[20:27]]) if c < 2 else torch.cat([order[:7], order[20:]]) for c in range(4)]
    task = dataclasses.replace(task, clients=[(x[i], y[i]) for (x, y), i in zip(task.clients, few, strict=True)])
    result = tarry.run("fedasync", task, diagnose=True, **SETTINGS)
    assert result.weights is not None
    assert result.diagnostics is not None
    assert task.test is not None
    by, (x, y), a = result.diagnostics["by_speed"], task.test, result.final_accuracy
    each = [right(result.weights, (x[y == c], y[y == c])) for c in (0, 1)]
    first, second = (r / n for r, n in each)
    a1, a2 = (20 * first + 7 * second) / 27, (7 * first + 20 * second) / 27
    assert a is not None
    assert by["active"]["test_accuracy"] == pytest.approx(a1)
    assert by["stragglers"]["test_accuracy"] == pytest.approx(a2)
    assert by["variance_test"] == pytest.approx(((a1 - a) ** 2 + (a2 - a) ** 2) / 2)
    assert first != second


@pytest.mark.parametrize("method", ["fedasync", "fedsol", "fedogd", "asynccurve", "orthodyn"])
def test_looking_changes_nothing(method: str) -> None:
    plain, looked = (tarry.run(method, sequences(4, 4, 4, 4), diagnose=d, **SETTINGS) for d in (False, True))
    assert plain.weights_sha256 == looked.weights_sha256
    assert plain.diagnostics is None
    assert looked.diagnostics is not None


def test_a_difference_has_no_direction_to_be_compared() -> None:
    private, plain = (
        tarry.run(
            {"name": "fedogd", "privacy": p, "groups": "announced"}, sequences(4, 4, 4, 4), diagnose=True, **SETTINGS
        )
        for p in (True, False)
    )
    assert private.diagnostics is not None
    assert plain.diagnostics is not None
    assert "cosine" not in private.diagnostics["series"]
    assert "cosine" in plain.diagnostics["series"]


def test_participation_adds_up_to_the_updates() -> None:
    result = tarry.run("fedasync", sequences(4, 4, 4, 4), diagnose=True, **SETTINGS)
    assert result.diagnostics is not None
    assert sum(result.diagnostics["participation"].values()) == result.updates
    assert result.diagnostics["seconds"] == {"0": 1.0, "1": 1.0, "2": 3.0, "3": 5.0}
