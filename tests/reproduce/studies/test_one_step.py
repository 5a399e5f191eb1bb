"""App. I of OrthoFL: the decomposition by hand, and the two steps on a loss that is known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tarry
from tarry.config.spec import Spec
from tarry.core.layout import Block, Kind, Layout
from tarry.core.tickets import Ticket, Update
from tarry.reproduce.studies.one_step import PAPER, OneStep, decompose
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import build_run


def update_of(sent: list[float], anchor: list[float], delta: list[float]) -> Update:
    ticket = Ticket(0, 0, 0, 0, 0.0, sent=torch.tensor(sent), anchor=torch.tensor(anchor))
    return Update(ticket, torch.tensor(delta), 1, 1, staleness=1)


def test_the_decomposition_by_hand() -> None:
    layout = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))
    parts = decompose(update_of([1.0, 1.0], [2.0, 4.0], [0.0, 2.0]), torch.tensor([7.0, 1.0]), layout)
    # Δ = (5, −3), D = (1, 3), u = (0, 1)
    assert (parts.alpha, parts.rho, parts.own) == (-3.0, 3.0, 2.0)
    assert parts.delta.tolist() == [5.0, 0.0]
    assert parts.d.tolist() == [1.0, 0.0]


def test_a_client_that_did_not_move_has_no_direction() -> None:
    layout = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))
    parts = decompose(update_of([0.0, 0.0], [1.0, 0.0], [0.0, 0.0]), torch.tensor([3.0, 5.0]), layout)
    assert (parts.alpha, parts.rho, parts.own) == (0.0, 0.0, 0.0)
    assert parts.delta.tolist() == [2.0, 5.0]


class Shifted(nn.Module):
    """x − w, so that half its mean square is a quadratic function of w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.v = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - torch.cat([self.w, self.v])


def half_square(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return 0.5 * (out * out).sum(1).mean()


def quadratics(n: int) -> tarry.Task:
    g = torch.Generator().manual_seed(3)
    x = [torch.randn(4, 5, generator=g, dtype=torch.float64) for _ in range(n)]
    nothing = torch.zeros(4, dtype=torch.int64)
    return tarry.Task(
        "quadratics",
        model=Shifted,
        loss=half_square,
        clients=[(c, nothing) for c in x],
        test=(torch.cat(x), nothing.repeat(n)),
        metrics=["loss"],
    )


@pytest.mark.parametrize("method", ["orthofl", "fedasync"])
def test_both_starts_and_steps_on_quadratic_losses(method: str) -> None:
    task, lr = quadratics(3), 0.3
    settings = {"task": task, "method": method, "updates": 12, "steps": 2, "batch": 4, "lr": lr, "dtype": "float64"}
    made = build_run(Spec.of({**settings, "delay": {"name": "scripted", "durations": [2.0, 3.0, 7.0]}}))
    look, seen = OneStep(made, {**PAPER, "examples": None}), list[Any]()

    def both(update: Any, view: Any) -> None:
        look(update, view)
        seen.append((update, view.weights.clone()))

    run_observed(made, both)
    assert len(look.rows) == len(seen) == 12
    for row, (update, here) in zip(look.rows, seen, strict=True):
        x = task.clients[update.ticket.client][0].numpy()

        def f(w: Any, x: Any = x) -> float:
            return float(0.5 * ((x - w) ** 2).sum(1).mean())

        def after(w: Any, x: Any = x) -> float:
            return f(w - lr * (w - x.mean(0)))

        local, moved = update.local.numpy(), update.delta.numpy()
        shift = here.numpy() - update.ticket.anchor.numpy()
        beta = 0.6 * (update.staleness + 1) ** -0.5
        baseline = (1 - beta) * here.numpy() + beta * local
        for by, cuts in (("full", [slice(0, 5)]), ("layer", [slice(0, 3), slice(3, 5)])):
            start = local + shift
            for at in cuts:
                start[at] -= shift[at] @ moved[at] / (moved[at] @ moved[at]) * moved[at]
            assert row[f"pre_{by}"] == pytest.approx(f(baseline) - f(start), abs=1e-9)
            assert row[f"one_{by}"] == pytest.approx(after(baseline) - after(start), abs=1e-9)
            assert row[f"s_{by}"] == pytest.approx(np.linalg.norm(start - local), abs=1e-9)
        # S_baseline − W_m(t) = (1 − β_t)((ρ + α − Δα) u + d + δ), the paper's formula, by its squared length
        along = row["rho"] + row["alpha"] - row["own"]
        parts = decompose(update, here, made.layout)
        across = float(torch.linalg.vector_norm(parts.d + parts.delta))
        assert row["s_baseline"] == pytest.approx((1 - beta) * np.hypot(along, across), abs=1e-9)
    if method == "fedasync":
        assert all(row["rho"] == row["d"] == 0.0 for row in look.rows)
