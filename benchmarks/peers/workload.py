"""The workload of all peers, and its timing: LeNet5, 100 clients, batch 20, one epoch of SGD, 10 clients at a time.

A script builds the clients with `clients()`, trains them through its framework and tells a `Meter` of every round (or
of every stretch of updates). The meter lets the bare loop run in between, in the same process, so that what else the
machine does falls on both alike, and prints the row at the end. With PEER_ALONE it does not: what torch's optimizers
take of memory is then the framework's only where it uses them. Imports nothing but torch: each script runs in an
environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

CLIENTS, COHORT, BATCH, LR = 100, 10, 20, 0.05
STRETCH, BARE = 2.0, 0.5  # seconds of the peer at a time; of the bare loop for each of them
STARTED = float(os.environ.get("PEER_STARTED", time.time()))
ALONE = "PEER_ALONE" in os.environ

torch.set_num_threads(1)


class LeNet5(nn.Module):
    """tarry's lenet5 for 1×28×28 images of 10 classes: no biases, 44,190 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, bias=False), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(256, 120, bias=False), nn.ReLU(), nn.Linear(120, 84, bias=False), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(84, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


Shard = tuple[Tensor, Tensor]


_DEALT: dict[int, list[Shard]] = {}


def clients(samples: int) -> list[Shard]:
    """Return the examples of all clients, in one tensor each, as a partition of a data set would."""
    if samples not in _DEALT:
        x, y = (t.new_empty(CLIENTS * samples, *t.shape[1:]) for t in _drawn(0, samples))
        _DEALT[samples] = list(zip(x.split(samples), y.split(samples), strict=True))
        for c, place in enumerate(_DEALT[samples]):
            for there, own in zip(place, _drawn(c, samples), strict=True):
                there.copy_(own)
    return _DEALT[samples]


@cache
def shard(client: int, samples: int) -> Shard:
    """Return one client's examples: the same in every process, made once in each."""
    return _DEALT[samples][client] if samples in _DEALT else _drawn(client, samples)


def _drawn(client: int, samples: int) -> Shard:
    g = torch.Generator().manual_seed(client)
    return torch.randn(samples, 1, 28, 28, generator=g), torch.randint(0, 10, (samples,), generator=g)


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Train one epoch of SGD on shuffled batches, for frameworks whose users write the training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for index in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


class Bare:
    """Do the training alone: load the weights, train one epoch, subtract."""

    def __init__(self, shards: list[Shard]):
        self.shards, self.model = shards, LeNet5()
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.updates, self.seconds = 0, 0.0

    def one(self) -> None:
        x, y = self.shards[self.updates % len(self.shards)]
        self.model.load_state_dict(self.start)
        train(self.model, x, y)
        {k: v - self.start[k] for k, v in self.model.state_dict().items()}

    def run(self, seconds: float) -> None:
        if self.updates == 0:
            self.one()  # torch initializes itself
        began = now = time.perf_counter()
        while now - began < seconds:
            self.one()
            self.updates += 1
            now = time.perf_counter()
        self.seconds += now - began


@dataclass
class Meter:
    """Count updates and seconds of the peer and of the bare loop, in turns."""

    peer: str
    version: str
    setting: str
    samples: int
    wanted: float  # seconds of the peer
    bare: Bare
    updates: int = 0
    seconds: float = 0.0
    start_up: float | None = None
    since: float = field(default=0.0, init=False)
    stretch: float = field(default=0.0, init=False)

    @property
    def done(self) -> bool:
        return self.seconds >= self.wanted

    def first(self) -> None:
        """End the start-up: the first update, or the first round, has arrived."""
        if self.start_up is None:
            self.start_up = time.time() - STARTED

    def round(self, updates: int) -> None:
        """Count the updates since the last call. The first call only starts the watch, like `resume`."""
        now = time.perf_counter()
        if self.start_up is None:
            self.first()
            self.pause()
        elif self.since:
            self.add(updates, now - self.since)
        self.since = time.perf_counter()

    def resume(self) -> None:
        """Restart the watch: the work since the last round was not the peer's."""
        self.since = time.perf_counter()

    def add(self, updates: int, seconds: float) -> None:
        """Add updates and their seconds; run the bare loop when it is its turn."""
        self.updates += updates
        self.seconds += seconds
        self.stretch += seconds
        if self.stretch >= STRETCH or self.done:
            self.pause()

    def pause(self) -> None:
        if not ALONE:
            self.bare.run(BARE * max(self.stretch, STRETCH))
        self.stretch = 0.0

    def report(self) -> None:
        """Print the row as the last line of stdout."""
        rate, bare = self.updates / self.seconds, 0.0 if ALONE else self.bare.updates / self.bare.seconds
        row = {
            "peer": self.peer,
            "version": self.version,
            "setting": self.setting,
            "samples": self.samples,
            "updates_per_s": round(rate, 2),
            "bare_updates_per_s": round(bare, 2),
            "ratio": None if ALONE else round(rate / bare, 3),
            "start_up_s": None if self.start_up is None else round(self.start_up, 2),
            "peak_mb": _own_peak(),
        }
        sys.stdout.flush()
        print("\n" + json.dumps(row), flush=True)


def _own_peak() -> int:
    """Return the MB of this process; run.py replaces it by its own figure, which includes the children."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 10**6


def parse_options(settings: tuple[str, ...] = ("",)) -> argparse.Namespace:
    """Parse --samples, --seconds and, for a peer with several configurations, --setting."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--setting", choices=settings, default=settings[0])
    return parser.parse_args()
