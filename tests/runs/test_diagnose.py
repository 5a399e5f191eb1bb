"""--diagnose: what it measures, and that it changes nothing."""

from __future__ import annotations

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
    assert (by["active"], by["stragglers"]) == ({"clients": 2, "accuracy": a1}, {"clients": 2, "accuracy": a2})
    assert by["variance"] == pytest.approx(((a1 - a) ** 2 + (a2 - a) ** 2) / 2)


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
