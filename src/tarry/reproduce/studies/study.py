"""Study: the options of one call, its data set or a stand-in, and its stored pieces."""

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
from ...record.storage import read_json, write_atomic
from ...runs.build import BuiltRun, build_run
from ...version import __version__
from ..experiment import merge_layers

__all__ = ["Study", "Tell", "begin"]

Tell = Callable[[str], None]


@dataclass
class Study:
    """The options of a call, and notes on its result."""

    options: dict[str, Any]
    seeds: Sequence[int]
    device: str
    folder: Path
    tell: Tell
    notes: list[str] = field(default_factory=list)

    def settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a run without eval_every, which the study chooses."""
        settings = merge_layers(self.options["settings"], changes or {})
        return {name: value for name, value in settings.items() if name != "eval_every"}

    def plan(self, seed: int, changes: Mapping[str, Any] | None = None) -> BuiltRun:
        """Return a built run with these settings on this device."""
        return build_run(Spec.of({**self.settings(changes), "seed": seed, **_machine(self.device)}))

    def choices(self, option: str) -> dict[str, Any]:
        """Return the table of an option without entries that are "none"."""
        return {name: value for name, value in self.options[option].items() if value != "none"}

    def piece(self, name: str, inputs: Any, make: Callable[[], Any]) -> Any:
        """Return the stored piece of these inputs, or make and store it; `inputs` is all that it depends on."""
        text = json.dumps([__version__, inputs], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9.+=-]+', '_', name)}-{digest}.json"
        if path.is_file():
            return read_json(path)
        made = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(made) + "\n").encode())
        return read_json(path)  # the same types as a second call returns

    def find_data(self, paper: Any) -> None:
        """Choose the first of the task and its stand-ins whose data exist; note it if that is not the paper's."""
        rejected: BadInput | None = None
        first = self.options["settings"]["task"]
        for task in (first, *self.options["stand_ins"]):
            try:
                self.plan(0, {"task": task})
            except BadInput as e:
                rejected = rejected or e
                continue
            if rejected is not None:
                self.tell(f"{_name(task)} stands in for {_name(first)}: {rejected.problems[0]}")
            if _name(task) != _name(paper):
                self.notes.append(f"{_name(task)} stood in for {_name(paper)}.")
            self.options["settings"] = {**self.options["settings"], "task": task}
            return
        assert rejected is not None
        raise rejected


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
    """Return a study with the options of the paper, changed by the small ones if `quick`, then by those given.

    Settings are changed one by one; a given table of methods or models replaces the whole table.
    """
    if unknown := [name for name in options if name not in paper]:
        raise BadInput([f"[study_options] {name}: there is no such option.{near(name, paper)}" for name in unknown])
    own = merge_layers(paper, small if quick else {})
    settings = {"settings": merge_layers(own["settings"], options.get("settings", {}))} if "settings" in own else {}
    study = Study({**own, **options, **settings}, seeds, device, folder, tell)
    if "settings" in study.options:
        study.find_data(paper["settings"]["task"])
    return study


def _machine(device: str) -> dict[str, Any]:
    return {"device": device, "executor": "auto"} if device != "cpu" else {"device": device}


def _name(choice: Any) -> str:
    return str(choice["name"]) if isinstance(choice, Mapping) else str(choice)
