"""Clients in flight trained together, as a multiple of a bare PyTorch loop that trains them one after the other.

    python benchmarks/batched.py [--device cuda] [--only lenet5] [--lanes 1,4] [--size 0,1] [--compile]
                                 [--channels-last] [--own-conv] [--rounds 3]

The bare loop is what one would write: a module, torch.optim.SGD, a client after the other, examples on the device; for
FedSOL, Fed-OGD and AsyncCurve it is the project's own loop (core.client.train), one client after the other. Both do the
same visits on the same batches, in turns of a fifth of a second or more; a ratio is of client-steps a second within a
round, and the median over rounds is told. `differs`: how far an update is from the same trained alone, after 3 steps.
`--size 0` stacks as many as memory allows; `--channels-last` keeps convolutions as tensor cores take them; `--own-conv`
has convolutions by kernels of our own (executors/batched/conv: Triton on a GPU, numba elsewhere); a GPU's products are
in float32 for both, but for rows that say tf32 or bf16. Memory that is freed is kept for both, as the command line does
(tarry.vector.process): what it takes to fetch it anew from the system would be measured otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import tarry
from record import write
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule
from tarry.core.optim import make_optimizer
from tarry.core.tickets import VisitJob
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.methods import methods
from tarry.tasks.models import LeNet5, McMahanCNN, ResNet, mlp
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tarry.vector.process import tune_malloc

_TURN = 0.2  # seconds at least: what was idle takes a while to be at its best


class Block(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.GroupNorm(2, b)
        self.conv2, self.norm2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.GroupNorm(2, b)
        same = stride == 1 and a == b
        self.around = (
            nn.Sequential() if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.GroupNorm(2, b))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = nn.functional.relu(self.norm1(self.conv1(x)))
        return nn.functional.relu(self.norm2(self.conv2(out)) + self.around(x))


class ResNet18(nn.Module):
    """For 32×32 images, with group normalisation."""

    def __init__(self, classes: int = 10):
        super().__init__()
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [Block(a, b, 2 if b > a else 1) for a, b in pairwise(widths)]
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU())
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return out


def batch_normed() -> nn.Module:
    """ResNet18 with batch normalisation."""
    return ResNet((2, 2, 2, 2), norm="batch")


@dataclass(frozen=True)
class Row:
    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    in_flight: int
    bar: float | None = None
    method: str = "fedavg"
    precision: str = "float32"
    steps: int = 40
    unequal: bool = False  # clients of 1 to 20 batches, an epoch each


GPU = [
    Row("lenet5-10", LeNet5, (1, 28, 28), 32, 10, 25),
    Row("lenet5-100", LeNet5, (1, 28, 28), 32, 100, 50),
    Row("lenet5-100-unequal", LeNet5, (1, 28, 28), 32, 100, unequal=True),
    Row("lenet5-10-fedsol", LeNet5, (1, 28, 28), 32, 10, 12.5, "fedsol"),
    Row("lenet5-10-fedogd", LeNet5, (1, 28, 28), 32, 10, 12.5, "fedogd"),
    Row("lenet5-10-asynccurve", LeNet5, (1, 28, 28), 32, 10, 12.5, "asynccurve"),
    Row("cnn-25", McMahanCNN, (1, 28, 28), 50, 25, 15),
    Row("cnn-25-tf32", McMahanCNN, (1, 28, 28), 50, 25, 15, precision="tf32"),
    Row("cnn-25-fedsol", McMahanCNN, (1, 28, 28), 50, 25, 7.5, "fedsol"),
    Row("cnn-25-fedogd", McMahanCNN, (1, 28, 28), 50, 25, 7.5, "fedogd"),
    Row("cnn-25-asynccurve", McMahanCNN, (1, 28, 28), 50, 25, 7.5, "asynccurve"),
    Row("resnet18-25-tf32", ResNet18, (3, 32, 32), 50, 25, 4, precision="tf32", steps=10),
    Row("resnet18-25-bf16", ResNet18, (3, 32, 32), 50, 25, 6, precision="bf16", steps=10),
    Row("batchnorm-25-tf32", batch_normed, (3, 32, 32), 50, 25, precision="tf32", steps=10),
    Row("batchnorm-25-tf32-unequal", batch_normed, (3, 32, 32), 50, 25, precision="tf32", unequal=True),
]
CPU = [
    Row("mlp-10", lambda: mlp(64, 64, 10), (64,), 32, 10, 8, steps=60),
    Row("mlp-100-unequal", lambda: mlp(64, 64, 10), (64,), 32, 100, unequal=True),
    Row("mlp-50", lambda: mlp(64, 64, 10), (64,), 32, 50, steps=60),
    Row("lenet5-10", LeNet5, (1, 28, 28), 20, 10, steps=3),  # faster in processes: benchmarks/overhead.py
    Row("lenet5-10-long", LeNet5, (1, 28, 28), 20, 10, steps=30),
]


def setting(row: Row, device: str) -> tuple[tarry.Task, FlatModel, LocalRule, LocalWork, list[VisitJob]]:
    torch.manual_seed(0)
    sizes = [row.batch * min(row.steps, 20)] * row.in_flight
    if row.unequal:
        sizes = [round((20 * row.batch) ** (i / (row.in_flight - 1))) for i in range(row.in_flight)]
    x = torch.randn(sum(sizes), *row.shape, device=device)
    y = torch.randint(0, 10, (len(x),), device=device)
    clients = list(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))
    task = tarry.Task(row.name, model=row.model, loss=nn.functional.cross_entropy, clients=clients)
    module = row.model().to(device)
    layout = Layout.of(module)
    much = {"epochs": 1, "steps": None} if row.unequal else {"epochs": None, "steps": row.steps}
    work = LocalWork(make_optimizer("sgd", lr=0.01), batch=row.batch, **much)  # type: ignore[arg-type]
    bound = FlatModel(module, layout, task, work.optimizer)
    rule = methods.build(row.method).local
    sent = layout.read(module, torch.float32)
    payload = {k: torch.randn(layout.n_params, device=device) * 1e-3 for k in rule.required_payload}
    return task, bound, rule, work, [VisitJob(i, i, 0, sent, payload) for i in range(row.in_flight)]


def bare(
    row: Row, module: nn.Module, first: Mapping[str, Tensor], task: tarry.Task, work: LocalWork, device: str
) -> int:
    """Plain training, some clients one after the other, each from the first state on: how many steps."""
    every, done = max(1, row.in_flight // 4), 0
    for x, y in list(task.clients)[every - 1 :: every]:
        module.load_state_dict(first)
        opt = torch.optim.SGD(module.parameters(), lr=0.01)
        left = work.n_steps(len(x))
        while left:
            for at in torch.split(torch.randperm(len(x), device=device), row.batch)[:left]:
                opt.zero_grad()
                nn.functional.cross_entropy(module(x[at]), y[at]).backward()
                opt.step()
                done, left = done + 1, left - 1
    return done


def eager(jobs: Sequence[VisitJob], bound: FlatModel, rule: LocalRule, work: LocalWork) -> int:
    """A rule that is not plain training, by the project's own loop, one by one."""
    return sum(train(j, bound, rule=rule, work=work, seed=0).n_steps for j in jobs[:: max(1, len(jobs) // 4)])


def rate(turn: Callable[[], int], device: str) -> float:
    """Client-steps a second, over and over for a while."""
    _sync(device)
    began, done, took = time.perf_counter(), 0, 0.0
    while took < _TURN:
        done += turn()
        _sync(device)
        took = time.perf_counter() - began
    return done / took


def differs(
    trainer: BatchedTrainer, jobs: Sequence[VisitJob], bound: FlatModel, rule: LocalRule, work: LocalWork
) -> float:
    """The largest difference of an update to the same trained alone, in its own size: of three clients after 3 steps.

    More steps would show how training blows up any rounding, whoever trains.
    """
    short = replace(work, epochs=None, steps=3)
    together = dict(zip((j.number for j in jobs), trainer.with_max_steps(3).train(jobs), strict=True))
    far = 0.0
    for j in [jobs[i] for i in sorted({0, len(jobs) // 2, len(jobs) - 1})]:
        alone = train(j, bound, rule=rule, work=short, seed=0).delta
        far = max(far, ((together[j.number].delta - alone).norm() / alone.norm()).item())
    return far


def _sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(
    one: Callable[[], int], other: Callable[[], int], o: Any, *, exact: bool
) -> tuple[list[float], list[float]]:
    """Rates of both, round by round; neither's first turn counts, in which torch imports what an optimizer asks for."""
    one(), other()
    gc.collect()
    gc.freeze()  # what was made for the one is not gone through over and over by the other's garbage collection
    rates: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(o.rounds):
            for turn, found in zip((one, other), rates, strict=True):
                _allow_tf32(not exact)
                found.append(rate(turn, o.device))
    finally:
        gc.unfreeze()
    return rates


def _steps(trainer: BatchedTrainer, jobs: Sequence[VisitJob]) -> int:
    return sum(t.n_steps for t in trainer.train(jobs))


def measure(row: Row, o: Any) -> list[dict[str, Any]]:
    exact, on_cpu = row.precision == "float32", o.device == "cpu"
    task, bound, rule, work, jobs = setting(row, o.device)
    module = row.model().to(o.device)
    first_state = {k: v.clone() for k, v in module.state_dict().items()}
    out = []

    def one_by_one() -> int:
        if row.method == "fedavg":
            return bare(row, module, first_state, task, work, o.device)
        return eager(jobs, bound, rule, work)

    for lanes in o.lanes:
        for size in o.size:
            _allow_tf32(not exact)
            trainer = BatchedTrainer(
                bound, rule=rule, work=work, seed=0, lanes=lanes, size=size or None, compiled=o.compile,
                bf16=row.precision == "bf16", channels_last=o.channels_last,
                own_conv=("numba" if on_cpu else "Triton") if o.own_conv else "",
            )  # fmt: skip
            began = time.perf_counter()
            for _ in range(1 + 240 // row.steps if on_cpu else 1):  # until its programs are as quick as they get
                trainer.train(jobs)
            _sync(o.device)
            first = time.perf_counter() - began
            far = differs(trainer, jobs, bound, rule, work)
            plain, rates = in_turns(one_by_one, lambda t=trainer: _steps(t, jobs), o, exact=exact)  # type: ignore[misc]
            ratios = [ours / theirs for ours, theirs in zip(rates, plain, strict=True)]
            out.append({
                "row": row.name, "lanes": lanes, "size": size, "compiled": o.compile, "channels_last": o.channels_last,
                "own_conv": o.own_conv, "ratio": round(median(ratios), 2), "bar": None if on_cpu and size else row.bar,
                "steps_per_s": round(median(rates)), "bare_per_s": round(median(plain)),
                "first_s": round(first, 1), "differs": far,
            })  # fmt: skip
            print(json.dumps(out[-1]), flush=True)
            del trainer
    return out


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="a row, or those whose names begin so")
    parser.add_argument("--lanes", default="1", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--size", default="0", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--name", default="", help="of benchmarks/results/NAME.json")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--own-conv", action="store_true", help="convolutions by kernels of our own")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    tune_malloc()
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = o.cudnn_benchmark
    rows: list[dict[str, Any]] = []
    known = GPU if o.device == "cuda" else CPU
    for row in [r for r in known if r.name == o.only] or [r for r in known if r.name.startswith(o.only)]:
        try:
            rows += measure(row, o)
        except Exception as e:  # the others are measured all the same
            rows.append({"row": row.name, "error": f"{type(e).__name__}: {e}"[:300]})
            print(json.dumps(rows[-1]), flush=True)
    if o.name:
        write(o.name, "Clients in flight trained together, beside a bare PyTorch loop", rows)


if __name__ == "__main__":
    main()
