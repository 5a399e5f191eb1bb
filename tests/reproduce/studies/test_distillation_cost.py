"""FedEcho, Sec. 5.1: past models counted by hand, and what is timed is a distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tarry.config.spec import Spec
from tarry.reproduce.studies.distillation_cost import PAPER, PastModels, distillation, run
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import build_run


def test_past_models_by_hand() -> None:
    """Arrivals at 1, 2, 3, 4 (client 0), 5 (both): each is a step, and client 1 holds the first model until 5."""
    delay = {"name": "scripted", "durations": [1.0, 5.0]}
    settings = {"method": "fedasync", "task": {"name": "digits", "limit": 40}, "clients": 2, "steps": 1, "batch": 4}
    count = PastModels()
    run_observed(build_run(Spec.of({**settings, "delay": delay, "updates": 6})), callbacks=[count])
    assert [n for _, n in count.counts[:4]] == [1, 1, 1, 1]
    both = PastModels()
    delay = {"name": "scripted", "durations": [1.0, 50.0, [1.5, 50.0]]}
    run_observed(build_run(Spec.of({**settings, "clients": 3, "delay": delay, "updates": 6})), callbacks=[both])
    # 1.0: clients 1 and 2 hold model 0; 1.5: 1 holds 0, 0 holds 1; from 2.0 on 1 holds 0 and 2 holds 2
    assert [n for _, n in both.counts] == [1, 2, 2, 2, 2, 2]


def test_what_is_timed_moves_the_weights_by_a_distillation() -> None:
    options: dict[str, Any] = {**PAPER, "model": "mlp", "shape": [1, 4, 4], "classes": 3, "inputs": 12, "batch": 5}
    new, (_, _, steps) = distillation(options, 1, "cpu")()  # type: ignore[misc]
    again, _ = distillation(options, 1, "cpu")()  # type: ignore[misc]
    assert steps == 3  # 12 inputs in batches of 5
    assert torch.equal(new, again)


def test_the_study_has_seconds_and_checkpoints(tmp_path: Path) -> None:
    options: Any = {"model": "mlp", "shape": [1, 4, 4], "inputs": 10, "rounds": 8, "clients": 10, "concurrency": 5}
    found = run(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)["numbers"]
    assert found["distillation"]["server"]["0"]["seconds"] > 0
    assert 1 <= found["large"]["server"]["0"]["checkpoints"] <= 5
