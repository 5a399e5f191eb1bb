"""Every part of every method under every other method's server, and the short run such a cross is tried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

import tarry
from tarry.config.spec import Spec
from tarry.core.compose import PARTS
from tarry.core.method import Method
from tarry.core.parts import Part, Step
from tarry.runs.build import BuiltRun, build_run
from tarry.runs.simulation import Simulation
from tests.helpers.small_task import small_task
from tests.laws.variants import Row, row

#: what makes a method show all it does, and how it differs from others, within eleven arrivals
_HASTE: Mapping[str, dict[str, Any]] = {
    "asynccurve": {"lr": 0.1, "cycle": 3, "statistic": "progress"},
    "ca2fl": {"buffer": 3, "eta": 0.8},
    "dc-asgd": {"lam": 5.0},
    "fadas": {"buffer": 2, "eta": 0.05, "eps": 0.1},
    "fedavgm": {"eta": 0.7},
    "fedbuff": {"buffer": 3, "eta": 0.8},
    "fedecho": {"buffer": 3, "eta": 0.8},
    "gradma": {"eta": 0.8},
    "mifa": {"no_wait": True, "epoch": 1.0},
    "orthocorrect": {"alpha": 0.5},
    "orthodyn": {"statistic": "progress"},
    "scaffold": {"eta": 0.8},
}
NAMES = list(tarry.methods)


def choice(name: str) -> dict[str, Any]:
    """A registered method, in haste; `name:parameters` as it is."""
    return {"name": name, **_HASTE.get(name, {})} if ":" not in name else written(name)


def written(text: str) -> dict[str, Any]:
    name, _, params = text.partition(":")
    return {"name": name, **dict(p.split("=") for p in params.split(","))}


@cache
def built(name: str) -> Method:
    made = choice(name)
    return tarry.methods.build(made.pop("name"), **made)


def same_part(one: Any, other: Any) -> bool:
    """Whether two parts, made anew each time, are the same code over the same numbers, or say that they compute one."""
    if isinstance(one, Part) and isinstance(other, Part):
        if isinstance(one, Step) and isinstance(other, Step) and one.formula and same_part(one.formula, other.formula):
            return True
        return all(
            same_part(getattr(one, f, None), getattr(other, f, None))
            for f in ("apply", "init", "offer", "on_instant_end", "payload_keys")
        )
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ == other.__self__
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        closed = [[c.cell_contents for c in f.__closure__ or ()] for f in (one, other)]
        return one.__code__ is other.__code__ and all(map(same_part, *closed))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_part, one, other))
    return bool(one == other)


def alike_in(part: str, one: str, other: str) -> bool:
    """A distillation around a plain server is no part of it: the plain servers are compared."""
    ours, theirs = (built(name).inner or built(name) for name in (one, other))
    return all(same_part(getattr(ours, f), getattr(theirs, f)) for f in PARTS[part])


def kinds(part: str) -> list[str]:
    """One method for each kind of this part that there is."""
    found: list[str] = []
    for name in NAMES:
        if not any(alike_in(part, name, known) for known in found):
            found.append(name)
    return found


def servers() -> list[str]:
    """One method for each kind of server that there is: those that differ in their clients alone are one kind."""
    found: list[str] = []
    for name in NAMES:
        if not any(all(alike_in(p, name, known) for p in PARTS if p != "local") for known in found):
            found.append(name)
    return found


#: (server, part, other): the server with another method's part, where that is not what it has anyway
PAIRS = [
    (server, part, other)
    for part in PARTS
    for other in kinds(part)
    for server in servers()
    if not alike_in(part, server, other)
]


def _task() -> tarry.Task:
    inputs = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    return replace(small_task(), unlabeled=inputs, distill_lr=0.05)


#: six clients, four at a time: eleven arrivals, several at one instant, up to five server steps late; two rounds
SHORT: dict[str, Any] = {
    "task": _task(),
    "delay": [[1.0], [1.0, 2.0], [1.5], [0.5, 2.0], [1.5, 1.0], [2.5, 0.5, 0.5]],
    "concurrency": 4,
    "steps": 2,
    "batch": 2,
    "lr": 0.1,
    "time": 4.0,
    "eval_every": 2.0,
    "seed": 7,
}


@dataclass(frozen=True)
class Ran:
    """What a run came to."""

    events: list[tarry.Event]
    output_weights: Tensor

    @property
    def log(self) -> list[Row]:
        return [row(e) for e in self.events]

    @property
    def weights(self) -> Tensor:
        """After every event."""
        return torch.stack([e.weights for e in self.events])

    @property
    def schedule(self) -> list[Row]:
        """Who was handed work and came back when, and when the server stepped."""
        return [(e.kind, e.time, e.client, e.visit, e.stepped, e.version) for e in self.events]

    @property
    def fullest(self) -> int:
        """How many trained at once, at most."""
        out, most = 0, 0
        for e in self.events:
            out += (e.kind == "hand_out") - (e.kind in ("arrival", "lost", "rejected"))
            most = max(most, out)
        return most

    def same_as(self, other: Ran) -> bool:
        """To the bit."""
        return self.log == other.log and all(
            map(torch.equal, (self.weights, self.output_weights), (other.weights, other.output_weights))
        )


def planned(server: str, **crosses: Any) -> BuiltRun:
    """The plan of a cross on the short run; parts by name, settings as they are."""
    parts = {k: choice(v) if k in (*PARTS, "distill") else v for k, v in crosses.items()}
    return build_run(Spec.of({**SHORT, "method": choice(server), **parts}))


def ran(made: BuiltRun, *listeners: Callable[[tarry.Event], None]) -> Ran:
    seen: list[tarry.Event] = []

    def note(e: tarry.Event) -> None:
        seen.append(e)
        assert len(seen) < 1000, "it goes on and on"

    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, [note, *listeners])
    sim.run()
    executor.close()
    return Ran(seen, sim.server.output_weights)


@cache
def own(server: str) -> Ran:
    """The run of a method as it is."""
    return ran(planned(server))
