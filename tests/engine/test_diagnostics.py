"""The record of --diagnose has a bounded size, and the same means."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from tarry.core.tickets import Ticket
from tarry.engine import diagnostics
from tarry.engine.diagnostics import DiagnosticsLog


def ticket(visit: int) -> Ticket:
    w = torch.zeros(2)
    return Ticket(number=visit, client=0, visit=visit, version=0, time=0.0, sent=w, anchor=w)


def validate(client: int, weights: Tensor) -> tuple[float, float]:
    assert client == 0
    assert len(weights) == 2
    return 0.5, 1.0


def filled(visits: int) -> DiagnosticsLog:
    log = DiagnosticsLog(1.0, validate)
    for visit in range(visits):
        log.hand_out(ticket(visit), 2.0)
        log.arrival(0.25 * visit, 0, {"drift": float(visit), "layers": [1.0, float(visit % 7)]})
    return log


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_BINS", 8)
    monkeypatch.setattr(diagnostics, "_POINTS", 8)


def test_the_size_of_the_record_does_not_grow_with_the_run(small_bounds: None) -> None:
    sizes = [len(json.dumps(filled(visits).save())) for visits in (500, 1000, 8000)]
    assert max(sizes) < 1.3 * min(sizes)


@pytest.mark.parametrize("visits", [1, 31, 32, 33, 100, 1000])
def test_merged_bins_have_the_means_of_all_notes(small_bounds: None, visits: int) -> None:
    found = filled(visits).summary()
    width = found["every"]
    bins: dict[int, list[int]] = {}
    for visit in range(visits):
        bins.setdefault(int(0.25 * visit / width), []).append(visit)
    assert len(bins) <= 8
    expected = [[(k + 0.5) * width, sum(v) / len(v), len(v)] for k, v in sorted(bins.items())]
    assert found["series"]["drift"] == [pytest.approx(e) for e in expected]


def test_validations_are_thinned_evenly(small_bounds: None) -> None:
    found = [visit for visit, _, _ in filled(100).summary()["validation"]["0"]]
    stride = found[1]
    assert found == list(range(0, 100, stride))
    assert len(found) <= 8


def test_a_short_run_keeps_everything() -> None:
    found = filled(40).summary()
    assert [point[0] for point in found["validation"]["0"]] == list(range(40))
    assert found["every"] == 1.0
    assert len(found["series"]["drift"]) == 10


def test_a_saved_record_continues_as_if_never_saved(small_bounds: None) -> None:
    whole, first = filled(100), filled(60)
    second = DiagnosticsLog(1.0, validate)
    saved: Any = first.save()
    second.load(saved)
    for visit in range(60, 100):
        second.hand_out(ticket(visit), 2.0)
        second.arrival(0.25 * visit, 0, {"drift": float(visit), "layers": [1.0, float(visit % 7)]})
    assert second.summary() == whole.summary()
