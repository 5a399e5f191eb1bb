"""Flower's simulation: FedAvg over 100 supernodes, 10 a round, on Ray with two actors of one CPU each."""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from collections.abc import Iterable
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import CLIENTS, COHORT, Bare, LeNet5, Meter, clients, parse_options, shard, train

ROUNDS = 5  # a call of the strategy; as many calls as the time allows


class Strict(FedAvg):
    """FedAvg that raises an error when a client fails, since a failure is no update."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if failed := [r.error.reason for r in replies if r.has_error()]:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        return super().aggregate_train(server_round, replies)


def client_app(samples: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = LeNet5()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, *shard(int(context.node_config["partition-id"]), samples))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(meter: Meter) -> ServerApp:
    app = ServerApp()

    @app.main()
    def _main(grid: Grid, _: Context) -> None:
        strategy = Strict(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        arrays = ArrayRecord(LeNet5().state_dict())

        def at_round(number: int, _: ArrayRecord) -> None:
            if number == 0:
                meter.resume()
            else:
                meter.round(COHORT)

        while not meter.done:
            arrays = strategy.start(grid, arrays, num_rounds=ROUNDS, evaluate_fn=at_round).arrays

    return app


def main() -> None:
    options = parse_options()
    bare = Bare(clients(options.samples))
    meter = Meter("Flower", version("flwr"), "Ray, two actors", options.samples, options.seconds, bare)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    config = {"client_resources": resources, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server_app(meter), client_app(options.samples), num_supernodes=CLIENTS, backend_config=config)
    meter.report()


if __name__ == "__main__":
    main()
