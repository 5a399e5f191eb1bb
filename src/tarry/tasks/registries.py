"""Registries of tasks and partitions. A file can be a task too: `--task gait` reads gait.npz from TARRY_DATA.

A file gait.jsonl is a text task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any

from ..core.errors import BadInput, near
from ..core.registry import Entry, Registry
from ..core.task import Partitioner, Task
from .data.sets import loose_files, where_data_is
from .models import models

__all__ = ["find_task", "partitions", "tasks"]


class TaskRegistry(Registry[Task]):
    """Registry of task factories. An unregistered name is looked up among the .npz and .jsonl files of TARRY_DATA.

    A factory with `model` and `**options` also takes the options of that model: --task.norm, --task.width.
    """

    def entry(self, name: str) -> Entry[Task]:
        """Return the entry of that name, with the options of its default model."""
        entry = self._entry(name)
        model = next((p.default for p in entry.params if p.name == "model"), None)
        return _with_options(entry, model) if isinstance(model, str) else entry

    def check(self, name: str, params: Mapping[str, Any] | None = None) -> tuple[Entry[Task], dict[str, Any]]:
        """Return the entry and its checked parameters, with the options of the model that `params` names."""
        model = (params or {}).get("model")
        if not isinstance(model, str):
            return super().check(name, params)
        return _SingleEntry(_with_options(self._entry(name), model)).check(name, params)

    def _entry(self, name: str) -> Entry[Task]:
        registered = self.names()
        if ".py:" in name or name in registered:
            return super().entry(name)
        files = loose_files()
        if name not in files:
            close = near(name, {*registered, *files})
            raise BadInput(
                f"--task {name}: there is no such task.{close if 'Did you mean' in close else ''}"
                f" Tasks: {', '.join(registered)}. {where_data_is()} For a file NAME.npz or NAME.jsonl (texts) in that"
                " folder use --task NAME, for one elsewhere --task npz --task.path FILE or --task jsonl --task.path"
                " FILE."
            )
        kind = super().entry(files[name].suffix[1:])
        factory = update_wrapper(partial(kind.factory, path=str(files[name])), kind.factory)
        return replace(kind, name=name, factory=factory, params=tuple(p for p in kind.params if p.name != "path"))


class _SingleEntry(Registry[Task]):
    """Registry with a single entry, used to check its parameters."""

    def __init__(self, entry: Entry[Task]):
        super().__init__("task", Task)
        self._entry = entry

    def entry(self, name: str) -> Entry[Task]:  # noqa: ARG002
        return self._entry


def _with_options(entry: Entry[Task], model: str) -> Entry[Task]:
    """Return the entry with the options of `model` as additional parameters, if its factory accepts them."""
    kinds = {p.kind for p in inspect.signature(entry.factory).parameters.values()}
    own = {p.name for p in entry.params}
    if "model" not in own or inspect.Parameter.VAR_KEYWORD not in kinds:
        return entry
    options = (p for p in models.entry(model).params if not p.required and p.name not in own)
    return replace(entry, params=(*entry.params, *options))


tasks: Registry[Task] = TaskRegistry("task", Task)
partitions: Registry[Partitioner] = Registry("partition", Callable)


def find_task(name: str) -> Entry[Task]:
    """Return the entry of that task: registered, `file.py:factory`, or a file NAME.npz or NAME.jsonl in TARRY_DATA."""
    return tasks.entry(name)
