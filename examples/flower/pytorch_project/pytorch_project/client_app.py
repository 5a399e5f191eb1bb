"""The client of the project, with handlers of messages."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_project.task import Net, load_data, test
from pytorch_project.task import train as train_model

app = ClientApp()


def _data(context: Context):
    node, run = context.node_config, context.run_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]), int(run["batch-size"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches, _ = _data(context)
    loss = train_model(net, batches, int(context.run_config["local-epochs"]), float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, batches = _data(context)
    loss, accuracy = test(net, batches)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
