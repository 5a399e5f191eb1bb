"""How much of a bare PyTorch loop's speed is left: LeNet5, 100 clients × 60 samples, batch 20, one epoch, 500 updates.

    python benchmarks/overhead.py [--updates 500] [--rounds 7]

Each round times the bare loop, `inline` and `pool` with two workers one after the other, one thread a process, so that
what else the machine does falls on all alike; the last line divides the total times.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import tarry
from tarry.tasks.models import LeNet5

CLIENTS, SAMPLES, BATCH, LR = 100, 60, 20, 0.01


def make_task() -> tarry.Task:
    g = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(SAMPLES, 1, 28, 28, generator=g), torch.randint(0, 10, (SAMPLES,), generator=g))
        for _ in range(CLIENTS)
    ]
    return tarry.Task("lenet5", model=LeNet5, loss=nn.functional.cross_entropy, clients=clients)


def bare(task: tarry.Task, updates: int) -> float:
    """Seconds for the same training, nothing else: load, three steps of SGD on shuffled batches, subtract."""
    model = LeNet5()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    began = time.perf_counter()
    for update in range(updates):
        x, y = task.clients[update % CLIENTS]
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for index in torch.randperm(SAMPLES).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimiser.step()
        {k: v - start[k] for k, v in model.state_dict().items()}
    return time.perf_counter() - began


class Stopwatch:
    """Seconds from the first hand-out to the last arrival: training and serving, without start-up."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def __call__(self, _: tarry.Event) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last


def ours(task: tarry.Task, updates: int, workers: int) -> float:
    watch = Stopwatch()
    tarry.run(
        "fedasync", task, updates=updates, epochs=1, batch=BATCH, lr=LR, workers=workers, callbacks=[watch],
        delay="exponential",
    )  # fmt: skip
    return watch.last - watch.first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = make_task()
    bare(task, 50)
    ours(task, 50, 1)
    seconds = [0.0, 0.0, 0.0]
    print("updates/s       bare   inline  pool(2)   inline/bare  pool/bare")
    for _ in range(options.rounds):
        base = bare(task, options.updates)
        inline, pool = (ours(task, options.updates, w) for w in (1, 2))
        seconds = [total + s for total, s in zip(seconds, (base, inline, pool), strict=True)]
        rates = [options.updates / s for s in (base, inline, pool)]
        print(f"           {rates[0]:9.1f}{rates[1]:9.1f}{rates[2]:9.1f}{base / inline:14.2f}{base / pool:11.2f}")
    base, inline, pool = seconds
    print(f"over all rounds: inline {base / inline:.2f} of the bare loop, pool of two {base / pool:.2f}")


if __name__ == "__main__":
    main()
