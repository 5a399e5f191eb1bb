"""Specs of a comparison: one for each method, combination of settings and seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..config.grid import MOST_RUNS, expand_grid, expand_methods
from ..config.spec import Spec
from ..core.errors import (
    BadInput,
)
from ..core.method import Method
from ..methods import methods as registered
from .simulation import build_simulation

__all__ = ["specs_of"]

_MOST_BUILT = 20  # points of a grid that are built before the first run, to find mistakes


def specs_of(
    methods: Sequence[Any], seeds: Iterable[int], settings: dict[str, Any], skipped: list[str] | None = None
) -> list[Spec]:
    """Return a spec for each run of the grid; one error names the problems of all of them.

    `all` among the methods stands for every registered method that fits the settings: `skipped` gets a line for each
    of the others.
    """
    methods = expand_methods(methods)
    seeds, named = list(seeds), [m for m in methods if m != "all"]
    wanted = [*named, *(n for n in registered if n not in named)] if len(named) < len(methods) else named
    if not wanted or not seeds:
        raise BadInput("a comparison needs at least one --method and one of --seeds")
    points = expand_grid(settings)
    if (size := len(points) * len(wanted) * len(seeds)) > MOST_RUNS:
        what = f"{len(wanted):,} methods × {len(points):,} combinations of settings × {len(seeds):,} seeds"
        raise BadInput(f"{what}: {size:,} runs, and a comparison has at most {MOST_RUNS:,}; name fewer")
    specs, rejected_methods = list[Spec](), list[tuple[Any, tuple[str, ...]]]()
    for method in wanted:
        try:
            made = [Spec.of({**point, "method": method, "seed": seed}) for point in points for seed in seeds]
            build_simulation(made[0])
            specs += made
        except BadInput as e:
            rejected_methods.append((method, e.problems))
    if rejected := [m for m in rejected_methods if not specs or m[0] in named]:
        raise BadInput(_merged_problems(rejected, len(wanted)))
    for spec in specs[len(seeds) : min(len(points), _MOST_BUILT) * len(seeds) : len(seeds)]:
        build_simulation(spec)  # the first method at the other points of the grid
    if skipped is not None:
        skipped += [f"{method} is left out: {' '.join(problems)}" for method, problems in rejected_methods]
    keys = [(s.label, s.seed) for s in specs]
    if twice := next((i for i, k in enumerate(keys) if k in keys[:i]), None):
        way_out = _how_to_rename(specs[twice]) if len(set(seeds)) == len(seeds) else "name every seed once"
        raise BadInput(f"--method {keys[twice][0]}: it is there twice with seed {keys[twice][1]}; {way_out}")
    return specs


def _how_to_rename(spec: Spec) -> str:
    """Return a text on how to give the method another name."""
    if isinstance(spec.method, Method):
        return (
            "give one another name, dataclasses.replace(method, name=...), or name its factory:"
            " 'FILE.py:FACTORY:PARAMETER=VALUE' is called by its parameters too"
        )
    if ".py:" in spec.method.name:
        return "leave one out, or call its factory otherwise"
    return "leave one out"


def _merged_problems(rejected_methods: list[tuple[Any, tuple[str, ...]]], wanted: int) -> list[str]:
    """Return every problem once, with the methods that have it unless the problem names them or all have it."""
    methods_by_problem: dict[str, list[str]] = {}
    for method, problems in rejected_methods:
        for problem in problems:
            methods_by_problem.setdefault(problem, []).append(str(getattr(method, "name", method)))
    clear = [
        p
        for p, names in methods_by_problem.items()
        if len(names) == wanted or all(f"--method {n}:" in p for n in names)
    ]
    return [p if p in clear else f"{p} (--method {', '.join(names)})" for p, names in methods_by_problem.items()]
