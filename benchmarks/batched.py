"""Speed of clients trained together, relative to a bare PyTorch loop that trains them one after the other.

    python benchmarks/batched.py [--device cuda] [--only lenet5] [--lanes 1,4] [--size 0,1] [--compile]
                                 [--channels-last] [--own-conv] [--rounds 3]

The bare loop is plain PyTorch: a module, torch.optim.SGD, one client after the other, examples on the device. For
FedSOL, Fed-OGD and AsyncCurve it is the project's own loop (training.visit.train). Both make the same visits on the
same batches, in turns of at least a fifth of a second. A ratio is of client steps per second within a round; the median
over rounds is reported. `differs` is the distance of an update to the same update trained alone, after 3 steps.

`--size 0` stacks as many clients as memory allows. `--channels-last` stores convolutions in the order of tensor cores.
`--own-conv` uses our own kernels for convolutions (executors/batched/conv: Triton on a GPU, numba elsewhere). Products
on a GPU are in float32 for both, except in rows that say tf32 or bf16. The process keeps freed memory for both, as the
command line does (vector.process); otherwise the cost of new memory from the system would be measured.
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

_TURN = 0.2  # seconds; the shortest turn: an idle device takes a while to reach full speed


class Block(nn.Module):
    """A residual block: two 3×3 convolutions and a shortcut."""

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
    """ResNet18 for 32×32 images, with group normalization."""

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
    """ResNet18 with batch normalization."""
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
    """Train clients one after the other by plain SGD, each from the first state; return the number of steps."""
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
    """Train clients one by one with a rule other than plain SGD, in the project's own loop."""
    return sum(train(j, bound, rule=rule, work=work, seed=0).n_steps for j in jobs[:: max(1, len(jobs) // 4)])


def rate(turn: Callable[[], int], device: str) -> float:
    """Return client steps per second, repeated for a turn."""
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
    """Return the largest relative distance of an update to the same one trained alone: three clients, 3 steps.

    With more steps, training amplifies every rounding difference.
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
    """Return the rates of both by round. The first turn of each is not counted: torch imports modules in it."""
    one(), other()
    gc.collect()
    gc.freeze()  # garbage collection of one does not visit the objects of the other
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
            for _ in range(1 + 240 // row.steps if on_cpu else 1):  # until all programs are compiled
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
    parser.add_argument("--only", default="", help="rows whose names begin with this")
    parser.add_argument("--lanes", default="1", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--size", default="0", type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--name", default="", help="write benchmarks/results/NAME.json")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--own-conv", action="store_true", help="use our own kernels for convolutions")
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
        except Exception as e:  # the other rows are measured anyway
            rows.append({"row": row.name, "error": f"{type(e).__name__}: {e}"[:300]})
            print(json.dumps(rows[-1]), flush=True)
    if o.name:
        write(o.name, "Clients in flight trained together, beside a bare PyTorch loop", rows)


if __name__ == "__main__":
    main()
