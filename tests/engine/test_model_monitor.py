"""The monitor of the global model's loss."""

from __future__ import annotations

from math import inf, nan

import pytest

from tarry.engine.model_monitor import ModelMonitor


def trained() -> ModelMonitor:
    monitor = ModelMonitor(5.0)
    assert all(monitor.observe(loss) for loss in (2.3, 1.5, 1.0, 0.8, 0.6, 0.5, 0.5))
    return monitor


@pytest.mark.parametrize("loss", [nan, inf, 1e30, 10.0])
def test_a_loss_that_explodes_is_not_healthy(loss):
    assert not trained().observe(loss)


@pytest.mark.parametrize("loss", [0.1, 0.7, 1.5, 2.4])
def test_a_loss_that_varies_is_healthy(loss):
    assert trained().observe(loss)


def test_small_losses_may_vary_more():
    monitor = trained()
    for _ in range(6):
        assert monitor.observe(0.001)
    assert monitor.observe(0.5), "a tenth of the first loss is the least that counts"


def test_a_loss_below_zero_is_no_explosion():
    monitor = ModelMonitor(5.0)
    assert all(monitor.observe(loss) for loss in (-1.0, -3.0, -0.1, 2.0))
    assert not monitor.observe(nan)


def test_the_pause_grows_with_each_alarm_and_shrinks_with_healthy_scores():
    monitor, pauses = trained(), []
    for time in (100.0, 200.0, 300.0):
        monitor.raise_alarm(time)
        pauses.append(round(monitor.paused_until - time, 3))
    assert pauses == [10.0, 40.0, 160.0]
    for _ in range(6):
        monitor.observe(0.5)
    monitor.raise_alarm(400.0)
    assert round(monitor.paused_until - 400.0, 3) == 10.0
    assert monitor.alarms == 4


def test_it_wakes_up_for_the_restore_and_at_the_end_of_the_pause():
    monitor = trained()
    assert monitor.next_wakeup(100.0) == inf
    monitor.raise_alarm(100.0)
    assert 100.0 < monitor.next_wakeup(100.0) == monitor.restore_at < 100.001
    monitor.restore_at = inf
    assert monitor.next_wakeup(100.5) == monitor.paused_until
    assert monitor.next_wakeup(monitor.paused_until) == inf


def test_a_loaded_record_goes_on_alike():
    monitor, again = trained(), ModelMonitor(5.0)
    monitor.raise_alarm(3.0)
    again.load(monitor.save())
    for one in (monitor, again):
        one.observe(0.4)
    assert again.save() == monitor.save()
