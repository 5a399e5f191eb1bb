"""TensorBoard, MLflow and W&B, which write to local files here, and are read by their own libraries or formats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tarry
from tests.helpers.track_stores import (
    Curves,
    curves_of_mlflow,
    curves_of_result,
    curves_of_tensorboard,
    curves_of_wandb,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries

ALL = ["tensorboard", "mlflow", "wandb"]
RUN: Mapping[str, Any] = {
    "method": "fedbuff:buffer=2",
    "task": {"name": "digits", "limit": 200, "hidden": 8},
    "clients": 3,
    "epochs": 1,
    "delay": [1, 1.5, 2.25],
    "time": 10,
    "eval_every": 0.75,
    "failure_rate": 0.2,
    "diagnose": True,
}
#: ends itself by kill -9 at the ninth evaluation, when the newest checkpoint is of the fifth
KILLED = """
import os, sys, tarry
from tarry.runs.run import RunSession

evaluations, save = [], RunSession._checkpoint

def save_early(session, sim):
    if len(evaluations) <= 5:
        save(session, sim)

def count(event):
    evaluations.extend([event] if event.kind == "evaluate" else [])
    if len(evaluations) == 9:
        os.kill(os.getpid(), 9)

RunSession._checkpoint = save_early
tarry.run(out=sys.argv[1], track=%r, callbacks=[count], checkpoint_every=1e-9, **%r)
"""


@dataclass(frozen=True)
class Tracked:
    """A run with its curves in the stores."""

    result: tarry.Result
    memories: Mapping[str, Mapping[str, str]]

    @property
    def curves(self) -> Mapping[str, Curves]:
        mlflow = self.memories["mlflow"]
        return {
            "tensorboard": curves_of_tensorboard(Path(self.memories["tensorboard"]["folder"])),
            "mlflow": curves_of_mlflow(mlflow["tracking_uri"], mlflow["run_id"]),
            "wandb": curves_of_wandb(Path(self.memories["wandb"]["offline"])),
        }

    @classmethod
    def of(cls, result: tarry.Result) -> Tracked:
        assert result.out is not None
        return cls(result, json.loads((result.out / "tracking.json").read_text())["memories"])


@pytest.fixture(scope="module")
def whole(stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    return Tracked.of(tarry.run(out=tmp_path_factory.mktemp("whole") / "run", track=ALL, **RUN))


@pytest.mark.parametrize("name", ALL)
def test_a_tracker_gets_the_curve_over_updates_and_virtual_time(whole, name):
    curves = whole.curves[name]
    for y, points in curves_of_result(whole.result).items():
        assert [p[:2] for p in curves[y]] == [p[:2] for p in points]
        assert [p[2] for p in curves[y]] == pytest.approx([p[2] for p in points], rel=1e-6)
    assert len(points) > 10


@pytest.mark.parametrize("name", ALL)
def test_a_tracker_gets_staleness_losses_traffic_and_diagnostics(whole, name):
    curves, result = whole.curves[name], whole.result
    assert curves["lost"][-1][2] == result.lost > 0
    assert curves["bytes_up"][-1][2] == result.bytes_up > 0
    assert curves["bytes_down"][-1][2] == result.bytes_down > 0
    assert curves["server_steps"][-1][2] == result.rounds > 0
    assert max(p[2] for p in curves["staleness_max"]) == result.staleness.max > 0
    assert {"staleness_mean", "rejected", "train_loss", "wall_s", "diagnostics/cosine"} <= set(curves)
    assert "diagnostics/cosine_by_layer/1.weight" in curves


def test_tracking_changes_no_bit_and_no_file_of_the_run(whole, tmp_path):
    plain = tarry.run(out=tmp_path / "run", **RUN)
    assert plain.out is not None
    assert whole.result.out is not None
    assert plain.weights_sha256 == whole.result.weights_sha256
    assert plain.curve == whole.result.curve
    for name in ("events.jsonl", "arrivals.csv", "model.safetensors", "meta.json"):
        assert (plain.out / name).read_bytes() == (whole.result.out / name).read_bytes()
    names = [{p.name for p in out.iterdir()} - {"checkpoints"} for out in (whole.result.out, plain.out)]
    assert names[0] - names[1] == {"tracking.json", "tensorboard"}
    assert tarry.verify(whole.result.out).ok


def test_tensorboard_has_the_settings_and_the_result(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = EventAccumulator(whole.memories["tensorboard"]["folder"]).Reload()
    text = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert "| method.buffer | 2 |" in text["settings/text_summary"]
    assert f"| weights_sha256 | {whole.result.weights_sha256} |" in text["result/text_summary"]
    assert found.Scalars("final/accuracy")[0].value == pytest.approx(whole.result.final_accuracy)
    stored = found.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    parameters = metadata.parse_session_start_info_plugin_data(stored).hparams
    assert parameters["lr"].number_value == 0.05
    assert parameters["method"].string_value == "fedbuff"


def test_mlflow_has_the_parameters_the_result_and_the_files(whole):
    from mlflow import MlflowClient

    memory = whole.memories["mlflow"]
    client = MlflowClient(tracking_uri=memory["tracking_uri"])
    run = client.get_run(memory["run_id"])
    assert (run.info.status, run.data.tags["mlflow.runName"]) == ("FINISHED", "fedbuff:buffer=2, seed 0")
    assert client.get_experiment(run.info.experiment_id).name == "tarry"
    assert (run.data.params["method.buffer"], run.data.params["lr"], run.data.params["task.limit"]) == (
        "2", "0.05", "200",
    )  # fmt: skip
    assert run.data.metrics["final/accuracy"] == whole.result.final_accuracy
    assert run.data.tags["tarry.weights_sha256"] == whole.result.weights_sha256
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"model.safetensors", "spec.toml", "result.json"}
    stored = Path(client.download_artifacts(run.info.run_id, "model.safetensors"))
    assert stored.read_bytes() == (whole.result.out / "model.safetensors").read_bytes()


def test_wandb_is_offline_by_default_and_has_the_files(whole):
    folder = Path(whole.memories["wandb"]["offline"])
    assert folder.name.startswith("offline-run-")
    for name in ("model.safetensors", "spec.toml", "result.json"):
        assert (folder / "files" / name).read_bytes() == (whole.result.out / name).read_bytes()


@pytest.fixture(scope="module")
def resumed(stores: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tracked, Mapping[str, Any]]:
    """A run that was killed and resumed, and what its trackers remembered when it was killed."""
    out = tmp_path_factory.mktemp("killed") / "run"
    code = KILLED % (ALL, dict(RUN))
    done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    before = json.loads((out / "tracking.json").read_text())["memories"]
    assert len(curves_of_tensorboard(Path(before["tensorboard"]["folder"]))["loss"]) == 9
    assert len(curves_of_mlflow(before["mlflow"]["tracking_uri"], before["mlflow"]["run_id"])["loss"]) == 9
    return Tracked.of(tarry.resume(out)), before


@pytest.mark.parametrize("name", ALL)
def test_killed_and_resumed_a_run_has_the_curves_of_an_uninterrupted_one(whole, resumed, name):
    mine, expected = dict(resumed[0].curves[name]), dict(whole.curves[name])
    assert len(mine.pop("wall_s")) == len(expected.pop("wall_s"))
    assert mine == expected
    assert resumed[0].result.weights_sha256 == whole.result.weights_sha256


def test_a_resumed_run_keeps_its_ids_and_leaves_no_half_record(resumed):
    after, before = resumed[0].memories, resumed[1]
    assert after["mlflow"] == before["mlflow"]
    assert after["tensorboard"] == before["tensorboard"]
    assert after["wandb"]["run_id"] == before["wandb"]["run_id"]
    assert not Path(before["wandb"]["offline"]).exists()


def test_a_comparison_is_a_parent_run_a_folder_and_a_group(stores, tmp_path):
    from mlflow import MlflowClient

    settings = {k: v for k, v in RUN.items() if k not in ("method", "diagnose")}
    compared = tarry.compare(
        ["fedavg", "fedasync"], seeds=[0], out=tmp_path / "table", track=ALL, workers=2, **settings
    )  # fmt: skip
    memories = [json.loads((run.out / "tracking.json").read_text())["memories"] for run in compared]
    group = json.loads((tmp_path / "table" / "tracking.json").read_text())["memories"]

    client = MlflowClient(tracking_uri=group["mlflow"]["tracking_uri"])
    parent = client.get_run(group["mlflow"]["run_id"])
    assert (parent.info.status, parent.data.tags["mlflow.runName"]) == ("FINISHED", "table")
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"report.html", "table.md", "compare.json"}
    for memory in memories:
        child = client.get_run(memory["mlflow"]["run_id"])
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id

    root = tmp_path / "table" / "tensorboard"
    assert [Path(memory["tensorboard"]["folder"]) for memory in memories] == [
        root / "fedavg" / "seed-0", root / "fedasync" / "seed-0",
    ]  # fmt: skip
    for memory, run in zip(memories, compared, strict=True):
        assert len(curves_of_tensorboard(Path(memory["tensorboard"]["folder"]))["loss"]) == len(run.curve)
        assert len(curves_of_wandb(Path(memory["wandb"]["offline"]))["loss"]) == len(run.curve)
    page = Path(group["wandb"]["offline"]) / "files" / "report.html"
    assert "fedasync" in page.read_text()
    assert tarry.verify(tmp_path / "table").ok
    assert [run.label for run in tarry.read(tmp_path / "table")] == ["fedavg", "fedasync"]
