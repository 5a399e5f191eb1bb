"""The committed traces are what the library gives, event for event and to the last bit of every time."""

from __future__ import annotations

import json

import pytest

from tests.golden.traces import METHODS, path, rows


@pytest.mark.parametrize("name", METHODS)
def test_the_trace_is_the_golden_one(name: str) -> None:
    """Not so? If the change means it: python -m tests.golden.traces"""
    golden = [json.loads(line) for line in path(name).read_text().splitlines()]
    assert rows(name) == golden


@pytest.mark.parametrize("name", METHODS)
def test_the_golden_trace_shows_what_it_is_there_to_show(name: str) -> None:
    golden = [json.loads(line) for line in path(name).read_text().splitlines()]
    kinds = [row["kind"] for row in golden]
    assert {"hand_out", "arrival", "lost", "join", "leave", "evaluate"} == set(kinds)
    assert kinds.count("arrival") >= 20
    assert max(row.get("staleness", 0) for row in golden) >= 2
    assert not any({"weights", "loss", "accuracy"} & row.keys() for row in golden)


def test_both_methods_share_one_order_of_arrivals() -> None:
    """Both keep four in flight whatever becomes of the updates, so only versions and staleness may differ."""
    traces = [[(r["time"], r["client"], r["kind"]) for r in rows(name) if r["kind"] != "evaluate"] for name in METHODS]
    assert traces[0] == traces[1]
