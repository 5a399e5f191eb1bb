"""MLflow: a run with parameters, metrics and artifacts; a comparison is a parent run with a child for each run.

The step of a metric is the number of updates; its time is when the run began plus its virtual time. A resumed run
continues the same run of MLflow: numbers that it holds already are not logged again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..core.optional_import import optional_import
from ..record.result import Result
from ..version import __version__
from .numbers import artifacts, result_numbers, result_texts
from .registry import trackers
from .tracker import TrackedGroup, TrackedPoint, TrackedRun, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["MLflow"]

_PARAMETERS, _METRICS = 100, 1000  # that MLflow takes in one request
_LONGEST = 6000  # characters of a parameter
#: no report of usage to MLflow's makers; no open connections that a process with a run would share with its parent
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}


class MLflow(Tracker):
    """Client of the store that MLflow is configured for: MLFLOW_TRACKING_URI, or a SQLite file here."""

    def __init__(self, experiment: str | None = None):
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with optional_import("mlflow", extra="mlflow"):
            import mlflow

        self._mlflow, self._experiment = mlflow, experiment
        self._client: MlflowClient | None = None
        self._run, self._is_resumed = "", False
        self._known: dict[str, int] = {}  # numbers of a resumed run that MLflow has and that were not given again yet

    def begin(self, run: TrackedRun) -> None:
        self._began = run.began
        tags = {"tarry.version": __version__, "tarry.folder": str(run.folder or "")}
        if run.group is not None:
            tags["mlflow.parentRunId"] = run.group.memory["run_id"]
        self._open(run.memory, run.name, run.began, tags)
        parameters = [(_name(k), str(v)[:_LONGEST] or "none") for k, v in run.settings.items()]
        for some in _parts(parameters, _PARAMETERS):
            self._batch(params=[self._mlflow.entities.Param(*pair) for pair in some])
        missing = [metric for point in run.points for metric in self._metrics(point)]
        for some in _parts(missing, _METRICS):
            self._batch(metrics=some)

    def _open(self, memory: dict[str, str], name: str, began: float, tags: dict[str, str]) -> None:
        """Begin a run of MLflow, or reopen the one in `memory`."""
        uri = memory.setdefault("tracking_uri", self._mlflow.get_tracking_uri())
        client = self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        self._known, self._is_resumed = {}, "run_id" in memory
        if self._is_resumed:
            self._run = memory["run_id"]
            client.update_run(self._run, status="RUNNING")
            return
        tags = {"mlflow.runName": name, "mlflow.source.name": "tarry", "mlflow.source.type": "LOCAL", **tags}
        made = client.create_run(self._experiment_id(client), start_time=round(began * 1000), run_name=name, tags=tags)
        self._run = memory["run_id"] = made.info.run_id

    def _experiment_id(self, client: MlflowClient) -> str:
        if self._experiment is None and (given := os.environ.get("MLFLOW_EXPERIMENT_ID")):
            return given
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tarry"
        if (found := client.get_experiment_by_name(name)) is None:
            with suppress(self._mlflow.exceptions.MlflowException):  # another process may be faster
                return str(client.create_experiment(name))
            found = client.get_experiment_by_name(name)
        assert found is not None
        return str(found.experiment_id)

    def log(self, point: TrackedPoint) -> None:
        self._batch(metrics=list(self._metrics(point)))

    def _metrics(self, point: TrackedPoint) -> Iterator[Any]:
        """Yield the numbers of a point, without those that a process which was killed has logged."""
        at = round((self._began + point.time) * 1000)
        for name, value in {**point.values, "virtual_time": point.time}.items():
            key = _name(name)
            if self._is_resumed and self._take_known(key):
                continue
            yield self._mlflow.entities.Metric(key, value, at, point.updates)

    def _take_known(self, key: str) -> bool:
        """Return whether MLflow has the next number of a resumed run."""
        assert self._client is not None
        if key not in self._known:
            self._known[key] = len(self._client.get_metric_history(self._run, key))
        self._known[key] -= 1
        return self._known[key] >= 0

    def end(self, result: Result | None) -> None:
        assert self._client is not None
        if result is None:
            self._client.set_terminated(self._run, "KILLED")
            return
        at = round((self._began + result.virtual_time) * 1000)
        numbers = result_numbers(result).items()
        self._batch(metrics=[self._mlflow.entities.Metric(_name(k), v, at, result.updates) for k, v in numbers])
        self._tag({f"tarry.{name}": text for name, text in result_texts(result).items()})
        with artifacts(result) as files:
            for file in files:
                self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, "FINISHED")

    def begin_group(self, group: TrackedGroup) -> None:
        self._open(group.memory, group.name, group.began, {"tarry.version": __version__})

    def end_group(self, group: TrackedGroup, results: Sequence[Result], files: Sequence[Path]) -> None:
        client, run = self._mlflow.MlflowClient(tracking_uri=group.memory["tracking_uri"]), group.memory["run_id"]
        client.set_tag(run, "tarry.runs", str(len(results)))
        for file in files:
            client.log_artifact(run, str(file))
        client.set_terminated(run, "FINISHED")

    def _batch(self, *, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()) -> None:
        assert self._client is not None
        self._client.log_batch(self._run, metrics, params, tags)

    def _tag(self, tags: Mapping[str, str]) -> None:
        self._batch(tags=[self._mlflow.entities.RunTag(name, text) for name, text in tags.items()])


def _name(text: str) -> str:
    """Return a name with the characters that MLflow takes."""
    return re.sub(r"[^\w.\-: /]+", "_", text)


def _parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


@trackers.register("mlflow")
def mlflow(
    *, experiment: Annotated[str | None, "name of the experiment [default: MLFLOW_EXPERIMENT_NAME, or tarry]"] = None
) -> Tracker:
    """Log to MLflow: to MLFLOW_TRACKING_URI, or to the file mlflow.db here."""
    return MLflow(experiment)
