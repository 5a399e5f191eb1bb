"""--lr-decay: the rate of a visit is lr · decay^(server steps made when it was handed out)."""

from __future__ import annotations

import pytest
import torch

import tarry
from tarry.core.errors import BadInput
from tests.helpers.models import Scale


def task(clients: int = 1) -> tarry.Task:
    """½ w² for everybody: a step at rate η takes w to (1 − η) w."""
    one = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1))
    return tarry.Task(
        "point",
        model=Scale([1.0]),
        loss=lambda out, y: 0.5 * (out**2).mean(),
        clients=[one] * clients,
        metrics=["loss"],
    )


def test_the_rate_falls_with_every_server_step():
    result = tarry.run(
        "fedavg", task(), delay=[1.0], lr=0.5, lr_decay=0.5, steps=1, batch="all", updates=3, dtype="float64"
    )
    assert result.weights is not None
    assert result.weights.item() == pytest.approx(0.5 * 0.75 * 0.875)


def test_a_stale_client_keeps_the_rate_of_its_hand_out():
    """Client 1 is handed w = 1 at version 0 and comes third: its step is of rate 0.5 still."""
    seen: list[tuple[int, float]] = []
    tarry.run(
        "asgd",
        task(2),
        delay=[1.0, 2.5],
        lr=0.5,
        lr_decay=0.5,
        steps=1,
        batch="all",
        updates=3,
        dtype="float64",
        callbacks=[lambda e: seen.append((e.client, e.weights.item())) if e.kind == "arrival" else None],
    )
    eta = 0.4
    first = 1 - eta * 0.5
    second = first - eta * 0.25 * first
    third = second - eta * 0.5 * 1.0
    assert [c for c, _ in seen] == [0, 0, 1]
    assert [w for _, w in seen] == pytest.approx([first, second, third])


def test_the_number_of_workers_changes_nothing():
    settings = {"time": 400.0, "lr_decay": 0.9, "seed": 3}
    alone, two = (tarry.run("fedasync", "digits", workers=n, **settings).weights_sha256 for n in (1, 2))
    assert alone == two


@pytest.mark.parametrize("decay", [0.0, 1.5, -1.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(BadInput, match="lr_decay"):
        tarry.run("fedavg", "digits", lr_decay=decay)
