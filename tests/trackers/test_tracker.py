"""The protocol of trackers, their syntax, and what happens when one fails."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.config.spec import Spec
from tests.helpers.interrupted import interrupted_run
from tests.helpers.track_stores import Recording, curves_of_tensorboard

RUN: dict[str, Any] = {
    "method": "fedasync",
    "task": {"name": "digits", "limit": 200, "hidden": 8},
    "clients": 3,
    "epochs": 1,
    "delay": [1, 1.5, 2.25],
    "time": 8,
    "eval_every": 1,
}


def test_a_tracker_gets_the_run_its_points_and_its_result(tmp_path):
    tracker = Recording()
    result = tarry.run(out=tmp_path / "run", track=tracker, lr=0.1, **RUN)
    (run,) = tracker.runs
    assert (run.name, run.label, run.task, run.seed) == ("fedasync, seed 0", "fedasync", "digits", 0)
    assert (run.folder, run.group, run.points) == (tmp_path / "run", None, ())
    assert run.settings["lr"] == 0.1
    first = tarry.methods["fedasync"].params[0]
    assert run.settings[f"method.{first.name}"] == first.default
    assert (run.settings["task"], run.settings["task.limit"]) == ("digits", 200)
    assert [(p.time, p.updates, p.values["accuracy"], p.values["loss"]) for p in tracker.points] == [
        (p.time, p.updates, p.accuracy, p.loss) for p in result.curve
    ]
    assert tracker.points[-1].values["bytes_up"] == result.bytes_up
    assert tracker.results == [result]


def test_every_metric_is_tracked_by_its_name():
    tracker = Recording()
    result = tarry.run(track=tracker, metric="f1,topk:k=2", **RUN)
    names = [metric.name for metric in result.metrics]
    assert tracker.runs[0].settings["metric"] == "f1,topk:k=2"
    assert "accuracy" not in names
    for name in (*names, "loss"):
        assert [p.values[name] for p in tracker.points] == [p.metrics[name] for p in result.curve]


def test_numbers_of_arrivals_are_means_since_the_last_evaluation():
    events, tracker = list[tarry.Event](), Recording()
    tarry.run(track=tracker, callbacks=[events.append], **RUN)
    since = list[tarry.Event]()
    points = iter(tracker.points)
    for event in events:
        if event.kind == "arrival":
            since.append(event)
        elif event.kind == "evaluate":
            values = next(points).values
            if since:
                assert values["staleness_mean"] == pytest.approx(sum(e.staleness for e in since) / len(since))
                assert values["staleness_max"] == max(e.staleness for e in since)
                assert values["train_loss"] == pytest.approx(sum(e.loss or 0.0 for e in since) / len(since))
            else:
                assert "staleness_mean" not in values
            since.clear()
    assert next(points, None) is None


@pytest.mark.parametrize("saves", [True, False], ids=["from a checkpoint", "from the start"])
def test_a_resumed_run_gets_the_points_up_to_its_checkpoint_again(tmp_path, saves):
    whole, first, second = Recording(), Recording(), Recording()
    tarry.run(track=whole, **RUN)
    every = 1e-9 if saves else 1e9
    interrupted_run(tmp_path / "run", lambda e: e.time >= 4.5, track=first, checkpoint_every=every, **RUN)
    assert first.results == [None]
    tarry.resume(tmp_path / "run", track=second)
    (run,) = second.runs
    assert bool(run.points) == saves
    assert (run.began, run.memory) == (first.runs[0].began, {})

    def without_wall(points: list[tarry.TrackedPoint]) -> list[Any]:
        return [(p.time, p.updates, {k: v for k, v in p.values.items() if k != "wall_s"}) for p in points]

    assert without_wall(second.points) == without_wall(whole.points)


def test_a_run_that_was_not_tracked_before_gives_its_scores(tmp_path):
    tracker = Recording()
    interrupted_run(tmp_path / "run", lambda e: e.time >= 4.5, checkpoint_every=1e-9, **RUN)
    result = tarry.resume(tmp_path / "run", track=tracker)
    assert [(p.time, p.values["accuracy"]) for p in tracker.points] == [(p.time, p.accuracy) for p in result.curve]


def warnings_of_trackers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in (r.getMessage() for r in caplog.records) if "track" in text]


class Failing(tarry.Tracker):
    """Raises in one of its methods."""

    def __init__(self, where: str):
        self.where, self.calls = where, list[str]()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.where:
            raise ConnectionError("no route to the tracker")

    def begin(self, run: tarry.TrackedRun) -> None:
        self._call("begin")

    def log(self, point: tarry.TrackedPoint) -> None:
        self._call("log")

    def end(self, result: tarry.Result | None) -> None:
        self._call("end")

    def begin_group(self, group: tarry.TrackedGroup) -> None:
        self._call("begin_group")

    def end_group(self, group: Any, results: Any, files: Any) -> None:
        self._call("end_group")


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_left_out_after_one_warning_and_changes_nothing(caplog, where):
    failing, other = Failing(where), Recording()
    with caplog.at_level(logging.WARNING, "tarry"):
        result = tarry.run(track=[failing, other], **RUN)
    assert failing.calls.count(where) == 1
    assert failing.calls[-1] == where
    assert warnings_of_trackers(caplog) == [
        "fedasync, seed 0: tracking by Failing failed (ConnectionError: no route to the tracker); it continues without"
    ]
    plain = tarry.run(**RUN)
    assert (result.weights_sha256, result.curve, result.warnings) == (plain.weights_sha256, plain.curve, plain.warnings)
    assert len(other.points) == len(result.curve)


@pytest.mark.parametrize("where", ["begin_group", "end_group"])
def test_a_tracker_that_fails_for_a_comparison_does_not_end_it(caplog, where):
    settings = {k: v for k, v in RUN.items() if k != "method"}
    with caplog.at_level(logging.WARNING, "tarry"):
        compared = tarry.compare(["fedasync"], seeds=[0], track=Failing(where), **settings)
    assert len(compared) == 1
    assert [text.partition(" (")[0] for text in warnings_of_trackers(caplog)] == [
        "comparison: tracking by Failing failed"
    ]


def test_a_tracking_file_that_cannot_be_read_does_not_end_a_run(tmp_path, caplog):
    interrupted_run(tmp_path / "run", lambda e: e.time >= 4.5, track=Recording(), checkpoint_every=1e-9, **RUN)
    (tmp_path / "run" / "tracking.json").write_text('{"began": "yesterday"}')
    with caplog.at_level(logging.WARNING, "tarry"):
        tarry.resume(tmp_path / "run", track=Recording())
    (text,) = warnings_of_trackers(caplog)
    assert "tracking.json cannot be read" in text


def test_a_comparison_is_a_group_with_its_page_and_table(tmp_path):
    tracker = Recording()
    settings = {k: v for k, v in RUN.items() if k != "method"}
    tarry.compare(["fedavg", "fedasync"], seeds=[0, 1], out=tmp_path / "table", track=tracker, **settings)
    assert [run.name for run in tracker.runs] == [f"{m}, seed {s}" for m in ("fedavg", "fedasync") for s in (0, 1)]
    assert {run.group.name for run in tracker.runs if run.group} == {"table"}
    (first, group), (last, texts) = tracker.groups
    assert (first, last, group.folder) == ("begin", "end", tmp_path / "table")
    assert "<html" in texts[0]
    assert "| fedasync |" in texts[1]
    assert json.loads(texts[2])["rows"]


def test_the_trials_of_a_study_are_a_group():
    tracker = Recording()
    given = {"clients": 3, "updates": 3, "epochs": 1, "delay": [1, 1.5, 2.25], "track": tracker}
    tarry.tune(["fedasync"], {"name": "digits", "limit": 200, "hidden": 8}, trials=2, seeds=[1000], **given)
    assert len(tracker.runs) == 2
    assert {run.group.name for run in tracker.runs if run.group} == {"comparison"}
    assert [kind for kind, _ in tracker.groups] == ["begin", "end"]


def test_a_run_whose_folder_was_moved_continues_its_file_there(tmp_path):
    interrupted_run(tmp_path / "run", lambda e: e.time >= 4.5, track="tensorboard", checkpoint_every=1e-9, **RUN)
    (tmp_path / "run").rename(tmp_path / "moved")
    result = tarry.resume(tmp_path / "moved")
    assert not (tmp_path / "run").exists()
    assert len(curves_of_tensorboard(tmp_path / "moved" / "tensorboard")["loss"]) == len(result.curve)


def names(track: Any) -> list[Any]:
    return [(t.name, dict(t.params)) for t in Spec.of({"track": track}).track or ()]


@pytest.mark.parametrize(
    ("track", "found"),
    [
        (None, []),
        ("none", []),
        ("tensorboard", [("tensorboard", {})]),
        ("tensorboard,mlflow", [("tensorboard", {}), ("mlflow", {})]),
        ("wandb:project=a,entity=b,mlflow", [("wandb", {"project": "a", "entity": "b"}), ("mlflow", {})]),
        (["mlflow:experiment=a", "tensorboard"], [("mlflow", {"experiment": "a"}), ("tensorboard", {})]),
        ({"name": "mlflow", "experiment": "a"}, [("mlflow", {"experiment": "a"})]),
    ],
)
def test_trackers_are_named_in_a_text_a_list_or_a_table(track, found):
    assert names(track) == found
    written = Spec.of({"track": track}).to_toml()
    assert ("track" in written) == bool(found)


def test_what_is_written_in_spec_toml_is_read_again(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(Spec.of({"track": ["mlflow:experiment=a", Recording(), "tensorboard"]}).to_toml())
    assert names(Spec.read(path)["track"]) == [("mlflow", {"experiment": "a"}), ("tensorboard", {})]


@pytest.mark.parametrize(
    ("track", "problem"),
    [
        ("tensorbord", "track='tensorbord': there is no such tracker. Did you mean 'tensorboard'?"),
        ("mlflow:run=a", "track.run='a': tracker 'mlflow' has no parameter 'run'. Known: experiment."),
        ("mlflow,mlflow", "track='mlflow': it is there twice; leave one out"),
        (3, "track=3: wants names or trackers, got int"),
        (Recording, "wants names or trackers, got type; make an object of the class first"),
    ],
)
def test_a_wrong_tracker_is_an_error_before_the_run(track, problem):
    with pytest.raises(tarry.BadInput) as caught:
        tarry.run(track=track, **RUN)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_library_is_named_with_its_extra_before_anything_is_written(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(tarry.BadInput, match=rf'{name} is needed .*: pip install "tarry\[{name}\]"$'):
        tarry.run(track=name, out=tmp_path / "run", **RUN)
    assert not (tmp_path / "run").exists()


def test_trackers_are_imported_when_they_are_used_only(tmp_path):
    import subprocess

    code = "import sys, tarry; tarry.run('fedasync', clients=2, updates=2, epochs=1); print(sorted(set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not {"tensorboard", "mlflow", "wandb"} & set(json.loads(done.stdout.replace("'", '"')))


def test_a_tracker_may_be_a_class_in_a_file(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "own_tracker.py"
    tracker = f"{example}:CsvTracker:folder={tmp_path}"
    interrupted_run(tmp_path / "run", lambda e: e.time >= 4.5, track=tracker, checkpoint_every=1e-9, **RUN)
    result = tarry.resume(tmp_path / "run")
    head, *rows = (tmp_path / "fedasync, seed 0.csv").read_text().splitlines()
    assert head.startswith("time,updates,accuracy,loss")
    assert [tuple(float(cell) for cell in row.split(",")[:4]) for row in rows] == [
        (p.time, p.updates, p.accuracy, p.loss) for p in result.curve
    ]
