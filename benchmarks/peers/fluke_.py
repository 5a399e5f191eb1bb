"""fluke: FedAVG over 100 clients, a tenth of them a round, one process, no evaluation."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import no_torchvision  # noqa: F401
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.server import EarlyStopping
from fluke.utils import FederationObserver
from torch import Tensor
from workload import BATCH, CLIENTS, COHORT, LR, Bare, LeNet5, Meter, clients, parse_options

ENDLESS = 10**6


class EachRound(FederationObserver):
    def __init__(self, meter: Meter):
        self.meter = meter

    def end_round(self, round: int) -> None:
        self.meter.round(COHORT)
        if self.meter.done:
            raise EarlyStopping(round)


def loader(x: Tensor, y: Tensor) -> Any:
    return FastDataLoader(x, y, num_labels=10, batch_size=BATCH, shuffle=True)


def main() -> None:
    options = parse_options()
    shards = clients(options.samples)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    data = DummyDataContainer([loader(*s) for s in shards], [None] * CLIENTS, None, num_classes=10)
    settings = DDict(
        model=LeNet5(),
        client=DDict(
            batch_size=BATCH,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=LR),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
    )
    meter = Meter("fluke", version("fluke-fl"), "one process", options.samples, options.seconds, Bare(shards))
    federation = FedAVG(CLIENTS, DataSplitter(data), settings)
    federation.set_callbacks([EachRound(meter)])
    federation.run(ENDLESS, COHORT / CLIENTS, finalize=False)
    meter.report()


if __name__ == "__main__":
    main()
