"""Registry of models: factories `(shape, classes, *, options…) -> Callable[[], nn.Module]`.

    model_for("resnet18", (3, 32, 32), 10, norm="batch")()        a new module

`shape` is that of one example. A factory checks it, and its result can be pickled. Its options are flags of the task:
`--task.model resnet18 --task.norm batch`. Other packages add models by an entry point in the group
`tarry.tasks.models`; `--task.model path/to/file.py:factory` uses a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ...core.errors import BadInput
from ...core.registry import Entry, Registry, UnknownName

__all__ = ["Build", "ExampleShape", "model_for", "models"]

ExampleShape = tuple[int, ...]
Build = Callable[[], nn.Module]

_FROM_DATA = ("shape", "classes")  # given by the task, not by the user


class ModelRegistry(Registry[Build]):
    """Registry of models, which are chosen and configured by flags of the task."""

    def find(self, name: str) -> Entry[Build]:
        try:
            entry = super().find(name)
        except UnknownName as e:
            raise UnknownName([p.replace("--model", "--task.model", 1) for p in e.problems]) from e
        return replace(entry, params=tuple(p for p in entry.params if p.name not in _FROM_DATA), flag="task")


models: Registry[Build] = ModelRegistry("model")


def model_for(name: str, shape: Sequence[int], classes: int, **options: Any) -> Build:
    """Return a picklable factory of the model `name` for examples of `shape`. An option of None counts as not given."""
    entry = models.find(name)
    values = entry.check({k: v for k, v in options.items() if v is not None})
    build: Any = entry.factory(tuple(shape), classes, **values)
    if not callable(build):
        raise BadInput(
            f"--task.model {name}: its factory returned {type(build).__name__}, not a function of no arguments"
        )
    made: Build = build
    return made
