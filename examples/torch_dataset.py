"""A torch data set as a task: natural clients, a validation set, early stopping, and examples in mapped files."""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset

import tarry


class Sensors(Dataset):
    """Windows of readings of six sensors, and whether the machine fails soon; every sensor has an offset of its own."""

    def __init__(self, n: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.sensor = torch.randint(0, 6, (n,), generator=generator)
        self.readings = torch.randn(n, 8, generator=generator) + 0.2 * self.sensor[:, None]
        self.fails = (self.readings[:, :4].sum(1) > self.readings[:, 4:].sum(1)).long()

    def __len__(self) -> int:
        return len(self.sensor)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"readings": self.readings[i], "fails": self.fails[i], "sensor": self.sensor[i]}


with tempfile.TemporaryDirectory() as folder:
    task = tarry.Task.from_dataset(
        Sensors(1200, seed=0),
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        nn.functional.cross_entropy,
        test=Sensors(400, seed=1),
        input_column="readings",
        target_column="fails",
        clients_by="sensor",  # a client for every sensor
        cache=folder,  # the examples are in files there; they may be larger than the memory
    )
    result = tarry.run("fedbuff", task, validation=0.1, patience=5, time=50_000, eval_every=250, lr=0.1, seed=1)

print(f"{result.n_clients} clients, stopped by {result.early_stopping['stop_reason']}")
print(f"validation {result.validation_metrics['accuracy']:.3f}, test {result.test_metrics['accuracy']:.3f}")
