"""The memory of a run on examples that are larger than what it may take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

EXAMPLES, SIDE = 2000, 256  # float32 images of one channel: 524 MB
PROGRAM = f"""
import json, resource, sys
import torch
from torch import nn
from torch.utils.data import Dataset
import tarry

class Images(Dataset):
    def __len__(self):
        return {EXAMPLES}
    def __getitem__(self, i):
        return torch.full((1, {SIDE}, {SIDE}), float(i % 7)), i % 2

def peak():
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024

model = lambda: nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.Linear(16, 2))
small = tarry.tasks["digits"](limit=200)
settings = json.loads(sys.argv[2])
tarry.run("fedbuff", small, clients=20, concurrency=2, updates=4, **settings)  # imports and compiles what is needed
before = peak()
task = tarry.Task.from_dataset(Images(), model, cache=sys.argv[1])
given = dict(clients=100, concurrency=2, updates=20, epochs=1, batch=8, partition="iid", **settings)
result = tarry.run("fedbuff", task, **given)
print(json.dumps({{"taken": peak() - before, "size": task.train[0].nbytes, "updates": result.updates}}))
"""


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"executor": "batched"}], ids=["inline", "pool", "batched"])
def test_peak_memory_stays_far_below_the_size_of_the_data(tmp_path, settings):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["updates"] == 20
    assert found["size"] == EXAMPLES * SIDE * SIDE * 4
    assert found["taken"] < found["size"] / 2.5
