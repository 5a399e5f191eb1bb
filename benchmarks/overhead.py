"""Speed relative to a bare PyTorch loop: LeNet5, 100 clients, batch 20, one epoch, all in flight.

    python benchmarks/overhead.py [--samples 60,600] [--rounds 7] [--updates 300]

Each round times each way to train the clients, with one thread per process, and the bare loop right before and after
it, so that other load on the machine affects both alike. A row has the median of the rounds' ratios. Start-up, which
includes tracing, is not counted: the first tenth of the updates is not timed. `two bare loops at once` is the most that
two processes can reach on the machine: less than 2 if its cores share resources. Runs with `auto` are ten times as
long, so that programs exist for all stack sizes.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import nn

import tarry
from record import write
from tarry.tasks.models import LeNet5
from tarry.vector.process import tune_malloc

CLIENTS, BATCH, LR = 100, 20, 0.01
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "--workers 2": {"workers": 2},
    "--executor auto --workers 2": {"executor": "auto", "workers": 2},
}
BARS = {("inline", 60): 0.9, ("--workers 2", 60): 1.8, ("--workers 2", 600): 1.9}


def make_task(samples: int) -> tarry.Task:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * samples, 1, 28, 28, generator=g)
    y = torch.randint(0, 10, (len(x),), generator=g)
    clients = list(zip(torch.split(x, samples), torch.split(y, samples), strict=True))
    return tarry.Task("lenet5", model=LeNet5, loss=nn.functional.cross_entropy, clients=clients)


def bare(task: tarry.Task, updates: int) -> float:
    """Return the seconds per update of the training alone: load, an epoch of SGD on shuffled batches, subtract."""
    model = LeNet5()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    began = time.perf_counter()
    for update in range(updates):
        x, y = task.clients[update % CLIENTS]
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
        {k: v - start[k] for k, v in model.state_dict().items()}
    return (time.perf_counter() - began) / updates


_BARE, _TWO = "bare loop", "two bare loops at once"
_LONGER = 10
_own: dict[int, tarry.Task] = {}  # the tasks of this process, by samples


def _alone(samples: int, updates: int) -> float:
    torch.set_num_threads(1)
    tune_malloc()
    if samples not in _own:
        bare(_own.setdefault(samples, make_task(samples)), 10)
    return bare(_own[samples], updates)


class Stopwatch:
    """Return the seconds per update after the first tenth: training and the server, without start-up."""

    def __init__(self, updates: int) -> None:
        self.after, self.first, self.last, self.counted = updates // 10, 0.0, 0.0, 0

    def __call__(self, e: tarry.Event) -> None:
        if e.kind == "arrival":
            self.last = time.perf_counter()
            if e.updates == self.after:
                self.first = self.last
            self.counted += e.updates > self.after

    @property
    def seconds(self) -> float:
        return (self.last - self.first) / self.counted


def ours(task: tarry.Task, updates: int, way: dict[str, Any]) -> float:
    watch = Stopwatch(updates)
    tarry.run(
        "fedasync", task, updates=updates, epochs=1, batch=BATCH, lr=LR, delay="exponential",
        callbacks=[watch], **way,
    )  # fmt: skip
    return watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="60,600", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--updates", type=int, default=300, help="updates of 60 samples; fewer updates of more samples")
    parser.add_argument("--rounds", type=int, default=7)
    o = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    rows = []
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    for samples in o.samples:
        task, updates = make_task(samples), max(100, o.updates * 60 // samples)
        bare(task, 10)
        list(pool.map(_alone, [samples] * 2, [10] * 2))  # both processes have started
        seconds: dict[str, list[float]] = {name: [] for name in (_BARE, _TWO, *WAYS)}
        ratios: dict[str, list[float]] = {name: [] for name in seconds}
        for _ in range(o.rounds):
            before = bare(task, updates // 2)
            for name in (_TWO, *WAYS):
                if name == _TWO:
                    took = sum(pool.map(_alone, [samples] * 2, [updates] * 2)) / 4
                else:
                    took = ours(task, updates * (_LONGER if "executor" in WAYS[name] else 1), WAYS[name])
                after = bare(task, updates // 2)
                seconds[name].append(took)
                ratios[name].append((before + after) / 2 / took)
                seconds[_BARE].append(before)
                before = after
        for name, times in seconds.items():
            ratio, rate = median(ratios[name]) if ratios[name] else 1.0, 1 / median(times)
            rows.append(
                {
                    "trained": name,
                    "samples": samples,
                    "updates_per_s": rate,
                    "ratio": ratio,
                    "bar": BARS.get((name, samples)),
                }
            )
            print(f"{name:32}{samples:6}{rate:10.1f} updates/s{ratio:8.2f} of the bare loop", flush=True)
    write("overhead", "Clients one by one and in two processes or threads, LeNet5, beside a bare PyTorch loop", rows)


if __name__ == "__main__":
    main()
