"""One call of a study: its options, the data that are here, and pieces that are finished already."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.spec import Spec
from ...core.errors import BadInput, near
from ...record.result import write_atomic
from ...runs.build import BuiltRun, build_run
from ...version import __version__
from ..experiment import merged

__all__ = ["Study", "Tell", "begin"]

Tell = Callable[[str], None]


@dataclass
class Study:
    """What was asked for, and what there is to say of it."""

    options: dict[str, Any]
    seeds: Sequence[int]
    device: str
    folder: Path
    tell: Tell
    notes: list[str] = field(default_factory=list)

    def settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Of `tarry run`; when runs are scored on the way is the study's own business."""
        asked = merged(self.options["settings"], changes or {})
        return {name: value for name, value in asked.items() if name != "eval_every"}

    def plan(self, seed: int, changes: Mapping[str, Any] | None = None) -> BuiltRun:
        """A run with these settings on this device, everything built."""
        return build_run(Spec.of({**self.settings(changes), "seed": seed, **_machine(self.device)}))

    def choices(self, option: str) -> dict[str, Any]:
        """A table of an option, without what the TOML has unset."""
        return {name: value for name, value in self.options[option].items() if value != "none"}

    def piece(self, name: str, asked: Any, make: Callable[[], Any]) -> Any:
        """What was made of this before, or is made now and kept. `asked`: all that it depends on."""
        text = json.dumps([__version__, asked], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9.+=-]+', '_', name)}-{digest}.json"
        if path.is_file():
            return json.loads(path.read_text())
        made = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(made) + "\n").encode())
        return json.loads(path.read_text())  # what a second call gives, to the type

    def find_data(self, paper: Any) -> None:
        """Take the first of the task and its stand-ins that can be had here; say so where it is not the paper's."""
        refused: BadInput | None = None
        asked = self.options["settings"]["task"]
        for task in (asked, *self.options["stand_ins"]):
            try:
                self.plan(0, {"task": task})
            except BadInput as e:
                refused = refused or e
                continue
            if refused is not None:
                self.tell(f"{_name(task)} stands in for {_name(asked)}: {refused.problems[0]}")
            if _name(task) != _name(paper):
                self.notes.append(f"{_name(task)} stood in for {_name(paper)}.")
            self.options["settings"] = {**self.options["settings"], "task": task}
            return
        assert refused is not None
        raise refused


def begin(
    paper: Mapping[str, Any],
    small: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    quick: bool,
    seeds: Sequence[int],
    device: str,
    folder: Path,
    tell: Tell,
) -> Study:
    """A study with the paper's options, small ones if it is to be quick, and over both those that were given.

    Settings are changed one by one; a table of methods or models that is given is the whole table.
    """
    if unknown := [name for name in options if name not in paper]:
        raise BadInput([f"[study_options] {name}: there is no such option.{near(name, paper)}" for name in unknown])
    own = merged(paper, small if quick else {})
    settings = {"settings": merged(own["settings"], options.get("settings", {}))} if "settings" in own else {}
    study = Study({**own, **options, **settings}, seeds, device, folder, tell)
    if "settings" in study.options:
        study.find_data(paper["settings"]["task"])
    return study


def _machine(device: str) -> dict[str, Any]:
    return {"device": device, "executor": "auto"} if device != "cpu" else {"device": device}


def _name(choice: Any) -> str:
    return str(choice["name"]) if isinstance(choice, Mapping) else str(choice)
