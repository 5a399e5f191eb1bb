from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule, VisitOutput
from tarry.core.optim import make_optimizer
from tarry.core.rng import Stream
from tarry.core.task import Task
from tarry.core.tickets import LocalResult, VisitJob
from tarry.training.flat_model import FlatModel
from tarry.training.visit import BatchIterator, LocalWork, train

SGD = make_optimizer("sgd", lr=0.1)


def order(n: int, work: LocalWork, key: int = 5) -> list[list[int]]:
    """Which examples each batch holds."""
    data = (torch.arange(float(n)), torch.arange(n))
    out = []
    for x, y in chain.from_iterable(BatchIterator(data[0], data, work, key).epochs()):
        assert x.long().tolist() == y.tolist()
        out.append(y.tolist())
    return out


def flat(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def test_an_epoch_goes_once_through_all_examples_and_keeps_the_short_last_batch():
    parts = order(10, LocalWork(SGD, epochs=1, batch=4))
    assert [len(p) for p in parts] == [4, 4, 2]
    assert sorted(flat(parts)) == list(range(10))


def test_every_epoch_has_an_order_of_its_own():
    parts = order(12, LocalWork(SGD, epochs=3, batch=5))
    assert [len(p) for p in parts] == [5, 5, 2] * 3
    epochs = [flat(parts[i : i + 3]) for i in (0, 3, 6)]
    assert all(sorted(e) == list(range(12)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3


def test_the_order_is_the_keyed_permutation_of_the_epoch():
    parts = order(9, LocalWork(SGD, epochs=2, batch=3), key=77)
    assert flat(parts[:3]) == rng.permutation(rng.key(77, 0), 9).tolist()
    assert flat(parts[3:]) == rng.permutation(rng.key(77, 1), 9).tolist()
    assert order(9, LocalWork(SGD, epochs=2, batch=3), key=78) != parts


def test_so_many_steps_are_so_many_batches_over_the_end_of_epochs():
    parts = order(10, LocalWork(SGD, epochs=None, steps=7, batch=4))
    assert [len(p) for p in parts] == [4, 4, 2, 4, 4, 2, 4]
    assert order(10, LocalWork(SGD, epochs=None, steps=2, batch=4)) == parts[:2]
    assert parts == order(10, LocalWork(SGD, epochs=3, batch=4))[:7]


@pytest.mark.parametrize("batch", [None, 6, 99])
def test_a_batch_that_holds_everything_keeps_the_stored_order(batch):
    assert order(6, LocalWork(SGD, epochs=3, batch=batch)) == [list(range(6))] * 3
    assert order(6, LocalWork(SGD, epochs=None, steps=2, batch=batch)) == [list(range(6))] * 2


def test_a_batch_of_one_is_one_example_a_step():
    parts = order(3, LocalWork(SGD, epochs=2, batch=1))
    assert [len(p) for p in parts] == [1] * 6


@pytest.mark.parametrize(
    ("n", "kw", "steps"),
    [
        (10, {"epochs": 1, "batch": 4}, 3),
        (10, {"epochs": 5, "batch": 10}, 5),
        (10, {"epochs": 5, "batch": 11}, 5),
        (10, {"epochs": 2, "batch": None}, 2),
        (10, {"epochs": 3, "batch": 3}, 12),
        (10, {"epochs": None, "steps": 8, "batch": 3}, 8),
    ],
)
def test_the_number_of_steps_is_known_beforehand(n, kw, steps):
    work = LocalWork(SGD, **kw)
    assert work.n_steps(n) == steps
    assert len(order(n, work)) == steps


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"epochs": 1, "steps": 2}, "--epochs 1 --steps 2: local work is one of the two"),
        ({"epochs": None, "steps": None}, "local work is one of the two"),
        ({"epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"epochs": None, "steps": -1}, "--steps -1: must be 1 or more"),
        ({"epochs": 1, "batch": 0}, "--batch 0: must be 1 or more"),
    ],
)
def test_work_that_cannot_be_done_is_refused(kw, words):
    with pytest.raises(BadInput, match=words):
        LocalWork(SGD, **kw)


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"lr": 0.0}, ["--lr 0: must be above 0"]),
        ({"lr": float("nan")}, ["--lr nan: must be above 0"]),
        ({"lr": 1.0, "momentum": 1.0}, [r"--momentum 1.0: must be in [0, 1)"]),
        ({"lr": 1.0, "weight_decay": -1.0}, ["--weight-decay -1.0: must be 0 or more"]),
        ({"name": "adam", "lr": 1.0, "momentum": 0.9}, ["--momentum 0.9: only --optimizer sgd has it"]),
        (
            {"name": "adan", "lr": -1.0},
            [
                "--lr -1: must be above 0",
                "--optimizer adan: there is no such optimizer. Did you mean 'adam'?",
            ],
        ),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused_with_all_that_is_wrong(kw, words):
    with pytest.raises(BadInput) as e:
        make_optimizer(**kw)
    assert list(e.value.problems) == words


def mean_task(*values: list[float]) -> Task:
    """Clients that pull one weight towards their numbers: loss (w − x)², batch mean."""

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w.expand(len(x))

    clients = [(torch.zeros(len(v)), torch.tensor(v, dtype=torch.float64)) for v in values]
    return Task("mean", model=Point(), loss=mse_loss, clients=clients)


def visit(task: Task, work: LocalWork, job: VisitJob, *, rule: LocalRule | None = None, seed: int = 0) -> LocalResult:
    layout = Layout.of(task.model)
    return train(
        job, FlatModel(task.model, layout, task, work.optimizer), rule=rule or LocalRule(), work=work, seed=seed
    )


def test_a_visit_by_hand():
    task = mean_task([1.0, 3.0])
    got = visit(task, LocalWork(SGD, epochs=2), VisitJob(0, 0, 0, torch.tensor([2.0], dtype=torch.float64)))
    # full batch: gradient 2 (w − 2), zero at the start; losses ((2 − 1)² + (2 − 3)²) / 2 = 1 both times
    assert got.delta.tolist() == [0.0]
    assert (got.n_examples, got.n_steps, got.loss, got.finite) == (2, 2, 1.0, True)
    got = visit(task, LocalWork(SGD, epochs=2), VisitJob(0, 0, 0, torch.tensor([0.0], dtype=torch.float64)))
    # w: 0 → 0.1 · 4 = 0.4 → 0.4 + 0.1 · 3.2 = 0.72; losses 5 and ((0.6)² + (2.6)²) / 2 = 3.56
    assert got.delta.item() == pytest.approx(0.72)
    assert got.loss == pytest.approx((5 + 3.56) / 2)


def test_the_mean_loss_weighs_every_step_alike():
    task = mean_task([0.0, 0.0, 3.0])
    got = visit(
        task, LocalWork(make_optimizer("sgd", lr=1e-12), epochs=1, batch=2), VisitJob(0, 0, 0, torch.zeros(1).double())
    )
    *pair, _ = rng.permutation(rng.key(rng.key(0, Stream.ORDER, 0, 0), 0), 3).tolist()
    assert got.loss == pytest.approx((9 / 2 + 0) / 2 if 2 in pair else (0 + 9) / 2, abs=1e-9)


def test_batch_order_is_keyed_by_seed_client_and_visit_and_nothing_else():
    values = [float(i * i) for i in range(9)]
    task, work, start = mean_task(values, values), LocalWork(SGD, epochs=1, batch=2), torch.zeros(1).double()

    def outcome(number: int, client: int, visit_: int, seed: int) -> float:
        return visit(task, work, VisitJob(number, client, visit_, start), seed=seed).delta.item()

    base = outcome(0, 0, 0, 1)
    assert outcome(17, 0, 0, 1) == base
    assert len({base, outcome(0, 1, 0, 1), outcome(0, 0, 1, 1), outcome(0, 0, 0, 2)}) == 4
    by_hand = 0.0
    for i in rng.permutation(rng.key(rng.key(1, Stream.ORDER, 0, 0), 0), 9).reshape(-1)[:8].reshape(4, 2):
        by_hand -= 0.1 * 2 * (by_hand - (values[i[0]] + values[i[1]]) / 2)
    last = values[rng.permutation(rng.key(rng.key(1, Stream.ORDER, 0, 0), 0), 9)[8]]
    by_hand -= 0.1 * 2 * (by_hand - last)
    assert base == pytest.approx(by_hand)


def dropout_task() -> Task:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    return Task("d", model=net, loss=cross_entropy, clients=[(x, y)] * 3)


def test_dropout_is_keyed_so_that_call_order_and_the_global_generator_change_nothing():
    task, work = dropout_task(), LocalWork(SGD, epochs=2, batch=5)
    layout = Layout.of(task.model)
    start = layout.read(task.model, torch.float32)
    bound = FlatModel(task.model, layout, task, SGD)
    jobs = [VisitJob(i, i % 3, i // 3, start) for i in range(6)]

    def outcomes(order: list[int], noise: int) -> dict[int, list[float]]:
        torch.manual_seed(noise)
        return {i: train(jobs[i], bound, rule=LocalRule(), work=work, seed=4).delta.tolist() for i in order}

    first = outcomes([0, 1, 2, 3, 4, 5], noise=1)
    assert outcomes([5, 3, 1, 0, 2, 4], noise=99) == first
    assert len({tuple(d) for d in first.values()}) == 6


def test_dropout_differs_from_visit_to_visit_even_with_the_same_batches():
    task, work = dropout_task(), LocalWork(SGD, epochs=1)
    start = Layout.of(task.model).read(task.model, torch.float32)
    a, b, again = (visit(task, work, VisitJob(0, 0, v, start)) for v in (0, 1, 0))
    assert torch.equal(a.delta, again.delta)
    assert not torch.equal(a.delta, b.delta)


@dataclass(frozen=True)
class Elsewhere(LocalRule):
    """Starts one above what was sent plus the payload, halves every gradient, and remembers."""

    def begin(self, brief):
        start = brief.weights + 1 + brief.payload.get("by", 0) + brief.memory.get("kept", 0)
        return start, {"begun": start}

    def transform_grad(self, g, w, context):
        return g / 2

    def finish(self, w, context, state):
        return VisitOutput({"end": w}, {"kept": w - context["begun"]})


def test_a_rule_may_start_elsewhere_bend_the_gradient_send_extras_and_keep_memory():
    task, work = mean_task([0.0]), LocalWork(SGD, epochs=1)
    sent, by, kept = (torch.tensor([v], dtype=torch.float64) for v in (1.0, 10.0, 100.0))
    got = visit(task, work, VisitJob(0, 0, 0, sent, {"by": by}, {"kept": kept}), rule=Elsewhere())
    # start 1 + 1 + 10 + 100 = 112, gradient 224 halved: 112 − 0.1 · 112 = 100.8
    assert got.extras["end"].item() == pytest.approx(100.8)
    assert got.memory["kept"].item() == pytest.approx(-11.2)
    assert got.delta.item() == pytest.approx(99.8)  # against what was sent, not against the start


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_said_where_it_is_found(bad):
    got = visit(mean_task([1.0, bad]), LocalWork(SGD, epochs=1), VisitJob(0, 0, 0, torch.zeros(1).double()))
    assert not got.finite


def test_weights_that_blow_up_are_not_finite_even_when_the_loss_was():
    task = mean_task([1.0])
    got = visit(
        task, LocalWork(make_optimizer("sgd", lr=1e308), epochs=1), VisitJob(0, 0, 0, torch.tensor([100.0]).double())
    )
    assert got.loss == 99.0**2
    assert not got.finite
