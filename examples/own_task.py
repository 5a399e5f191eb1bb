"""Your own task: a module, a loss, and one pair of tensors per client."""

import torch
from torch import nn

import tarry

generator = torch.Generator().manual_seed(0)
truth = torch.randn(5, 3, generator=generator)


def examples(n: int, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 5, generator=generator) + shift
    return x, (x @ truth).argmax(1)


task = tarry.Task(
    "mine",
    model=lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)),
    loss=nn.functional.cross_entropy,
    clients=[examples(50, shift) for shift in (-1.0, 0.0, 1.0)],
    test=examples(500, 0.0),
)

# a visit takes client 0 10 s and client 1 30 s; client 2 takes 200 s and 40 s in turn
result = tarry.run("orthofl", task, delay=[10, 30, [200, 40]], updates=60, epochs=2, batch=10, lr=0.1)
print(f"accuracy {result.final_accuracy:.3f} after {result.virtual_time:.0f} virtual seconds")
