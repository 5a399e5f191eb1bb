"""Runs that are looked at on the way: every update that a server accepts, with the moment it comes at.

An update carries Θ^t (ticket.sent), what the client did from there (delta) and what came along (extras); the moment
has the global Θ^τ before the update changes it. Looking changes no result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from torch import Tensor

from ...config.spec import CROSSES
from ...core.events import Event
from ...core.method import Method, Now
from ...core.task import Examples
from ...core.tickets import Update
from ...record.result import Result
from ...runs.build import Plan
from ...runs.run import Progress, run_spec
from ...training.flat_model import FlatModel
from .study import Tell

__all__ = ["See", "loss_on", "model_of", "recorded", "some_of", "watched"]

See = Callable[[Update, Now], None]
_CHUNK = {"cpu": 1000, "cuda": 5000}  # examples that a model is asked about at once


def watched(method: Method, see: See) -> Method:
    """The same method; `see` is told of every update before anything is done with it."""
    before = method.dispatch.hear

    def hear(update: Update, state: Any, now: Now) -> Any:
        see(update, now)
        return state if before is None else before(update, state, now)

    return replace(method, dispatch=replace(method.dispatch, hear=hear))


def recorded(
    made: Plan,
    see: See | None = None,
    *,
    callbacks: Sequence[Callable[[Event], None]] = (),
    tell: Tell = lambda _: None,
    what: str = "",
) -> Result:
    """Run a plan, scored at its beginning and its end only; how far it is, is told in tenths."""
    method = made.method if see is None else watched(made.method, see)
    uncrossed: dict[str, Any] = dict.fromkeys(CROSSES)  # the method is crossed already
    spec = replace(made.spec, **uncrossed, method=method, task=made.task, eval_every=inf)
    told = 0

    def progress(p: Progress) -> None:
        nonlocal told
        if int(10 * p.fraction) > told:
            told = int(10 * p.fraction)
            tell(f"{what}: {10 * told} %")

    return run_spec(spec, callbacks=callbacks, progress=progress)


def model_of(made: Plan) -> FlatModel:
    """A model of the plan's own kind, to be asked about any weights."""
    return FlatModel(copy.deepcopy(made.module), made.layout, made.task, made.work.optimiser)


def loss_on(bound: FlatModel, examples: Examples) -> Callable[[Tensor], float]:
    """weights → mean loss."""
    chunk = _CHUNK.get(examples[0].device.type, 1000)
    return lambda weights: bound.evaluate(weights, examples, chunk=chunk)[1]


def some_of(examples: Examples, most: int | None) -> Examples:
    """All of them, or about so many, evenly thinned out: they may lie sorted."""
    x, y = examples
    stride = 1 if most is None else max(1, -(-len(x) // most))
    return x[::stride], y[::stride]
