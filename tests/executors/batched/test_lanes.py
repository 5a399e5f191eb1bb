"""What a GPU runs, run without one: CUDA graphs captured and replayed operation by operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule
from tarry.core.optim import make_optimizer
from tarry.core.tickets import LocalResult, Ticket, VisitJob
from tarry.executors.auto import AutoExecutor
from tarry.executors.batched.trace import NotStackable
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.executors.inline import Inline
from tarry.methods import methods
from tarry.tasks.models import mlp
from tarry.training.determinism import deterministic
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tests.executors.batched.fake_gpu import Graph, on_gpu, pretend

EQUAL, UNEQUAL = (24,) * 5, (6, 8, 16, 24, 62)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Graph]]:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    with deterministic():
        yield pretend(monkeypatch)


class Setting:
    """Clients on a GPU, and the same ones elsewhere."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        model: Any = None,
        shape: tuple[int, ...] = (6,),
        method: str = "fedavg",
        epochs: int = 3,
    ):
        g = torch.Generator().manual_seed(5)
        data = [(torch.randn(n, *shape, generator=g), torch.randint(0, 4, (n,), generator=g)) for n in sizes]
        torch.manual_seed(0)
        modules = [(model or small)() for _ in range(2)]
        task = tarry.Task("gpu", model=modules[0], loss=nn.functional.cross_entropy, clients=data)
        self.rule: LocalRule = methods.build(method).local
        self.work = LocalWork(make_optimizer("sgd", lr=0.05, momentum=0.5), epochs=epochs, batch=8)
        here, there = (FlatModel(m, Layout.of(m), task, self.work.optimizer) for m in modules)
        sent = here.layout.read(modules[0], torch.float32).clone()
        payload = {k: torch.randn(here.layout.n_params, generator=g) * 1e-3 for k in self.rule.required_payload}
        self.here, self.there = on_gpu(here), there
        self.jobs = [VisitJob(7 * c, c, 1, sent, payload) for c in range(len(sizes))]
        self.given: dict[str, Any] = {"rule": self.rule, "work": self.work, "seed": 1}

    def trainer(self, **how: Any) -> BatchedTrainer:
        return BatchedTrainer(self.here, **self.given, **how)

    def same(self, found: list[LocalResult]) -> None:
        """As one by one elsewhere."""
        for job, b in zip(self.jobs, found, strict=True):
            a = train(job, self.there, **self.given)
            assert a.loss == pytest.approx(b.loss, rel=1e-4)
            torch.testing.assert_close(a.delta, b.delta, rtol=1e-3, atol=1e-5)
            for mine, others in ((a.extras, b.extras), (a.memory, b.memory)):
                assert mine.keys() == others.keys()
                for k in mine:
                    torch.testing.assert_close(mine[k], others[k], rtol=1e-3, atol=1e-4)


def small() -> nn.Module:
    return mlp(6, 16, 4)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize(("method", "sizes"), [("fedavg", EQUAL), ("fedsol", EQUAL), ("asynccurve", UNEQUAL)])
def test_what_is_captured_once_and_launched_comes_to_the_same_as_one_by_one(
    method: str, sizes: tuple[int, ...], gpu: type[Graph]
) -> None:
    here = Setting(sizes, method=method)
    trainer = here.trainer()
    here.same(trainer.train(here.jobs))
    captured, launched = gpu.captured, gpu.launched
    assert captured > 0
    here.same(trainer.train(here.jobs))
    assert gpu.captured == captured
    assert gpu.launched == 2 * launched


def test_columns_are_launched_eight_at_a_time_and_by_those_who_are_not_done(gpu: type[Graph]) -> None:
    """All five for 6 columns; two for 3; then one: 8 columns at once, and 7."""
    here = Setting(UNEQUAL)
    here.same(here.trainer().train(here.jobs))
    assert gpu.captured == 1 + 1 + 2
    assert gpu.launched == 6 + 3 + (1 + 7)


def test_stacks_of_short_batches_are_captured_apart_from_those_of_whole_ones(gpu: type[Graph]) -> None:
    here = Setting((24, 24, 21, 21))
    trainer = here.trainer()
    found = [*trainer.train(here.jobs[:2]), *trainer.train(here.jobs[2:])]
    here.same(found)
    assert gpu.captured == 4


@pytest.mark.parametrize(
    ("sizes", "how"),
    [(UNEQUAL, {"lanes": 3}), (EQUAL, {"size": 2}), (UNEQUAL, {"compiled": True, "lanes": 2})],
    ids=["lanes", "stacks that follow each other", "compiled"],
)
def test_lanes_and_stacks_of_any_size(sizes: tuple[int, ...], how: dict[str, Any]) -> None:
    here = Setting(sizes)
    here.same(here.trainer(**how).train(here.jobs))


def test_statistics_and_what_is_left_out_at_random() -> None:
    here = Setting(UNEQUAL, normed)
    here.same(here.trainer().train(here.jobs))


def test_convolutions_by_kernels_of_our_own() -> None:
    pytest.importorskip("triton")
    here = Setting((16, 16), conv, (1, 4, 4), epochs=1)
    here.same(here.trainer(own_conv="Triton").train(here.jobs))


def test_where_little_memory_is_left_what_was_captured_is_forgotten(
    gpu: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Setting(EQUAL)
    trainer = here.trainer()
    for free, jobs, desks in ((1e9, 5, 1), (1e9, 4, 2), (1e8, 3, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, free=free: (free, 2e9))
        trainer.train(here.jobs[:jobs])
        assert len(trainer._lanes[0]._buffers) == desks  # type: ignore[union-attr]
    here.same(trainer.train(here.jobs))


def test_memory_that_others_take_is_no_reason_to_compile_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Setting(EQUAL)
    trainer = here.trainer(compiled=True)
    many = trainer._max_stack_size(trainer._visit(here.jobs[0]), 8, "another kind, with a GB free")
    for fit in (3.2, 2.9, 1.2):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, fit=fit: (1e9 * fit / many, 2e9))
        here.same(trainer.train(here.jobs))
        assert trainer._sizes.made == [3]


class Forbidden(nn.Module):
    """Copies a number from elsewhere at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * torch.tensor([1.5], device=x.device)
        return out


def test_what_cannot_be_captured_is_told_and_trained_otherwise() -> None:
    here = Setting(EQUAL, Forbidden)
    with pytest.raises(NotStackable, match=r"captured in a CUDA graph \(RuntimeError: operation not permitted when"):
        here.trainer().train(here.jobs)
    found, told = collected(here)
    here.same(found)
    assert "not trained together: its step cannot be captured" in told


def test_too_little_memory_in_a_capture_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since smaller stacks may do."""
    here = Setting(EQUAL)
    trainer = here.trainer()
    lane: Any = trainer._lanes[0]
    inner = lane._body

    def body(program: Any, desk: Any, c: int, n: int = 0) -> None:
        if n:
            raise torch.OutOfMemoryError
        inner(program, desk, c)

    monkeypatch.setattr(lane, "_body", body)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train(here.jobs)


def test_all_of_it_together() -> None:
    here = Setting((16, 16, 24))
    found, told = collected(here, compiled=True)
    here.same(found)
    assert told.startswith("clients are trained together")


def collected(here: Setting, **how: Any) -> tuple[list[LocalResult], str]:
    made = AutoExecutor(
        here.here, **here.given, lanes=2, always_batch=True, fallback=lambda: Inline(here.there, **here.given), **how
    )
    for j in here.jobs:
        made.submit(Ticket(j.number, j.client, j.visit, 0, 0.0, j.sent, j.sent, j.payload), {}, 0.0)
    return [made.collect(j.number) for j in here.jobs], made.description
