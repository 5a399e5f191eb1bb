"""Cost of an update on a Ray cluster, beside `inline`: clients that train 1 step, then 10.

    python benchmarks/ray_scale.py [--address HOST:PORT] [--workers 2] [--updates 500] [--hidden 32]

The first tenth of the updates is not counted: the workers start in it.
"""

from __future__ import annotations

import argparse
import time

import torch

from record import write
from tarry.config.spec import Spec
from tarry.executors.base import Executor
from tarry.executors.ray import Ray
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation


def measure(args: argparse.Namespace, steps: int, *, ray: bool) -> tuple[float, torch.Tensor]:
    """Return the milliseconds per update, and the final weights."""
    task = {"name": "digits", "hidden": args.hidden}
    settings = {"method": "fedasync", "task": task, "clients": 50, "updates": args.updates, "delay": "lognormal"}
    made = build_run(Spec.of({**settings, "steps": steps, "eval_every": 1e9}))
    executor: Executor = Simulation(made).executor()
    if ray:
        executor = Ray(
            made.module,
            made.layout,
            made.task,
            rule=made.method.local,
            work=made.work,
            seed=made.spec.seed,
            workers=args.workers,
            address=args.address,
        )
    moments: list[tuple[float, int]] = []
    try:
        sim = Simulation(made).simulator(executor, [])
        sim.run(on_instant=lambda: moments.append((time.perf_counter(), sim.engine.updates)))
    finally:
        executor.close()
    (began, first), (ended, last) = moments[len(moments) // 10], moments[-1]
    return 1e3 * (ended - began) / (last - first), sim.server.output_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--hidden", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for steps in (1, 10):
        here, weights = measure(args, steps, ray=False)
        there, same = measure(args, steps, ray=True)
        assert torch.equal(weights, same)
        print(f"{len(weights):,} weights, {steps} steps: {here:.2f} ms here, {there:.2f} ms on {args.workers} workers")
        rows.append({"weights": len(weights), "steps": steps, "ms here": here, f"ms on {args.workers} workers": there})
    write("ray", "An update of digits by one process, and on a Ray cluster of this machine: to the same bits", rows)


if __name__ == "__main__":
    main()
