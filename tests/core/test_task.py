from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import tarry
from tarry.core.errors import BadInput
from tarry.core.shards import Shards
from tarry.core.task import Task


def test_shards_are_slices_of_two_tensors():
    shards = Shards(torch.arange(6.0), torch.arange(6), [3, 0, 2, 1])
    assert len(shards) == 4
    assert [y.tolist() for _, y in shards] == [[0, 1, 2], [], [3, 4], [5]]
    x, _ = shards[2]
    x[0] = 50.0
    assert shards.x[3] == 50.0


def cut_by_parity(labels, groups, n_clients, rng):
    assert groups is None or len(groups) == len(labels)
    return [np.flatnonzero(labels % n_clients == k) for k in range(n_clients)]


def whole(y: torch.Tensor, **kw: object) -> Task:
    x = torch.arange(float(len(y)))[:, None]
    return Task("t", model=lambda: nn.Linear(1, 1), loss=mse_loss, train=(x, y), **kw)  # type: ignore[arg-type]


def test_the_repr_of_a_task_is_one_line():
    digits = tarry.tasks.build("digits")
    assert repr(digits) == "Task(digits: 1,437 train, 360 test, model mlp)"
    cut = digits.split(tarry.partitions.build("iid"), 4, np.random.default_rng(0))
    assert repr(cut) == "Task(digits: 1,437 train, 360 test, 4 clients, model mlp)"
    own = Task("own", model=nn.Linear(1, 1), loss=mse_loss, clients=[(torch.zeros(2, 1), torch.zeros(2, 1))])
    assert repr(own) == "Task(own: 2 train, 1 clients, model Linear)"


def test_a_split_deals_the_examples_out_as_the_partitioner_says():
    task = whole(torch.tensor([0, 1, 2, 3, 4]), groups=torch.tensor([0, 0, 1, 1, 1]))
    cut = task.split(cut_by_parity, 2, np.random.default_rng(0))
    assert [(x.flatten().tolist(), y.tolist()) for x, y in cut.clients] == [([0, 2, 4], [0, 2, 4]), ([1, 3], [1, 3])]
    assert cut.train is None
    assert cut.groups is None
    assert task.train is not None
    assert len(task.clients) == 0


def test_targets_that_are_no_classes_are_one_class_to_the_partitioner():
    seen = []

    def cut(labels, groups, n_clients, rng):
        seen.append(labels)
        return [np.arange(len(labels))]

    whole(torch.tensor([0.5, 1.5])).split(cut, 1, np.random.default_rng(0))
    assert seen[0].tolist() == [0, 0]


def test_examples_that_belong_to_clients_already_are_not_dealt_out_again():
    task = Task("mine", model=nn.Linear(1, 1), loss=mse_loss, clients=[(torch.zeros(1, 1), torch.zeros(1, 1))])
    with pytest.raises(BadInput, match="--partition: the examples of task 'mine' belong to its clients already"):
        task.split(cut_by_parity, 2, np.random.default_rng(0))


@pytest.mark.parametrize("sharded", [True, False])
def test_inputs_become_the_dtype_and_class_numbers_stay(sharded):
    x, y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
    clients = Shards(x, y, [3, 1]) if sharded else [(x[:3], y[:3]), (x[3:], y[3:])]
    task = Task("t", model=nn.Linear(2, 2), loss=mse_loss, clients=clients, test=(x, y)).to(torch.float64)
    assert [len(a) for a, _ in task.clients] == [3, 1]
    assert isinstance(task.clients, Shards) == sharded
    for a, b in (*task.clients, task.test):
        assert a.dtype == torch.float64
        assert b.dtype == torch.int64
    assert x.dtype == torch.float32


def test_real_targets_become_the_dtype_too():
    x, y = torch.ones(2, 1), torch.ones(2, 1)
    task = Task("t", model=nn.Linear(1, 1), loss=mse_loss, clients=[(x, y)]).to(torch.float64)
    assert task.clients[0][1].dtype == torch.float64
    assert task.test is None
