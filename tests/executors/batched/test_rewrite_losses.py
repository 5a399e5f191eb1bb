"""Steps in operations that small clients get through sooner: the same bits as those they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from tarry.executors.batched.rewrite_losses import rewrite_losses
from tarry.executors.batched.trace import trace_function

Loss = Callable[[Tensor, Tensor], Tensor]
NLL, LOG_SOFTMAX = torch.ops.aten.nll_loss_forward.default, torch.ops.aten._log_softmax.default


def mean(z: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(z, y)


def of_some(z: Tensor, y: Tensor) -> Tensor:
    """As it is where batches are padded."""
    return torch.dot(cross_entropy(z, y, reduction="none"), torch.linspace(0, 1, len(z), dtype=z.dtype))


def scaled(z: Tensor, y: Tensor) -> Tensor:
    return 3 * cross_entropy(z, y) + z.square().mean()


def step(loss: Loss) -> Callable[..., list[Tensor]]:
    def fn(z: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            own = z.detach().requires_grad_()
            out = loss(own, y)
            (grad,) = torch.autograd.grad(out, own)
        return [grad, out.detach()]

    return fn


def batches(rows: int, classes: int, dtype: torch.dtype, stack: int = 3) -> list[Tensor]:
    made = torch.Generator().manual_seed(rows * classes)
    z = 3 * torch.randn(stack, rows, classes, generator=made, dtype=dtype)
    return [z, torch.randint(classes, (stack, rows), generator=made)]


def both(loss: Loss, args: list[Tensor]) -> tuple[Any, Any]:
    one = trace_function(step(loss), [a[0] for a in args])
    return one, rewrite_losses(one, [a[0] for a in args], y=-1, targets=args[1].flatten())


def calls(graph: Any) -> list[Any]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


def operations(graph: Any) -> set[Any]:
    return set(calls(graph))


@pytest.mark.parametrize("loss", [mean, of_some, scaled])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 7, 10, 15, 16, 40])
@pytest.mark.parametrize("rows", [1, 7, 16, 20, 32, 33])
def test_a_stack_comes_to_the_bits_of_one_after_the_other(
    rows: int, classes: int, dtype: torch.dtype, loss: Loss
) -> None:
    args = batches(rows, classes, dtype)
    one, made = both(loss, args)
    grads, losses = vmap(made)(*args)
    for i, (grad, told) in enumerate(zip(grads, losses, strict=True)):
        exact = one(*(a[i] for a in args))
        assert torch.equal(grad, exact[0])
        assert torch.allclose(told, exact[1], rtol=1e-6)


@pytest.mark.parametrize("loss", [mean, of_some, scaled])
@pytest.mark.parametrize("classes", [2, 10, 40])
def test_elsewhere_than_on_a_processor_it_comes_to_the_same(
    classes: int, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.executors.batched.rewrite_losses._on_cpu", lambda _: False)
    args = batches(20, classes, torch.float32)
    one, made = both(loss, args)
    assert NLL not in operations(made)
    grads, losses = vmap(made)(*args)
    for i, (grad, told) in enumerate(zip(grads, losses, strict=True)):
        exact = one(*(a[i] for a in args))
        torch.testing.assert_close(grad, exact[0])
        torch.testing.assert_close(told, exact[1])


def test_a_stacks_cross_entropy_is_a_few_operations() -> None:
    args = batches(32, 10, torch.float32)
    one, made = both(mean, args)
    assert NLL in operations(one)
    assert NLL not in operations(made)
    stack, quicker = (trace_function(vmap(graph), args) for graph in (one, made))
    assert 3 * len(calls(quicker)) < 2 * len(calls(stack))
    assert calls(quicker).count(torch.ops.aten.clone.default) == 2  # classes first, and back
    assert torch.ops.aten.constant_pad_nd.default not in calls(quicker)  # 32 rows fill registers as they are


def test_targets_that_are_ignored_stay_so() -> None:
    args = batches(8, 4, torch.float32)
    args[1][1, 3:] = -100
    one, made = both(mean, args)
    assert NLL in operations(made)
    for i, grad in enumerate(vmap(made)(*args)[0]):
        assert torch.equal(grad, one(*(a[i] for a in args))[0])
        assert torch.equal(made(*(a[i] for a in args))[0], grad)


def test_targets_that_are_made_up_on_the_way_may_be_ignored() -> None:
    """What the data set says of its own tells nothing about them."""
    args = batches(8, 4, torch.float32)
    _, made = both(lambda z, y: cross_entropy(z, torch.where(y == 2, -100, y)), args)
    assert NLL in operations(made)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
        lambda z, y: cross_entropy(z, y, reduction="sum"),
    ],
    ids=["weighted", "sum"],
)
def test_other_losses_are_left_as_they_are(loss: Loss) -> None:
    args = batches(8, 4, torch.float32)
    one, made = both(loss, args)
    assert NLL in operations(made)
    for i, grad in enumerate(vmap(made)(*args)[0]):
        torch.testing.assert_close(grad, one(*(a[i] for a in args))[0])


def test_what_has_no_cross_entropy_stays_the_graph_it_was() -> None:
    one, made = both(lambda z, y: (z.sum(1) - y).square().mean(), batches(8, 4, torch.float32))
    assert made is one


def test_rows_that_fill_a_register_are_not_turned_round() -> None:
    _, made = both(mean, batches(32, 40, torch.float32))
    (node,) = (n for n in made.graph.nodes if n.target is LOG_SOFTMAX)
    assert node.args[1] == 1
