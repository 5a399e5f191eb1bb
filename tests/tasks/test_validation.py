"""Validation sets: which examples they have, and that no client trains on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.shards import MappedShards, Shards
from tarry.core.task import Task
from tarry.runs.build_task import build_task

X = torch.arange(100.0)[:, None]
Y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)


def model() -> nn.Module:
    return nn.Linear(1, 3)


def whole(**more: object) -> Task:
    return Task("t", model=model, loss=cross_entropy, train=(X, Y), test=(X[:5], Y[:5]), **more)  # type: ignore[arg-type]


def built(task: Task, **settings: object) -> Task:
    return build_task(Spec.of({"task": task, "clients": 4, "partition": "iid", "updates": 1, **settings}))


def numbers(task: Task) -> list[float]:
    return sorted(x for examples in task.clients for x in examples[0].flatten().tolist())


def test_the_share_has_the_classes_in_proportion_and_no_client_gets_it():
    task = built(whole(), validation=0.1)
    x, y = task.validation
    assert torch.bincount(y).tolist() == [6, 3, 1]
    assert sorted(numbers(task) + x.flatten().tolist()) == list(range(100))
    assert torch.equal(Y[x.flatten().long()], y)
    assert torch.equal(task.test[0], X[:5])


def test_the_share_is_drawn_by_the_seed():
    drawn = [built(whole(), validation=0.2, seed=seed).validation[0].flatten().tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_examples_of_files_are_the_same_and_stay_there(tmp_path):
    data = TensorDataset(X, Y)
    in_memory, in_files = (Task.from_dataset(data, model, cache=cache) for cache in (None, tmp_path))
    one, other = (built(task, validation=0.2) for task in (in_memory, in_files))
    assert isinstance(other.clients, MappedShards)
    assert numbers(one) == numbers(other)
    assert all(map(torch.equal, one.validation, other.validation))


def test_without_a_share_the_examples_are_dealt_out_as_before():
    partitioner = tarry.partitions["dirichlet"]()
    cut = [whole().split(partitioner, 4, np.random.default_rng(0), validation) for validation in (None, np.arange(0))]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(cut[0].clients, cut[1].clients, strict=True))
    assert cut[0].validation is None


def test_natural_groups_keep_their_examples():
    groups = torch.arange(100) // 25
    task = built(whole(groups=groups), validation=0.2, partition="groups")
    assert len(task.validation[0]) == 20
    for x, _ in task.clients:
        assert len(set((x.flatten() // 25).tolist())) == 1


@pytest.mark.parametrize("kind", ["pairs", "shards", "files"])
def test_clients_with_examples_of_their_own_give_a_share_each(tmp_path, kind):
    sizes = [1, 9, 40, 50]
    parts = [rows.tolist() for rows in np.split(np.arange(100), np.cumsum(sizes)[:-1])]
    if kind == "pairs":
        pairs = [(X[rows], Y[rows]) for rows in parts]
        task = Task("t", model=model, loss=cross_entropy, clients=pairs)
    else:
        cache = tmp_path if kind == "files" else None
        task = Task.from_dataset(TensorDataset(X, Y), model, clients=parts, cache=cache)
    done = built(task, validation=0.2)
    kinds = {"pairs": list, "shards": Shards, "files": MappedShards}
    assert isinstance(done.clients, kinds[kind])
    assert [len(x) for x, _ in done.clients] == [1, 7, 32, 40]  # the only example of a client stays with it
    x, y = done.validation
    assert sorted(numbers(done) + x.flatten().tolist()) == list(range(100))
    assert torch.equal(Y[x.flatten().long()], y)


def test_all_kinds_of_clients_give_the_same_share(tmp_path):
    parts = [list(range(40)), list(range(40, 100))]
    made = [Task.from_dataset(TensorDataset(X, Y), model, clients=parts, cache=cache) for cache in (None, tmp_path)]
    pairs = Task("t", model=model, loss=cross_entropy, clients=[(X[:40], Y[:40]), (X[40:], Y[40:])])
    drawn = [built(task, validation=0.3, clients=2).validation[0] for task in (*made, pairs)]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


def test_shares_that_leave_nothing_are_rejected_with_the_numbers():
    with pytest.raises(BadInput, match=r"--validation 0\.001: that is 0 of the 100 training examples of task 't'"):
        built(whole(), validation=0.001)
    with pytest.raises(BadInput, match=r"--validation 0.999: that is 100 of the 100"):
        built(whole(), validation=0.999)
    ones = Task("t", model=model, loss=cross_entropy, clients=[(X[i : i + 1], Y[i : i + 1]) for i in range(4)])
    with pytest.raises(BadInput, match="no client of task 't' can spare an example"):
        built(ones, validation=0.5)
    with pytest.raises(BadInput, match=r"--validation 0.1: task 't' has a validation set"):
        built(replace(whole(), validation=(X[:3], Y[:3])), validation=0.1)
    for share in (0, 1, -0.5):
        with pytest.raises(BadInput, match="must be above 0 and below 1"):
            built(whole(), validation=share)


def test_a_task_may_have_a_validation_set_of_its_own():
    result = tarry.run("fedavg", replace(whole(), validation=(X[:3], Y[:3])), updates=2, clients=2, steps=1)
    assert result.scored_on == "validation"
    assert result.final_metrics == result.test_metrics
    with pytest.raises(BadInput, match="validation= has a TensorDataset"):
        tarry.run("fedavg", replace(whole(), validation=TensorDataset(X, Y)), updates=2)  # type: ignore[arg-type]
