"""Runs in two threads of one process, which has one global random generator: each gives what it gives alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tests.helpers.models import random_clients

PATIENCE = 3.0  # seconds in which the other thread would have drawn numbers


class Meeting:
    """One thread stops in the middle of its draws until another one has drawn; not if it draws alone."""

    def __init__(self) -> None:
        self.stopped, self.others_drew, self.is_on = threading.Event(), threading.Event(), False

    def pause(self) -> None:
        if not self.is_on:
            return
        if not self.stopped.is_set():
            self.stopped.set()
            self.others_drew.wait(PATIENCE)
        else:
            self.others_drew.set()


class Noise(nn.Module):
    """A layer that adds noise from torch's global generator, in training."""

    def __init__(self, meeting: Meeting):
        super().__init__()
        self.meeting = meeting

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.meeting.pause()
        return x + torch.randn_like(x)

    def __deepcopy__(self, memo: Any) -> Noise:
        return Noise(self.meeting)


def model_that_draws_at_first(meeting: Meeting) -> nn.Module:
    first = nn.Linear(4, 3)
    meeting.pause()
    return nn.Sequential(first, nn.Linear(3, 2))


def model_that_draws_in_training(meeting: Meeting) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), Noise(meeting), nn.Linear(3, 2))


@pytest.mark.parametrize("model", [model_that_draws_at_first, model_that_draws_in_training])
def test_runs_in_two_threads_are_those_of_one(model: Callable[[Meeting], nn.Module]) -> None:
    meeting = Meeting()
    task = tarry.Task(
        "t",
        model=lambda: model(meeting),
        loss=nn.functional.cross_entropy,
        clients=random_clients([5] * 3, 4, 2, seed=7),
    )

    def run(seed: int) -> str:
        return tarry.run("fedasync", task, updates=4, epochs=1, seed=seed).weights_sha256

    alone, found = [run(seed) for seed in (0, 1)], dict[int, str]()
    meeting.is_on = True
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: run(seed)})) for seed in (0, 1)]
    threads[0].start()
    meeting.stopped.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == alone
