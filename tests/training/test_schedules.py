"""The registered schedules, against torch's schedulers and their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import tarry
from tarry.core.errors import BadInput
from tarry.core.schedule import ScheduleInput

STEPS = 30


def by_torch(make: Any) -> list[float]:
    """The factors of a scheduler of torch on a rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def by_rounds(name: str, **params: Any) -> list[float]:
    schedule = tarry.schedules[name](**params)
    return [schedule(ScheduleInput(version=t)) for t in range(STEPS)]


@pytest.mark.parametrize(
    ("name", "params", "make"),
    [
        ("constant", {}, lambda o: lr_scheduler.LambdaLR(o, lambda _: 1.0)),
        ("step", {"every": 7, "factor": 0.5}, lambda o: lr_scheduler.StepLR(o, 7, 0.5)),
        ("step", {"at": [4, 15], "factor": 0.2}, lambda o: lr_scheduler.MultiStepLR(o, [4, 15], 0.2)),
        ("exponential", {"factor": 0.9}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("linear", {"length": 12, "end": 0.3}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.3, 12)),
        ("cosine", {"length": STEPS, "end": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, 0.1)),
    ],
)
def test_a_schedule_is_that_of_torch_also_after_a_warm_up(name, params, make):
    assert by_rounds(name, **params) == pytest.approx(by_torch(make))
    warm = by_rounds(name, **params, warmup=5, start=0.2)
    rising = by_torch(lambda o: lr_scheduler.LinearLR(o, 0.2, 1.0, 5))
    assert warm[:5] == pytest.approx(rising[:5])
    assert warm[5:] == pytest.approx(by_torch(make)[:-5])


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_fall_stays_at_its_end(name):
    schedule = tarry.schedules[name](length=10, end=0.25)
    assert [schedule(ScheduleInput(version=t)) for t in (10, 11, 1000)] == pytest.approx([0.25] * 3)


def test_a_schedule_counts_what_it_is_told():
    at = ScheduleInput(version=1, visit=2, time=3.5)
    factors = {by: tarry.schedules["exponential"](factor=0.5, by=by)(at) for by in ("rounds", "visits", "time")}
    assert factors == {"rounds": 0.5, "visits": 0.25, "time": 0.5**3.5}


def test_a_decay_of_rounds_has_the_bits_of_a_power_of_whole_numbers():
    schedule = tarry.schedules["exponential"](factor=0.99)
    assert all(schedule(ScheduleInput(version=n)) == 0.99**n for n in range(2000))


@pytest.mark.parametrize(
    ("name", "params", "problems"),
    [
        ("constant", {"warmup": -1, "start": 0}, ["warmup=-1.0", "start=0.0"]),
        ("step", {}, ["every"]),
        ("step", {"every": 3, "at": [3]}, ["every"]),
        ("step", {"at": [3, -1], "factor": 2}, ["at=", "factor=2.0"]),
        ("exponential", {"factor": 0}, ["factor=0.0"]),
        ("linear", {"length": 0, "end": 2}, ["length=0.0", "end=2.0"]),
        ("cosine", {"length": -2, "end": 0, "start": 3}, ["length=", "end=", "start="]),
    ],
)
def test_wrong_numbers_are_reported_together(name, params, problems):
    with pytest.raises(BadInput) as e:
        tarry.schedules[name](**params)
    assert len(e.value.problems) == len(problems)
    assert all(text.startswith(begin) for text, begin in zip(e.value.problems, problems, strict=True))
