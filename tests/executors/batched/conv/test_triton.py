"""Convolutions of our own: the numbers of torch's, alone and stacked. Interpreted where there is no GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import conv2d, pad

from tests.executors.batched.conv.traced_steps import stepped as stepped_on

pytest.importorskip("triton", reason="for Linux alone")

from tarry.executors.batched.conv.triton import with_triton_convolutions
from tarry.executors.batched.conv.triton_kernels import Tile, correlate, correlate_filters
from tarry.executors.batched.trace import NotStackable, stack_graph, trace_function

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
F32, F64 = torch.float32, torch.float64
aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
stepped = partial(stepped_on, device=DEVICE)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def by_torch(x: Tensor, w: Tensor, grad: Tensor | None = None) -> list[Tensor]:
    """Client by client in double precision: outputs, or the filters' gradients."""
    pairs = zip(x.double(), w.double(), strict=True)
    if grad is None:
        return [conv2d(a, b) for a, b in pairs]
    return [torch.nn.grad.conv2d_weight(a, b.shape, g) for (a, b), g in zip(pairs, grad.double(), strict=True)]


SIZES = [  # clients, examples, inputs, outputs, height, width, filters' height and width
    (3, 4, 2, 3, 6, 7, 3, 3),
    (2, 5, 32, 8, 9, 8, 5, 5),
    (1, 3, 1, 20, 9, 8, 2, 3),
    (2, 7, 6, 70, 8, 8, 5, 5),
    (2, 4, 3, 3, 5, 5, 1, 1),
    (1, 1, 16, 16, 3, 3, 3, 3),
]
TILES = [None, Tile(16, 16, 16), Tile(32, 64, 128, 8)]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_and_gradients_of_filters(size: tuple[int, ...], tile: Tile | None) -> None:
    clients, n, inputs, outputs, h, width, *filters = size
    down, across = filters
    x = torch.randn(clients, n, inputs, h, width, device=DEVICE)
    w = torch.randn(clients, outputs, inputs, down, across, device=DEVICE)
    rows = w.permute(0, 1, 3, 4, 2).reshape(clients, outputs, -1)
    found = correlate(x.permute(0, 1, 3, 4, 2), rows, (down, across), 1, "ieee", tile).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(found, torch.stack(by_torch(x, w)).float(), **CLOSE)
    grad = torch.randn_like(found)
    found = correlate_filters(x.permute(0, 2, 3, 4, 1), grad.permute(0, 2, 3, 4, 1), (down, across), "ieee", tile)
    found = found.view(clients, outputs, down, across, inputs).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(found, torch.stack(by_torch(x, w, grad)).float(), **CLOSE)


def test_many_places_are_summed_by_stretches() -> None:
    x, grad = torch.randn(1, 2, 40, 40, 3, device=DEVICE), torch.randn(1, 4, 38, 38, 3, device=DEVICE)
    found = correlate_filters(x, grad, (3, 3), "ieee")
    (one,) = by_torch(x.permute(0, 4, 1, 2, 3), torch.empty(1, 4, 2, 3, 3), grad.permute(0, 4, 1, 2, 3))
    torch.testing.assert_close(found[0], one.permute(0, 2, 3, 1).reshape(4, -1).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", [1, 2, 4])
def test_places_side_by_side(side: int) -> None:
    x, w = (
        torch.randn(2, 3, 5, 10, 3, device=DEVICE),
        torch.randn(2, 4, 3, 3, 3, device=DEVICE),
    )  # rows: down, across, in
    wide = torch.stack([pad(w, (0, 0, i, side - 1 - i)) for i in range(side)], 1).reshape(2, side * 4, -1)
    found = correlate(x, wide, (3, 3 + side - 1), side, "ieee").reshape(2, 3, 3, 8, 4)
    torch.testing.assert_close(found, correlate(x, w.reshape(2, 4, -1), (3, 3), 1, "ieee"), **CLOSE)


def test_operations_are_what_they_say() -> None:
    x, w = torch.randn(2, 3, 5, 8, 2, device=DEVICE), torch.randn(2, 6, 24, device=DEVICE)
    told = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tarry.correlate.default, (x, w, 3, 4, 1, "ieee"), test_utils=told)
    grad = torch.randn(2, 6, 1, 6, 2, device=DEVICE)
    torch.library.opcheck(torch.ops.tarry.correlate_filters.default, (x, grad, 3, 3, "ieee"), test_utils=told)


def test_what_a_gpu_cannot_do_is_said() -> None:
    x, w = torch.randn(1, 2, 4, 4, 2, device=DEVICE), torch.randn(1, 3, 18, device=DEVICE)
    with pytest.raises(NotStackable, match="Triton cannot compile this kernel here"):
        correlate(x, w, (3, 3), 1, "ieee", Tile(48, 16, 16))  # no power of two


@pytest.mark.parametrize("padding", [0, 1, (1, 0)], ids=str)
@pytest.mark.parametrize("kernel", [3, (2, 3)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_of_one(kernel: Any, padding: Any, bias: bool) -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 3, kernel, padding=padding, bias=bias), nn.Tanh(), nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2)
    ).to(DEVICE)
    fn, args = stepped(module, (5, 2, 6, 7))
    graph = trace_function(fn, args)
    made = with_triton_convolutions(graph, args)
    assert not [n for n in made.graph.nodes if n.target in CONVOLUTIONS]
    others = [torch.randn_like(a) for a in args]
    for given in (args, others):
        for one, other in zip(graph(*given), made(*given), strict=True):
            torch.testing.assert_close(other, one, **CLOSE)


@pytest.mark.parametrize("way", ["by rules", "traced"])
def test_a_step_of_a_stack(way: str) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=2), nn.ReLU(), nn.Conv2d(3, 2, 2)).to(DEVICE)
    fn, args = stepped(module, (5, 2, 6, 7))
    many = [torch.randn(3, *a.shape, device=DEVICE) for a in args]
    one = with_triton_convolutions(trace_function(fn, args), args)
    made = stack_graph(one, many) if way == "traced" else vmap(one)
    if way == "traced":
        ours = [n for n in made.graph.nodes if "tarry" in str(n.target)]
        assert len(ours) == 6  # forward twice, back to images twice, to filters twice: for all clients at once
    found = made(*many)
    for c in range(3):
        for alone, other in zip(fn(*(a[c] for a in many)), found, strict=True):
            torch.testing.assert_close(other[c], alone, **CLOSE)


def test_single_precision_unless_less_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = stepped(nn.Conv2d(2, 3, 3).to(DEVICE), (5, 2, 6, 7))

    def hows() -> set[str]:
        graph = with_triton_convolutions(trace_function(fn, args), args).graph
        return {n.args[-1] for n in graph.nodes if "tarry" in str(n.target)}

    assert hows() == {"tf32x3"}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert hows() == {"tf32"}


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (nn.Conv2d(2, 2, 3, stride=2), F32), (nn.Conv2d(2, 2, 3, dilation=2), F32), (nn.Conv2d(2, 2, 3, groups=2), F32),
        (nn.ConvTranspose2d(2, 2, 3), F32), (nn.Conv2d(2, 2, 3, padding=3), F32), (nn.Conv2d(2, 2, 3), F64),
    ],
    ids=["stride", "dilation", "groups", "transposed", "much padding", "double precision"],
)  # fmt: skip
def test_others_are_left_as_they_are(layer: nn.Module, dtype: torch.dtype) -> None:
    fn, args = stepped(layer.to(DEVICE, dtype), (3, 2, 7, 7), dtype)
    graph = trace_function(fn, args)
    assert with_triton_convolutions(graph, args) is graph


def test_more_numbers_than_kernels_count_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = stepped(nn.Conv2d(2, 3, 3).to(DEVICE), (5, 2, 6, 7))
    graph = trace_function(fn, args)
    monkeypatch.setattr("tarry.executors.batched.conv.rewrite._MOST", 5 * 3 * (6 + 6) * (7 + 6))
    assert with_triton_convolutions(graph, args) is graph
    monkeypatch.setattr("tarry.executors.batched.conv.rewrite._MOST", 5 * 3 * (6 + 6) * (7 + 6) + 1)
    assert with_triton_convolutions(graph, args) is not graph
