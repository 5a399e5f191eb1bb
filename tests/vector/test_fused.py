"""Compiled loops: what they compute, on how many threads ever, and what happens without them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tarry.core.layout import Block, Kind, Layout
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tarry.methods import methods
from tarry.parts.manifold import rotate, rotation_coefficients
from tarry.vector import blocks as vector
from tarry.vector import fused
from tarry.vector.fused import Pieces, as_scalar, combine, kernels_for, partition
from tests.helpers.processes import PATIENCE

N = 200_003
STRETCHES = ((0, 70_000), (70_000, 70_001), (70_001, 150_000), (150_000, N))
TYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "_BLOCK", 1000)


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(fused, "THREADS", request.param)
    return request.param


def drawn(n: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(7)
    return [torch.randn(N, generator=g, dtype=torch.float64).to(dtype) for _ in range(n)]


def by_stretch(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([torch.dot(x[a:b].double(), y[a:b].double()) for a, b in STRETCHES])


def close(got: Any, expected: Tensor, dtype: torch.dtype) -> None:
    exact = dtype == torch.float64
    torch.testing.assert_close(
        torch.as_tensor(got).double(), expected, rtol=1e-12 if exact else 1e-6, atol=1e-9 if exact else 2e-3
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("threads")
def test_a_shift_beside_an_update_and_the_mean(dtype: torch.dtype) -> None:
    w, anchor, delta, sent = drawn(4, dtype)
    out, new = torch.empty_like(w), torch.empty_like(w)
    whole, k = partition(*STRETCHES), kernels_for(w, anchor, delta, sent)
    assert k is not None
    along, size = whole.sums(k.shift_and_mix, 2, w, anchor, delta, sent, out, as_scalar(0.3, w), new)
    shift = w - anchor
    close(along, by_stretch(shift, delta), dtype)
    close(size, by_stretch(delta, delta), dtype)
    torch.testing.assert_close(new, torch.lerp(w, sent + delta, 0.3))
    torch.testing.assert_close(out, sent + shift)
    again = torch.empty_like(w)
    for got, expected in zip(whole.sums(k.shift_weights, 2, w, anchor, delta, sent, again), (along, size), strict=True):
        close(got, torch.from_numpy(expected), dtype)
    assert torch.equal(again, out)
    whole.run(k.accumulate, out, delta, whole.each(along / size, w))
    rest = torch.cat([torch.full((b - a,), (along / size)[i]) for i, (a, b) in enumerate(STRETCHES)]).to(dtype)
    torch.testing.assert_close(out, sent + shift + rest * delta)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("threads")
def test_products(dtype: torch.dtype) -> None:
    a, b, d = drawn(3, dtype)
    whole, k = partition(*STRETCHES), kernels_for(a, b, d)
    assert k is not None
    for got, expected in zip(whole.sums(k.products, 3, a, b), ((a, a), (b, b), (a, b)), strict=True):
        close(got, by_stretch(*expected), dtype)
    out, n = torch.empty_like(a), 0.5 * a - 2 * b
    sums = whole.sums(k.compute_drift, 3, a, b, d, out)
    assert torch.equal(out, a - b)
    for got, expected in zip(sums, ((out, d), (out, out), (d, d)), strict=True):
        close(got, by_stretch(*expected), dtype)
    beside = torch.empty_like(a)
    *same, along, across = whole.sums(k.compute_drift_and_control, 5, a, b, d, n, beside)
    assert torch.equal(beside, out)
    for got, before in zip(same, sums, strict=True):
        close(got, torch.from_numpy(before), dtype)
    close(along, by_stretch(n, d), dtype)
    close(across, by_stretch(n, out), dtype)
    new, turned = torch.empty_like(a), torch.empty_like(a)
    whole.run(k.correct_with_control, a, b, d, *(as_scalar(x, a) for x in (0.5, -2.0, 3.0)), new, turned)
    torch.testing.assert_close(new, a - 0.5 * b)
    torch.testing.assert_close(turned, d - 2 * a + 3 * b)
    sums = whole.sums(k.side_products, 4, a, b, d, as_scalar(0.5, a), as_scalar(-2.0, a))
    for got, expected in zip(sums, ((n, n), (n, a), (d, a), (d, n)), strict=True):
        close(got, by_stretch(*expected), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("threads")
def test_a_sum_in_double_precision_forgets_what_is_replaced(dtype: torch.dtype) -> None:
    new, old = drawn(2, dtype)
    total, out = old.double() * 0.7, torch.empty(N, dtype=torch.float64)
    k = kernels_for(new, old)
    assert k is not None
    partition((0, N)).run(k.replace_row, total, new, old, 0.7, out)
    torch.testing.assert_close(out, new.double() * 0.7, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("threads")
def test_the_last_of_a_buffer_makes_the_mean(dtype: torch.dtype) -> None:
    total, new = drawn(2, dtype)
    k, out = kernels_for(total, new), torch.empty_like(new)
    assert k is not None
    partition((0, N)).run(k.average, total, new, as_scalar(0.3, new), as_scalar(7.0, new), out)
    torch.testing.assert_close(out, (total + 0.3 * new) / 7)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("threads")
def test_adams_step_in_one_pass(dtype: torch.dtype, keeps: bool) -> None:
    d, w, m, v, top = drawn(5, dtype)
    v, top = v.square(), top.square()
    new_m, new_v, new_top, out = (torch.full_like(w, torch.nan) for _ in range(4))
    k = kernels_for(d, w, m, v, top)
    assert k is not None
    numbers = (as_scalar(x, d) for x in (0.1, 0.99, 0.01, 0.5, 1e-3))
    partition((0, N)).run(k.adam_step, d, w, m, v, top, *numbers, keeps, new_m, new_v, new_top, out)
    second = 0.99 * v + 0.01 * d * d
    most = torch.maximum(top, second) if keeps else second
    torch.testing.assert_close(new_m, 0.9 * m + 0.1 * d)
    torch.testing.assert_close(new_v, second)
    torch.testing.assert_close(new_top, most if keeps else torch.full_like(w, torch.nan), equal_nan=True)
    torch.testing.assert_close(out, w + 0.5 * new_m / (most.sqrt() + 1e-3))


@pytest.mark.parametrize(
    "method",
    [
        "fadas:eta=0.1,buffer=2",
        "fadas:eta=0.1,beta1=0",
        "fedadam:eta=0.1",
        "fedyogi:eta=0.1",
        "fedbuff:buffer=3",
        "ca2fl:buffer=3",
    ],
)
def test_adaptive_methods_make_the_same_steps_without_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, given = method.partition(":")
    layout, deltas = Layout((Block("t", 0, N, (N,), Kind.PARAM),)), drawn(6, torch.float64)

    def run() -> Tensor:
        server = Server(
            methods.build(name, **dict(p.split("=") for p in given.split(","))),
            deltas[0],
            layout=layout,
            n_clients=1,
            seed=0,
        )
        for i, delta in enumerate(deltas * 2):
            server.receive(server.hand_out(0, i).number, LocalResult(delta, 1, 1, 0.0), i)
        return server.weights

    ours = run()
    monkeypatch.setattr(fused, "numba", lambda _: None)
    torch.testing.assert_close(ours, run(), rtol=1e-9, atol=1e-9)
    assert not torch.equal(ours, deltas[0])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_combination_with_one_and_with_two(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    d, a, b = drawn(3, dtype)
    for _ in range(2):
        torch.testing.assert_close(combine(d, a, 0.25, out=torch.empty_like(d)), d + 0.25 * a)
        torch.testing.assert_close(combine(d, a, 0.25, None, 9.0, out=torch.empty_like(d)), d + 0.25 * a)
        torch.testing.assert_close(combine(d, a, 0.25, b, -3.0, out=torch.empty_like(d)), d + 0.25 * a - 3 * b)
        for second in (None, b):
            out, left = torch.empty_like(d), torch.empty_like(d)
            combine(d, a, 0.25, second, -3.0, out=out, left=left)
            assert torch.equal(left, d - out)
            torch.testing.assert_close(out, d + 0.25 * a - (0 if second is None else 3) * b)
        monkeypatch.setattr(fused, "numba", lambda _: None)


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    a, b = drawn(2, torch.float32)
    k, found = kernels_for(a, b), []
    assert k is not None
    for n in (1, 2, 3, 8):
        found.append([s.tolist() for s in partition(*STRETCHES).sums(k.products, 3, a, b, threads=n)])
    assert found[1:] == found[:-1]


@pytest.mark.parametrize("angle", [1e-7, 1e-3, 1.0, math.pi / 2, 3.0, math.pi])
def test_rotations_are_those_of_whole_vectors(angle: float, monkeypatch: pytest.MonkeyPatch) -> None:
    a, side, d = drawn(3, torch.float64)
    side -= (side @ a) / (a @ a) * a
    b = 3 * (math.cos(angle) * a / a.norm() + math.sin(angle) * side / side.norm())
    got = rotate(d, a, b)
    assert got.norm().item() == pytest.approx(d.norm().item(), rel=1e-9)
    monkeypatch.setattr(fused, "numba", lambda _: None)
    torch.testing.assert_close(got, rotate(d, a, b), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("lam", [1e-7, -1e-3, 0.5, -2.0, 40.0])
@pytest.mark.parametrize("lean", [-0.9, 0.0, 0.4])
def test_a_turn_by_products_is_that_of_the_vectors(lam: float, lean: float) -> None:
    a, g, d = drawn(3, torch.float64)
    g += lean * a * g.norm() / a.norm()
    turn = rotation_coefficients(float(a @ g), float(g @ g), float(a @ a), (float(d @ a), float(d @ g)), lam)
    assert turn is not None
    torch.testing.assert_close(d + turn[0] * a + turn[1] * g, rotate(d, a, a - lam * g), rtol=1e-9, atol=1e-9)


def test_where_products_tell_no_turn() -> None:
    a, d = drawn(2, torch.float64)
    for g, own in ((2 * a, a), (a + 1e-3 * d, a), (d, 0 * a)):
        given = float(own @ g), float(g @ g), float(own @ own), (float(d @ own), float(d @ g))
        assert rotation_coefficients(*given, 0.5) is None


def test_nothing_turns_from_or_to_nowhere() -> None:
    a, d = drawn(2, torch.float32)
    assert rotate(d, torch.zeros_like(a), a) is d
    assert rotate(d, a, torch.zeros_like(a)) is d


@pytest.mark.parametrize(
    "vectors",
    [
        [torch.zeros(1000)],
        [torch.zeros(5000, dtype=torch.bfloat16)],
        [torch.zeros(5000), torch.zeros(5000, dtype=torch.float64)],
    ],
    ids=["small", "of another type", "of two types"],
)
def test_what_is_not_compiled(vectors: list[Tensor]) -> None:
    assert kernels_for(torch.zeros(5000)) is not None
    assert kernels_for(*vectors) is None


def test_pieces_cover_their_stretches_once_and_threads_share_them_evenly() -> None:
    seen = torch.zeros(N)
    whole = Pieces((0, 70_000), (70_001, N))

    def kernel(first: int, last: int, starts: Any, stops: Any, out: Any) -> None:
        for p in range(first, last):
            out[starts[p] : stops[p]] += 1

    whole.run(kernel, seen)
    assert seen[70_000] == 0
    assert (torch.cat([seen[:70_000], seen[70_001:]]) == 1).all()
    for n in (1, 2, 3):
        cuts = whole._cuts(n)
        assert [a for a, _ in cuts[1:]] == [b for _, b in cuts[:-1]]
        shares = [sum(whole._stops[a:b] - whole._starts[a:b]) for a, b in cuts]
        assert sum(shares) == N - 1
        assert max(shares) - min(shares) <= 2 * fused._PIECE


@pytest.mark.parametrize("reason", ["asked not to", "not installed"])
def test_without_numba_torch_does_it(reason: str) -> None:
    """In a process of its own: what was found out is kept."""
    program = (
        "import sys\n" + ("sys.modules['numba'] = None\n" if reason == "not installed" else "") + "import torch\n"
        "from tarry.vector import fused\n"
        "big = torch.ones(600_000)\n"
        "print(fused.kernels_for(big), fused.combine(big, big, 2.0, out=torch.empty_like(big)).sum().item())\n"
    )
    env = {**os.environ, **({"TARRY_NUMBA": "0"} if reason == "asked not to" else {})}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=PATIENCE, check=False
    )
    assert done.stdout.split() == ["None", "1800000.0"], done.stderr
