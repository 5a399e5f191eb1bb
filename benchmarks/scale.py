"""Cost of a run as clients, parameters and concurrency grow, with real training on handwritten digits.

    python benchmarks/scale.py [--updates 2000] [--quick]

Each client has 20 digits, drawn with replacement from the embedded set. A visit is an epoch in batches of 10, delays
are exponential, and the server is FedBuff(10). One setting changes at a time. Each run has a process of its own.
Updates per second are counted after the first tenth, when the executor has been chosen; `seconds` is the time of the
whole run. `µs a step and weight` is constant if the cost is linear in the model size.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import torch
from torch import nn

import tarry
from record import measure_in_process, write
from tarry.tasks import tasks
from tarry.tasks.models import mlp
from tarry.vector.process import tune_malloc

EACH, BATCH = 20, 10


def digits(clients: int, hidden: int) -> tarry.Task:
    x, y = tasks.build("digits").train
    at = torch.randint(len(x), (clients, EACH), generator=torch.Generator().manual_seed(0))
    data = list(zip(x[at].unbind(), y[at].unbind(), strict=True))
    return tarry.Task("digits", model=lambda: mlp(64, hidden, 10), loss=nn.functional.cross_entropy, clients=data)


class Watch:
    """Measure the rate after the first tenth of the updates."""

    def __init__(self, updates: int) -> None:
        self.after, self.first, self.last, self.began = updates // 10, 0.0, 0.0, time.perf_counter()
        self.updates = 0

    def __call__(self, e: tarry.Event) -> None:
        if e.kind == "arrival":
            self.last, self.updates = time.perf_counter(), e.updates
            if e.updates == self.after:
                self.first = self.last


def measure(clients: int, hidden: int, in_flight: int, executor: str, updates: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    tune_malloc()
    task, watch = digits(clients, hidden), Watch(updates)
    size = 64 * hidden + hidden + 10 * hidden + 10
    tarry.run(
        "fedbuff", task, updates=updates, epochs=1, batch=BATCH, concurrency=in_flight, delay="exponential",
        executor=executor, callbacks=[watch],
    )  # fmt: skip
    rate = (watch.updates - watch.after) / (watch.last - watch.first)
    row = {
        "clients": clients, "weights": size, "in_flight": in_flight, "executor": executor, "updates": updates,
        "updates_per_s": rate, "µs a step and weight": 1e6 / rate / (EACH // BATCH) / size,
        "seconds": watch.last - watch.began, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="leave out the run of 10,000 clients")
    o = parser.parse_args()
    wanted = [(c, 64, 100, "inline", o.updates) for c in (100, 1_000, 10_000)]
    wanted += [(1_000, h, 100, "inline", o.updates // 2) for h in (256, 1024)]
    wanted += [(1_000, 64, f, "inline", o.updates) for f in (10, 1_000)]
    wanted += [(1_000, 64, f, "batched", o.updates) for f in (10, 100, 1_000)]
    wanted += [] if o.quick else [(10_000, 64, 1_000, "batched", 50_000)]
    rows = [measure_in_process(measure, *row) for row in wanted]
    write("scale", "Cost as clients, parameters and concurrency grow: digits, an MLP, FedBuff(10)", rows)


if __name__ == "__main__":
    main()
