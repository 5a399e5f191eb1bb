"""Images that keep their channels last: the same numbers, and nothing turned round on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tarry.executors.batched.rewrite_channels_last import rewrite_channels_last
from tarry.executors.batched.trace import trace_function

F64 = torch.float64
aten = torch.ops.aten
READS = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
NORMS = (aten.native_group_norm.default, aten.native_group_norm_backward.default)


class Turning(nn.Module):
    """As torch's group normalization on a GPU: it reads images with their channels first."""

    def __init__(self, norm: nn.GroupNorm):
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.clone(memory_format=torch.contiguous_format))
        return out


def net(affine: bool = True, turning: bool = True) -> nn.Module:
    norms: list[nn.Module] = [nn.GroupNorm(g, 6, affine=affine) for g in (1, 2, 6)]
    if turning:
        norms = [Turning(n) for n in norms]  # type: ignore[arg-type]
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), norms[0], nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), norms[1], nn.ReLU(),
        nn.Conv2d(6, 6, 1), norms[2], nn.Flatten(), nn.Linear(6 * 5 * 4, 4),
    ).to(F64)  # fmt: skip


def stepped(module: nn.Module) -> tuple[Any, list[Tensor]]:
    """Gradients of a model's loss as a function of weights and images, and arguments for it."""
    names = [n for n, _ in module.named_parameters()]

    def fn(*args: Tensor) -> list[Tensor]:
        *weights, x = args
        params = [w.detach().requires_grad_() for w in weights]
        out = functional_call(module, dict(zip(names, params, strict=True)), (x,))
        loss = (out**2).mean()
        return [*torch.autograd.grad(loss, params), loss.detach()]

    last = {"memory_format": torch.channels_last}
    weights = [p.detach().clone(**last) if p.ndim == 4 else p.detach() for p in module.parameters()]
    return fn, [*weights, torch.randn(5, 3, 7, 6, dtype=F64).contiguous(**last)]


@pytest.mark.parametrize("affine", [True, False])
def test_gradients_are_the_same(affine: bool) -> None:
    torch.manual_seed(0)
    module = net(affine)
    if affine:
        for p in module.parameters():
            nn.init.normal_(p, 0.2, 0.5)
    fn, args = stepped(module)
    turned = rewrite_channels_last(trace_function(fn, args), args)
    others = [*args[:-1], torch.randn_like(args[-1])]
    for given in (args, others):
        for one, other in zip(fn(*given), turned(*given), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


class Mixed(nn.Module):
    """Places become rows, which takes a copy that must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.conv(x)).permute(0, 3, 2, 1).reshape(-1, 6)
        out: Tensor = self.head(rows)
        return out


def test_a_copy_that_others_need_stays() -> None:
    torch.manual_seed(0)
    fn, args = stepped(Mixed().to(F64))
    graph = trace_function(fn, args)
    assert any(n.target is aten._unsafe_view.default for n in graph.graph.nodes)
    for one, other in zip(graph(*args), rewrite_channels_last(graph, args)(*args), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_less_precise_images_stay_so() -> None:
    torch.manual_seed(0)
    fn, args = stepped(net())
    given = [a.float() for a in args]

    def less(*a: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return list(fn(*a))

    graph = trace_function(less, given)
    kinds = [n.meta["val"].dtype for n in graph.graph.nodes if n.target is aten.convolution.default]
    assert kinds == [torch.bfloat16] * 3
    turned = rewrite_channels_last(graph, given)
    assert [n.meta["val"].dtype for n in turned.graph.nodes if n.target is aten.convolution.default] == kinds
    for one, other in zip(graph(*given), turned(*given), strict=True):
        assert other.dtype == one.dtype
        torch.testing.assert_close(other, one, rtol=0.05, atol=2e-3)


def test_convolutions_read_channels_last_and_only_what_comes_from_elsewhere_is_turned() -> None:
    torch.manual_seed(0)
    fn, args = stepped(net())
    graph = trace_function(fn, args)
    before, after = graph.graph.nodes, rewrite_channels_last(graph, args).graph.nodes

    def read(nodes: Any) -> list[bool]:
        images = [n.args[i] for n in nodes for i in range(READS.get(n.target, 0))]
        return [i.meta["val"].is_contiguous(memory_format=torch.channels_last) for i in images]

    assert not all(read(before))
    assert len(read(after)) == len(read(before)) == 9
    assert all(read(after))
    assert not [n for n in after if n.target in NORMS]
    turned = [n.meta["val"].shape for n in after if n.target is aten.clone.default and n.meta["val"].ndim == 4]
    assert turned == [(5, 6, 5, 4)] * 2, "to the flat layers, and back"


def test_a_step_is_made_part_by_part() -> None:
    torch.manual_seed(0)
    args = [torch.randn(n, dtype=F64) for n in (10, 4, 6)]

    def step(w: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [torch.add(w, torch.cat([a * 2, b]), alpha=-0.1), torch.cat([a, b]) + 1.0]

    graph = trace_function(step, args)
    turned = rewrite_channels_last(graph, args)
    for one, other in zip(graph(*args), turned(*args), strict=True):
        assert torch.equal(one, other)
    (out,) = (n for n in turned.graph.nodes if n.op == "output")
    assert [n.target for n in out.args[0]] == [aten.cat.default, aten.add.Tensor]


def test_what_else_needs_a_gradient_has_it_whole() -> None:
    torch.manual_seed(0)
    args = [torch.randn(n, dtype=F64) for n in (10, 4, 6, 1)]

    def step(w: Tensor, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        g = torch.cat([a, b])
        return [w + g, g.norm(), c + torch.cat([b, a])]

    graph = trace_function(step, args)
    turned = rewrite_channels_last(graph, args)
    for one, other in zip(graph(*args), turned(*args), strict=True):
        assert torch.equal(one, other)
    assert sum(n.target is aten.cat.default for n in turned.graph.nodes) == 2


def test_other_operations_are_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)).to(F64)
    names = [n for n, _ in module.named_parameters()]
    args = [*(p.detach() for p in module.parameters()), torch.randn(5, 2, 4, dtype=F64)]
    graph = trace_function(lambda *a: [functional_call(module, dict(zip(names, a[:-1], strict=True)), (a[-1],))], args)
    assert [n.target for n in rewrite_channels_last(graph, args).graph.nodes] == [n.target for n in graph.graph.nodes]
