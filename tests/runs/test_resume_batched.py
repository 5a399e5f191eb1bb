"""Runs that train clients in stacks: an interrupted one trains the stacks of the uninterrupted one."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import DamagedFile
from tarry.core.tickets import VisitJob
from tarry.executors import auto
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.executors.timing import BatchConfig, RecordedChoice, TimingChoice
from tests.helpers.interrupted import interrupted_run

SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 200, "hidden": 8},
    "clients": 7,
    "updates": 40,
    "executor": "batched",
    "batch": 16,
    "checkpoint_every": 1e-9,
    "seed": 3,
}


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """The ticket numbers of each call of a trainer with whole visits, by a choice that needs no timing."""
    seen: list[list[int]] = []
    train = BatchedTrainer.train

    def noted(self: BatchedTrainer, jobs: Sequence[VisitJob]) -> Any:
        if self._work.steps is None:  # trials make a few steps
            seen.append([job.number for job in jobs])
        return train(self, jobs)

    monkeypatch.setattr(BatchedTrainer, "train", noted)
    monkeypatch.setattr(auto, "choose", lambda *_: TimingChoice(BatchConfig(1, 3), 9.0))
    return seen


def broken(out: Path, after: int, **changes: Any) -> None:
    seen = itertools.count(1)
    interrupted_run(out, lambda _: next(seen) > after, "fedasync", **{**SETTINGS, **changes})


@pytest.mark.parametrize("after", [0, 3, 9, 15, 28, 41, 60, 77])
def test_a_resumed_run_trains_the_stacks_that_are_left_and_no_other(tmp_path, stacks, after):
    whole = tarry.run("fedasync", out=tmp_path / "whole", **SETTINGS)
    all_stacks = [sorted(s) for s in stacks]
    assert len(all_stacks) > 5
    stacks.clear()
    broken(tmp_path / "r", after)
    before = len(stacks)
    resumed = tarry.resume(tmp_path / "r")
    again = [sorted(s) for s in stacks[before:]]
    assert again == all_stacks[len(all_stacks) - len(again) :]
    assert before + len(again) <= len(all_stacks) + 1, "at most the stack after the checkpoint is trained again"
    assert resumed.weights_sha256 == whole.weights_sha256
    assert tarry.verify(tmp_path / "r").ok


def test_results_that_were_trained_ahead_are_needed_for_that(tmp_path, stacks, monkeypatch):
    tarry.run("fedasync", out=tmp_path / "whole", **SETTINGS)
    all_stacks = [sorted(s) for s in stacks]
    save = auto.AutoExecutor.save
    monkeypatch.setattr(auto.AutoExecutor, "save", lambda self: {**save(self), "done": {}})
    broken(tmp_path / "r", 41)
    stacks.clear()
    tarry.resume(tmp_path / "r")
    again = [sorted(s) for s in stacks]
    assert again != all_stacks[len(all_stacks) - len(again) :]


@pytest.mark.parametrize("after", [9, 41])
def test_the_choice_is_made_once_in_a_run_even_without_a_checkpoint(tmp_path, stacks, monkeypatch, after):
    broken(tmp_path / "r", after, checkpoint_every=1e9)
    assert not (tmp_path / "r" / "checkpoints").exists()
    recorded = json.loads((tmp_path / "r" / "executor.json").read_text())
    assert RecordedChoice.of(recorded).config == BatchConfig(1, 3)

    def never(*_: Any) -> Any:
        raise AssertionError("the choice is recorded")

    monkeypatch.setattr(auto, "choose", never)
    resumed = tarry.resume(tmp_path / "r")
    assert resumed.executor_info == recorded["description"]
    assert {len(s) <= 7 for s in stacks} == {True}
    monkeypatch.setattr(auto, "choose", lambda *_: TimingChoice(BatchConfig(1, 3), 9.0))
    assert tarry.run("fedasync", **SETTINGS).weights_sha256 == resumed.weights_sha256


def test_a_run_that_fell_back_stays_with_the_fallback(tmp_path, stacks, monkeypatch):
    monkeypatch.setattr(auto, "choose", lambda *_: TimingChoice(BatchConfig(1, 3), 0.5))
    settings = {**SETTINGS, "executor": "auto"}
    whole = tarry.run("fedasync", out=tmp_path / "whole", **settings)
    assert "not trained together" in whole.executor_info
    broken(tmp_path / "r", 30, executor="auto")
    monkeypatch.setattr(auto, "choose", lambda *_: TimingChoice(BatchConfig(1, 3), 9.0))
    stacks.clear()
    resumed = tarry.resume(tmp_path / "r")
    assert resumed.executor_info == whole.executor_info
    assert resumed.weights_sha256 == whole.weights_sha256
    assert stacks == []


@pytest.mark.parametrize("executor", ["inline", "pool"])
def test_a_run_may_change_from_stacks_to_another_executor_and_back(tmp_path, stacks, executor):
    broken(tmp_path / "r", 30)
    with pytest.raises(KeyboardInterrupt):
        tarry.resume(tmp_path / "r", executor=executor, workers=1 + (executor == "pool"), callbacks=[stop_at(20)])
    assert tarry.resume(tmp_path / "r").updates == SETTINGS["updates"]


def stop_at(after: int) -> Any:
    seen = itertools.count(1)

    def stop(_: tarry.Event) -> None:
        if next(seen) > after:
            raise KeyboardInterrupt

    return stop


def test_the_choice_of_another_run_is_not_taken(tmp_path, stacks):
    broken(tmp_path / "r", 9, checkpoint_every=1e9)
    broken(tmp_path / "other", 9, checkpoint_every=1e9, seed=4)
    shutil.copy(tmp_path / "other" / "executor.json", tmp_path / "r" / "executor.json")
    with pytest.raises(DamagedFile, match=r"executor.json: it is of a run with other settings; delete it to choose"):
        tarry.resume(tmp_path / "r")
    (tmp_path / "r" / "executor.json").unlink()
    assert tarry.resume(tmp_path / "r").updates == SETTINGS["updates"]


def test_a_damaged_choice_is_replaced_by_that_of_the_checkpoint(tmp_path, stacks):
    broken(tmp_path / "r", 41)
    path = tmp_path / "r" / "executor.json"
    before = path.read_bytes()
    path.write_bytes(before[:-20])
    tarry.resume(tmp_path / "r")
    assert path.read_bytes() == before
    assert tarry.verify(tmp_path / "r", rerun="proofs").ok


def test_a_choice_that_was_changed_is_not_taken(tmp_path, stacks):
    broken(tmp_path / "r", 9, checkpoint_every=1e9)
    path = tmp_path / "r" / "executor.json"
    record = json.loads(path.read_text())
    assert record["config"] == [1, 3, ""]
    path.write_text(json.dumps({**record, "config": [1, 2, ""]}))
    with pytest.raises(DamagedFile, match=r"executor.json cannot be read: it is not what was written"):
        tarry.resume(tmp_path / "r")


def test_settings_that_were_cut_before_the_executor_are_found(tmp_path, stacks):
    broken(tmp_path / "r", 9, checkpoint_every=1e9)
    spec = tmp_path / "r" / "spec.toml"
    spec.write_text("".join(line for line in spec.read_text().splitlines(True) if not line.startswith("executor")))
    with pytest.raises(DamagedFile, match=r"spec.toml: a setting was changed after the run began"):
        tarry.resume(tmp_path / "r")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"config": [1], "compiled": false, "description": ""}'])
def test_a_choice_that_cannot_be_read_is_named(tmp_path, stacks, text):
    broken(tmp_path / "r", 9, checkpoint_every=1e9)
    (tmp_path / "r" / "executor.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"executor.json cannot be read"):
        tarry.resume(tmp_path / "r")
