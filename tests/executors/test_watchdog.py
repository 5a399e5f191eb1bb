"""A process that no longer responds is killed; one that computes, waits or was stopped with its parent is not."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tarry.executors import watchdog
from tarry.executors.watchdog import Watchdog, beat, end_within, new_count
from tests.helpers.processes import process_status, wait_until


class FakeProcess:
    def __init__(self, pid: int):
        self.pid, self.killed = pid, False

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def dogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Watchdog]]:
    """Make watchdogs whose threads do not look by themselves."""
    made: list[Watchdog] = []

    def make(timeout: float) -> Watchdog:
        monkeypatch.setattr(watchdog, "_INTERVAL", 1e6)
        made.append(Watchdog(timeout))
        return made[-1]

    yield make
    for dog in made:
        dog.stop()


def test_a_process_without_a_sign_is_killed_after_the_timeout_and_others_are_not(dogs, monkeypatch):
    silent, beating, computing = (FakeProcess(-n) for n in (1, 2, 3))
    counts, used = {p: new_count() for p in (silent, beating, computing)}, {-1: ["5", "1"], -2: ["0", "0"], -3: []}
    monkeypatch.setattr(watchdog, "_processor_time", lambda pid: list(used[pid]))
    dog = dogs(10.0)
    for process, count in counts.items():
        dog.watch(process, count)
    for second in range(30):  # the first look takes the signs
        assert silent.killed == (second > 10)
        counts[beating].value += 1
        used[-3] = ["7", str(second)]
        dog._look(1.0)
    assert not beating.killed
    assert not computing.killed
    assert dog.release(silent) == "did not respond for 10 s"
    assert dog.release(beating) == ""


def test_time_in_which_the_watching_process_was_stopped_does_not_count(dogs):
    process = FakeProcess(-1)
    dog = dogs(10.0)
    dog.watch(process, new_count())
    dog._look(1.0)
    for _ in range(4):
        dog._look(3600.0)
    assert not process.killed  # 4 looks of at most 2 s
    dog._look(3600.0)
    assert process.killed


def test_with_a_timeout_of_0_no_process_is_watched(dogs):
    process, dog = FakeProcess(-1), dogs(0.0)
    dog.watch(process, new_count())
    for _ in range(9):
        dog._look(3600.0)
    assert not process.killed
    assert dog._thread is None


def test_the_processor_time_of_a_process_that_computes_grows():
    before = watchdog._processor_time(os.getpid())
    assert len(before) == 2
    wait_until(lambda: watchdog._processor_time(os.getpid()) != before)
    assert watchdog._processor_time(-1) == []


def child(count: Any, ready: Any) -> None:
    beat(count)
    ready.set()
    time.sleep(100_000)


def started() -> tuple[Any, Any]:
    context = mp.get_context("fork")
    count, ready = new_count(), context.Event()
    process = context.Process(target=child, args=(count, ready), daemon=True)
    process.start()
    ready.wait()
    return process, count


def test_a_process_that_waits_lives_and_a_stopped_one_is_killed():
    waiting, stopped = started(), started()
    dog = Watchdog(3.0)
    try:
        os.kill(stopped[0].pid, signal.SIGSTOP)
        for process, count in (waiting, stopped):
            dog.watch(process, count)
        wait_until(lambda: not stopped[0].is_alive())
        assert waiting[0].is_alive()
        assert dog.release(stopped[0]) == "did not respond for 3 s"
    finally:
        dog.stop()
        end_within([waiting[0], stopped[0]], 0)
    assert process_status(waiting[0].pid) == []
