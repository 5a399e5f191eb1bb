"""What there is, with parameters, defaults and papers: `tarry methods`, `tasks`, `models`, `delays` and so on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..core.registry import Registry
from ..delays.base import delays as delay_registry
from ..methods import methods as method_registry
from ..parts.manifold import manifolds as manifold_registry
from ..tasks import partitions as partition_registry
from ..tasks import tasks as task_registry
from ..tasks.data.sets import DataSet, loose_files, missing
from ..tasks.data.sets import catalog as data_sets
from ..tasks.models import models as model_registry
from ..tasks.unlabeled import unlabeled_sets
from . import console as show

__all__ = ["delays", "manifolds", "methods", "models", "partitions", "tasks", "unlabelled"]

Name = Annotated[str | None, typer.Argument(help="show one in full")]


def methods(name: Name = None) -> None:
    """List the methods, with their parameters and papers."""
    _show(method_registry, name)


def tasks(name: Name = None) -> None:
    """List the tasks, with their parameters and whether their data is there."""
    _show(task_registry, name)
    files = {} if name is not None else loose_files()
    if loose := [n for n in files if n not in task_registry.names()]:
        _line(f"[bold]and in TARRY_DATA[/]  {show.plain(', '.join(f'--task {n}' for n in loose))}")
    for hidden in sorted(files.keys() - loose):
        reader = f"--task {files[hidden].suffix[1:]} --task.path"
        _line(show.plain(f"{files[hidden]} is not --task {hidden}, which is another: {reader} reads it"))


def models(name: Name = None) -> None:
    """List the models for images, series and words, with their options."""
    _show(model_registry, name)
    if name is None:
        _line("and for texts whatever of transformers' lies in a folder or at the hub, by --task.model: docs/text.md")


def delays(name: Name = None) -> None:
    """List the delay models, with their parameters and papers."""
    _show(delay_registry, name)


def partitions(name: Name = None) -> None:
    """List the partitions, with their parameters and papers."""
    _show(partition_registry, name)


def manifolds(name: Name = None) -> None:
    """List the geodesics a global may travel along."""
    _show(manifold_registry, name)


def unlabelled(name: Name = None) -> None:
    """List the sets of inputs without labels, with their parameters."""
    _show(unlabeled_sets, name)


def _show(registry: Registry[Any], name: str | None) -> None:
    """All in a few lines each, or one in full."""
    of = "task" if registry is model_registry else registry.kind
    for entry in [registry.entry(n) for n in (registry.names() if name is None else [name])]:
        _line(f"[bold]{entry.name}[/]  {show.plain(entry.summary)}")
        if entry.paper:
            _line(f"    [dim]{show.plain(entry.paper)}[/]")
        if entry.use:
            _line(f"    [dim]when:[/] {show.plain(entry.use)}")
        if registry is method_registry and not any(p.required for p in entry.params):
            _line(f"    [dim]staleness:[/] {show.plain(registry.build(entry.name).staleness)}")
        if name is not None and (rest := entry.doc.partition("\n")[2].strip()):
            _line(f"\n{show.plain(rest)}\n")
        if registry is task_registry and entry.name in data_sets():
            _line(f"    [dim]data:[/] {show.plain(_data(data_sets()[entry.name], whole=name is not None))}")
        if name is None and entry.params:
            _line(f"    [dim]{show.plain('  '.join(f'--{of}.{p.name}' for p in entry.params))}[/]")
            continue
        for p in entry.params:
            default = "needed" if p.required else f"default {p.default}"
            _line(f"    --{of}.{p.name}  [dim]{show.plain(p.type_name)}, {default}[/]")
            _line(f"        {show.plain(p.help)}")


def _data(made: DataSet, *, whole: bool) -> str:
    """Where a data set lies, or that it does not: how to get it, where one task is shown."""
    found = made.find()
    if found is not None:
        return f"{found[0]}"
    return missing(made) if whole else f"not there; `tarry tasks {made.name}` says how to get it"


def _line(text: str) -> None:
    show.console.print(text, highlight=False, soft_wrap=True)
