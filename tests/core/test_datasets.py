"""Tasks of torch and Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import tarry
from tarry.core.errors import BadInput
from tarry.core.task import Task

X, Y = torch.arange(24.0).view(8, 3), torch.tensor([0, 1, 0, 1, 0, 1, 1, 1])
SET = TensorDataset(X, Y)


def model() -> nn.Module:
    return nn.Linear(3, 2)


def table(**more: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"features": X.tolist(), "label": Y.tolist(), **more})


class Squares(Dataset[tuple[float, int]]):
    """A dataset of numbers and their squares, read one by one."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> tuple[float, int]:
        if i == 5:
            raise IndexError
        return float(i), i * i


class Pictures(Squares):
    def __getitem__(self, i: int) -> Any:
        return object(), i


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_task_is_made_of_a_torch_dataset():
    task = Task.from_dataset(SET, model, test=TensorDataset(X[:2], Y[:2]))
    assert (task.name, task.clients) == ("tensordataset", ())
    assert torch.equal(task.train[0], X)
    assert torch.equal(task.train[1], Y)
    assert torch.equal(task.test[0], X[:2])
    result = tarry.run("fedavg", task, clients=2, updates=4, steps=1)
    assert (result.task, result.n_clients, result.updates) == ("tensordataset", 2, 4)
    numbers = Task.from_dataset(Squares(), lambda: nn.Linear(1, 1), mse_loss, name="squares", metrics=["loss"])
    assert (numbers.name, numbers.metrics) == ("squares", ["loss"])
    assert [t.tolist() for t in numbers.train] == [[0, 1, 2, 3, 4], [0, 1, 4, 9, 16]]


@pytest.mark.parametrize("formatted", [False, True])
def test_a_task_is_made_of_a_hugging_face_dataset(formatted: bool):
    rows = table().with_format("torch") if formatted else table()
    task = Task.from_dataset(rows, model, test=rows.select(range(2)))
    assert torch.equal(task.train[0], X)
    assert torch.equal(task.train[1], Y)
    assert torch.equal(task.test[1], Y[:2])
    assert tarry.run("fedavg", task, clients=2, updates=4, steps=1).updates == 4


def test_columns_are_inferred_where_only_one_choice_is_possible():
    more = table(place=[3] * 8, image=[[float(i)] for i in range(8)])
    task = Task.from_dataset(more.remove_columns("features"), model)
    assert task.train[0].flatten().tolist() == list(range(8))
    given = Task.from_dataset(more, model, input_column="features", target_column="place")
    assert (given.train[0].shape, set(given.train[1].tolist())) == ((8, 3), {3})
    with pytest.raises(BadInput, match="columns 'features', 'label', 'place', 'image'; name input and target: input_c"):
        Task.from_dataset(more, model)
    with pytest.raises(BadInput, match="there is no column 'feature'; example 0 has 'features', 'label'"):
        Task.from_dataset(table(), model, input_column="feature")
    with pytest.raises(BadInput, match="there is no column 5; example 0 has positions 0 to 1"):
        Task.from_dataset(SET, model, target_column=5)


def test_a_transform_makes_a_pair_of_an_example():
    words = datasets.Dataset.from_dict({"text": ["a bb", "ccc d"], "label": [0, 1]})
    task = Task.from_dataset(words, model, transform=lambda row: ([len(w) for w in row["text"].split()], row["label"]))
    assert [t.tolist() for t in task.train] == [[[1, 2], [3, 1]], [0, 1]]
    with pytest.raises(BadInput, match=r"pairs of an input and a target.*they are str and int\); give transform="):
        Task.from_dataset(words, model)
    with pytest.raises(BadInput, match="transform returned list; it should return a pair"):
        Task.from_dataset(words, model, transform=lambda row: [1, 2, 3])


def test_a_column_or_a_function_names_the_clients_of_examples():
    who = ["bob", "ann"] * 4
    by_column = Task.from_dataset(table(who=who), model, clients_by="who")
    assert [y.tolist() for _, y in by_column.clients] == [[1, 1, 1, 1], [0, 0, 0, 1]]  # ann, bob
    assert torch.equal(by_column.clients[0][0], X[1::2])
    by_function = Task.from_dataset(SET, model, clients_by=lambda example: int(example[1]))
    assert [y.tolist() for _, y in by_function.clients] == [[0] * 3, [1] * 5]
    assert tarry.run("fedavg", by_function, updates=2, steps=1).n_clients == 2
    with pytest.raises(BadInput, match="clients=3: task 'tensordataset' comes with 2 clients"):
        tarry.run("fedavg", by_function, clients=3, updates=2)
    triples = TensorDataset(X, Y, torch.tensor([7, 5] * 4))
    task = Task.from_dataset(triples, model, input_column=0, target_column=1, clients_by=2)
    assert torch.equal(task.clients[1][0], X[::2])
    with pytest.raises(BadInput, match="clients_by gives None for example 0; it wants a text or a number"):
        Task.from_dataset(SET, model, clients_by=lambda example: None)


def test_index_lists_deal_the_examples_out():
    task = Task.from_dataset(SET, model, clients=[[7, 0], [3]])
    assert torch.equal(task.clients[0][0], X[[7, 0]])
    assert torch.equal(task.clients[1][0], X[3:4])
    for lists, message in (
        ([[0], [8]], "client 1 has the index 8, and the 8 examples go from 0 to 7"),
        ([[0], [-1]], "client 1 has the index -1"),
        ([[0], []], "client 1 has 0 indices"),
        ([0, 1], "client 0 has 0 indices that are no list"),
        ([], "there is no client"),
    ):
        with pytest.raises(BadInput, match=message):
            Task.from_dataset(SET, model, clients=lists)
    with pytest.raises(BadInput, match="clients and clients_by both say whose the examples are"):
        Task.from_dataset(SET, model, clients=[[0]], clients_by="who")


def test_a_list_has_a_data_set_for_each_client():
    task = Task.from_dataset([SET, table(), Subset(SET, [2, 4])], model)
    assert [len(x) for x, _ in task.clients] == [8, 8, 2]
    assert torch.equal(task.clients[2][0], X[[2, 4]])
    assert tarry.run("fedavg", task, updates=3, steps=1).n_clients == 3
    with pytest.raises(BadInput, match=r"the examples from 8 on are 2, float32 and the first 3, float32"):
        Task.from_dataset([SET, TensorDataset(X[:, :2], Y)], model)


def test_of_a_data_loader_the_data_set_is_used_unless_it_makes_other_examples():
    task = Task.from_dataset(DataLoader(SET, batch_size=3, shuffle=True), model)
    assert torch.equal(task.train[0], X)
    with pytest.raises(
        BadInput, match=r"a DataLoader with a collate_fn of its own .* give loader.dataset, and transform="
    ):
        Task.from_dataset(DataLoader(SET, collate_fn=list), model)
    with pytest.raises(BadInput, match=r"with a WeightedRandomSampler chooses examples; give .*Subset"):
        Task.from_dataset(DataLoader(SET, sampler=WeightedRandomSampler([1.0] * 8, 8)), model)
    with pytest.raises(BadInput, match="Stream is iterable"):
        Task.from_dataset(DataLoader(Stream()), model)


def test_a_dataset_that_makes_no_tensors_is_rejected():
    with pytest.raises(BadInput, match=r"from_dataset: the examples of Pictures must be pairs .* give transform="):
        Task.from_dataset(Pictures(), model)
    with pytest.raises(BadInput, match=r"from_dataset: the examples of TensorDataset must be pairs .*a tuple of 1"):
        Task.from_dataset(TensorDataset(torch.zeros(3)), model)
    with pytest.raises(BadInput, match="from_dataset: Stream is iterable: it has no length"):
        Task.from_dataset(Stream(), model)
    with pytest.raises(BadInput, match="without streaming=True"):
        Task.from_dataset(table().to_iterable_dataset(), model)
    with pytest.raises(BadInput, match=r"holds the parts 'train', 'test'; give one, as d\['train'\]"):
        Task.from_dataset(datasets.DatasetDict(train=table(), test=table()), model)
    with pytest.raises(BadInput, match="Subset has no examples"):
        Task.from_dataset(Subset(SET, []), model)
    with pytest.raises(BadInput, match="int has no length"):
        Task.from_dataset(3, model)


def test_data_sets_in_place_of_tasks_and_tensors_get_the_remedy():
    with pytest.raises(BadInput, match=r"got TensorDataset; tarry.Task.from_dataset\(data, model, loss\)"):
        tarry.run("fedavg", SET)  # type: ignore[arg-type]
    own = Task("own", model=model, loss=nn.functional.cross_entropy, clients=[SET, SET])  # type: ignore[list-item]
    with pytest.raises(BadInput, match=r"client 0 has a TensorDataset, not a pair of tensors; tarry.Task.from_dataset"):
        tarry.run("fedavg", own)
    whole = Task("own", model=model, loss=nn.functional.cross_entropy, train=SET)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"train= has a TensorDataset, not a pair of tensors"):
        tarry.run("fedavg", whole)


def test_a_long_data_set_is_read_in_blocks_to_the_same_tensors():
    x, y = torch.randn(1000, 2), torch.arange(1000)
    task = Task.from_dataset(TensorDataset(x, y), model)
    assert torch.equal(task.train[0], x)
    assert torch.equal(task.train[1], y)
    assert np.asarray(task.train[1]).dtype == np.int64
