"""Registries of tasks and partitions. A file can be a task too: `--task gait` reads gait.npz from TARRY_DATA.

A file gait.jsonl is a text task, also packed (gait.jsonl.xz, gait.jsonl.gz) or as gait.parquet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.functional import cross_entropy

from ..core.errors import near
from ..core.registry import Entry, Registry, UnknownName
from ..core.storage import PACKED
from ..core.task import Partitioner, Task
from .data.parquet_arrays import holds_arrays
from .data.sets import loose_files, where_data_is, without_suffix
from .models import models

__all__ = ["partitions", "tasks"]


class TaskEntry(Entry[Task]):
    """A task factory. One with `model` and `**options` also takes the options of that model: --task.norm, --task.width.

    Its `params` include the options of the default model.
    """

    def check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters as their types, with the options of the model that `params` names."""
        model = params.get("model")
        entry = self._with_options(model) if isinstance(model, str) else self
        return super(TaskEntry, entry).check(params)

    def make(self, values: Mapping[str, Any]) -> Task:
        """Call the factory. One that makes a model in place of a task, such as the class of a model, stands for a task
        without examples: of a federation whose clients hold them."""

        def make_task(**values: Any) -> Any:
            made: Any = self.factory(**values)
            if not isinstance(made, nn.Module):
                return made
            name = self.name.rpartition(":")[2]
            return Task(name, model=partial(self.factory, **values), loss=cross_entropy)  # type: ignore[arg-type]

        return super(TaskEntry, replace(self, factory=make_task)).make(values)

    def _with_options(self, model: str) -> TaskEntry:
        """Return the entry with the options of `model` as additional parameters, if its factory accepts them."""
        signature = inspect.signature(self.factory).parameters
        own = [p for p in self.params if p.name in signature]
        if "model" not in signature or all(p.kind is not p.VAR_KEYWORD for p in signature.values()):
            return self
        options = (p for p in models.find(model).params if not p.required and p.name not in signature)
        return replace(self, params=(*own, *options))


class TaskRegistry(Registry[Task]):
    """The task factories by name. An unregistered name is looked up among the files of TARRY_DATA.

    >>> tarry.tasks["digits"](limit=100, hidden=8)
    Task(digits: 100 train, 360 test, model mlp)
    """

    def find(self, name: str) -> Entry[Task]:
        """Return the entry of that name, with the options of its default model.

        >>> [p.name for p in tarry.tasks.find("digits").params]
        ['model', 'limit', 'hidden']
        """
        found = self._registered_or_file(name)
        entry = TaskEntry(**vars(found))
        model = next((p.default for p in entry.params if p.name == "model"), None)
        return entry._with_options(model) if isinstance(model, str) else entry

    def _registered_or_file(self, name: str) -> Entry[Task]:
        if ".py:" in name or name in self:
            return super().find(name)
        files, file_name, name = loose_files(), name, without_suffix(name)
        if name in self:
            return super().find(name)
        if name not in files:
            close = near(name, {*self, *files})
            raise UnknownName(
                f"--task {file_name}: there is no such task.{close if 'Did you mean' in close else ''}"
                f" Tasks: {', '.join(self)}. {where_data_is()} For a file NAME.npz, or NAME.jsonl or"
                " NAME.parquet (texts), in that folder use --task NAME; for one elsewhere use --task npz --task.path"
                " FILE or --task jsonl --task.path FILE."
            )
        kind = super().find("npz" if _holds_arrays(files[name]) else "jsonl")
        factory = update_wrapper(partial(kind.factory, path=str(files[name])), kind.factory)
        return replace(kind, name=name, factory=factory, params=tuple(p for p in kind.params if p.name != "path"))


def _holds_arrays(path: Path) -> bool:
    if path.suffix == ".parquet":
        return holds_arrays(path)
    return path.name.endswith((".npz", *(f".npz{ending}" for ending in PACKED)))


tasks: Registry[Task] = TaskRegistry("task", Task)
partitions: Registry[Partitioner] = Registry("partition", Callable)
