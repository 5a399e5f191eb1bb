"""How long clients may take."""

from __future__ import annotations

from tarry.deploy.server.deadlines import Deadlines


def test_deadlines_are_learnt_and_bounded():
    pace = Deadlines(1000.0)
    assert pace.deadline(0) == 1000.0
    for seconds in (10.0, 12.0, 11.0):
        pace.record_duration(0, seconds)
    assert pace.deadline(0) == 2 * 12.0 + 15.0
    pace.record_duration(0, 400.0, late=True)
    assert pace.deadline(0) > 800.0
    pace.record_duration(0, 9000.0)
    assert pace.deadline(0) == 1000.0
    assert pace.deadline(1) == 1000.0
    again = Deadlines(1000.0)
    again.load(pace.save())
    assert again.deadline(0) == pace.deadline(0)


def test_the_back_off_of_failing_clients_grows_up_to_ten_minutes():
    pace = Deadlines(100.0)
    assert [pace.record_failure(0) for _ in range(4)] == [5.0, 10.0, 20.0, 40.0]
    for _ in range(30):
        last = pace.record_failure(0)
    assert last == 600.0


def test_one_good_answer_does_not_reset_the_back_off():
    pace = Deadlines(100.0)
    for _ in range(4):
        pace.record_failure(0)
    pace.record_duration(0, 1.0)
    assert pace.record_failure(0) == 40.0
    back_offs = []
    for _ in range(12):  # a client that fails every second time
        pace.record_duration(0, 1.0)
        back_offs.append(pace.record_failure(0))
    assert back_offs[-1] == 600.0
    for _ in range(32):
        pace.record_duration(0, 1.0)
    assert pace.record_failure(0) == 5.0
