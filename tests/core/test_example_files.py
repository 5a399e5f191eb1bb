"""Examples in files: the same bits as in memory, stale entries, the limit of a cache."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import tarry
from tarry.core.errors import BadInput
from tarry.core.shards import MappedExamples, MappedShards, Shards
from tarry.core.task import Task

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
SET = TensorDataset(X, Y)


def model() -> nn.Module:
    return nn.Linear(4, 2)


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


class Counted(Dataset[Any]):
    """Examples that count how often they are read; `offset` is added to the inputs."""

    def __init__(self, n: int = 100, offset: float = 0.0):
        self.n, self.offset, self.reads = n, offset, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        return torch.full((3,), i + self.offset), i % 2


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"executor": "batched"}])
def test_a_run_on_mapped_files_has_the_bits_of_a_run_in_memory(tmp_path, how, partition):
    settings = {"clients": 5, "updates": 15, "epochs": 2, "partition": partition, **how}
    in_memory = Task.from_dataset(SET, model, test=SET, name="t")
    in_files = Task.from_dataset(SET, model, test=SET, name="t", cache=tmp_path)
    assert isinstance(in_files.train, MappedExamples)
    one, other = (tarry.run("fedbuff", task, **settings) for task in (in_memory, in_files))
    assert one.weights_sha256 == other.weights_sha256
    assert one.curve == other.curve


def test_clients_by_column_and_by_index_lists_are_rows_of_the_files(tmp_path):
    for chosen in ({"clients_by": lambda e: int(e[1])}, {"clients": [[5, 3], [7, 0, 1]]}):
        in_memory, in_files = (Task.from_dataset(SET, model, cache=cache, **chosen) for cache in (None, tmp_path))
        assert isinstance(in_memory.clients, Shards)
        assert isinstance(in_files.clients, MappedShards)
        assert len(in_files.clients) == 2
        for a, b in zip(in_memory.clients, in_files.clients, strict=True):
            assert all(map(torch.equal, a, b))
    again = Task.from_dataset(SET, model, cache=tmp_path, clients=[[5, 3], [7, 0, 1]])
    assert torch.equal(again.clients[-1][0], X[[7, 0, 1]])
    with pytest.raises(IndexError):
        again.clients[2]


def test_examples_are_read_once(tmp_path):
    data = Counted()
    Task.from_dataset(data, model, cache=tmp_path)
    first = data.reads
    Task.from_dataset(data, model, cache=tmp_path)
    assert first >= 100
    assert data.reads - first < 100  # the sample of the digest alone
    assert len(entries(tmp_path)) == 1


def test_another_data_set_of_the_same_name_is_another_entry(tmp_path):
    first = Task.from_dataset(Counted(), model, cache=tmp_path)
    for other in (Counted(99), Counted(offset=1.0)):
        task = Task.from_dataset(other, model, cache=tmp_path)
        assert torch.equal(task.train[0][5], torch.full((3,), 5 + other.offset))
        assert len(task.train[0]) == other.n
    transformed = Task.from_dataset(Counted(), model, cache=tmp_path, transform=lambda e: (-e[0], e[1]))
    assert torch.equal(transformed.train[0], -first.train[0])
    assert len(entries(tmp_path)) == 4


def test_a_torn_entry_is_written_again(tmp_path):
    Task.from_dataset(SET, model, cache=tmp_path)
    file = tmp_path / entries(tmp_path)[0] / "x.npy"
    os.truncate(file, file.stat().st_size // 2)
    task = Task.from_dataset(SET, model, cache=tmp_path)
    assert torch.equal(task.train[0], X)


def test_what_a_killed_process_has_left_is_deleted(tmp_path):
    (tmp_path / ".part").mkdir()
    (tmp_path / ".part" / "x.npy").write_bytes(bytes(1000))
    Task.from_dataset(SET, model, cache=tmp_path)
    assert not (tmp_path / ".part").exists()


def test_a_reading_that_fails_leaves_nothing(tmp_path):
    class Broken(Counted):
        def __getitem__(self, i: int) -> Any:
            return (torch.zeros(4), 0) if i == 50 else super().__getitem__(i)

    with pytest.raises(BadInput, match="pairs of an input and a target"):
        Task.from_dataset(Broken(), model, cache=tmp_path)
    assert entries(tmp_path) == []
    assert not (tmp_path / ".part").exists()


def test_a_cache_deletes_the_entry_that_was_not_used_for_the_longest_time(tmp_path):
    size = 200 * (4 * 4 + 8)
    limit = 2.5 * (size + 400) / 1e9  # two entries with their headers
    for name in ("one", "two"):
        Task.from_dataset(SET, model, name=name, cache=tmp_path, cache_gigabytes=limit)
        os.utime(next(tmp_path.glob(f"{name}-*")), (1000 + len(name), 1000))
    Task.from_dataset(SET, model, name="one", cache=tmp_path, cache_gigabytes=limit)  # used now
    Task.from_dataset(SET, model, name="three", cache=tmp_path, cache_gigabytes=limit)
    assert [name.partition("-")[0] for name in entries(tmp_path)] == ["one", "three"]
    with pytest.raises(BadInput, match=r"cache_gigabytes=1e-06: these examples take 4.8e-06 GB in .*; raise it"):
        Task.from_dataset(SET, model, name="four", cache=tmp_path, cache_gigabytes=1e-6)
    with pytest.raises(BadInput, match="cache_gigabytes=0: must be above 0"):
        Task.from_dataset(SET, model, cache=tmp_path, cache_gigabytes=0)


def test_a_random_transform_cannot_be_cached(tmp_path):
    with pytest.raises(BadInput, match=r"gives another example each time that it is read.* give augment="):
        Task.from_dataset(SET, model, cache=tmp_path, transform=lambda e: (e[0] + torch.rand(4), e[1]))


def test_floating_point_numbers_are_stored_as_float32_and_cast_when_they_are_read(tmp_path):
    task = Task.from_dataset(TensorDataset(X.double(), Y), model, cache=tmp_path, clients_by=lambda e: int(e[1]))
    assert task.clients[0][0].dtype == torch.float32
    wide = task.to(torch.float64)
    assert isinstance(wide.clients, MappedShards)
    assert wide.clients[0][0].dtype == torch.float64
    result = tarry.run("fedavg", task, updates=3, dtype="float64", executor="batched")
    assert "the examples are in files" in result.executor_info


def test_what_is_written_to_mapped_examples_never_reaches_the_files(tmp_path):
    x, _ = Task.from_dataset(SET, model, cache=tmp_path).train
    x[0] = 99
    again = Task.from_dataset(SET, model, cache=tmp_path).train
    assert torch.equal(again[0], X)
    again[0][1] = 5
    again.release()
    assert torch.equal(again[0][:1], X[:1])


def test_another_process_maps_the_same_files(tmp_path):
    task = Task.from_dataset(SET, model, cache=tmp_path, clients_by=lambda e: int(e[1])).to(torch.float32)
    assert isinstance(task.clients, MappedShards)
    assert len(pickle.dumps(task.clients.source)) < X.nbytes / 2
    for a, b in zip(task.clients, pickle.loads(pickle.dumps(task.clients)), strict=True):  # noqa: S301 - our own text
        assert all(map(torch.equal, a, b))
