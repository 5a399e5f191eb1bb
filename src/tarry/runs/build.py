"""BuiltRun: from a spec to the objects it names. Every problem is found here, before anything is written or trained.

A simulation and a deployment both begin with a BuiltRun, so nothing here imports a simulator or an executor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..config.components import CROSSES, REGISTRIES, Choice, errors_under_flag
from ..config.number_errors import errors_of_extreme_numbers
from ..config.spec import Spec
from ..core.client_table import SpillPolicy
from ..core.compose import PARTS, compose
from ..core.errors import BadInput
from ..core.layout import Layout
from ..core.method import Method, Personalization, RunLimits
from ..core.metric import ACCURACY, LOSS, Metric, Scores
from ..core.schedule import RateSchedule
from ..core.server import Server
from ..core.shards import client_sizes
from ..core.task import Task
from ..delays.availability import Availability
from ..delays.base import ClientPopulation, Delay
from ..engine.budget import Budget
from ..engine.early_stopping import EarlyStopping
from ..engine.gate import Gate, GateSettings
from ..engine.model_monitor import ModelMonitor
from ..tasks.data.sets import collect_notices
from ..training.determinism import generator_held
from ..training.flat_model import FlatModel, build_module
from ..training.lent_weights import LentWeights
from ..training.server_model import FlatServerModel
from ..training.visit import LocalWork
from .build_task import (
    add_unlabeled,
    build_task,
    check_model_and_loss,
    dtype_of,
    limit_of,
)
from .client_statistics import client_metrics, with_client_scores
from .learning_rates import client_schedule, optimizer_by, with_server_schedule
from .personalize import check as check_personalisation
from .task_metrics import check_metrics, metrics_in, with_metrics

__all__ = ["BuiltRun", "build_run"]

_MONITORED_INPUTS = 1000  # unlabeled ones, on which the model's outputs are monitored
_OPTIMIZER = ("optimizer", "lr", "lr_decay", "lr_schedule", "momentum", "weight_decay", "clip_norm", "clip_value")


@dataclass(frozen=True)
class BuiltRun:
    """A run that can begin: everything built and checked, nothing started."""

    spec: Spec
    method: Method
    task: Task
    module: nn.Module
    layout: Layout
    work: LocalWork
    delay: Delay
    availability: Availability | None
    budget: Budget
    eval_every: float
    notices: tuple[str, ...] = ()
    schedule: RateSchedule | None = None  # of the clients' learning rate

    def server(self, cache: Path | None = None, *, n_clients: int | None = None) -> Server:
        """The server of the method with the first weights: a simulator and a deployment both drive it."""
        s = self.spec
        schedule = None if self.method.local.own_optimizer else self.schedule
        return Server(
            self.method,
            self.first_weights(),
            layout=self.layout,
            n_clients=n_clients or len(self.task.clients),
            seed=s.seed,
            limits=RunLimits(self.budget.time, self.budget.updates, self.budget.rounds, schedule),
            model=FlatServerModel(self.bound()) if self.method.needs_unlabeled else None,
            diagnose=s.diagnose,
            spill=self.room(cache),
        )

    def gate(self) -> Gate | None:
        """The gate before the method, for a server that begins with the first weights; None without --gate."""
        s = self.spec
        if not s.gate:
            return None
        settings = GateSettings(s.norm_multiple, s.norm_bound, s.max_examples, s.quarantine)
        return Gate(settings, self.first_weights(), s.clients or len(self.task.clients))

    def monitor(self) -> ModelMonitor | None:
        """The monitor of the global model's loss; None without --gate."""
        s = self.spec
        return ModelMonitor(s.loss_multiple) if s.gate and s.loss_multiple else None

    def health_measure(self) -> Callable[[Tensor], float] | None:
        """Return what the monitor judges without a test set: the size of the model's outputs on unlabeled inputs.

        Without these it is the size of the weights. None without a monitor, or with a test set.
        """
        if self.monitor() is None or self.task.during_run.test is not None:
            return None
        inputs = self.task.unlabeled
        if inputs is None or not len(inputs):
            return root_mean_square
        model, some = FlatServerModel(self.bound()), inputs[:_MONITORED_INPUTS]
        return lambda weights: root_mean_square(model.outputs(weights, some))

    def room(self, cache: Path | None) -> SpillPolicy:
        """The memory limit of --cache-limit; what exceeds it goes to files in the folder `cache`."""
        return SpillPolicy(self.spec.cache_limit * 1e6, cache)

    def first_weights(self) -> Tensor:
        """The weights of the module before any training."""
        return self.layout.read(self.module, next(self.module.parameters()).dtype)

    def bound(self) -> FlatModel:
        """A copy of the model whose tensors are views of one flat vector."""
        bf16 = self.spec.precision == "bf16"
        return FlatModel(copy.deepcopy(self.module), self.layout, self.task, self.work.optimizer, bf16=bf16)

    def accuracy_model(self) -> FlatModel:
        """A copy of the model that evaluates accuracy alone, or the loss alone where accuracy is not measured."""
        metrics = [m for m in metrics_in(self.task) if m.name == ACCURACY.name]
        return replace(self, task=replace(self.task, metrics=metrics or (LOSS,))).bound()

    def take_bound(self) -> FlatModel:
        """The model itself over one flat vector. It is not copied, and so nothing can be built from it any more."""
        bf16 = self.spec.precision == "bf16"
        return FlatModel(self.module, self.layout, self.task, self.work.optimizer, bf16=bf16)

    def take_evaluator(self) -> Callable[[Tensor], Scores] | None:
        """The same as `evaluator`, with the model itself, which holds no weights between two evaluations."""
        task = self._scored(self.task.during_run)
        if task.test is None:
            return None
        return partial(LentWeights(self.module, self.layout, task, self.work.optimizer).evaluate, examples=task.test)

    def evaluator(self) -> Callable[[Tensor], Scores] | None:
        """The metrics on the validation set, or else on the test set; None where the task has neither."""
        task = self._scored(self.task.during_run)
        if task.test is None:
            return None
        bound = replace(self, task=task).bound()
        return partial(bound.evaluate, examples=task.test)

    def test_scores(self, weights: Tensor, *, lent: bool = False) -> Scores | None:
        """Return the metrics of final weights on the test set, where there is a validation set as well, else None.

        `lent`: the model's own tensors were taken by `take_evaluator`.
        """
        task = self._scored(self.task)
        if task.validation is None or task.test is None:
            return None
        if lent:
            return LentWeights(self.module, self.layout, task, self.work.optimizer).evaluate(weights, task.test)
        return replace(self, task=task).bound().evaluate(weights, task.test)

    def _scored(self, task: Task) -> Task:
        """The task as it is evaluated: with --client-metrics, its metrics are also those of clients."""
        return with_client_scores(task) if self.spec.client_metrics else task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What an evaluation measures, the score first, without what computes it."""
        of_clients = client_metrics(self.task) if self.spec.client_metrics else ()
        return tuple(m.description for m in (*metrics_in(self.task), *of_clients))

    def early_stopping(self) -> EarlyStopping | None:
        """The rule that ends the run when the validation score stops to improve; None without --patience."""
        return None if self.spec.patience is None else EarlyStopping(self.spec.patience, self.budget.metric)


def root_mean_square(numbers: Tensor) -> float:
    """Return the root of the mean square, as a size of outputs or weights."""
    return float((numbers.double().square().mean()).sqrt())


def build_run(spec: Spec, *, has_examples: bool = True) -> BuiltRun:
    """Build and check everything that a spec names. Without examples, what needs them is refused."""
    with errors_of_extreme_numbers(spec):
        return _build_run(spec, has_examples=has_examples)


def _build_run(spec: Spec, *, has_examples: bool) -> BuiltRun:
    method, replaced = _build_method(spec)
    schedule = client_schedule(spec, method)
    task, notices = _build_data(spec, method) if has_examples else (_without_examples(spec, method), ())
    n = len(task.clients)
    if spec.concurrency is not None and spec.concurrency > n:
        raise BadInput(f"--concurrency {spec.concurrency}: there are only {n} clients; ask for at most that many")
    named_metrics = spec.metric is not None or task.metrics is not None
    module = build_module(task, seed=spec.seed, dtype=dtype_of(spec), flags=_flags(spec)).to(spec.device)
    task = with_metrics(task, spec, check_model_and_loss(task, module) if has_examples else None)
    with generator_held():
        layout = Layout.of(module, task.clients[0][0][:2].clone() if has_examples else None)
    work = _work(spec, schedule)
    with errors_under_flag(_local_flag(spec)):
        method.local.check(layout, work.optimizer)
    _check_task(spec, method, task)
    samples = [max(1, n) for n in client_sizes(task.clients)]
    size = layout.size * torch.finfo(dtype_of(spec)).bits // 8
    population = ClientPopulation(n, samples, size, spec.seed, _epochs(work, samples))
    budget = Budget(spec.time, spec.updates, spec.rounds, spec.target, metrics_in(task)[0])
    if spec.patience is not None and task.validation is None:
        raise BadInput(
            f"--patience {spec.patience}: early stopping looks at a validation set, and there is none; add --validation"
            " 0.1, which holds out a tenth of the training examples"
        )
    if spec.target is not None and task.during_run.test is None:
        raise BadInput(f"--target {spec.target}: task {task.name!r} has no test set; leave out --target")
    delay = _delay(spec, population)
    every, availability = _eval_every(spec, delay, n), _availability(spec, n)
    notices += (*_unscored_notice(spec, method), *replaced, *getattr(delay, "notices", ()))
    built = BuiltRun(spec, method, task, module, layout, work, delay, availability, budget, every, notices, schedule)
    if (named_metrics or spec.client_metrics) and (evaluate := built.evaluator()) is not None:
        check_metrics(evaluate, built.first_weights())
    if spec.personalize is not None:
        with errors_under_flag(_local_flag(spec)):
            check_personalisation(spec.personalize, method.personalization, built.bound(), built.first_weights())
    return built


def _build_method(spec: Spec) -> tuple[Method, list[str]]:
    """The method that a spec names, crossed as it says, with diagnostics if it asks for them; and notices."""

    def build(group: str) -> Any:
        choice = getattr(spec, group)
        if not isinstance(choice, Choice):
            return choice
        with errors_under_flag(group):
            return choice.build(group)

    others = {part: other for part in PARTS if (other := build(part)) is not None}
    manifold = None if spec.manifold is None else (spec.name_of("manifold"), build("manifold"))
    labels = {group: spec.name_of(group) for group in ("method", "distill", *others)}
    base = build("method")
    method = compose(base, others, distill=build("distill"), manifold=manifold, labels=labels)
    method = with_server_schedule(spec, method)
    if any(getattr(spec, cross) is not None for cross in CROSSES):
        method = replace(method, name=spec.label)
    if spec.diagnose:
        method = replace(method, local=replace(method.local, diagnose=True))
    return method, _replaced_clients(spec, base, method)


def _build_data(spec: Spec, method: Method) -> tuple[Task, tuple[str, ...]]:
    """The task with all its inputs, and the notices about data and about settings that have no effect."""
    with collect_notices(limit_of(spec)) as notices:
        task = build_task(spec)
    out = [*notices]
    if method.local.own_optimizer:
        given = [n for n in _OPTIMIZER if getattr(spec, n) != getattr(Spec, n)]
        flags = " ".join(f"--{n.replace('_', '-')} {_shown(spec, n)}" for n in given)
        out += [f"{flags} changes nothing: these clients have an optimizer of their own"] if given else []
    if method.needs_unlabeled:
        task, default = add_unlabeled(task, spec)
        out += [] if default is None else [f"inputs without labels: {default}; --unlabeled chooses others"]
    elif spec.unlabeled is not None:
        out.append(f"--unlabeled {spec.unlabeled} changes nothing: {spec.label} uses no inputs without labels")
    return task, tuple(out)


def _without_examples(spec: Spec, method: Method) -> Task:
    """The task with an empty set of examples for each client, for a server whose clients hold them."""
    task: Task = spec.task.build("task") if isinstance(spec.task, Choice) else spec.task
    if method.needs_unlabeled and task.unlabeled is None:
        raise BadInput(
            f"--method {spec.label}: it needs inputs without labels on the server, and {task.name!r} has none;"
            " name a task in FILE.py:FACTORY that has them (unlabeled=...)"
        )
    empty = torch.empty(0), torch.empty(0)
    return replace(task, clients=[empty] * (spec.clients or 1))


def _flags(spec: Spec) -> str:
    """The flags that chose the task and its model."""
    params = spec.task.params if isinstance(spec.task, Choice) else {}
    numbers = (f" --task.{k} {v}" for k, v in params.items() if isinstance(v, int) and not isinstance(v, bool))
    return f"--task {spec.name_of('task').partition(':')[0]}{''.join(numbers)}"


def _shown(spec: Spec, name: str) -> str:
    """Return a setting as text, a component or a function by its name."""
    return spec.name_of(name) if name in REGISTRIES else str(getattr(spec, name))


def _local_flag(spec: Spec) -> str:
    """The flag that chose what clients do."""
    return "local" if spec.local is not None else "method"


def _work(spec: Spec, schedule: RateSchedule | None) -> LocalWork:
    batch, optimizer = None if spec.batch == "all" else spec.batch, spec.client_optimizer()
    optimizer_at = None if schedule is None else optimizer_by(optimizer, schedule)
    return LocalWork(optimizer, epochs=spec.epochs, steps=spec.steps, batch=batch, optimizer_at=optimizer_at)


def _check_task(spec: Spec, method: Method, task: Task) -> None:
    """Let every part check the task; errors name the flag that brought the part in."""
    for cross, names in PARTS.items():
        for name in names:
            check_task = getattr(getattr(method, name), "check_task", None)
            if check_task is not None:
                with errors_under_flag(cross if getattr(spec, cross) is not None else "method"):
                    check_task(task)


def _epochs(work: LocalWork, samples: list[int]) -> float:
    """Passes over its data that a client makes in a visit, on average."""
    if work.epochs is not None:
        return float(work.epochs)
    mean = sum(samples) / len(samples)
    return (work.steps or 1) * min(work.batch or mean, mean) / mean


def _delay(spec: Spec, population: ClientPopulation) -> Delay:
    if isinstance(spec.delay, Choice):
        delay: Delay = spec.delay.build("delay")(population)
        return delay
    return spec.delay


def _availability(spec: Spec, n: int) -> Availability | None:
    if spec.availability is None:
        return None
    if isinstance(spec.availability, str):
        return Availability.read(spec.availability, n)
    windows = {int(c): [(float(a), float(b)) for a, b in w] for c, w in spec.availability.items()}
    if unknown := [c for c in windows if not 0 <= c < n]:
        raise BadInput(f"--availability: there is no client {unknown[0]}; clients are numbered 0 to {n - 1}")
    return Availability(windows)


def _eval_every(spec: Spec, delay: Delay, n: int) -> float:
    """A fiftieth of the time budget, or the median first visit: about once a round."""
    if spec.eval_every is not None:
        return spec.eval_every
    if spec.time is not None:
        return spec.time / 50
    first = [d for c in range(min(n, 101)) if (d := delay(c, 0)) is not None]
    return median(first) if first else inf


def _unscored_notice(spec: Spec, method: Method) -> list[str]:
    """A notice that the method is about clients' own models, and that they are not scored."""
    if spec.personalize is not None or method.personalization == Personalization():
        return []
    return [f"{spec.label} is about clients' own models: --personalize EPOCHS scores them"]


def _replaced_clients(spec: Spec, base: Method, method: Method) -> list[str]:
    """A notice that --local replaces the clients which the method is about."""
    about, now = (replace(m.personalization, own=False) for m in (base, method))
    if spec.local is None or about in (Personalization(), now):
        return []
    name = spec.name_of("method")
    return [f"--local {spec.name_of('local')} takes the place of {name}'s own clients: its server alone is left of it"]
