"""Every run ends."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

import tarry
from tests.helpers.small_task import small_task
from tests.laws.variants import Choice, every_method


def nan_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() * torch.nan


@pytest.mark.parametrize(("method", "budget"), [("fedasync", {"updates": 5}), ("fedavg", {"rounds": 5})])
def test_a_run_ends_though_every_update_is_refused(method: str, budget: dict[str, Any]) -> None:
    """With a result or with an error for the user, but not by going on for ever."""
    rejected = [0]

    def count(e: tarry.Event) -> None:
        rejected[0] += e.kind == "rejected"
        assert rejected[0] < 1000, "1000 updates were rejected, none was taken in, and the run goes on"

    with contextlib.suppress(tarry.TarryError):
        tarry.run(method, small_task(nan_loss), delay=[1.0] * 6, steps=1, callbacks=[count], **budget)
    assert rejected[0] > 0


@every_method
def test_a_run_ends_when_everybody_has_left(choice: Choice) -> None:
    delay = {"name": "scripted", "durations": [[1.0, 2.0]] * 6, "end": "leave"}
    result = tarry.run(choice, small_task(), delay=delay, updates=1000)
    assert (result.updates, result.virtual_time) == (12, 3.0)
