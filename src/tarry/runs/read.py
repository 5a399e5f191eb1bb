"""Read what is in a folder: a run, finished or not, a comparison or a federation."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.components import CROSSES
from ..config.spec import Spec
from ..core.errors import BadInput, TarryWarning, errors_as_keywords
from ..core.metric import ACCURACY, LOSS, CurvePoint, Metric
from ..metrics import metrics, metrics_of
from ..record import journal
from ..record.result import PROGRESS, Result, staleness_summary
from ..record.rows import read_events
from ..record.run_folder import RunFolder, object_comments, runs_below
from ..record.shapes import fields, list_of, read_record, text
from ..report.formatting import pluralize
from ..report.tables import summarize
from .comparison import Comparison
from .result import FolderModel
from .stored_spec import stored_spec
from .tuning.tuned_file import TUNED, read_tuned

__all__ = ["read"]

_TABLE = fields({"rows": list_of(fields({"label": text}))})
#: the settings that a result names
_NAMED = ("method", *CROSSES, "task", "seed", "clients", "target", "metric", "axes")


def read(folder: str | Path) -> Result | Comparison:
    """Return the run, the comparison or the federation in a folder, without running anything.

    An unfinished run is read from its event log: it has a curve and counters, but no weights, traffic or wall time.
    A comparison holds its finished runs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = tarry.run("fedasync", "digits", clients=3, updates=6, out=f"{folder}/one")
    ...     runs = tarry.compare(["fedavg", "fedasync"], clients=3, updates=6, seeds=[0], out=f"{folder}/two")
    ...     tarry.read(f"{folder}/one") == result
    ...     [run.label for run in tarry.read(f"{folder}/two")]
    True
    ['fedavg', 'fedasync']
    """
    folder = Path(folder)
    with errors_as_keywords():
        if not folder.is_dir():
            raise BadInput(f"{folder}: there is no such folder")
        if _holds_result(folder):
            return _with_model(folder)
        if (folder / "spec.toml").is_file():
            return _unfinished(folder)
        if runs := runs_below(folder):
            return _comparison(folder, runs)
        raise BadInput(
            f"{folder}: there is no run, comparison or federation here (neither result.json nor spec.toml); name the"
            " folder that was given as out"
        )


def _holds_result(folder: Path) -> bool:
    return (folder / "result.json").is_file() or (folder / PROGRESS).is_file()


def _with_model(folder: Path) -> Result:
    """Return the stored result, with what builds its model if its settings are there."""
    has_settings = (folder / "spec.toml").is_file()
    return replace(Result.read(folder), builder=FolderModel(folder) if has_settings else None)


def _unfinished(folder: Path) -> Result:
    """Return what the event log says of a run without a result."""
    log = folder / "events.jsonl"
    rows: Sequence[dict[str, Any]] = list(read_events(log)) if log.is_file() else []
    run = RunFolder(folder)
    objects = object_comments(run.spec_text())
    written = run.written_settings()
    axes = [axis.partition(".")[0] for axis in str(written.get("axes", "")).split(",")]
    given = {k: v for k, v in written.items() if k in (*_NAMED, *axes)}
    spec, kinds = stored_spec(run.spec, given), Counter(row["kind"] for row in rows)
    last: dict[str, Any] = rows[-1] if rows else {"time": 0.0, "updates": 0, "version": 0}
    evaluations = [r for r in rows if r["kind"] == "evaluate" and r.get("client", -1) < 0]
    measured = _metrics(spec, evaluations)
    points = [[r["time"], r["updates"], r.get("accuracy"), r.get("loss"), r.get("metrics") or {}] for r in evaluations]
    curve = [CurvePoint.from_row(point, measured[0].name) for point in points]
    label = _object_name(objects["method"]) if "method" in objects else spec.label
    return Result(
        method=label.partition(":")[0],
        label=label,
        task=_object_name(objects["task"]) if "task" in objects else spec.name_of("task").partition(":")[0],
        seed=spec.seed,
        n_clients=spec.clients or max((r.get("client", -1) for r in rows), default=-1) + 1,
        virtual_time=last["time"],
        updates=last["updates"],
        rounds=last["version"],
        final_accuracy=curve[-1].accuracy if curve else None,
        final_loss=curve[-1].loss if curve else None,
        curve=curve,
        staleness=staleness_summary(Counter(r["staleness"] for r in rows if r["kind"] == "arrival")),
        lost=kinds["lost"],
        rejected=kinds["rejected"],
        weights_sha256="",
        wall_s=0.0,
        bytes_up=0,
        bytes_down=0,
        peak_server_bytes=0,
        version="",
        target=spec.target,
        metrics=() if measured in ((ACCURACY,), (LOSS,)) else measured,
        clock="wall" if (folder / journal.NAME).is_file() else "virtual",
        warnings=["the run is not finished"],
        out=folder,
        builder=FolderModel(folder),
        finished=False,
    )


def _metrics(spec: Spec, evaluations: Sequence[dict[str, Any]]) -> tuple[Metric, ...]:
    """Return the metrics of the settings; without them, or where they were Python objects, those of the event log."""
    if spec.metric is not None:
        return tuple(m.description for m in metrics_of(spec.metric))
    row = evaluations[-1] if evaluations else {}
    names = [*(row.get("metrics") or {}), *(["accuracy"] if row.get("accuracy") is not None else [])]
    found = tuple(metrics[name]().description if name in metrics else Metric(name) for name in names)
    return found or (LOSS if row.get("loss") is not None else ACCURACY,)


def _object_name(comment: str) -> str:
    """Return NAME of 'a Python object (NAME)'."""
    found = re.fullmatch(r"a Python object \((.*)\)", comment)
    return found[1] if found else comment


def _comparison(folder: Path, runs: Sequence[Path]) -> Comparison:
    """Return the finished runs of a comparison, in the order of its table; warn of the others."""
    finished = [run for run in runs if RunFolder(run).is_finished()]
    if missing := len(runs) - len(finished):
        text = f"{missing} of {pluralize(len(runs), 'run')} in {folder} are not finished"
        if not finished:
            raise BadInput(f"{text}; the same comparison with --out {folder} resumes them")
        warnings.warn(f"{text} and are left out", TarryWarning, stacklevel=3)
    results = [_with_model(run) for run in finished]
    order = _labels(folder)
    results.sort(key=lambda r: (order.index(r.label) if r.label in order else len(order), r.label, r.seed))
    tuned = read_tuned(folder / TUNED).note() if (folder / TUNED).is_file() else ""
    return Comparison(tuple(results), summarize(results), folder, tuned=tuned)


def _labels(folder: Path) -> list[str]:
    """Return the labels in compare.json, the table of a finished comparison."""
    table = folder / "compare.json"
    return [row["label"] for row in read_record(table, _TABLE)["rows"]] if table.is_file() else []
