"""Files of tuned settings: TOML, written by `tarry tune` and read by `tarry compare --tuned FILE`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.components import CROSSES
from ...config.spec import Spec
from ...core.errors import BadInput, DamagedFile
from ...core.storage import read_toml
from ...record.digests import EXECUTION_SETTINGS
from ...record.shapes import check_shape, count, fields, list_of, number, optional, table_of, text, whole
from ...record.storage import make_folder, read_text, write_atomic
from ...report.formatting import join_names
from ...version import __version__
from .search import TrialPoint
from .tuning import MethodTrials, Tuning

__all__ = [
    "TUNED",
    "TunedMethod",
    "TunedSettings",
    "read_tuned",
    "shared_settings",
    "tuned_settings",
    "tuned_text",
    "write_tuned",
]

TUNED = "tuned.toml"
_NOT_SHARED = ("method", *CROSSES, "seed", "axes", *EXECUTION_SETTINGS)
_METHOD = fields(
    {"label": text, "trials": count, "failed": count, "diverged": count, "space": table_of(text)},
    {"given": table_of(lambda *_: None), "tuned": table_of(lambda *_: None), "edges": table_of(text)}
    | {"best_trial": count, "score": optional(number), "scores": list_of(number)},
)
_SHAPE = fields(
    {
        "version": text,
        "search": text,
        "trials": count,
        "seeds": list_of(whole),
        "metric": text,
        "settings": table_of(lambda *_: None),
        "methods": list_of(_METHOD),
    },
    {"command": text, "objects": list_of(text)},
)


@dataclass(frozen=True)
class TunedMethod:
    """The tuned settings of one method."""

    label: str
    given: Mapping[str, Any]  # its settings without tuning: method, and the parts of a cross
    tuned: TrialPoint | None  # None: no trial finished
    trials: int


@dataclass(frozen=True)
class TunedSettings:
    """The content of a file of tuned settings."""

    path: Path
    toml: str  # the whole file
    search: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    objects: tuple[str, ...]  # settings that were Python objects, and have to be given again
    methods: tuple[TunedMethod, ...]

    def note(self) -> str:
        """Return a sentence on what was tuned."""
        by_names: dict[str, list[str]] = {}
        for method in self.methods:
            if method.tuned is not None:
                names = ", ".join(name.removeprefix("method.") for name in method.tuned)
                by_names.setdefault(names, []).append(method.label)
        what = "; ".join(f"{names} of {join_names(labels)}" for names, labels in by_names.items())
        trials = " or ".join(sorted({str(m.trials) for m in self.methods}, key=int))
        seeds = ", ".join(map(str, self.seeds))
        return f"Tuned on validation data: {what} ({self.search} search, {trials} trials each, seeds {seeds})."


def shared_settings(spec: Spec) -> dict[str, Any]:
    """Return the settings that all trials of a study share, as in spec.toml."""
    return {name: value for name, value in tomllib.loads(spec.to_toml()).items() if name not in _NOT_SHARED}


def write_tuned(path: Path, tuning: Tuning) -> Path:
    """Write the tuned settings; return the path."""
    make_folder(path.parent)
    write_atomic(path, tuned_text(tuning).encode())
    return path


def tuned_text(tuning: Tuning) -> str:
    """Return the text of the file."""
    head = {
        "version": __version__,
        "command": tuning.command,
        "search": tuning.search,
        "trials": tuning.trials,
        "seeds": list(tuning.seeds),
        "metric": tuning.metric.name,
        "objects": list(tuning.objects),
    }
    lines = ["# Tuned settings of `tarry tune`, for `tarry compare --tuned FILE`."]
    lines += [f"{name} = {_toml(value)}" for name, value in head.items()]
    lines += ["", "# of all trials", "[settings]"]
    lines += [f"{name} = {_toml(value)}" for name, value in tuning.settings.items()]
    for method in tuning.methods:
        lines += ["", "[[methods]]", *(f"{name} = {_toml(value)}" for name, value in _method_table(method).items())]
    return "\n".join(lines) + "\n"


def _method_table(method: MethodTrials) -> dict[str, Any]:
    best = method.best
    table: dict[str, Any] = {
        "label": method.label,
        "given": dict(method.given),
        "space": {name: str(dimension) for name, dimension in method.space.items()},
        "trials": len(method.trials),
        "failed": method.count("failed"),
        "diverged": method.count("diverged"),
    }
    if best is not None:
        table |= {"best_trial": best.number, "score": best.score, "scores": list(best.scores), "edges": method.edges}
        table |= {"tuned": dict(best.point)}
    return table


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return '"none"' if value is None else json.dumps(value, ensure_ascii=False)


def read_tuned(path: Path) -> TunedSettings:
    """Return what a file of tuned settings says; raise BadInput if it is none."""
    document = read_toml(path, f"--tuned {path}")
    return _of_document(path, document, read_text(path))


def tuned_settings(tuned: str | Path | Tuning) -> TunedSettings:
    """Return the tuned settings in a file, or those of a study."""
    if isinstance(tuned, Tuning):
        written = tuned_text(tuned)
        return _of_document(Path(TUNED), tomllib.loads(written), written)
    return read_tuned(Path(tuned))


def _of_document(path: Path, document: Mapping[str, Any], written: str) -> TunedSettings:
    try:
        check_shape(path, document, _SHAPE)
    except DamagedFile as e:
        raise BadInput(f"--tuned {path}: it is not a file that `tarry tune` wrote ({e})") from e
    return TunedSettings(
        path,
        written,
        document["search"],
        tuple(document["seeds"]),
        document["settings"],
        tuple(document.get("objects", [])),
        tuple(_tuned_method(table) for table in document["methods"]),
    )


def _tuned_method(table: Mapping[str, Any]) -> TunedMethod:
    return TunedMethod(table["label"], table.get("given", {}), table.get("tuned"), table["trials"])
