"""Memory and speed of a server that stores an update of each client: CA²FL with its cache in a file.

    python benchmarks/cache.py [--clients 200] [--parameters 11000000] [--limit-mb 1000] [--updates 600] [--out FOLDER]

Training costs almost nothing: the model is one parameter of that many numbers, and the loss uses eight of them. All
clients are always in flight, each a little slower than the one before it. The cache takes 4 bytes × clients ×
parameters: 8.8 GB for a ResNet-18 and 200 clients. Up to --limit-mb it may be in memory; a larger cache is in a file
under --out (a new folder; without it, in the folder for temporary files), which is removed at the end.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import tarry
from record import write

TOUCHED = 8


class Wide(nn.Module):
    """A model of many parameters that uses few of them."""

    def __init__(self, size: int):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w[:TOUCHED]


class Watch:
    """Record the times of updates, after the first update of each client."""

    def __init__(self, clients: int):
        self.clients, self.updates = clients, 0
        self.began = self.ended = 0.0

    def __call__(self, e: tarry.Event) -> None:
        if e.kind == "arrival":
            self.ended, self.updates = time.perf_counter(), e.updates
            if e.updates == self.clients:
                self.began = self.ended

    @property
    def rate(self) -> float:
        return (self.updates - self.clients) / (self.ended - self.began)


def wide(clients: int, parameters: int) -> tarry.Task:
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, TOUCHED, generator=g), torch.randn(4, generator=g)) for _ in range(clients)]
    return tarry.Task("wide", model=Wide(parameters), loss=nn.functional.mse_loss, clients=data, metrics=["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=11_000_000)
    parser.add_argument("--limit-mb", type=float, default=1000.0)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--out", type=Path, default=None)
    o = parser.parse_args()
    if o.updates <= o.clients:
        parser.error(f"--updates {o.updates}: must be more than --clients {o.clients}, who all come once first")
    watch = Watch(o.clients)
    result = tarry.run(
        "ca2fl",
        wide(o.clients, o.parameters),
        steps=1,
        updates=o.updates,
        delay=[[100 + k / o.clients] for k in range(o.clients)],
        cache_limit=o.limit_mb,
        checkpoint_every=1e9,
        out=o.out,
        callbacks=[watch],
    )
    rss, model = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 4 * o.parameters
    print(
        f"CA²FL, {o.clients} clients × {o.parameters:,} parameters; {o.updates} updates, {result.rounds} server steps"
    )
    where = "in a file" if o.clients * model > o.limit_mb * 1e6 else "in memory"
    print(f"  cache       {o.clients * model / 1e9:8.1f} GB, {where}")
    print(f"  server      {result.peak_server_bytes / model:8.0f} models at most, past globals in use among them")
    print(f"  process     {rss / 1e9:8.1f} GB at most")
    print(f"  updates     {watch.rate:8.1f} a second, once every client has come")
    row = {"method": "ca2fl", "clients": o.clients, "parameters": o.parameters, "cache_gb": o.clients * model / 1e9}
    row |= {"kept": where, "process_gb": rss / 1e9, "updates_per_s": watch.rate}
    write("cache", "A model kept of every client", [row])


if __name__ == "__main__":
    main()
