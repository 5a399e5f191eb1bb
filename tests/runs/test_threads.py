"""Runs in two threads of one process, which has one global random generator: each gives what it gives alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.training import determinism
from tests.helpers.models import random_clients

PATIENCE = 120.0  # seconds for the other thread to come to its first draw, on a slow machine under load
T = TypeVar("T")


class Meeting:
    """Two threads that draw numbers: the first one stops at its first draw until the other one has drawn or waits."""

    def __init__(self) -> None:
        self.members, self.stopped = set[int](), threading.Event()
        self.other_is_there, self.first_drew = threading.Event(), threading.Event()

    def join(self) -> None:
        """Let the next draw of this thread be one of the two."""
        self.members.add(threading.get_ident())

    def draw(self, draw: Callable[[], T]) -> T:
        if threading.get_ident() not in self.members:
            return draw()
        if not self.stopped.is_set():
            self.stopped.set()
            assert self.other_is_there.wait(PATIENCE)
            drawn = draw()
            self.first_drew.set()
        else:
            drawn = draw()
            self.other_is_there.set()
            assert self.first_drew.wait(PATIENCE), "at its end the other run puts the generator back"
        return drawn


class WatchedLock:
    """A lock that tells the meeting of a thread that has to wait for it."""

    def __init__(self, meeting: Meeting):
        self._lock, self._meeting = threading.RLock(), meeting

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._meeting.other_is_there.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Noise(nn.Module):
    """A layer that adds noise from torch's global generator, in training."""

    def __init__(self, meeting: Meeting):
        super().__init__()
        self.meeting = meeting

    def forward(self, x: Tensor) -> Tensor:
        return x + self.meeting.draw(lambda: torch.randn_like(x)) if self.training else x

    def __deepcopy__(self, memo: Any) -> Noise:
        return Noise(self.meeting)


def model_that_draws_at_first(meeting: Meeting) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), meeting.draw(lambda: nn.Linear(3, 2)))


def model_that_draws_in_training(meeting: Meeting) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), Noise(meeting), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("model", "in_training"), [(model_that_draws_at_first, False), (model_that_draws_in_training, True)]
)
def test_runs_in_two_threads_are_those_of_one(
    model: Callable[[Meeting], nn.Module], in_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting()
    monkeypatch.setattr(determinism, "_lock", WatchedLock(meeting))
    task = tarry.Task(
        "t",
        model=lambda: model(meeting),
        loss=nn.functional.cross_entropy,
        clients=random_clients([5] * 3, 4, 2, seed=7),
    )

    def run(seed: int, join: Callable[[], None] = lambda: None) -> str:
        join_later = [lambda _: join()] if in_training else []  # the first event comes after the checks of the model
        if not in_training:
            join()
        return tarry.run("fedasync", task, updates=4, epochs=1, seed=seed, callbacks=join_later).weights_sha256

    alone, found = [run(seed) for seed in (0, 1)], dict[int, str]()
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: run(seed, meeting.join)})) for seed in (0, 1)
    ]
    threads[0].start()
    assert meeting.stopped.wait(PATIENCE)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == alone
