"""Delays: how long a visit of a client takes. ClientPopulation: the clients of a run.

A delay is a pure function (client, visit) → seconds, where `visit` counts the jobs of that client from 0. It is keyed
by (seed, client, visit) and never by call order, so every method of a comparison meets the same durations.

    delays.build("normal", mean=60)      →  DelayFactory     checks the parameters, reads the files
    factory(ClientPopulation(...))       →  Delay            knows the clients
    delay(client, visit)                 →  seconds          or None: the client leaves for good
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.errors import BadInput
from ..core.registry import Registry
from ..core.rng import Stream, generator, key

__all__ = [
    "ClientPopulation",
    "Delay",
    "DelayFactory",
    "assign_profiles",
    "delays",
    "raise_problems",
    "range_errors",
]

#: seconds: the bounds of durations as parameters, narrow enough that no draw is 0 or infinite
SHORTEST, LONGEST = 1e-9, 1e15


@dataclass(frozen=True)
class ClientPopulation:
    """The clients of a run, as a delay sees them: their number, examples of each, size of the model, seed."""

    n_clients: int
    samples: Sequence[int]  # examples a client
    model_bytes: int
    seed: int
    epochs: float = 1.0  # passes over its data a visit

    def __post_init__(self) -> None:
        assert self.n_clients > 0, f"a fleet of {self.n_clients} clients"
        assert len(self.samples) == self.n_clients, f"{len(self.samples)} sample counts for {self.n_clients} clients"
        assert self.model_bytes > 0, f"a model of {self.model_bytes} bytes"
        assert self.epochs > 0, f"{self.epochs} epochs a visit"


class Delay(Protocol):
    """The duration of a client's visit: above 0 and finite, the same at every call.

    A delay may have `notices`: sentences about its data, which a run shows before it begins.
    """

    def __call__(self, client: int, visit: int, /) -> float | None:
        """Seconds from hand-out to arrival; None: the client leaves for good."""


DelayFactory = Callable[[ClientPopulation], Delay]
delays: Registry[DelayFactory] = Registry("delay", Callable)


def range_errors(low: float, high: float, /, **values: float) -> list[str]:
    """Return a problem for each parameter of a delay that is not a number from `low` to `high`."""
    return [
        f"--delay.{name} {value}: must be from {low:g} to {high:g}"
        for name, value in values.items()
        if not low <= value <= high
    ]


def raise_problems(problems: Sequence[str]) -> None:
    """Raise BadInput with all problems, if there are any."""
    if problems:
        raise BadInput(problems)


def assign_profiles(population: ClientPopulation, n: int) -> Sequence[int]:
    """Draw one of n measured profiles for each client: without replacement while there are enough, else with."""
    rng = generator(key(population.seed, Stream.FLEET, 0))
    if population.n_clients <= n:
        return array("q", rng.permutation(n)[: population.n_clients].tolist())
    return array("q", rng.integers(n, size=population.n_clients).tobytes())
