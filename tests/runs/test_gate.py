"""The gate in the simulator: honest clients pass, hostile ones are rejected and quarantined, runs resume exactly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import tarry
from tests.helpers.interrupted import interrupted_run
from tests.helpers.models import random_clients

HONEST: dict[str, Any] = {"task": "digits:limit=400,hidden=16", "clients": 8, "updates": 60, "epochs": 2}


def poisoned(*, scale: float = 1e4, hostile: int = 3) -> tarry.Task:
    """A task one of whose eight clients has inputs that are far too large, so that its updates are."""
    scales = [scale if k == hostile else 1.0 for k in range(8)]
    clients = random_clients([20] * 8, 6, 3, seed=1, scales=scales)
    test = random_clients([60], 6, 3, seed=2)[0]
    return tarry.Task("poisoned", lambda: torch.nn.Linear(6, 3), cross_entropy, clients=clients, test=test)


SETTINGS: dict[str, Any] = {
    "updates": 60,
    "epochs": 1,
    "delay": [2.0, 3.0, 2.5, 1.5, 4.0, 2.0, 3.5, 2.2],
    "eval_every": 4.0,
}


@pytest.mark.parametrize(
    "method",
    ["fedasync", "fedbuff", "orthofl", "scaffold", "fedecho", "asynccurve", "fedavg", "fednova", "mifa", "moon"],
)
def test_honest_updates_pass_and_the_weights_are_those_without_the_gate(method):
    for more in ({}, {"lr": 0.3, "partition": "dirichlet:alpha=0.1"}):
        plain = tarry.run(method, **HONEST, **more)
        gated = tarry.run(method, gate=True, **HONEST, **more)
        assert gated.rejected == 0
        assert gated.weights_sha256 == plain.weights_sha256


def test_a_hostile_client_is_rejected_and_quarantined_and_the_run_is_unharmed():
    events = list[tarry.Event]()
    gated = tarry.run("fedasync", poisoned(), gate=True, quarantine=5.0, callbacks=[events.append], **SETTINGS)
    plain = tarry.run("fedasync", poisoned(), **SETTINGS)
    assert gated.final_loss is not None
    assert plain.final_loss is not None
    assert isfinite(gated.final_loss)
    assert gated.final_loss < 0.1 * plain.final_loss
    rejected = [e for e in events if e.kind == "rejected"]
    assert {(e.client, e.reason) for e in rejected} == {(3, "norm")}
    assert len(rejected) == gated.rejected >= 4
    out = [(e.kind, e.time) for e in events if e.client == 3 and e.kind in ("leave", "join")]
    assert [kind for kind, _ in out[:4]] == ["leave", "join", "leave", "join"]
    assert out[1][1] - out[0][1] == pytest.approx(5.0)
    assert out[3][1] - out[2][1] == pytest.approx(10.0), "the second period is longer"
    assert any("1 client rejected" in notice for notice in gated.warnings)


@pytest.mark.parametrize("executor", ["inline", "pool", "batched"])
def test_a_run_with_rejections_and_quarantine_resumes_exactly(executor, tmp_path):
    more = {"pool": {"workers": 2}}.get(executor, {})
    settings = {**SETTINGS, **more, "gate": True, "quarantine": 5.0, "executor": executor, "checkpoint_every": 1e-9}
    whole = tarry.run("fedbuff", poisoned(), out=tmp_path / "whole", **settings)
    assert whole.rejected >= 4
    rows = (tmp_path / "whole" / "events.jsonl").read_text()
    for after in (7.0, 15.0):
        out = tmp_path / f"r{after}"
        interrupted_run(out, lambda e, t=after: e.time > t, "fedbuff", poisoned(), **settings)
        again = tarry.resume(out, task=poisoned())
        assert again.weights_sha256 == whole.weights_sha256
        assert (out / "events.jsonl").read_text() == rows
        shutil.rmtree(out)


def exploding(out: Path | None = None, **more: Any) -> tuple[tarry.Result, list[tarry.Event]]:
    """A run whose norms are not limited, so that a hostile client makes the loss explode."""
    events = list[tarry.Event]()
    settings = {**SETTINGS, "gate": True, "norm_multiple": 0.0, "updates": 80, "checkpoint_every": 1e-9, **more}
    result = tarry.run("fedasync", poisoned(scale=1e5), out=out, callbacks=[events.append], **settings)
    return result, events


def test_a_model_whose_loss_explodes_is_restored():
    result, events = exploding()
    kinds = [e.kind for e in events]
    assert kinds.count("alarm") >= 2
    assert kinds.count("restore") >= 2
    at = kinds.index("restore")
    alarm = kinds.index("alarm")
    healthy = [e.weights for e in events[:alarm] if e.kind == "evaluate"][-2]
    assert torch.equal(events[at].weights, healthy)
    lost = [e for e in events[alarm:at] if e.kind == "lost"]
    assert lost
    assert {e.reason for e in lost} == {"the model was restored"}
    following = next(e for e in events[at:] if e.kind == "hand_out")
    assert following.time >= events[alarm].time + 10.0, "no work is handed out for a while"
    assert any("exploded" in notice for notice in result.warnings)
    scores = [e.loss for e in events if e.kind == "evaluate"]
    assert scores[-1] is not None
    assert scores[-1] < 5.0


def test_a_run_that_is_restored_resumes_exactly(tmp_path):
    whole, events = exploding(tmp_path / "whole")
    alarm = next(e.time for e in events if e.kind == "alarm")
    rows = (tmp_path / "whole" / "events.jsonl").read_text()
    settings = {**SETTINGS, "gate": True, "norm_multiple": 0.0, "updates": 80, "checkpoint_every": 1e-9}
    for count, after in enumerate((alarm - 1.0, alarm + 0.5, alarm + 11.0, alarm + 25.0)):
        out = tmp_path / f"r{count}"
        interrupted_run(out, lambda e, t=after: e.time > t, "fedasync", poisoned(scale=1e5), **settings)
        again = tarry.resume(out, task=poisoned(scale=1e5))
        assert again.weights_sha256 == whole.weights_sha256
        assert (out / "events.jsonl").read_text() == rows


def test_without_a_test_set_the_size_of_the_weights_is_monitored():
    events = list[tarry.Event]()
    task = replace(poisoned(scale=1e4), test=None)
    tarry.run("fedasync", task, gate=True, norm_multiple=0.0, callbacks=[events.append], **SETTINGS)
    kinds = [e.kind for e in events]
    assert "alarm" in kinds
    assert "restore" in kinds
    assert "evaluate" not in kinds, "nothing is scored"


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("norm_multiple", 0.5, "must be above 1, or 0"),
        ("loss_multiple", -1.0, "must be above 1, or 0"),
        ("norm_bound", 0.0, "must be above 0"),
        ("max_examples", 0, "must be above 0"),
        ("quarantine", -1.0, "must be 0 or more"),
    ],
)
def test_limits_of_the_gate_are_checked(setting, value, why):
    with pytest.raises(tarry.BadInput, match=f"{setting}={value}: {why}"):
        tarry.run("fedasync", "digits", updates=1, **{setting: value})
