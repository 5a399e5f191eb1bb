"""Runs with an observer: it sees every update that the server accepts, and the server at that moment.

An update carries Θ^t (ticket.sent), what the client did from there (delta) and what came along (extras); the
view has the global Θ^τ before the update changes it. The observer changes no result.
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
from ...core.method import Method, ServerView
from ...core.task import Examples
from ...core.tickets import Update
from ...record.result import Result
from ...runs.build import BuiltRun
from ...runs.run import Progress, run_spec
from ...training.flat_model import FlatModel
from .study import Tell

__all__ = ["See", "loss_on", "model_of", "run_observed", "some_of", "with_observer"]

See = Callable[[Update, ServerView], None]
_CHUNK = {"cpu": 1000, "cuda": 5000}  # examples in a batch of an evaluation


def with_observer(method: Method, see: See) -> Method:
    """Return the method with an observer: `see` is called with every update before it is processed."""
    before = method.dispatch.observe

    def observe(update: Update, state: Any, view: ServerView) -> Any:
        see(update, view)
        return state if before is None else before(update, state, view)

    return replace(method, dispatch=replace(method.dispatch, observe=observe))


def run_observed(
    made: BuiltRun,
    see: See | None = None,
    *,
    callbacks: Sequence[Callable[[Event], None]] = (),
    tell: Tell = lambda _: None,
    what: str = "",
) -> Result:
    """Run a plan, evaluated only at its beginning and end; every tenth of the progress is reported."""
    method = made.method if see is None else with_observer(made.method, see)
    without_crosses: dict[str, Any] = dict.fromkeys(CROSSES)  # the method is already a cross
    spec = replace(made.spec, **without_crosses, method=method, task=made.task, eval_every=inf)
    reported = 0

    def progress(p: Progress) -> None:
        nonlocal reported
        if int(10 * p.fraction) > reported:
            reported = int(10 * p.fraction)
            tell(f"{what}: {10 * reported} %")

    return run_spec(spec, callbacks=callbacks, progress=progress)


def model_of(made: BuiltRun) -> FlatModel:
    """Return a model like that of the plan, to evaluate any weights."""
    return FlatModel(copy.deepcopy(made.module), made.layout, made.task, made.work.optimizer)


def loss_on(bound: FlatModel, examples: Examples) -> Callable[[Tensor], float]:
    """Return a function from weights to the mean loss."""
    chunk = _CHUNK.get(examples[0].device.type, 1000)
    return lambda weights: bound.evaluate(weights, examples, chunk=chunk)["loss"]


def some_of(examples: Examples, most: int | None) -> Examples:
    """Return all examples, or about `most` at even distances, as they may be sorted."""
    x, y = examples
    stride = 1 if most is None else max(1, -(-len(x) // most))
    return x[::stride], y[::stride]
