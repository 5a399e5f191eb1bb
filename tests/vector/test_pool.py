"""Memory is used again when nobody sees it any more, and never before; sweeps give what whole operations do."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tarry.core.layout import Block, Kind, Layout
from tarry.core.server import Server
from tarry.core.state_tree import tensors
from tarry.core.tickets import CONTROL, LocalResult
from tarry.methods import methods
from tarry.vector import blocks as block_module
from tarry.vector import fused
from tarry.vector import pool as vector
from tarry.vector.blocks import blocks, blocks_reversed
from tarry.vector.pool import clear_pool, empty_pooled

LARGE = torch.zeros(300_000)  # above the limit for reuse
SIZES = (270_000, 64, 29_000, 700, 236)  # the last are running statistics

IN_ROUNDS = ("fedavg", "fedyogi")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("orthofl", {}),
    ("orthofl", {"projection": "full"}),
    ("orthofl", {"projection": "none"}),
    ("orthofl", {"ablation": "no-average"}),
    ("orthofl", {"state": "reference"}),
    ("fedasync", {}),
    ("fedbuff", {"buffer": 2}),
    ("fedavg", {}),
    ("ca2fl", {"buffer": 2}),
    ("fadas", {"buffer": 2}),
    ("fedyogi", {}),
    ("orthocorrect", {"alpha": 0.3, "theta": 0.2}),
    ("orthodyn", {}),
    ("asynccurve", {"correction": "orthostrict"}),
    ("asynccurve", {"correction": "fedasync"}),
    ("asynccurve", {"correction": "asgd", "moments": False}),
    ("asynccurve", {"curve": "printed", "periodic": 3, "swa": 0.0}),
]


@pytest.fixture(autouse=True)
def _nothing_spare() -> Iterator[None]:
    clear_pool()
    yield
    clear_pool()


def layout() -> Layout:
    blocks, start = [], 0
    for i, size in enumerate(SIZES):
        kind = Kind.STAT if i == len(SIZES) - 1 else Kind.PARAM
        blocks.append(Block(f"t{i}", start, start + size, (size,), kind))
        start += size
    return Layout(tuple(blocks))


class Drive:
    """A server whose clients come back in a mixed order, stale; `look` is called after every arrival."""

    def __init__(self, name: str, parameters: dict[str, Any], arrivals: int = 14):
        table, self.g = layout(), torch.Generator().manual_seed(3)
        self.server = Server(methods.build(name, **parameters), self.drawn(), layout=table, n_clients=4, seed=0)
        self.arrivals, self.n_params = arrivals, table.n_params

    def drawn(self) -> Tensor:
        return torch.randn(sum(SIZES), generator=self.g).abs_()

    def run(self, look: Any = lambda _: None) -> Tensor:
        server = self.server
        out = [server.hand_out(client, 0.0).number for client in range(4)]
        for arrival in range(self.arrivals):
            number = out.pop(arrival % min(3, len(out)))
            control = {CONTROL: torch.randn(self.n_params, generator=self.g)}
            delta = torch.randn(sum(SIZES), generator=self.g).mul_(0.1)
            client = server.receive(number, LocalResult(delta, 3, 2, 0.5, extras=control), arrival).ticket.client
            look(server)
            if server.method.name not in IN_ROUNDS:
                out.append(server.hand_out(client, arrival).number)
            elif not out:
                out = [server.hand_out(c, arrival).number for c in range(4)]
            look(server)
        return server.output_weights


def test_memory_is_used_again_when_its_last_holder_is_gone() -> None:
    first = empty_pooled(LARGE)
    where = first.data_ptr()
    assert empty_pooled(LARGE).data_ptr() != where
    del first
    assert empty_pooled(LARGE).data_ptr() == where


HOLDERS: dict[str, Any] = {
    "a view": lambda t: t[5:9],
    "a view of a view": lambda t: t.view(2, -1)[1][3:],
    "an array": lambda t: t.numpy(),
    "an array's part": lambda t: t[10:].numpy()[::7],
    "a detached tensor": lambda t: t.detach(),
    "an expanded one": lambda t: t[3].expand(4),
    "its storage": lambda t: t.untyped_storage(),
    "a shallow copy": lambda t: copy.copy([t]),
    "a tensor made of its array": lambda t: torch.from_numpy(t.numpy()),
    "a capsule": lambda t: torch.utils.dlpack.to_dlpack(t[4:]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_anything_holds_is_not_used_again(holder: str) -> None:
    first = empty_pooled(LARGE)
    where, held = first.data_ptr(), HOLDERS[holder](first)
    del first
    several = [empty_pooled(LARGE) for _ in range(12)]
    assert where not in {t.data_ptr() for t in several}
    del held
    assert empty_pooled(LARGE).data_ptr() == where


def test_a_graph_holds_what_it_needs() -> None:
    first = empty_pooled(LARGE).fill_(2.0)
    x = torch.ones(len(first), requires_grad=True)
    y = (x * first).sum()
    del first
    empty_pooled(LARGE).fill_(7.0)
    y.backward()
    assert x.grad is not None
    assert (x.grad == 2).all()


def test_sizes_and_types_are_those_asked_for_and_spare_memory_is_bounded() -> None:
    for like in (LARGE, LARGE.double(), LARGE.view(3, -1), torch.zeros(3), torch.zeros(0)):
        made = empty_pooled(like)
        assert (made.shape, made.dtype, made.device) == (like.shape, like.dtype, like.device)
        assert made.is_contiguous()
    many = [empty_pooled(LARGE) for _ in range(40)]
    many.clear()
    assert 0 < sum(map(len, vector._free_buffers.values())) <= 4 * vector._MOST
    clear_pool()
    assert not vector._free_buffers


def test_a_leased_vector_saves_loads_and_copies() -> None:
    made = empty_pooled(LARGE).fill_(3.0)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for again in (torch.load(file), copy.deepcopy(made), made.clone()):
        assert torch.equal(again, made)
        assert again.data_ptr() != made.data_ptr()


def test_a_sweep_goes_over_everything_once_and_back() -> None:
    a, b = torch.arange(10.0), torch.arange(10.0) * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_module, "_BLOCK", 4)
        forth = blocks(a, b)
        assert [x.tolist() for x, _ in forth] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert all(torch.equal(2 * x, y) for x, y in forth)
        assert [x[0].item() for x, _ in blocks_reversed(a, b)] == [8, 4, 0]
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            blocks(a, b[:3])


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_no_vector_that_was_ever_seen_changes(name: str, parameters: dict[str, Any]) -> None:
    """Whatever a callback or a checkpoint may have kept: weights, tickets, starts, payloads, states, and views."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def look(server: Server) -> None:
        everything = [server.save(), server.output_weights, server.state, server.tickets, server.starts]
        everything += [server.next_start(client) for client in range(4)]
        for t in tensors(everything):
            if t.data_ptr() not in seen:
                seen[t.data_ptr()] = (t.view_as(t), t.clone())  # a view alone must hold the memory

    Drive(name, parameters).run(look)
    assert len(seen) > 14
    for held, then in seen.values():
        assert torch.equal(held, then)


@pytest.fixture(params=["whole", "in stretches", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a server goes over a vector: all at once, in stretches of torch's operations, or by compiled loops."""
    if request.param != "whole":
        monkeypatch.setattr(block_module, "_BLOCK", 10_007)
    if request.param == "compiled":
        assert fused.numba("tarry.vector.kernels") is not None, "the tests need numba"
    else:
        monkeypatch.setattr(fused, "numba", lambda _: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_memory_used_again_leaves_no_trace(
    name: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as from new memory full of rubbish, and memory was in fact used again."""
    leased = Drive(name, parameters).run()
    spare = sum(map(len, vector._free_buffers.values()))

    def rubbish(like: Tensor) -> Tensor:
        return torch.full_like(like, float("nan"))

    for module in [
        m for m in sys.modules.values() if getattr(m, "fresh", None) is empty_pooled and m.__name__[:5] == "tarry"
    ]:
        monkeypatch.setattr(module, "empty_pooled", rubbish)
    assert torch.equal(leased, Drive(name, parameters).run())
    assert spare > 0


@pytest.mark.parametrize("way", ["in stretches", "compiled"], indirect=True)
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_every_way_gives_what_the_whole_does(
    name: str, parameters: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = Drive(name, parameters).run()
    monkeypatch.setattr(block_module, "_BLOCK", 1 << 19)
    torch.testing.assert_close(got, Drive(name, parameters).run(), rtol=2e-5, atol=2e-6)
