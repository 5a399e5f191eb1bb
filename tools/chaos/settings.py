"""Settings of the runs that chaos testing starts: small runs of every registered method, in about a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["EXECUTORS", "RunSetting", "draw_setting", "method_at"]

EXECUTORS = {
    "inline": ("--executor", "inline"),
    "pool": ("--workers", "2"),
    "batched": ("--executor", "batched"),
    "batched-2": ("--executor", "batched", "--workers", "2"),
    "auto": ("--executor", "auto"),
}
_EXACT = ("inline", "pool")  # train the same bits


@dataclass(frozen=True)
class RunSetting:
    """The flags of a run without --out, in two groups: what determines its numbers, and how it is carried out."""

    method: str
    flags: tuple[str, ...]
    executor: str
    writing: tuple[str, ...] = ()  # how often checkpoints are written

    @property
    def chooses(self) -> bool:
        """Return whether the executor chooses by measurement how to train, on which rounding depends."""
        return self.executor not in _EXACT

    def words(self) -> list[str]:
        """Return the arguments of `tarry run`."""
        return ["--method", self.method, *self.flags, *EXECUTORS[self.executor], *self.writing]

    def other_executor(self, rng: Random) -> list[str]:
        """Return arguments of `tarry resume` for an executor that trains the same bits; often none."""
        if self.chooses or rng.random() < 0.6:
            return []
        return rng.choice([["--executor", "inline", "--workers", "1"], ["--executor", "pool", "--workers", "2"]])


def method_at(number: int) -> str:
    """Return a registered method; consecutive numbers go through all of them."""
    import tarry

    names = sorted(tarry.methods)
    return names[number % len(names)]


def draw_setting(rng: Random, method: str, executors: Sequence[str] = tuple(EXECUTORS)) -> RunSetting:
    """Draw the settings of a run."""
    seed, updates = rng.randrange(1000), rng.randrange(80, 400)
    flags = f"--task digits --task.limit 300 --task.hidden 8 --updates {updates} --seed {seed} --batch 16".split()
    flags += ["--clients", str(rng.randint(4, 9)), "--epochs", str(rng.randint(1, 3)), "--eval-every", "100"]
    flags += rng.choice([[], ["--failure-rate", "0.1"]])
    flags += rng.choice([[], [], ["--concurrency", "3"]])
    flags += rng.choice([[], [], ["--diagnose"]])
    flags += rng.choice([[], ["--cache-limit", "0.0001"]])  # tables of clients are in files
    flags += rng.choice([[], ["--proofs", "0"], ["--proofs", "3"]])
    flags += ["--personalize", "1"] if rng.random() < 0.1 else []
    every = rng.choice(["1e-9", "0.02", "0.1", "100000"])  # 1e-9: after every instant
    return RunSetting(method, tuple(flags), rng.choice(executors), ("--checkpoint-every", every))
