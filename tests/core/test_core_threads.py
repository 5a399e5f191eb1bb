"""Threads that live as long as their process, and where they run."""

from __future__ import annotations

import os

import pytest

from tarry.vector import threads as module
from tarry.vector.threads import avoid_caller_core, shared_pool


def test_the_same_ones_whenever_asked() -> None:
    assert shared_pool("again", 2) is shared_pool("again", 2)
    assert shared_pool("again", 2) is not shared_pool("others", 2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="where the system does not let threads be placed")
def test_they_stay_away_from_the_callers_core_as_long_as_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, all_of_them = shared_pool("placed", 1), os.sched_getaffinity(0)
    asked: list[set[int]] = []
    for here in (min(all_of_them), max(all_of_them)):
        monkeypatch.setattr(module, "_core", lambda here=here: here)
        pool.submit(int).result()  # it has begun
        avoid_caller_core("placed", 1)
        asked.append(pool.submit(os.sched_getaffinity, 0).result())
    assert asked == [all_of_them - {c} or all_of_them for c in (min(all_of_them), max(all_of_them))]
    assert os.sched_getaffinity(0) == all_of_them  # the caller's are as they were


def test_where_cores_are_not_told_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[object] = []
    monkeypatch.setattr(module, "_asked", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: placed.append(given), raising=False)
    shared_pool("anywhere", 1).submit(int).result()
    avoid_caller_core("anywhere", 1)
    assert not placed
