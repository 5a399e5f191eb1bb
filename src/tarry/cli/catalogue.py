"""`tarry methods|tasks|delays|partitions`: what there is, with parameters, defaults and papers."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from ..core.registry import Entry, Registry
from ..methods import methods as method_registry
from ..sim.fleet import delays as delay_registry
from ..tasks import partitions as partition_registry
from ..tasks import tasks as task_registry
from . import show

__all__ = ["delays", "methods", "partitions", "tasks"]

Name = Annotated[str | None, typer.Argument(help="show one in full")]


def methods(name: Name = None) -> None:
    """List the methods, with their parameters and papers."""
    _show(method_registry, name)


def tasks(name: Name = None) -> None:
    """List the tasks, with their parameters."""
    _show(task_registry, name)


def delays(name: Name = None) -> None:
    """List the delay models, with their parameters and papers."""
    _show(delay_registry, name)


def partitions(name: Name = None) -> None:
    """List the partitions, with their parameters and papers."""
    _show(partition_registry, name)


def _show(registry: Registry[Any], name: str | None) -> None:
    entries = [registry.entry(n) for n in (registry.names() if name is None else [name])]
    for entry in entries:
        show.console.print(f"[bold]{entry.name}[/]  {show.plain(entry.summary)}", highlight=False, soft_wrap=True)
        if entry.paper:
            show.console.print(f"  [dim]{show.plain(entry.paper)}[/]", highlight=False, soft_wrap=True)
        if registry is method_registry and not any(p.required for p in entry.params):
            words = registry.build(entry.name).staleness
            show.console.print(f"  [dim]staleness:[/] {show.plain(words)}", highlight=False, soft_wrap=True)
        if name is not None and (rest := entry.doc.partition("\n")[2].strip()):
            show.console.print(f"\n{show.plain(rest)}\n", highlight=False, soft_wrap=True)
        _params(registry.kind, entry)


def _params(kind: str, entry: Entry[Any]) -> None:
    grid = Table(box=None, show_header=False, padding=(0, 2), pad_edge=True)
    for p in entry.params:
        default = "needed" if p.required else f"default {p.default}"
        grid.add_row(f"  --{kind}.{p.name}", show.plain(p.type_name), default, show.plain(p.help))
    show.console.print(grid)
