"""Cost of a local step relative to plain SGD: the McMahan CNN on 1×28×28 images, batch 50, five epochs.

    python benchmarks/local_rules.py [--rounds 15] [--batches 2] [--epochs 5] [--only fedsol]

Visits of all rules run in the project's training loop, one after the other, round after round, so that other load on
the machine affects all rules alike. A ratio is of processor time within a round; the median over rounds is reported.
The bar is the highest ratio that a rule may have. FedSOL's divergence (kl) needs the received model's outputs on every
example once per visit: one forward pass in five epochs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

import tarry
from record import write
from tarry.core.layout import Layout
from tarry.core.optim import make_optimizer
from tarry.core.tickets import NOTHING, VisitJob
from tarry.tasks.models import McMahanCNN
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tarry.vector.process import tune_malloc

BATCH = 50


class Row(NamedTuple):
    """A method whose clients are timed, and the highest ratio they may have."""

    name: str
    method: str
    params: Mapping[str, Any] = NOTHING
    bar: float | None = None
    payload: Sequence[str] = ()  # the keys of the payload: directions over the trained weights


ROWS = [
    Row("plain SGD", "fedavg"),
    Row("fedprox", "fedprox"),
    Row("fedsol, head, kl", "fedsol", bar=1.4),
    Row("fedsol, head, l2", "fedsol", {"proximal": "l2"}, 1.4),
    Row("fedsol, body, kl", "fedsol", {"part": "body"}, 2.1),
    Row("fedsol, all, kl", "fedsol", {"part": "all"}, 2.1),
    Row("fedsol, all, l2", "fedsol", {"part": "all", "proximal": "l2"}, 2.1),
    Row("fedogd", "fedogd", payload=("base",)),
    Row("asynccurve", "asynccurve", payload=("shift",)),
    Row("asynccurve, asam", "asynccurve", {"optimizer": "asam"}, payload=("shift",)),
]


def bench(rows: Sequence[Row], rounds: int, *, batches: int, epochs: int) -> list[list[float]]:
    """Return the processor seconds of a visit of each rule, by round."""
    g = torch.Generator().manual_seed(0)
    n = BATCH * batches
    data = (torch.randn(n, 1, 28, 28, generator=g), torch.randint(0, 10, (n,), generator=g))
    torch.manual_seed(0)
    module = McMahanCNN()
    layout = Layout.of(module)
    task = tarry.Task("noise", model=module, loss=nn.functional.cross_entropy, clients=[data])
    work = LocalWork(make_optimizer("sgd", lr=0.01, momentum=0.9, weight_decay=1e-5), epochs=epochs, batch=BATCH)
    bound, start = FlatModel(module, layout, task, work.optimizer), layout.read(module, torch.float32)
    rules = [tarry.methods.build(row.method, **row.params).local for row in rows]
    payloads = [{name: torch.randn(layout.n_params, generator=g) for name in row.payload} for row in rows]
    seconds: list[list[float]] = []
    for visit in range(rounds + 1):  # the first round warms up
        seconds.append([])
        for rule, payload in zip(rules, payloads, strict=True):
            began = time.process_time()
            train(VisitJob(visit, 0, visit, start, payload), bound, rule=rule, work=work, seed=0)
            seconds[-1].append(time.process_time() - began)
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=2, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=5, help="epochs per visit; FedSOL's paper uses five")
    parser.add_argument("--only", default="", help="rules whose names contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    plain, *others = ROWS
    rows = [plain, *(row for row in others if options.only in row.name)]
    seconds = bench(rows, options.rounds, batches=options.batches, epochs=options.epochs)
    measured: list[dict[str, Any]] = []
    print(f"{'':24}{'ms a step':>10}{'× plain':>10}{'bar':>7}")
    for i, row in enumerate(rows):
        ms = 1000 * median(s[i] for s in seconds) / (options.batches * options.epochs)
        ratio = median(s[i] / s[0] for s in seconds)
        bar = "" if row.bar is None else f"{row.bar:7.1f}{'' if ratio <= row.bar else '  missed'}"
        print(f"{row.name:24}{ms:10.1f}{ratio:10.2f}{bar}")
        measured.append({"clients": row.name, "ms_a_step": ms, "of plain SGD": ratio, "at_most": row.bar})
    if not options.only:
        write("local-rules", "A local step, McMahan CNN, batch 50, in processor time of plain SGD's", measured)


if __name__ == "__main__":
    main()
