"""APPFL's virtual-time driver: FedAsync, 10 clients in flight, one process, without its garbage collection."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import no_torchvision  # noqa: F401
from appfl.agent import ClientAgent, ServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile, VsimLogger
from omegaconf import OmegaConf
from workload import BATCH, CLIENTS, COHORT, LR, Bare, Meter, clients, parse_options

PARTS = str(Path(__file__).with_name("appfl_parts.py"))
LEAN = {"optimize_memory": False}  # its default collects garbage several times an update


class Timed(ServerAgent):
    meter: Meter

    def global_update(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().global_update(*args, **kwargs)
        self.meter.round(1)
        return answer

    def training_finished(self, **_: Any) -> bool:
        return self.meter.done


def for_clients(logs: str) -> dict[str, Any]:
    return {
        **LEAN,
        "model_configs": {"model_path": PARTS, "model_name": "LeNet5"},
        "train_configs": {
            **LEAN,
            "trainer": "VanillaTrainer",
            "mode": "epoch",
            "num_local_epochs": 1,
            "optim": "SGD",
            "optim_args": {"lr": LR},
            "train_batch_size": BATCH,
            "loss_fn": "CrossEntropyLoss",
            "metric_path": PARTS,
            "metric_name": "accuracy",
            "device": "cpu",
            "logging_output_dirname": logs,
        },
    }


def server(logs: str, meter: Meter) -> Timed:
    settings = {
        **LEAN,
        "num_clients": CLIENTS,
        "num_global_epochs": 1,  # not used: see Timed
        "aggregator": "FedAsyncAggregator",
        "aggregator_kwargs": {**LEAN, "alpha": 0.9, "staleness_fn": "constant"},
        "scheduler": "AsyncScheduler",
        "scheduler_kwargs": {**LEAN, "num_clients": CLIENTS},
        "device": "cpu",
        "logging_output_dirname": logs,
    }
    Timed.meter = meter
    return Timed(OmegaConf.create({"client_configs": for_clients(logs), "server_configs": settings}))


def client(number: int, samples: int, logs: str) -> ClientAgent:
    data = {"dataset_path": PARTS, "dataset_name": "dataset", "dataset_kwargs": {"client": number, "samples": samples}}
    return ClientAgent(OmegaConf.create({"client_id": str(number), "data_configs": data, **for_clients(logs)}))


def main() -> None:
    options = parse_options()
    bare = Bare(clients(options.samples))
    meter = Meter("APPFL", version("appfl"), "virtual time, FedAsync", options.samples, options.seconds, bare)
    with tempfile.TemporaryDirectory() as logs:
        agents = [client(c, options.samples, logs) for c in range(CLIENTS)]
        profiles = {a.get_id(): ClientProfile() for a in agents}
        log = VsimLogger(file_dir=logs, file_name="log")
        AsyncSimDriver(server(logs, meter), agents, profiles, max_in_flight=COHORT, logger=log).run()
    meter.report()


if __name__ == "__main__":
    main()
