"""A module bound to a flat vector trains as it would in a plain torch loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import tarry
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule
from tarry.core.optim import make_optimizer
from tarry.core.task import Task
from tarry.core.tickets import VisitJob
from tarry.training.flat_model import FlatModel, build_module
from tarry.training.visit import LocalWork, train
from tests.helpers.models import Tied

F64 = torch.float64


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def partly_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    net[0].weight.requires_grad_(False)
    return net


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3))


def cumulative() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)
    )


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "normed": normed,
    "cumulative": cumulative,
    "conv": conv,
    "tied": Tied,
    "unused": Unused,
    "partly frozen": partly_frozen,
}


def made(name: str) -> tuple[nn.Module, Task]:
    torch.manual_seed(3)
    net = NETS[name]().to(F64)
    x = torch.randint(0, 5, (24,)) if name == "tied" else torch.randn(24, 4, dtype=F64)
    y = torch.randint(0, 3, (24,))
    return net, Task(name, model=net, loss=cross_entropy, clients=[(x, y)], test=(x, y))


def bind(net: nn.Module, task: Task, **kw: float) -> FlatModel:
    return FlatModel(copy.deepcopy(net), Layout.of(net), task, make_optimizer("sgd", lr=0.1, **kw))


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_a_plain_backward_pass(name):
    net, task = made(name)
    bound, layout = bind(net, task), Layout.of(net)
    x, y = task.clients[0]
    start = layout.read(net, F64)
    bound.load(start)
    g, loss = bound.grad(layout.params(start), (x, y))
    plain = cross_entropy(net(x), y)
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), abs=1e-12)
    assert not loss.requires_grad
    own = dict(net.named_parameters())
    for block in layout.layers:
        want = own[block.name].grad
        want = torch.zeros(block.shape, dtype=F64) if want is None else want
        assert torch.allclose(g[block.at].view(block.shape), want, atol=1e-12), block.name


def test_the_gradient_is_taken_at_the_weights_asked_for_not_at_those_of_the_last_call():
    net, task = made("mlp")
    bound, layout = bind(net, task), Layout.of(net)
    w = layout.read(net, F64)
    first, _ = bound.grad(w, task.clients[0])
    elsewhere, _ = bound.grad(w + 1, task.clients[0])
    again, _ = bound.grad(w, task.clients[0])
    assert torch.equal(first, again)
    assert not torch.allclose(first, elsewhere)


def torch_optimizer(name: str, params, kw: dict[str, float]) -> torch.optim.Optimizer:
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(params, **kw)


OPTIMISERS = [
    ("sgd", {"lr": 0.1, "weight_decay": 0.0}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("adam", {"lr": 0.01, "weight_decay": 0.0}),
    ("adam", {"lr": 0.01, "weight_decay": 0.05}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.0}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.05}),
]


@pytest.mark.parametrize(("optim", "kw"), OPTIMISERS, ids=lambda v: str(v))
@pytest.mark.parametrize("name", NETS)
def test_a_visit_is_the_training_of_a_plain_torch_loop(name, optim, kw):
    net, task = made(name)
    layout = Layout.of(net)
    work = LocalWork(make_optimizer(optim, **kw), epochs=None, steps=40, batch=None)
    bound = FlatModel(copy.deepcopy(net), layout, task, work.optimizer)
    start = layout.read(net, F64)
    trained = train(VisitJob(0, 0, 0, start), bound, rule=LocalRule(), work=work, seed=0)

    x, y = task.clients[0]
    steps = torch_optimizer(optim, [p for p in net.parameters() if p.requires_grad], kw)
    losses = []
    for _ in range(40):
        steps.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        if name == "unused":  # torch skips what has no gradient; here its gradient is 0
            for p in net.unused.parameters():
                p.grad = torch.zeros_like(p)
        steps.step()
        losses.append(loss.item())
    assert torch.allclose(start + trained.delta, layout.read(net, F64), rtol=0, atol=1e-9)
    assert trained.loss == pytest.approx(sum(losses) / 40, abs=1e-9)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("optim", "kw"), OPTIMISERS, ids=lambda v: str(v))
def test_in_single_precision_too_the_way_is_the_same_to_a_millionth(optim, kw):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(32, 4)
    y = torch.sin(x.sum(1, keepdim=True))
    task = Task("fit", model=net, loss=mse_loss, clients=[(x, y)])
    layout = Layout.of(net)
    work = LocalWork(make_optimizer(optim, **kw), epochs=60, batch=None)
    start = layout.read(net, torch.float32)
    bound = FlatModel(copy.deepcopy(net), layout, task, work.optimizer)
    trained = train(VisitJob(0, 0, 0, start), bound, rule=LocalRule(), work=work, seed=0)
    steps = torch_optimizer(optim, net.parameters(), kw)
    for _ in range(60):
        steps.zero_grad()
        mse_loss(net(x), y).backward()
        steps.step()
    assert torch.allclose(start + trained.delta, layout.read(net, torch.float32), rtol=0, atol=1e-6)


def test_every_visit_begins_with_the_counters_as_built_and_the_statistics_received():
    net, task = made("cumulative")
    with torch.no_grad():
        net[1].num_batches_tracked.fill_(3)
    layout = Layout.of(net)
    work = LocalWork(make_optimizer("sgd", lr=0.1), epochs=2)
    bound = FlatModel(copy.deepcopy(net), layout, task, work.optimizer)
    start = layout.read(net, F64)
    first = train(VisitJob(0, 0, 0, start), bound, rule=LocalRule(), work=work, seed=0)
    second = train(VisitJob(1, 0, 1, start), bound, rule=LocalRule(), work=work, seed=0)
    assert torch.equal(first.delta, second.delta)
    assert bound.module[1].num_batches_tracked == 5


def test_training_writes_neither_to_what_was_sent_nor_to_what_came_back_before():
    net, task = made("normed")
    layout = Layout.of(net)
    work = LocalWork(make_optimizer("sgd", lr=0.1, momentum=0.5), epochs=3, batch=8)
    bound = FlatModel(copy.deepcopy(net), layout, task, work.optimizer)
    start = layout.read(net, F64)
    kept = start.clone()
    first = train(VisitJob(0, 0, 0, start), bound, rule=LocalRule(), work=work, seed=0)
    delta = first.delta.clone()
    train(VisitJob(1, 0, 1, start + first.delta), bound, rule=LocalRule(), work=work, seed=0)
    assert torch.equal(start, kept)
    assert torch.equal(first.delta, delta)


def test_evaluating_is_accuracy_and_mean_loss_in_eval_mode_whatever_the_chunk():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).to(F64)
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    x, y = torch.randn(25, 4, dtype=F64), torch.randint(0, 3, (25,))
    task = Task("t", model=net, loss=cross_entropy, clients=[(x, y)])
    bound, layout = bind(net, task), Layout.of(net)
    weights = layout.read(net, F64)
    net.eval()
    out = net(x)
    right, loss = (out.argmax(1) == y).double().mean().item(), cross_entropy(out, y).item()
    for chunk in (1, 7, 25, 1000):
        got = bound.evaluate(weights, (x, y), chunk=chunk)
        assert got == pytest.approx({"accuracy": right, "loss": loss}, abs=1e-12)
    assert torch.equal(bound.flat, weights)  # statistics stood still
    assert bound.module.training


def test_a_task_without_a_score_has_a_loss_and_no_accuracy():
    net = nn.Linear(2, 1)
    x, y = torch.zeros(3, 2), torch.zeros(3, 1)
    task = Task("r", model=net, loss=mse_loss, clients=[(x, y)], metrics=["loss"])
    bound = bind(net, task)
    weights = torch.tensor([1.0, 1.0, 2.0])
    assert bound.evaluate(weights, (x, y)) == {"loss": 4.0}


def test_first_weights_come_from_the_seed_and_leave_the_callers_random_state_alone():
    task = Task("t", model=lambda: nn.Linear(3, 2), loss=mse_loss)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    a, b, c = (build_module(task, seed=s, dtype=F64) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert a.weight.dtype == F64
    assert torch.equal(a.weight, b.weight)
    assert not torch.equal(a.weight, c.weight)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_leaves_the_users_module_the_data_and_the_random_state_untouched(dtype):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 3))
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    data = (x.clone(), y.clone())
    state = {k: v.clone() for k, v in net.state_dict().items()}
    pointers = [p.data_ptr() for p in net.parameters()]
    task = Task("mine", model=net, loss=cross_entropy, clients=[(x, y), (x, y)], test=(x, y))
    rng_state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    result = tarry.run("fedasync", task, delay=[1, 2], updates=4, epochs=1, batch=10, dtype=dtype)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert result.updates == 4
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert all(torch.equal(v, state[k]) and v.dtype == state[k].dtype for k, v in net.state_dict().items())
    assert [p.data_ptr() for p in net.parameters()] == pointers
    assert all(p.grad is None for p in net.parameters())
    assert net.training
    assert torch.equal(x, data[0])
    assert torch.equal(y, data[1])


def test_two_runs_in_one_process_begin_from_the_module_as_the_user_gave_it():
    net = nn.Linear(2, 2)
    x, y = torch.eye(2), torch.tensor([0, 1])
    task = Task("mine", model=net, loss=cross_entropy, clients=[(x, y)], test=(x, y))
    results = [tarry.run("fedavg", task, delay=[1], rounds=2) for _ in range(2)]
    assert results[0].weights_sha256 == results[1].weights_sha256
    assert results[0].weights is not None
    assert not torch.equal(results[0].weights, Layout.of(net).read(net, torch.float32))
