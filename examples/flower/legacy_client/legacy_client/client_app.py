"""A NumPyClient, as Flower apps had before handlers of messages."""

from __future__ import annotations

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from legacy_client.task import get_weights, make_model, partition, set_weights


class DigitsClient(NumPyClient):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, epochs: int):
        self.model, self.x, self.y, self.epochs = make_model(), x, y, epochs

    def fit(self, parameters, config):
        set_weights(self.model, parameters)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=float(config["lr"]))
        loss = torch.zeros(())
        for _ in range(self.epochs):
            for at in torch.randperm(len(self.x)).split(32):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(self.x[at]), self.y[at])
                loss.backward()
                optimizer.step()
        return get_weights(self.model), len(self.x), {"train_loss": loss.item()}

    def evaluate(self, parameters, config):
        set_weights(self.model, parameters)
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(self.x)
        loss = torch.nn.functional.cross_entropy(outputs, self.y)
        return loss.item(), len(self.x), {"accuracy": (outputs.argmax(1) == self.y).float().mean().item()}


def client_fn(context: Context):
    x, y = partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    return DigitsClient(x, y, int(context.run_config["local-epochs"])).to_client()


app = ClientApp(client_fn=client_fn)
