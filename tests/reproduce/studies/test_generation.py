"""The share of problems that a trained language model solves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tarry.config.spec import Spec
from tarry.reproduce.studies import generation
from tarry.runs.build import build_run
from tarry.tasks.language import exact_match
from tests.helpers.tiny_language import save, sums


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    sums(tmp_path / "gsm8k.jsonl")
    task = {"name": "gsm8k", "model": save(tmp_path / "llama", "llama"), "length": 32, "unlabeled": 10, "prompt": 8}
    rows = {name: generation.PAPER["rows"][name] for name in ("untrained", "fedbuff", "fedecho")}
    columns = {"gsm8k": {}, "mathinstruct": {"task": {"name": "mathinstruct", "model": "qwen"}}}
    settings = {"task": task, "clients": 4, "concurrency": 3, "min_samples": 2, "rounds": 1, "partition": "iid"}
    return {"settings": settings, "rows": rows, "columns": columns, "number": 6, "tokens": 6, "batch": 4}


def test_each_row_is_trained_and_then_answers(options: dict[str, Any], tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "pieces"
    found = generation.run(options, quick=False, seeds=[0], device="cpu", folder=folder, tell=told.append)
    assert list(found["numbers"]) == ["untrained", "fedbuff", "fedecho"]
    for row, columns in found["numbers"].items():
        assert list(columns) == ["gsm8k"]
        assert 0 <= columns["gsm8k"]["0"]["solved"] <= 100
        assert (columns["gsm8k"]["0"]["tokens_right"] is None) == (row == "untrained")
    assert any("mathinstruct is left out" in line for line in told)
    assert found["notes"] == ["mathinstruct was not run: its data or model were not there."]


def test_solved_is_the_exact_match_of_the_given_weights(options: dict[str, Any]) -> None:
    built = build_run(Spec.of({**options["settings"], "method": "fedavg", "seed": 0}))
    weights = built.first_weights()
    name = options["settings"]["task"]["model"]
    share = generation.solved(built, weights, "gsm8k", number=30, tokens=4)
    texts = [(f"{i % 10} + {i % 7} ?", f"#### {i % 10 + i % 7}") for i in range(60, 90)]
    assert share == exact_match(built.module, name, texts, tokens=4)
    assert torch.equal(weights, built.first_weights())
