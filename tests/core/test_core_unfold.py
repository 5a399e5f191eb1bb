"""Convolutions as products of matrices: the same numbers, alone and stacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tarry.core.stack import stacked, traced
from tarry.core.unfold import unfolded

F64 = torch.float64
aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}


def stepped(module: nn.Module, shape: tuple[int, ...]) -> tuple[Any, list[Tensor]]:
    """Outputs, gradients of weights and of images, and arguments for it."""
    names = [n for n, _ in module.named_parameters()]

    def fn(*args: Tensor) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() for a in args]
        out = functional_call(module, dict(zip(names, leaves[:-1], strict=True)), (leaves[-1],))
        return [out.detach(), *torch.autograd.grad((out**2).mean(), leaves)]

    return fn, [*(p.detach() for p in module.parameters()), torch.randn(shape, dtype=F64)]


@pytest.mark.parametrize("padding", [0, 1, (2, 0), 4], ids=str)
@pytest.mark.parametrize("kernel", [1, 3, (2, 3)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_the_same(kernel: Any, padding: Any, bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 3, kernel, padding=padding, bias=bias), nn.Tanh(), nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2)
    ).to(F64)
    fn, args = stepped(module, (5, 2, 6, 7))
    graph = traced(fn, args)
    made = unfolded(graph, args)
    assert not [n for n in made.graph.nodes if n.target in CONVOLUTIONS]
    others = [torch.randn_like(a) for a in args]
    for given in (args, others):
        for one, other in zip(graph(*given), made(*given), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_a_stack_is_of_products_alone() -> None:
    torch.manual_seed(0)
    fn, args = stepped(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2)).to(F64), (5, 2, 6, 7))
    many = [torch.randn(3, *a.shape, dtype=F64) for a in args]
    made = stacked(unfolded(traced(fn, args), args), many)
    assert not [n for n in made.graph.nodes if n.target in CONVOLUTIONS]
    assert sum(n.target is aten.bmm.default for n in made.graph.nodes) == 6
    found = made(*many)
    for c in range(3):
        for one, other in zip(fn(*(a[c] for a in many)), found, strict=True):
            torch.testing.assert_close(other[c], one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, stride=2), nn.Conv2d(2, 2, 3, dilation=2), nn.Conv2d(2, 2, 3, groups=2),
        nn.ConvTranspose2d(2, 2, 3),
    ],
    ids=["stride", "dilation", "groups", "transposed"],
)  # fmt: skip
def test_others_are_left_as_they_are(layer: nn.Module) -> None:
    fn, args = stepped(layer.to(F64), (3, 2, 7, 7))
    graph = traced(fn, args)
    assert unfolded(graph, args) is graph
