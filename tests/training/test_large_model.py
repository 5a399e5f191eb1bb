"""A large model is trained and evaluated in its own vector, with the bits of the functional path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.local_rule import LocalRule
from tarry.core.tickets import NOTHING, LocalResult, VisitJob
from tarry.runs.build import BuiltRun, build_run
from tarry.training import flat_model
from tarry.training.flat_model import FlatModel
from tarry.training.lent_weights import LentWeights
from tarry.training.visit import train

SETTINGS = {"clients": 2, "epochs": 2, "batch": 16, "delay": "constant", "updates": 1}


class Normalized(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 10))


def built(model: Callable[[], nn.Module] | None = None, **settings: Any) -> BuiltRun:
    task = tarry.tasks["digits"](limit=200, hidden=8)
    task = task if model is None else replace(task, model=model)
    return build_run(Spec.of({**SETTINGS, **settings, "task": task}))


def trained(made: BuiltRun, rule: LocalRule) -> list[LocalResult]:
    """Two visits of one process; the second begins where the first ended."""
    model, sent, results = made.bound(), made.first_weights(), []
    for visit in range(2):
        job = VisitJob(visit, 0, visit, sent, {}, NOTHING, 0)
        results.append(train(job, model, rule=rule, work=made.work, seed=3))
        sent = sent + results[-1].delta
    return results


class Functional(LocalRule):
    """LocalRule under another type, which is not trained in place."""


@pytest.mark.parametrize("model", [None, Normalized])
@pytest.mark.parametrize(
    "optimizer",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "clip_norm": 0.1, "clip_value": 0.05, "lr_schedule": "constant:warmup=9"},
        {"lr": 0.1, "weight_decay": 0.01, "momentum": 0.5, "lr_decay": 0.99},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01},
    ],
)
def test_training_in_place_gives_the_same_bits(monkeypatch, model, optimizer):
    made = built(model, **optimizer)
    monkeypatch.setattr(flat_model, "_LARGE", 0)
    expected, found = trained(made, Functional()), trained(made, LocalRule())
    monkeypatch.setattr(flat_model, "_LARGE", 1 << 60)
    concatenated = trained(made, LocalRule())
    for a, b, c in zip(expected, found, concatenated, strict=True):
        assert a.loss == b.loss == c.loss
        assert torch.equal(a.delta, b.delta)
        assert torch.equal(a.delta, c.delta)


def test_a_large_model_is_there_once_while_it_trains(monkeypatch):
    made, owned = built(lr=0.1, momentum=0.0), list[int]()
    monkeypatch.setattr(flat_model, "_LARGE", 0)
    model, plain = made.bound(), FlatModel.grad

    def grad(self: FlatModel, w: Tensor, *args: Any, **named: Any) -> Any:
        owned.append(w.data_ptr())
        return plain(self, w, *args, **named)

    monkeypatch.setattr(FlatModel, "grad", grad)
    train(VisitJob(0, 0, 0, made.first_weights(), {}, NOTHING, 0), model, rule=LocalRule(), work=made.work, seed=3)
    assert set(owned) == {model.flat.data_ptr()}, "the weights of every step are the model's own vector"


def test_the_sent_weights_are_not_written_to(monkeypatch):
    monkeypatch.setattr(flat_model, "_LARGE", 0)
    made = built(lr=0.1)
    sent = made.first_weights()
    before = sent.clone()
    train(VisitJob(0, 0, 0, sent, {}, NOTHING, 0), made.bound(), rule=LocalRule(), work=made.work, seed=3)
    assert torch.equal(sent, before)


@pytest.mark.parametrize("model", [None, Normalized])
def test_weights_are_evaluated_where_they_are_with_the_same_score(model):
    made = built(model)
    weights, test = made.first_weights(), made.task.test
    assert test is not None
    expected = made.bound().evaluate(weights, test)
    lent = LentWeights(made.module, made.layout, made.task, made.work.optimizer)
    seen = list[int]()
    for module in made.module.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda m, _: seen.append(m.weight.data_ptr()))
    first, again, more = (lent.evaluate(weights, test) for _ in range(3))
    assert first == again == more == expected
    start = weights.data_ptr()
    inside = [start <= address < start + weights.nbytes for address in seen]
    assert not any(inside[: len(seen) // 3]), "the first time it is seen whether the model writes to its tensors"
    assert all(inside[len(seen) // 3 :])
    assert sum(p.nbytes for p in made.module.parameters()) == 0, "no weights are kept"


class Writes(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight *= 0.5
        return super().forward(x.flatten(1))


def test_weights_are_copied_for_a_model_that_writes_to_them():
    made = built(lambda: Writes(64, 10))
    weights, test = made.first_weights(), made.task.test
    assert test is not None
    before = weights.clone()
    lent = LentWeights(made.module, made.layout, made.task, made.work.optimizer)
    first, *others = (lent.evaluate(weights, test) for _ in range(3))
    assert others == [first] * 2
    assert torch.equal(weights, before)


def test_weights_at_another_address_are_copied():
    made = built()
    test, room = made.task.test, torch.empty(made.layout.size + 16)
    assert test is not None
    weights = room[1 : 1 + made.layout.size]
    weights.copy_(made.first_weights())
    assert weights.data_ptr() % 64
    expected = made.bound().evaluate(made.first_weights(), test)
    lent = LentWeights(made.module, made.layout, made.task, made.work.optimizer)
    assert [lent.evaluate(weights, test) for _ in range(2)] == [expected] * 2


def test_the_model_is_taken_without_a_copy():
    made = built()
    first = made.first_weights()
    bound = made.take_bound()
    assert bound.module is made.module
    assert torch.equal(bound.flat, first)
    assert np.shares_memory(next(made.module.parameters()).detach().numpy(), bound.flat.numpy())
