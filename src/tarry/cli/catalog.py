"""Lists of what can be chosen, with parameters, defaults and papers: `tarry methods`, `tasks`, `models` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import print_parts

if TYPE_CHECKING:
    from ..core.parameter import Param
    from ..core.registry import Entry, Registry
    from ..tasks.data.sets import DataSet

__all__ = ["delays", "manifolds", "methods", "metrics", "models", "partitions", "schedules", "tasks", "unlabeled"]

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
        print_parts(("and in TARRY_DATA", "bold"), f"  {', '.join(f'--task {n}' for n in loose)}")
    for hidden in sorted(files.keys() - loose):
        reader = f"--task {files[hidden].suffix[1:]} --task.path"
        print_parts(f"{files[hidden]} is not --task {hidden}, which is another: {reader} reads it")


def models(name: Name = None) -> None:
    """List the models for images, time series and texts, with their options."""
    from ..tasks.models import models as registry

    _print_entries(registry, name)
    if name is None:
        print_parts(
            "and for texts any model of transformers in a folder or on the hub, by --task.model: see docs/text.md"
        )


def metrics(name: Name = None) -> None:
    """List the metrics, with their parameters."""
    from ..metrics import metrics as registry

    _print_entries(registry, name)
    if name is None:
        print_parts(
            "and those of torchmetrics, as --metric torchmetrics:F1Score:task=multiclass,num_classes=10, and your own,"
            " as --metric FILE.py:FUNCTION: see docs/guides/metrics.md"
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


def schedules(name: Name = None) -> None:
    """List the learning-rate schedules of clients and servers, with their parameters."""
    from ..training.schedules import schedules as registry

    _print_entries(registry, name)


def _print_entries(registry: Registry[Any], name: str | None) -> None:
    """Print all entries in a few lines each, or one in full."""
    group = {"model": "task", "schedule": "lr-schedule"}.get(registry.kind, registry.kind)
    for entry in registry.values() if name is None else [registry.find(name)]:
        _print_about(registry, entry)
        if name is not None and (rest := entry.doc.partition("\n")[2].strip()):
            print_parts(f"\n{rest}\n")
        if registry.kind == "task":
            _print_data(entry.name, whole=name is not None)
        if name is None and entry.params:
            print_parts(("    " + "  ".join(f"--{group}.{p.name}" for p in entry.params), "dim"))
            continue
        for p in entry.params:
            _print_param(group, p)
        if registry.kind == "method":
            _print_space(entry)


def _print_about(registry: Registry[Any], entry: Entry[Any]) -> None:
    """Print the name of an entry, its summary, its paper and when to use it."""
    print_parts((entry.name, "bold"), f"  {entry.summary}")
    if entry.paper:
        print_parts((f"    {entry.paper}", "dim"))
    if entry.use:
        print_parts(("    when:", "dim"), f" {entry.use}")
    if registry.kind == "method" and not any(p.required for p in entry.params):
        print_parts(("    staleness:", "dim"), f" {entry().staleness}")


def _print_param(group: str, param: Param) -> None:
    default = "needed" if param.required else f"default {param.default}"
    print_parts(f"    --{group}.{param.name}  ", (f"{param.type_name}, {default}", "dim"))
    print_parts(f"        {param.help}")


def _print_space(entry: Entry[Any]) -> None:
    """Print what `tarry tune` tries."""
    from ..runs.tuning.space import learning_rates

    dimensions = {"lr": learning_rates("sgd"), **{f"method.{name}": d for name, d in entry.space.items()}}
    print_parts(
        ("    search space of `tarry tune`:", "dim"), f" {'  '.join(f'{n} {d}' for n, d in dimensions.items())}"
    )


def _print_data(name: str, *, whole: bool) -> None:
    """Print where the data set of a task lies, or how to get it."""
    from ..tasks.data.sets import catalog

    if name in catalog():
        print_parts(("    data:", "dim"), f" {_place(catalog()[name], whole=whole)}")


def _place(data: DataSet, *, whole: bool) -> str:
    from ..tasks.data.sets import missing_files_message

    found = data.find()
    if found is not None:
        return f"{found[0]}"
    return missing_files_message(data) if whole else f"not there; `tarry tasks {data.name}` says how to get it"
