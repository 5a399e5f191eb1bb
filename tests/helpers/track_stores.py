"""Stores of trackers, read with their own libraries, and a tracker in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tarry

__all__ = ["Recording", "curves_of_mlflow", "curves_of_result", "curves_of_tensorboard", "curves_of_wandb"]

#: by name: (updates, virtual time, value) of each point
Curves = Mapping[str, Sequence[tuple[int, float, float]]]


class Recording(tarry.Tracker):
    """Tracker that keeps everything that it gets."""

    def __init__(self) -> None:
        self.runs: list[tarry.TrackedRun] = []
        self.points: list[tarry.TrackedPoint] = []
        self.results: list[tarry.Result | None] = []
        self.groups: list[tuple[str, Any]] = []

    def begin(self, run: tarry.TrackedRun) -> None:
        self.runs.append(run)
        self.points = list(run.points)

    def log(self, point: tarry.TrackedPoint) -> None:
        self.points.append(point)

    def end(self, result: tarry.Result | None) -> None:
        self.results.append(result)

    def begin_group(self, group: tarry.TrackedGroup) -> None:
        self.groups.append(("begin", group))

    def end_group(self, group: tarry.TrackedGroup, results: Sequence[tarry.Result], files: Sequence[Path]) -> None:
        self.groups.append(("end", [file.read_text() for file in files]))


def curves_of_result(result: tarry.Result) -> Curves:
    """Return accuracy and loss as the run has them."""
    return {y: [(p.updates, p.time, getattr(p, y)) for p in result.curve] for y in ("accuracy", "loss")}


def curves_of_tensorboard(folder: Path) -> Curves:
    """Return the scalars of the event files in a folder, without those of the result."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    names = [name for name in found.Tags()["scalars"] if not name.startswith("final/")]
    began = found.Scalars("virtual_time")[0].wall_time
    return {name: [(s.step, round(s.wall_time - began, 3), s.value) for s in found.Scalars(name)] for name in names}


def curves_of_mlflow(uri: str, run: str) -> Curves:
    """Return the metrics of a run in a store of MLflow, without those of the result."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    began = min(metric.timestamp for metric in client.get_metric_history(run, "virtual_time"))
    out = {}
    for name in client.get_run(run).data.metrics:
        if not name.startswith("final/"):
            history = client.get_metric_history(run, name)
            out[name] = [(metric.step, (metric.timestamp - began) / 1000, metric.value) for metric in history]
    return out


def curves_of_wandb(folder: Path) -> Curves:
    """Return the history in the offline record of a run of W&B."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    out: dict[str, list[tuple[int, float, float]]] = {}
    for data in _log_records(file.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") != "history":
            continue
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in row.items():
            if not name.startswith("_") and name != "updates":
                out.setdefault(name, []).append((row["updates"], row["virtual_time"], value))
    return out


def _log_records(data: bytes) -> list[bytes]:
    """Return the records of a file in LevelDB's log format after W&B's header of 7 bytes."""
    records, record, at, block = [], b"", 7, 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block holds no header
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            records.append(record)
            record = b""
    return records
