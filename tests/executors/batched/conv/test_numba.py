"""Convolutions of few channels on a processor: the numbers of torch's, alone and stacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import conv2d, pad

from tarry.executors.batched.conv.numba import few_channels, with_numba_convolutions
from tarry.executors.batched.trace import stack_graph, trace_function
from tarry.vector import fused
from tests.executors.batched.conv.traced_steps import stepped

F32, F64 = torch.float32, torch.float64
aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
POOLS = {aten.avg_pool2d.default, aten.avg_pool2d_backward.default}
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 9, 11])
@pytest.mark.parametrize(("inputs", "outputs", "n"), [(1, 1, 1), (2, 5, 7), (3, 4, 16)])
def test_kernels(inputs: int, outputs: int, n: int, width: int, up: int) -> None:
    """Every number of taps at a time, an output that has no second one, lines above and below."""
    kernels = fused.numba("tarry.executors.batched.conv.numba_kernels")
    assert kernels is not None
    clients, height, lines, places = 2, 3, 4, 13
    x = torch.randn(clients, inputs, lines, places, n)
    w = torch.randn(clients, outputs, inputs, height, width)
    padded = pad(x.permute(0, 4, 1, 2, 3), (0, 0, up, up)).double()
    right = torch.stack([conv2d(a, b) for a, b in zip(padded, w.double(), strict=True)])
    out = torch.full((clients, outputs, *right.shape[3:], n), torch.nan)
    kernels.correlate(x.flatten(3).numpy(), w.numpy(), out.flatten(3).numpy(), n, up)
    torch.testing.assert_close(out.permute(0, 4, 1, 2, 3).double(), right, **CLOSE)
    grad, found = torch.randn_like(right), torch.full_like(w, torch.nan)
    given = grad.permute(0, 2, 3, 4, 1).flatten(3).float().contiguous()
    kernels.correlate_filters(x.flatten(3).numpy(), given.numpy(), found.numpy(), n, up)
    pairs = zip(padded, grad, strict=True)
    right = torch.stack([torch.nn.grad.conv2d_weight(a, w.shape[1:], g) for a, g in pairs])
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


def agrees(module: nn.Module, shape: tuple[int, ...]) -> set[Any]:
    """Alone, with the numbers it was traced with and with others: what operations are left."""
    fn, args = stepped(module, shape)
    graph = trace_function(fn, args)
    made = with_numba_convolutions(graph, args)
    for given in (args, [torch.randn_like(a) for a in args]):
        for one, other in zip(graph(*given), made(*given), strict=True):
            torch.testing.assert_close(other, one, **CLOSE)
    return {n.target for n in made.graph.nodes}


@pytest.mark.parametrize("padding", [0, 1, (1, 0), (0, 1)], ids=str)
@pytest.mark.parametrize("kernel", [3, (2, 3), (5, 2)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_of_one(kernel: Any, padding: Any, bias: bool) -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 3, kernel, padding=padding, bias=bias), nn.Tanh(), nn.Conv2d(3, 4, 2, padding=1), nn.MaxPool2d(2)
    )
    assert not agrees(module, (5, 2, 8, 7)) & CONVOLUTIONS


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.AvgPool2d((3, 2)), nn.AvgPool2d(2, 2, ceil_mode=True)], ids=str)
def test_means_over_windows(pool: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), pool, nn.Conv2d(3, 2, 2), nn.ReLU())
    assert not agrees(module, (5, 1, 14, 14)) & (CONVOLUTIONS | POOLS)


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2, 1), nn.AvgPool2d(2, padding=1), nn.AvgPool2d(5), nn.AvgPool2d(2, divisor_override=3),
        nn.AvgPool2d(2, padding=1, count_include_pad=False),
    ],
    ids=["overlap", "padding", "a rest", "divisor", "padding not counted"],
)  # fmt: skip
def test_other_means_are_torchs(pool: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), pool)
    assert agrees(module, (5, 1, 14, 14)) & POOLS == POOLS


def test_means_of_images_that_lie_otherwise_are_torchs() -> None:
    assert agrees(nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 3, 3)), (5, 1, 14, 14)) & POOLS == POOLS


@pytest.mark.parametrize("way", ["by rules", "traced"])
def test_a_step_of_a_stack(way: str) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(3, 2, 2))
    fn, args = stepped(module, (5, 2, 6, 6))
    many = [torch.randn(3, *a.shape) for a in args]
    one = with_numba_convolutions(trace_function(fn, args), args)
    made = stack_graph(one, many) if way == "traced" else vmap(one)
    if way == "traced":
        ours = [n for n in made.graph.nodes if "tarry" in str(n.target)]
        assert len(ours) == 6  # forward twice, back to images twice, to filters twice: for all clients at once
    found = made(*many)
    for c in range(3):
        for alone, other in zip(fn(*(a[c] for a in many)), found, strict=True):
            torch.testing.assert_close(other[c], alone, **CLOSE)


def test_a_stack_comes_to_the_bits_of_one() -> None:
    fn, args = stepped(nn.Sequential(nn.Conv2d(1, 3, 5), nn.ReLU(), nn.AvgPool2d(2)), (4, 1, 12, 12))
    many = [torch.randn(3, *a.shape) for a in args]
    one = with_numba_convolutions(trace_function(fn, args), args)
    found = stack_graph(one, many)(*many)
    for c in range(3):
        for alone, other in zip(one(*(a[c] for a in many)), found, strict=True):
            assert torch.equal(alone, other[c])


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (nn.Conv2d(2, 2, 3, stride=2), F32), (nn.Conv2d(2, 2, 3, groups=2), F32), (nn.Conv2d(2, 2, 3, padding=3), F32),
        (nn.Conv2d(2, 2, 3), F64), (nn.Conv2d(16, 16, 3), F32),
    ],
    ids=["stride", "groups", "much padding", "double precision", "many channels"],
)  # fmt: skip
def test_others_are_left_as_they_are(layer: nn.Module, dtype: torch.dtype) -> None:
    fn, args = stepped(layer.to(dtype), (3, layer.in_channels, 7, 7), dtype)  # type: ignore[arg-type]
    graph = trace_function(fn, args)
    assert with_numba_convolutions(graph, args) is graph


def test_few_channels_of_images_or_of_outputs() -> None:
    assert few_channels((64, 3, 3, 3))
    assert few_channels((6, 16, 5, 5))
    assert not few_channels((16, 16, 1, 1))


def test_without_numba_all_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = stepped(nn.Conv2d(2, 3, 3), (3, 2, 7, 7))
    graph = trace_function(fn, args)
    monkeypatch.setattr("tarry.executors.batched.conv.numba.numba", lambda _: None)
    assert with_numba_convolutions(graph, args) is graph


def test_operations_are_what_they_say() -> None:
    fn, args = stepped(nn.Conv2d(2, 3, 3), (3, 2, 7, 7))
    with_numba_convolutions(trace_function(fn, args), args)
    x, w, grad = torch.randn(2, 3, 5, 8, 2), torch.randn(2, 6, 3, 2, 4), torch.randn(2, 6, 4, 5, 2)
    told = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tarry.planes.default, (x, w, 1), test_utils=told)
    torch.library.opcheck(torch.ops.tarry.planes_filters.default, (x, grad, 2, 4, 0), test_utils=told)
