"""Personalization (--personalize EPOCHS): every client fine-tunes the final weights and is scored on its own classes.

    begin    the final weights; a client's own model where the method's clients have one (Method.personal)
    tune     EPOCHS epochs over the client's own examples: plain training with the run's optimizer, batch and last rate,
             unless the method has another rule for it
    score    a_k = Σ_c (n_kc / n_k) a_c           n_kc of client k's n_k examples are of class c
             a_c: the score on all test examples of class c

a_k is what a test set drawn with the client's own mix of classes gives on average: all test examples of its classes
count, and there is no draw. Classes that the test set lacks are left out of the mix; a client with no other has no
score. Where targets are not classes, every client is scored on the whole test set. The score is the first metric of
the task; one that is not a mean over examples, such as F1, has no values by class, and accuracy takes its place.
`before` is the score of the final weights, `after` that of the fine-tuned ones. Fine-tuning that is not finite is
rejected: the client keeps its start.
Means and standard deviations are over all clients that have a score, each counting alike (FedSOL, Table 9).

The orders and draws of a tuning are those of visit −1, a function of the seed and the client alone: the same for all
methods, and of no visit of the run. One model is held at a time, however many clients there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.method import Personalization
from ..core.metric import ACCURACY, LOSS, Metric
from ..core.schedule import ScheduleInput
from ..core.server import Server
from ..core.task import Examples, Task, has_classes
from ..core.tickets import VisitJob
from ..metrics import Scoring, accuracy, is_mean_over_examples
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from .task_metrics import metrics_in

__all__ = ["OnClientDone", "PerClassTest", "check", "class_shares", "client_metric", "personalize"]

_CHUNK = 1000  # test examples in one batch
_VISIT = -1  # the run's visits count from 0
_ALL = 0  # the one class of a task without classes

Answers = Callable[[Tensor], Tensor]
OnClientDone = Callable[[int], None]  # called with the number of clients that are done


def class_shares(task: Task, client: int, n_classes: int) -> npt.NDArray[np.float64]:
    """The shares of the first `n_classes` classes among a client's own examples."""
    own = task.clients[client][1].cpu().long().numpy()
    shares: npt.NDArray[np.float64] = np.bincount(own, minlength=n_classes)[:n_classes] / len(own)
    return shares


def client_metric(task: Task) -> Metric | None:
    """Return the metric that clients are scored by: the task's own, or accuracy where that has no values by class.

    None if the task is scored by its loss.
    """
    first = metrics_in(task)[0]
    if first.name == LOSS.name or task.test is None:
        return None
    return first if not has_classes(task.test) or is_mean_over_examples(first) else accuracy()


class PerClassTest:
    """The test set split by class, and the weight of each class for a client."""

    def __init__(self, task: Task):
        assert task.test is not None
        metric = client_metric(task)
        assert metric is not None
        (x, y), self._task, self.metric = task.test, task, metric
        self._classes = has_classes(task.test)
        self._parts = {c: (x[y == c], y[y == c]) for c in sorted(set(y.tolist()))} if self._classes else {_ALL: (x, y)}

    def mix(self, client: int) -> dict[int, float]:
        """The weights of the classes, which sum to 1; empty if the test set has none of the client's classes."""
        if not self._classes:
            return {_ALL: 1.0}
        shares = class_shares(self._task, client, max(self._parts) + 1).tolist()
        total = sum(shares[c] for c in self._parts)
        return {c: shares[c] / total for c in self._parts if shares[c] > 0}

    def by_class(self, answers: Answers) -> dict[int, float]:
        """The score on each class."""
        return {c: self._score(answers, c) for c in self._parts}

    def score(self, answers: Answers, mix: Mapping[int, float]) -> float | None:
        """The score of a client with that mix of classes; None if the mix is empty."""
        return sum(share * self._score(answers, c) for c, share in mix.items()) if mix else None

    @torch.no_grad()
    def _score(self, answers: Answers, c: int) -> float:
        x, y = self._parts[c]
        scoring = Scoring([self.metric])
        for part, targets in zip(torch.split(x, _CHUNK), torch.split(y, _CHUNK), strict=True):
            scoring.update(answers(part), targets)
        return scoring.values()[self.metric.name]


def check(epochs: int, how: Personalization, bound: FlatModel, first: Tensor) -> None:
    """Raise BadInput if clients cannot be scored; the method's `predict` is tried on one example."""
    task = bound.task
    if client_metric(task) is None:
        missing = "has no test set" if task.test is None else "is scored by its loss alone"
        raise BadInput(f"--personalize {epochs}: task {task.name!r} {missing}; leave out --personalize")
    how.tune.check(bound.layout, bound.optimizer)
    if how.predict is not None:
        x, y = task.clients[0]
        with torch.no_grad():
            how.predict(first, (x[:2], y[:2]), bound)(x[:1])


def personalize(
    server: Server,
    bound: FlatModel,
    answer: Tensor,
    *,
    work: LocalWork,
    epochs: int,
    seed: int,
    on_progress: OnClientDone,
    time: float = 0.0,
) -> dict[str, Any]:
    """Return every client's own accuracy before and after fine-tuning `answer`; the run itself does not change.

    The learning rate is that of a visit that would begin now, at the end of the run.
    """
    how, task = server.method.personalization, bound.task
    test = PerClassTest(task)
    known = test.by_class(lambda x: bound.outputs(answer, x))
    begins = _own_models(server) if how.own else lambda _: answer
    tuning = replace(work, epochs=epochs, steps=None) if epochs else None
    before: list[float | None] = []
    after: list[float | None] = []
    rejected = 0
    for client in range(len(task.clients)):
        mix, w = test.mix(client), begins(client)
        before.append(sum(share * known[c] for c, share in mix.items()) if mix else None)
        if tuning is not None:
            now = ScheduleInput(server.version, server.visits[client], time)
            job = VisitJob(-1, client, _VISIT, w)
            trained = train(job, bound, rule=how.tune, work=_at_rate(tuning, now), seed=seed)
            w, rejected = (w + trained.delta, rejected) if trained.finite else (w, rejected + 1)
        same = w is answer and how.predict is None
        after.append(before[-1] if same else test.score(_answers(how, w, task.clients[client], bound), mix))
        on_progress(client + 1)
    scored = sum(a is not None for a in after)
    found = {"before": _over_clients(before), "after": _over_clients(after)}
    other = {} if test.metric == ACCURACY else {"metric": test.metric.name}
    return {"epochs": epochs, "clients": scored, "rejected": rejected, **found, **other}


def _at_rate(work: LocalWork, now: ScheduleInput) -> LocalWork:
    """Return the work at the learning rate of a visit that would begin now."""
    if (optimizer_at := work.optimizer_at) is None:
        return work
    return replace(work, optimizer_at=lambda _: optimizer_at(now))


def _own_models(server: Server) -> Callable[[int], Tensor]:
    """The weights that the client's current visit began with, or that its next visit begins with."""
    out = {t.client: t.sent for t in server.tickets.values()}
    return lambda client: out[client] if client in out else server.next_start(client)


def _answers(how: Personalization, w: Tensor, own: Examples, bound: FlatModel) -> Answers:
    if how.predict is None:
        return lambda x: bound.outputs(w, x)
    with torch.no_grad():
        return how.predict(w, own, bound)


def _over_clients(values: list[float | None]) -> dict[str, Any]:
    there = [v for v in values if v is not None]
    spread = {"mean": fmean(there), "sd": pstdev(there)} if there else {"mean": None, "sd": None}
    return {**spread, "per_client": values}
