"""The learning rates of a run: schedules of --lr-schedule, --lr-decay and --server-lr-schedule, built and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..config.components import Choice, errors_under_flag
from ..config.spec import Spec
from ..core.errors import BadInput
from ..core.method import Method
from ..core.optim import Optimizer
from ..core.schedule import RateSchedule, ScheduleInput, check_schedule, counts_visits
from ..methods import methods
from ..training.schedules import exponential

__all__ = ["client_schedule", "optimizer_by", "with_server_schedule"]


def client_schedule(spec: Spec, method: Method) -> RateSchedule | None:
    """Return the schedule of the clients' learning rate, None if it is constant; raise BadInput if it does not fit."""
    if spec.lr_schedule is None:
        decay = spec.lr_decay
        return None if decay == 1 else check_schedule(exponential(factor=decay), f"--lr-decay {decay}")
    schedule = _build(spec, "lr_schedule")
    if method.aggregate.steps_at_rate and counts_visits(schedule):
        raise BadInput(
            f"--lr-schedule {spec.name_of('lr_schedule')}: the server of {spec.label} steps at the clients' learning"
            " rate of the moment, which by=visits does not give; use by=rounds or by=time"
        )
    return schedule


def optimizer_by(optimizer: Optimizer, schedule: RateSchedule) -> Callable[[ScheduleInput], Optimizer]:
    """Return the optimizer of a visit as a function of what the visit's ticket holds."""
    at = optimizer.at
    assert at is not None, "every optimizer that a run can name has other rates"
    return lambda now: at(optimizer.lr * schedule(now))


def with_server_schedule(spec: Spec, method: Method) -> Method:
    """Return the method with the schedule of its server's learning rate; raise BadInput if it has none."""
    if spec.server_lr_schedule is None:
        return method
    name, schedule = spec.name_of("server_lr_schedule"), _build(spec, "server_lr_schedule")
    step = method.step
    if step.with_schedule is None:
        known = ", ".join(_with_rates())
        raise BadInput(f"--server-lr-schedule {name}: the step of {spec.label} has no learning rate; {known} have one")
    if counts_visits(schedule):
        raise BadInput(f"--server-lr-schedule {name}: the server has no visits of its own; use by=rounds or by=time")
    return replace(method, step=replace(step.with_schedule(schedule), incompatibility=step.incompatibility))


def _build(spec: Spec, setting: str) -> RateSchedule:
    choice, flag = getattr(spec, setting), f"--{setting.replace('_', '-')} {spec.name_of(setting)}"
    if not isinstance(choice, Choice):
        return check_schedule(choice, flag)
    with errors_under_flag(setting):
        return check_schedule(choice.build(setting), flag)


def _with_rates() -> list[str]:
    """Return the methods whose server has a learning rate."""
    plain = (entry for entry in methods.values() if not any(p.required for p in entry.params))
    return [entry.name for entry in plain if entry().step.with_schedule is not None]
