"""Duration of an arrival at the server, in plain copies of the bytes that it must move.

    python benchmarks/server.py [--threads 1 2] [--rounds 15] [--only orthofl fedbuff]

The model is like VGG11: 9.2 million weights in 34 tensors of 10 to 2.36 million. Clients in flight return one after the
other; the staleness of each is the number of the others. The time covers `receive` (correct, aggregate, step, reply)
and the hand-out after it, with allocations, over whole buffers if the method has one.

The bytes that an arrival must move are counted in model vectors. `once` counts each input and output vector one time.
`again` counts the vectors that must be read a second time, because a dot product over a whole layer (or over all
layers) must be known before the first number of the result. The unit is a copy of as many bytes, half read and half
written, between existing tensors. It is timed shortly before and after, in the same process, and the ratio is a median.
The stricter ratio counts no second reading. There is a pause between the two: torch's threads keep their cores busy for
a while after their work, and the server's threads would have to share the cores with them.

Torch has one thread on the server, as in every run. Our own loops (vector.fused) have as many threads as the copies.

As on the command line, the process asks the C library to keep freed memory (vector.process), unless `--plain` is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from record import write
from tarry.core.layout import Block, Kind, Layout
from tarry.core.server import Server
from tarry.core.tickets import LocalResult
from tarry.methods import methods
from tarry.parts.manifold import CONTROL
from tarry.vector import fused
from tarry.vector.fused import kernels_for
from tarry.vector.process import tune_malloc

IN_FLIGHT, BUFFER, DELTAS = 5, 4, 7
REST = 0.01  # seconds
WARM = 3 * BUFFER  # arrivals before timing starts: all clients are stale by then, and each has a row
WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)  # of VGG11's convolutions


@dataclass(frozen=True)
class Case:
    """A method, and the model vectors that a cycle of arrivals must move. A vector of doubles counts as two."""

    name: str
    parameters: dict[str, Any]
    arrivals: int  # in a cycle
    reads: int
    writes: int
    again: int  # read a second time
    at_most: float | None = None  # copies


CASES = (
    # delta, sent, W, anchor → W', the client's start; Eq. 6's products need all of a layer: delta, W, anchor again
    Case("orthofl", {}, 1, 4, 2, 3, at_most=1.5),
    # first: delta → sum; then: delta, sum → sum; last: delta, sum, W → W'
    Case("fedbuff", {"buffer": BUFFER}, BUFFER, 1 + 2 * (BUFFER - 2) + 3, BUFFER, 0),
    # each: delta, the client's row, sum (double) → sum (double); last also: sum of the last step (double), W → W'
    Case("ca2fl", {"buffer": BUFFER}, BUFFER, 4 * BUFFER + 3, 2 * BUFFER + 1, 0),
    # as fedbuff; last: delta, sum, m, v, v̂, W → m, v, v̂, W'
    Case("fadas", {"buffer": BUFFER}, BUFFER, 1 + 2 * (BUFFER - 2) + 6, BUFFER - 1 + 4, 0),
    # delta, sent, W → W'; the products of displacement and drift need all of them: again
    Case("orthocorrect", {}, 1, 3, 1, 3),
    # delta, sent, W, control point → W', the shift that is sent; products for correction and rotation: again
    Case("asynccurve", {"correction": "orthostrict"}, 1, 4, 2, 4),
)


def vgg11() -> Layout:
    """Convolutions with biases, a scale and an offset after each, and the head."""
    shapes: list[tuple[int, ...]] = []
    for into, out in zip((3, *WIDTHS), WIDTHS, strict=False):
        shapes += [(out, into, 3, 3), (out,), (out,), (out,)]
    shapes += [(10, 512), (10,)]
    blocks, start = [], 0
    for i, shape in enumerate(shapes):
        size = torch.Size(shape).numel()
        blocks.append(Block(f"t{i}", start, start + size, shape, Kind.PARAM))
        start += size
    return Layout(tuple(blocks))


class Bench:
    """A server with clients in flight, which return one at a time."""

    def __init__(self, case: Case, layout: Layout, weights: Tensor, deltas: list[Tensor], extra: Tensor):
        self.case = case
        n = 2 * IN_FLIGHT
        self._server = Server(methods.build(case.name, **case.parameters), weights, layout=layout, n_clients=n, seed=0)
        self._out = [self._server.hand_out(c, 0.0).number for c in range(IN_FLIGHT)]
        self._deltas, self._came = deltas, 0
        self._extras = {CONTROL: extra} if case.name == "asynccurve" else {}
        for _ in range(WARM):
            self._arrival()

    def _arrival(self) -> None:
        delta = self._deltas[self._came % len(self._deltas)]
        self._came += 1
        receipt = self._server.receive(self._out.pop(0), LocalResult(delta, 1, 1, 0.0, extras=self._extras), self._came)
        self._out.append(self._server.hand_out(receipt.ticket.client, self._came).number)

    def cycle(self) -> None:
        for _ in range(self.case.arrivals):
            self._arrival()


def seconds(work: Callable[[], None], threads: int) -> float:
    """Run with this number of torch threads."""
    torch.set_num_threads(threads)
    time.sleep(REST)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def copies(vectors: float, source: Tensor, target: Tensor) -> Callable[[], None]:
    """Time a copy of the bytes of some vectors, half of them read."""
    whole, rest = divmod(vectors / 2, 1)
    part = slice(0, int(rest * len(source)))

    def work() -> None:
        for _ in range(int(whole)):
            target.copy_(source)
        if rest:
            target[part].copy_(source[part])

    return work


def measure(cases: list[Case], threads: int, rounds: int) -> list[dict[str, Any]]:
    fused.THREADS = threads
    layout, g = vgg11(), torch.Generator().manual_seed(0)
    vectors = [torch.randn(layout.size, generator=g).mul_(0.01) for _ in range(DELTAS + 4)]
    weights, control, source, target, *deltas = vectors
    benches = [Bench(case, layout, weights, deltas, control) for case in cases]
    ratios: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for bench in benches:
            case = bench.case
            unit = copies(case.reads + case.writes + case.again, source, target)
            before, spent, after = seconds(unit, threads), seconds(bench.cycle, 1), seconds(unit, threads)
            ratios[case.name].append((spent, 2 * spent / (before + after)))
    return [_row(case, threads, ratios[case.name]) for case in cases]


def _row(case: Case, threads: int, seen: list[tuple[float, float]]) -> dict[str, Any]:
    moved, ratio = case.reads + case.writes, median(r for _, r in seen)
    return {
        "method": case.name,
        "threads": threads,
        "vectors_once": moved / case.arrivals,
        "vectors_again": case.again / case.arrivals,
        "milliseconds": round(1e3 * median(s for s, _ in seen) / case.arrivals, 2),
        "copies": round(ratio, 3),
        "at_most": case.at_most,
        "copies_quartiles": [round(q, 3) for q in quantiles((r for _, r in seen), n=4)[::2]],
        "copies_strict": round(ratio * (moved + case.again) / moved, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--plain", action="store_true", help="keep the C library's default memory settings")
    parser.add_argument("--name", default="server", help="write benchmarks/results/NAME.json")
    options = parser.parse_args()
    if not options.plain:
        tune_malloc()
    cases, rows = [case for case in CASES if case.name in options.only], []
    print("method        threads   vectors  again   ms/arrival  copies  (quartiles)       strict")
    for threads in options.threads:
        for row in measure(cases, threads, options.rounds):
            rows.append(row)
            low, high = row["copies_quartiles"]
            print(
                f"{row['method']:14}{threads:7}{row['vectors_once']:10.2f}{row['vectors_again']:7.2f}"
                f"{row['milliseconds']:13.1f}{row['copies']:8.2f}  ({low:.2f} to {high:.2f})"
                f"{row['copies_strict']:10.2f}"
            )
    conditions = "" if options.plain else ", the C library keeping freed memory"
    conditions += "" if kernels_for(torch.empty(9_200_000)) else ", without numba (TARRY_NUMBA=0)"
    write(
        options.name, f"An arrival at the server, 9.2M weights, in copies of the bytes it must move{conditions}", rows
    )


if __name__ == "__main__":
    main()
