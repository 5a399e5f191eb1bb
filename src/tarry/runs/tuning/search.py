"""Searches: the points of a space that a study tries. A point is a function of a key, the trial's number and the
results of earlier trials, so a study that was interrupted tries the same points again.

    random    the first trial has the defaults, the others are drawn; another number of trials changes no point
    grid      evenly spread levels: the smallest grid with at least as many points as trials, of which so many are drawn
    optuna    TPE (Bergstra et al. 2011) of Optuna: the results of trials 0 … k−1 decide on trial k

A space with fewer points than trials is tried completely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Literal

from ...core.errors import BadInput
from ...core.optional_import import optional_import
from ...core.rng import Stream, extend, key, permutation, uniform
from ...core.search_space import OneOf
from .space import Space

__all__ = ["TrialPoint", "Search", "is_known_before", "next_point", "points"]

Search = Literal["random", "grid", "optuna"]
#: a value for each dimension
TrialPoint = dict[str, Any]

_ATTEMPTS = 100  # draws of a point that was not tried before
_STARTUP = 5  # trials of Optuna before it models the results


def is_known_before(search: Search) -> bool:
    """Return whether the points do not depend on results."""
    return search != "optuna"


def points(search: Search, space: Space, trials: int, study_key: int, defaults: Mapping[str, Any]) -> list[TrialPoint]:
    """Return the points of a search that does not depend on results."""
    if (size := _size(space)) is not None and size <= trials:
        return _grid({name: d.levels(size) for name, d in space.items()})
    if search == "grid":
        return _grid_sample(space, trials, study_key)
    out: list[TrialPoint] = []
    for number in range(trials):
        out.append(_draw(space, extend(study_key, number), out, defaults if number == 0 else {}))
    return out


def _size(space: Space) -> int | None:
    """Return the number of points; None if there are too many to count."""
    sizes = [d.size for d in space.values()]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _draw(space: Space, trial_key: int, tried: Sequence[TrialPoint], fixed: Mapping[str, Any]) -> TrialPoint:
    """Return a point that was not tried; `fixed` has values that are not drawn."""
    point: TrialPoint = {}
    for attempt in range(_ATTEMPTS):
        drawn = extend(trial_key, attempt)
        point = {name: fixed.get(name, d.at(uniform(extend(drawn, i)))) for i, (name, d) in enumerate(space.items())}
        if point not in tried:
            break
    return point


def _grid(levels: Mapping[str, Sequence[Any]]) -> list[TrialPoint]:
    return [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]


def _grid_sample(space: Space, trials: int, study_key: int) -> list[TrialPoint]:
    """Return points of the smallest grid that has enough, with more levels of the first dimension."""
    number = {name: 2 if isinstance(d.size, int) or i else 3 for i, (name, d) in enumerate(space.items())}
    levels = {name: d.levels(number[name]) for name, d in space.items()}
    while prod(map(len, levels.values())) < trials:
        growing = [n for n, d in space.items() if not isinstance(d, OneOf) and len(levels[n]) != d.size]
        name = min(growing, key=lambda n: number[n])
        number[name] += 1
        levels[name] = space[name].levels(number[name])
    grid = _grid(levels)
    drawn = sorted(permutation(key(study_key, Stream.DISPATCH), len(grid))[:trials].tolist())
    return [grid[i] for i in drawn]


def next_point(
    space: Space, tried: Sequence[tuple[TrialPoint, float | None]], study_key: int, defaults: Mapping[str, Any]
) -> TrialPoint:
    """Return the point that Optuna suggests after these trials and their scores; None: it failed."""
    with optional_import("optuna", extra="tune"):
        import optuna
    if not tried:
        return _draw(space, extend(study_key, 0), [], defaults)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        seed = extend(study_key, len(tried)) >> 32
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        distributions = {name: _distribution(d) for name, d in space.items()}
        known = [score for _, score in tried if score is not None]
        for point, score in tried:
            value = score if score is not None else min(known, default=0.0)  # as bad as the worst
            study.add_trial(optuna.trial.create_trial(params=point, distributions=distributions, value=value))
        suggested = study.ask(distributions).params
    finally:
        optuna.logging.set_verbosity(verbosity)
    return {n: suggested[n] if isinstance(d, OneOf) else d.rounded(suggested[n]) for n, d in space.items()}


def _distribution(dimension: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, OneOf):
        if any(not isinstance(v, str | int | float | bool | None) for v in dimension.values):
            raise BadInput(f"--space {dimension}: Optuna takes numbers, texts and switches")
        return CategoricalDistribution(dimension.values)
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
