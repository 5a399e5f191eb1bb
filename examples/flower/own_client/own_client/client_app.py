"""A ClientApp as in Flower's tutorials."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_client.model import Net, partition

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(int(context.run_config["local-epochs"])):
        for at in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[at]), y[at])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
