"""The tasks and the partitions by name. A task may also be a file: `--task har` reads har.npz from TARRY_DATA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, update_wrapper

from ..core.errors import BadInput, near
from ..core.registry import Entry, Registry
from ..core.task import Partitioner, Task
from .files import files_in_data_folder, where_data_is

__all__ = ["find_task", "partitions", "tasks"]


class _Tasks(Registry[Task]):
    """Task factories; a name nobody registered is looked for among the .npz files of TARRY_DATA."""

    def entry(self, name: str) -> Entry[Task]:
        registered = self.names()
        if ".py:" in name or name in registered:
            return super().entry(name)
        files = files_in_data_folder()
        if name not in files:
            close = near(name, {*registered, *files})
            raise BadInput(
                f"--task {name}: there is no such task.{close if 'Did you mean' in close else ''}"
                f" Tasks: {', '.join(registered)}. {where_data_is()} A file NAME.npz there is --task NAME,"
                " one elsewhere --task npz --task.path FILE."
            )
        npz = super().entry("npz")
        factory = update_wrapper(partial(npz.factory, path=str(files[name])), npz.factory)
        return replace(npz, name=name, factory=factory, params=tuple(p for p in npz.params if p.name != "path"))


tasks: Registry[Task] = _Tasks("task", Task)
partitions: Registry[Partitioner] = Registry("partition", Callable)


def find_task(name: str) -> Entry[Task]:
    """The task of that name: registered, `file.py:factory`, or `<name>.npz` in the folder TARRY_DATA."""
    return tasks.entry(name)
