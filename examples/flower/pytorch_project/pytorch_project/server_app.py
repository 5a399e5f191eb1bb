"""The server that the project had: synchronous FedAvg. Its function for evaluation is still used."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorch_project.task import Net, load_test_set, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate_on_server,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def evaluate_on_server(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_set())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
