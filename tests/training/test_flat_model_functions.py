"""What a local rule may ask of the model beside the gradient of the task's loss."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from tarry.core.errors import BadInput
from tarry.core.layout import Kind, Layout
from tarry.core.optim import make_optimizer
from tarry.core.task import Task
from tarry.training.flat_model import FlatModel

F64 = torch.float64


def normed(*more: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3), *more
    )


class Named(nn.Module):
    """The head is called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(input=torch.tanh(self.body(x)))
        return out


class Twice(nn.Module):
    """The head is run twice, and so is in the way of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.out(self.body(x))))
        return out


class Shared(nn.Module):
    """The head's matrix is the body's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
        self.body.weight = self.out.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.body(x)))
        return out


class Root(nn.Module):
    """The head's matrix belongs to the model itself, which has a normalization within."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.matrix = nn.BatchNorm1d(4), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x) @ self.matrix
        return out


class Unused(nn.Module):
    """What would be the head is never run."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    net[0].requires_grad_(False)
    net[2].weight.requires_grad_(False)
    return net


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
    "one layer": lambda: nn.Linear(4, 3),
    "BatchNorm": normed,
    "conv head": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()),
    "head not last": lambda: normed(nn.LogSoftmax(1)),
    "head before BatchNorm": lambda: normed(nn.BatchNorm1d(3)),
    "called by name": Named,
    "run twice": Twice,
    "shared": Shared,
    "root": Root,
    "unused": Unused,
    "partly frozen": frozen,
    "no head": lambda: nn.Sequential(nn.BatchNorm1d(4)),
}
every_net = pytest.mark.parametrize("name", NETS)


def made(name: str) -> tuple[FlatModel, nn.Module, Tensor, tuple[Tensor, Tensor]]:
    """Functions, a copy of the module, its weights, and a batch. The functions begin from other weights."""
    torch.manual_seed(3)
    net = NETS[name]().to(F64)
    x, y = torch.randn(12, 4, dtype=F64), torch.randint(0, 3, (12,))
    layout, task = Layout.of(net), Task(name, model=net, loss=cross_entropy, clients=[(x, y)])
    bound = FlatModel(copy.deepcopy(net), layout, task, make_optimizer("sgd", lr=0.1))
    start = layout.read(net, F64)
    bound.load(torch.cat([layout.params(start) + 1, start[layout.n_params :]]))
    return bound, net, layout.params(start), (x, y)


def plain(net: nn.Module, w: Tensor, value: object, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, loss and running statistics after an ordinary pass of a copy at w."""
    net = copy.deepcopy(net)
    layout, trained = Layout.of(net), [p for p in net.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(w, trained)
    loss = value(net(batch[0]), batch[1])  # type: ignore[operator]
    grads = torch.autograd.grad(loss, trained, materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in grads]), loss.detach(), layout.read(net, F64)[layout.n_params :]


def statistics(bound: FlatModel) -> Tensor:
    return bound.flat[bound.layout.n_params :].clone()


def counters(bound: FlatModel) -> list[int]:
    return [int(b) for b in bound.module.buffers() if not b.is_floating_point()]


def apart(outputs: Tensor, aim: Tensor) -> Tensor:
    return mse_loss(outputs, aim)


@every_net
def test_the_gradient_of_another_objective_is_that_of_a_plain_backward_pass(name: str) -> None:
    bound, net, w, (x, _) = made(name)
    aim = bound.outputs(bound.flat, x) + 1
    g, value = bound.grad(w, (x, aim), apart)
    want, loss, stats = plain(net, w, apart, (x, aim))
    torch.testing.assert_close(g, want, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(value, loss)
    torch.testing.assert_close(statistics(bound), stats)
    assert not value.requires_grad


@every_net
def test_a_still_gradient_is_the_gradient_and_moves_neither_statistics_nor_counters(name: str) -> None:
    bound, net, w, batch = made(name)
    before, counted = statistics(bound), counters(bound)
    g, value = bound.grad(w, batch, still=True)
    want, loss, _ = plain(net, w, cross_entropy, batch)
    torch.testing.assert_close(g, want, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(value, loss)
    assert torch.equal(statistics(bound), before)
    assert counters(bound) == counted
    bound.grad(w, batch)
    assert counters(bound) == [c + 1 for c in counted]
    assert torch.equal(statistics(bound), before) == (not counted)


@every_net
def test_the_loss_is_that_of_a_training_pass_and_nothing_moves(name: str) -> None:
    bound, net, w, batch = made(name)
    before, counted = statistics(bound), counters(bound)
    value = bound.loss(w, batch)
    torch.testing.assert_close(value, plain(net, w, cross_entropy, batch)[1])
    assert not value.requires_grad
    assert torch.equal(statistics(bound), before)
    assert counters(bound) == counted


def test_outputs_are_those_of_a_whole_vectors_model_in_use_and_nothing_moves() -> None:
    bound, _, _, (x, _) = made("BatchNorm")
    other = normed(nn.Dropout(0.5)).to(F64)
    with torch.no_grad():
        for module in (other[1], other[4]):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    layout = bound.layout
    before, counted = statistics(bound), counters(bound)
    got = bound.outputs(layout.read(other, F64), x)
    torch.testing.assert_close(got, other.eval()(x))
    assert not got.requires_grad
    assert bound.module.training
    assert torch.equal(statistics(bound), before)
    assert counters(bound) == counted


def test_outputs_draw_no_dropout() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3)).to(F64)
    x = torch.randn(5, 4, dtype=F64)
    layout = Layout.of(net)
    bound = FlatModel(
        copy.deepcopy(net), layout, Task("d", model=net, loss=cross_entropy), make_optimizer("sgd", lr=0.1)
    )
    state = torch.get_rng_state()
    got = bound.outputs(layout.read(net, F64), x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(got, net[2](net[0](x)))


def heads(bound: FlatModel) -> Tensor:
    """1 in the head, 0 in the body."""
    mask = torch.zeros(bound.layout.n_params, dtype=F64)
    for block in bound.layout.layers:
        if block.kind is Kind.HEAD:
            mask[block.at] = 1
    return mask


@every_net
def test_a_split_model_gives_the_heads_part_of_the_gradient_at_any_head(name: str) -> None:
    bound, net, w, (x, _) = made(name)
    aim = bound.outputs(bound.flat, x) + 1
    mask = heads(bound)
    split = bound.head_split(w, x)
    for at in (w, w + 0.3 * mask, w):
        want, _, _ = plain(net, at, apart, (x, aim))
        torch.testing.assert_close(split.head_grad(at, aim, apart), want * mask, rtol=1e-11, atol=1e-13)


@every_net
def test_a_split_model_gives_the_whole_gradient_at_another_head(name: str) -> None:
    bound, net, w, (x, y) = made(name)
    split, mask = bound.head_split(w, x), heads(bound)
    split.head_grad(w, y, cross_entropy)
    for at in (w + 0.3 * mask, w, w - 0.7 * mask):
        g, value = split.grad(at, y)
        want, loss, _ = plain(net, at, cross_entropy, (x, y))
        torch.testing.assert_close(g, want, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(value, loss)
        assert not value.requires_grad


@every_net
def test_all_that_is_done_with_a_split_model_moves_statistics_once_and_at_the_first_weights(name: str) -> None:
    bound, net, w, (x, y) = made(name)
    counted, mask = counters(bound), heads(bound)
    split = bound.head_split(w, x)
    for at in (w, w + 0.3 * mask):
        split.head_grad(at, y, cross_entropy)
        split.grad(at, y)
    torch.testing.assert_close(statistics(bound), plain(net, w, cross_entropy, (x, y))[2])
    assert counters(bound) == [c + 1 for c in counted]


@pytest.mark.parametrize("name", ["mlp", "run twice", "shared"])
def test_a_split_model_is_right_though_other_weights_were_loaded_in_between(name: str) -> None:
    bound, net, w, (x, y) = made(name)
    split = bound.head_split(w, x)
    bound.outputs(w + 5, x)
    want = plain(net, w, cross_entropy, (x, y))[0]
    torch.testing.assert_close(split.head_grad(w, y, cross_entropy), want * heads(bound))
    bound.outputs(w + 5, x)
    torch.testing.assert_close(split.grad(w, y)[0], want)


def test_the_body_is_run_once_however_often_the_head_is() -> None:
    bound, _, w, (x, y) = made("BatchNorm")
    runs = {"body": 0, "head": 0}

    def count(what: str) -> object:
        def hook(*_: object) -> None:
            runs[what] += 1

        return hook

    bound.module[0].register_forward_hook(count("body"))
    bound.module[5].register_forward_hook(count("head"))
    split, mask = bound.head_split(w, x), heads(bound)
    split.head_grad(w, y, cross_entropy)
    split.head_grad(w + mask, y, cross_entropy)
    split.grad(w + 2 * mask, y)
    assert runs == {"body": 1, "head": 3}


def test_features_are_what_goes_into_the_head_and_their_gradient_is_autograds() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (6,), generator=g)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    task = Task("deep", model=net, loss=nn.functional.cross_entropy, clients=[(x, y)])
    layout = Layout.of(net)
    bound = FlatModel(copy.deepcopy(net), layout, task, make_optimizer("sgd", lr=0.3, momentum=0.5))
    w = layout.read(net, torch.float64)
    assert torch.equal(bound.features(w, x), net[:2](x))

    def objective(out: torch.Tensor, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out, targets) + features.pow(2).sum(1).mean()

    got, value = bound.grad_with_features(w, (x, y), objective)
    features = net[:2](x)
    loss = objective(net[2](features), features, y)
    want = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(net.parameters()))])
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(value, loss.detach())
    assert (bound.optimizer.lr, bound.optimizer.momentum) == (0.3, 0.5)


def test_a_model_without_a_head_of_its_own_has_no_features() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    net = Bare()
    task = Task("bare", model=net, loss=nn.functional.mse_loss, clients=[(torch.ones(1, 2), torch.ones(1, 2))])
    bound = FlatModel(net, Layout.of(net), task, make_optimizer("sgd", lr=0.1))
    with pytest.raises(BadInput, match="--task bare: its model has no last map of its own"):
        bound.features(torch.zeros(2), torch.ones(1, 2))
