"""Clients whose updates are rejected again and again."""

from __future__ import annotations

from tarry.engine.quarantine import Quarantine


def reject(quarantine: Quarantine, times: int, at: float = 0.0) -> None:
    for _ in range(times):
        quarantine.record_rejection(0, at)


def test_the_third_rejection_quarantines_for_a_while():
    q = Quarantine(60.0)
    reject(q, 2)
    assert q.quarantined(0.0) == {}
    reject(q, 1)
    assert q.quarantined(0.0) == {0: 60.0}
    assert q.quarantined(59.9) == {0: 60.0}
    assert q.quarantined(60.0) == {}, "it is readmitted"


def test_the_period_doubles_each_time_up_to_a_day():
    q, time, periods = Quarantine(60.0), 0.0, []
    reject(q, 2)
    for _ in range(20):
        q.record_rejection(0, time)
        periods.append(q.until(0) - time)
        time = q.until(0)
    assert periods[:4] == [60.0, 120.0, 240.0, 480.0]
    assert periods[-1] == 86400.0


def test_one_good_answer_resets_nothing():
    q = Quarantine(60.0)
    reject(q, 3)
    q.record_acceptance(0)
    reject(q, 1, at=100.0)
    assert q.quarantined(100.0) == {}, "a good answer takes a quarter of a rejection off"
    reject(q, 1, at=101.0)
    assert q.until(0) == 101.0 + 120.0, "and the period has doubled"


def test_a_client_that_alternates_is_quarantined_again_and_again():
    q, time, starts = Quarantine(60.0), 0.0, 0
    for _ in range(50):
        time = max(time + 1.0, q.until(0))
        starts += q.record_rejection(0, time) is not None
        q.record_acceptance(0)
    assert starts >= 10


def test_many_good_answers_make_a_client_as_good_as_new():
    q = Quarantine(60.0)
    reject(q, 3)
    for _ in range(12):
        q.record_acceptance(0)
    assert q.save() == {"demerits": {}, "times": {}, "until": {}}, "it takes no memory any more"
    reject(q, 2, at=500.0)
    assert q.quarantined(500.0) == {}


def test_rejections_while_a_client_is_out_do_not_prolong_it():
    q = Quarantine(60.0)
    reject(q, 3)
    reject(q, 5, at=10.0)  # of tickets that were out then
    assert q.until(0) == 60.0


def test_a_first_period_of_zero_quarantines_nobody():
    q = Quarantine(0.0)
    reject(q, 50)
    assert q.quarantined(0.0) == {}


def test_a_loaded_record_goes_on_alike():
    q, again = Quarantine(60.0), Quarantine(60.0)
    reject(q, 4)
    q.record_acceptance(0)
    again.load(q.save())
    for one in (q, again):
        reject(one, 2, at=300.0)
    assert again.save() == q.save()
