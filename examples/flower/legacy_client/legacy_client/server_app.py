"""The function that was the strategy's evaluate_fn."""

from __future__ import annotations

import torch

from legacy_client.task import make_model, set_weights, test_set


def evaluate(server_round, parameters, config):
    model, (x, y) = make_model(), test_set()
    set_weights(model, parameters)
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    loss = torch.nn.functional.cross_entropy(outputs, y).item()
    return loss, {"accuracy": (outputs.argmax(1) == y).float().mean().item()}
