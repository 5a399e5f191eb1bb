"""tarry itself, FedAsync with 10 clients at work under exponential delays, with each executor."""

from __future__ import annotations

import time
from typing import Any

from torch import nn
from workload import BATCH, COHORT, LR, Bare, LeNet5, Meter, clients, parse_options

import tarry

SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "pool of two": {"executor": "pool", "workers": 2},
    "auto, two workers": {"executor": "auto", "workers": 2},
}
RUNS = 3
FEWEST = 50  # updates a run


class Watch:
    """Count after the first ten arrivals: they include the start-up, like the first round of a peer."""

    def __init__(self, meter: Meter):
        self.meter, self.began, self.ended, self.updates = meter, 0.0, 0.0, -COHORT

    def __call__(self, event: tarry.Event) -> None:
        if event.kind != "arrival":
            return
        self.meter.first()
        self.updates += 1
        self.ended = time.perf_counter()
        if self.updates <= 0:
            self.began = self.ended

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def main() -> None:
    options = parse_options(tuple(SETTINGS))
    shards = clients(options.samples)
    task = tarry.Task("lenet5", model=LeNet5, loss=nn.functional.cross_entropy, clients=shards)
    meter = Meter("tarry", tarry.__version__, options.setting, options.samples, options.seconds, Bare(shards))

    def run(updates: int) -> Watch:
        watch = Watch(meter)
        tarry.run(
            "fedasync", task, updates=updates, concurrency=COHORT, epochs=1, batch=BATCH, lr=LR, delay="exponential",
            callbacks=[watch], **SETTINGS[options.setting],
        )  # fmt: skip
        return watch

    watch = run(FEWEST)
    meter.pause()
    while not meter.done:
        watch = run(COHORT + max(FEWEST, int(watch.updates / watch.seconds * options.seconds / RUNS)))
        meter.add(watch.updates, watch.seconds)
    meter.report()


if __name__ == "__main__":
    main()
