"""Every registered method at its defaults and its named variants, and a run that has everything in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import tarry
from tarry.config.spec import Spec
from tarry.core.method import Method
from tarry.core.parts import SEND_GLOBAL
from tarry.record.result import sha256
from tarry.runs.build import BuiltRun, build_run
from tarry.runs.simulation import Simulation

Choice = dict[str, Any]

_NAMED: list[Choice] = [
    {"name": "fedavg", "weighting": "uniform"},
    {"name": "fedasync", "staleness": "constant"},
    {"name": "fedasync", "staleness": "hinge", "a": 1.0, "b": 1.0},
    {"name": "fedasync", "mu": 0.5},
    {"name": "fedbuff", "buffer": 3},
    {"name": "orthofl", "projection": "full"},
    {"name": "orthofl", "projection": "none"},
    {"name": "orthofl", "placement": "client"},
    {"name": "orthofl", "placement": "hybrid"},
    {"name": "orthofl", "placement": "hybrid", "capable": "speed"},
    {"name": "orthofl", "ablation": "no-calibration"},
    {"name": "orthofl", "ablation": "no-average"},
    {"name": "orthofl", "ablation": "pairwise"},
    {"name": "orthofl", "state": "reference"},
    {"name": "fedogd", "projection": "always"},
    {"name": "fedogd", "projection": "basis", "stored": 2},
    {"name": "fedogd", "cache": False},
    {"name": "fedogd", "groups": "announced", "weighting": "clients"},
    {"name": "fedogd", "privacy": True},
    {"name": "fedsol", "part": "all"},
    {"name": "fedsol", "part": "all", "adaptive": False, "rho": 0.1},
    {"name": "fedsol", "proximal": "l2"},
    {"name": "fedsol", "strategy": "A4", "part": "body", "norm": "dim0", "rho": 0.1},
    {"name": "fedsol", "strategy": "projection"},
    {"name": "fedsol", "proximal": "ntd", "rho": 0.5},
    {"name": "fedsol", "proximal": "moon", "part": "all", "adaptive": False, "rho": 0.1},
    {"name": "fedecho", "buffer": 2, "lr": 0.01, "q": 3, "batch": 20},
    {"name": "fedecho", "buffer": 2, "lr": 0.01, "q": 3, "batch": 20, "moments": "keep"},
    {"name": "orthodyn", "statistic": "ratio", "switch": 0.1},
    {"name": "orthodyn", "statistic": "progress", "middle": 0.2},
    {"name": "asynccurve", "optimizer": "asam", "proximal": "l2", "swa": 0.2, "cycle": 2, "periodic": 4},
    {"name": "asynccurve", "optimizer": "sgd", "lr": 0.05, "curve": "line", "correction": "orthopos"},
    {"name": "asynccurve", "participation": "since-last", "beta1": 0.5},
    {"name": "ca2fl", "buffer": 3},
    {"name": "mifa", "no_wait": True},
    {"name": "mifa", "epoch": 1.5},
    {"name": "safa", "fraction": 0.3, "lag": 1},
    {"name": "safa", "fraction": 1.0, "limit": 2.0},
    {"name": "fedavgm", "nesterov": True, "eta": 0.5},
    {"name": "fadas", "buffer": 2, "delay": "scaled", "eta": 0.02},
    {"name": "gradma", "memory": 2, "projection": "layer"},
    {"name": "gradma", "side": "server", "beta2": 0.0},
    {"name": "gradma", "side": "worker"},
    {"name": "fednova", "mu": 0.5, "weighting": "uniform"},
    {"name": "perfedavg", "form": "hf", "alpha": 0.1, "weighting": "uniform"},
    {"name": "scaffold", "option": "I", "weighting": "examples", "eta": 0.7},
    {"name": "feddyn", "alpha": 0.5},
    {"name": "fedac", "buffer": 2, "adaptive": False, "eta": 0.7},
    {"name": "fedac", "buffer": 3, "correction": False, "eta": 0.01},
    {"name": "twafl", "a": 1.0},
    {"name": "hfl", "lam": 1.0, "h": 3.0, "epoch": 1.5},
    {"name": "tifl", "tiers": 2, "interval": 2, "credits": 3},
    {"name": "tifl", "tiers": 3, "policy": "fast2"},
    {"name": "flanp", "n0": 3, "c": 100.0},
]

VARIANTS: list[Choice] = [{"name": name} for name in tarry.methods] + _NAMED


def label(choice: Choice) -> str:
    return "-".join([choice["name"], *(f"{k}={v}" for k, v in choice.items() if k != "name")])


every_method = pytest.mark.parametrize("choice", VARIANTS, ids=label)


def built(choice: Choice) -> Method:
    return tarry.methods.build(choice["name"], **{k: v for k, v in choice.items() if k != "name"})


def has_starts_of_its_own(choice: Choice) -> bool:
    """Whether the method replies to a client with a start made when its update came; local-only offers it later."""
    return choice["name"] != "local-only" and built(choice).reply is not SEND_GLOBAL


#: six clients, four at a time, several arriving at one instant; some visits fail; two clients come and go
EVERYTHING: dict[str, Any] = {
    "task": {"name": "digits", "hidden": 8, "limit": 300},
    "clients": 6,
    "concurrency": 4,
    "delay": [[1.0], [1.0, 2.0], [2.0], [0.5, 3.0], [1.5, 1.0], [4.0, 0.5, 0.5]],
    "failure_rate": 0.15,
    "availability": {"1": [[0.0, 7.25]], "4": [[3.0, 11.0], [13.0, 16.0]]},
    "steps": 2,
    "batch": 8,
    "lr": 0.05,
    "time": 20.0,
    "eval_every": 3.0,
    "seed": 5,
}

Row = tuple[Any, ...]


def row(e: tarry.Event) -> Row:
    """An event without its weights."""
    return tuple(value for field, value in e._asdict().items() if field != "weights")


def simulate(made: BuiltRun, *listeners: Callable[[tarry.Event], None]) -> Any:
    """Run a plan to its end; the simulator, to look into."""
    executor = Simulation(made).executor()
    sim = Simulation(made).simulator(executor, list(listeners))
    sim.run()
    executor.close()
    return sim


def planned(choice: Choice | Method, **settings: Any) -> BuiltRun:
    return build_run(Spec.of({"method": choice, **settings}))


@cache
def _everything(key: str) -> tuple[list[Row], str]:
    seen: list[Row] = []
    sim = simulate(planned(json.loads(key), **EVERYTHING), lambda e: seen.append(row(e)))
    return seen, sha256(sim.server.output_weights)


def everything(choice: Choice) -> tuple[list[dict[str, Any]], str]:
    """The log and the final weights' fingerprint of the run that has everything in it."""
    rows, digest = _everything(json.dumps(choice))
    names = [name for name in tarry.Event._fields if name != "weights"]
    return [dict(zip(names, r, strict=True)) for r in rows], digest
