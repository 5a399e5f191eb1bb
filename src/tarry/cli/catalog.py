"""Lists of what can be chosen, with parameters, defaults and papers: `tarry methods`, `tasks`, `models` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import escape, print_markup

if TYPE_CHECKING:
    from ..core.registry import Entry, Param, Registry
    from ..tasks.data.sets import DataSet

__all__ = ["delays", "manifolds", "methods", "models", "partitions", "tasks", "unlabeled"]

Name = Annotated[str | None, typer.Argument(help="Show this one in full", show_default="list all")]


def methods(name: Name = None) -> None:
    """List the methods, with their parameters and papers."""
    from ..methods import methods as registry

    _print_entries(registry, name)


def tasks(name: Name = None) -> None:
    """List the tasks, with their parameters and where their data is."""
    from ..tasks import tasks as registry
    from ..tasks.data.sets import loose_files

    _print_entries(registry, name)
    files = {} if name is not None else loose_files()
    if loose := [n for n in files if n not in registry]:
        print_markup(f"[bold]and in TARRY_DATA[/]  {escape(', '.join(f'--task {n}' for n in loose))}")
    for hidden in sorted(files.keys() - loose):
        reader = f"--task {files[hidden].suffix[1:]} --task.path"
        print_markup(escape(f"{files[hidden]} is not --task {hidden}, which is another: {reader} reads it"))


def models(name: Name = None) -> None:
    """List the models for images, time series and texts, with their options."""
    from ..tasks.models import models as registry

    _print_entries(registry, name)
    if name is None:
        print_markup(
            "and for texts any model of transformers in a folder or on the hub, by --task.model: see docs/text.md"
        )


def delays(name: str | None = None) -> None:
    """List the delay models, with their parameters and papers."""
    from ..delays import delays as registry

    _print_entries(registry, name)


def partitions(name: Name = None) -> None:
    """List the partitions, with their parameters and papers."""
    from ..tasks import partitions as registry

    _print_entries(registry, name)


def manifolds(name: Name = None) -> None:
    """List the curves along which the global model can move."""
    from ..parts.manifold import manifolds as registry

    _print_entries(registry, name)


def unlabeled(name: Name = None) -> None:
    """List the sets of unlabeled inputs, with their parameters."""
    from ..tasks.unlabeled import unlabeled_sets as registry

    _print_entries(registry, name)


def _print_entries(registry: Registry[Any], name: str | None) -> None:
    """Print all entries in a few lines each, or one in full."""
    group = "task" if registry.kind == "model" else registry.kind
    for entry in registry.values() if name is None else [registry.find(name)]:
        _print_about(registry, entry)
        if name is not None and (rest := entry.doc.partition("\n")[2].strip()):
            print_markup(f"\n{escape(rest)}\n")
        if registry.kind == "task":
            _print_data(entry.name, whole=name is not None)
        if name is None and entry.params:
            print_markup(f"    [dim]{escape('  '.join(f'--{group}.{p.name}' for p in entry.params))}[/]")
            continue
        for p in entry.params:
            _print_param(group, p)


def _print_about(registry: Registry[Any], entry: Entry[Any]) -> None:
    """Print the name of an entry, its summary, its paper and when to use it."""
    print_markup(f"[bold]{entry.name}[/]  {escape(entry.summary)}")
    if entry.paper:
        print_markup(f"    [dim]{escape(entry.paper)}[/]")
    if entry.use:
        print_markup(f"    [dim]when:[/] {escape(entry.use)}")
    if registry.kind == "method" and not any(p.required for p in entry.params):
        print_markup(f"    [dim]staleness:[/] {escape(entry().staleness)}")


def _print_param(group: str, param: Param) -> None:
    default = "needed" if param.required else f"default {param.default}"
    print_markup(f"    --{group}.{param.name}  [dim]{escape(param.type_name)}, {default}[/]")
    print_markup(f"        {escape(param.help)}")


def _print_data(name: str, *, whole: bool) -> None:
    """Print where the data set of a task lies, or how to get it."""
    from ..tasks.data.sets import catalog

    if name in catalog():
        print_markup(f"    [dim]data:[/] {escape(_place(catalog()[name], whole=whole))}")


def _place(data: DataSet, *, whole: bool) -> str:
    from ..tasks.data.sets import missing_files_message

    found = data.find()
    if found is not None:
        return f"{found[0]}"
    return missing_files_message(data) if whole else f"not there; `tarry tasks {data.name}` says how to get it"
