"""Schedules: what a rate may depend on, and the check of the factors."""

from __future__ import annotations

import pytest

from tarry.core.errors import BadInput
from tarry.core.schedule import ScheduleInput, ServerScheduleInput, check_schedule, counts_visits
from tarry.core.tickets import Ticket, VisitJob


@pytest.mark.parametrize("factor", [0, -0.5, float("inf"), float("nan"), "half", None])
def test_a_factor_that_is_no_number_above_0_is_rejected(factor):
    with pytest.raises(BadInput, match=r"--lr-schedule mine: it gives .* at ScheduleInput\(version=1.*above 0"):
        check_schedule(lambda _: factor, "--lr-schedule mine")(ScheduleInput(version=1))


def test_a_factor_may_be_any_number_type_and_above_1():
    assert check_schedule(lambda at: 1 + at.version, "")(ScheduleInput(version=2)) == 3.0


def test_the_server_has_no_visits():
    at = ServerScheduleInput(3, 0, 7.0)
    assert (at.version, at.time) == (3, 7.0)
    with pytest.raises(BadInput, match="by=rounds or by=time"):
        _ = at.visit


def test_schedules_by_visits_are_recognized():
    assert counts_visits(lambda at: 0.5**at.visit)
    assert not counts_visits(lambda at: 0.5 ** (at.version + at.time))


def test_a_ticket_and_its_job_have_the_same_input():
    ticket = Ticket(7, 2, visit=1, version=5, time=12.5, sent=None, anchor=None)  # type: ignore[arg-type]
    job = VisitJob(7, 2, 1, None, version=5, time=12.5)  # type: ignore[arg-type]
    assert ticket.schedule_input == job.schedule_input == ScheduleInput(version=5, visit=1, time=12.5)
