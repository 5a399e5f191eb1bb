"""Fig. 6(c) of Fed-OGD: the component of a linear problem by hand; measuring changes no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.events import Event
from tarry.reproduce.studies.projected_component import ComponentRecorder, measured, run
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import BuiltRun, build_run
from tests.helpers.models import towards


def made_with(projection: str, **more: Any) -> BuiltRun:
    method = {"name": "fedogd", "epoch": 1.0, "eta": 0.5, "projection": projection, **more}
    task = towards((8.0, 8.0), (4.0, 0.0))
    delay = {"name": "scripted", "durations": [1.0, 3.0]}
    settings = {"task": task, "delay": delay, "dtype": "float64", "batch": "all", "steps": 1, "lr": 0.5}
    return build_run(Spec.of({"method": method, "updates": 8, "diagnose": True, **settings}))


@pytest.mark.parametrize("projection", ["conflict", "always"])
def test_measuring_changes_no_result(projection: str) -> None:
    made = made_with(projection)
    assert run_observed(made).weights_sha256 == run_observed(measured(made)).weights_sha256


def test_the_component_by_hand() -> None:
    """Gradients of ½‖w − c‖² are w − c; the base that a client was sent is in its payload."""
    made, record, bases, expected = measured(made_with("always")), ComponentRecorder(), {}, list[float]()
    centers = {0: np.array([8.0, 8.0]), 1: np.array([4.0, 0.0])}

    def see(update: Any, _: Any) -> None:
        bases[update.ticket.number] = update.ticket

    def check(event: Event) -> None:
        if event.kind == "arrival":
            ticket = bases[event.ticket]
            b = ticket.payload.get("base")
            if b is not None and b.any():
                g = ticket.sent.numpy() - centers[event.client]
                expected.append(float(g @ b.numpy() / np.linalg.norm(b.numpy())))

    run_observed(made, see, callbacks=[record, check])
    assert len(expected) >= 3
    assert [row[1] for row in record.rows] == pytest.approx(expected)
    assert [row[2] for row in record.rows] == [float(x < 0) for x in expected]


def test_without_one_base_there_is_no_component() -> None:
    with pytest.raises(BadInput, match="a projection onto one base"):
        measured(made_with("basis"))


def test_the_study_has_a_number_for_every_method(tmp_path: Path) -> None:
    settings = {"task": {"name": "digits", "model": "mlp", "limit": 60}, "clients": 5, "time": 8.0, "batch": 6}
    options: Any = {"settings": {**settings, "partition": "iid"}}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)
    assert set(found["numbers"]) == {"fedogd", "traditional", "no-cache"}
    assert 0 <= found["numbers"]["fedogd"]["cifar10"]["0"]["conflicts"] <= 100
