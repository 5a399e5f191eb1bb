"""Comparisons with tuned settings: the runs, on seeds that the tuning did not use, and with its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...config.grid import expand_grid, expand_methods, with_values
from ...config.spec import Spec, settings
from ...core.errors import BadInput, near
from ...record.digests import EXECUTION_SETTINGS
from ..specs import specs_of
from .tuned_file import TunedMethod, TunedSettings

__all__ = ["tuned_specs"]

#: settings that do not change what was tuned
_FREE = (*EXECUTION_SETTINGS, "device", "compile", "diagnose", "personalize", "strict", "validation")


def tuned_specs(
    tuned: TunedSettings, methods: Sequence[Any] | None, seeds: Iterable[int], given: Mapping[str, Any]
) -> list[Spec]:
    """Return a spec for each run of these methods, by default of all that were tuned.

    Raise BadInput for seeds that the tuning used, for other settings than its own, and for methods without trials.
    """
    seeds = tuple(seeds)
    stops_early = "patience" in tuned.settings  # only with a validation set
    base = {name: value for name, value in tuned.settings.items() if name != "validation" or stops_early}
    problems = [*_problems_of_seeds(tuned, seeds), *_problems_of_objects(tuned, given)]
    problems += _problems_of_settings(tuned, base, given)
    if problems:
        raise BadInput(problems)
    shared = {**base, **given}
    found = _chosen(tuned, methods, shared)
    return [spec for method, own in found for spec in _specs_of_method(method, own, seeds, shared)]


def _problems_of_seeds(tuned: TunedSettings, seeds: Sequence[int]) -> list[str]:
    if both := sorted(set(seeds) & set(tuned.seeds)):
        used = ", ".join(map(str, tuned.seeds))
        return [
            f"--seeds {','.join(map(str, both))}: {tuned.path} was tuned with the seeds {used}; give --seeds that the"
            " tuning did not use"
        ]
    return []


def _problems_of_objects(tuned: TunedSettings, given: Mapping[str, Any]) -> list[str]:
    return [
        f"--{name}: {tuned.path} was tuned with a Python object; give the same one again"
        for name in tuned.objects
        if name not in given
    ]


def _problems_of_settings(tuned: TunedSettings, base: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return a problem for each setting that was given and is not that of the tuning."""
    if len(expand_grid(given)) > 1:
        return [f"--tuned {tuned.path}: a setting has several values, and it was tuned with one; leave the others out"]
    problems, there = list[str](), Spec.of({**base, **{name: given[name] for name in tuned.objects if name in given}})
    here, known = Spec.of({**base, **given}), settings()
    dimensions = {name for method in tuned.methods for name in method.tuned or {}}
    for name in given:
        flag = f"--{name.replace('_', '-')}"
        if name in dimensions:
            problems.append(f"{flag} {given[name]}: {tuned.path} has a tuned value of it for each method; leave it out")
        elif name not in (*_FREE, *tuned.objects) and name in known and getattr(here, name) != getattr(there, name):
            other = getattr(there, name)
            what = f"with {flag} {other}" if other is not None else f"without {flag}"
            problems.append(f"{flag} {getattr(here, name)}: {tuned.path} was tuned {what}; leave it out, or tune again")
    return problems


def _chosen(
    tuned: TunedSettings, methods: Sequence[Any] | None, shared: Mapping[str, Any]
) -> list[tuple[TunedMethod, Any]]:
    """Return the tuned methods that are wanted, each with the method as it was given, if it was."""
    by_label = {method.label: method for method in tuned.methods}
    if methods is None:
        return [(method, None) for method in tuned.methods if method.tuned is not None]
    found, problems = list[tuple[TunedMethod, Any]](), list[str]()
    for wanted in expand_methods(methods):
        label = Spec.of({**shared, "method": wanted}).label
        if label not in by_label:
            problems.append(
                f"--method {label}: {tuned.path} has no tuned settings of it.{near(label, by_label)}"
                " Tune it with the others, or leave it out"
            )
        elif by_label[label].tuned is None:
            problems.append(f"--method {label}: no trial of it finished ({tuned.path}); leave it out")
        else:
            found.append((by_label[label], wanted))
    if problems:
        raise BadInput(problems)
    return found


def _specs_of_method(method: TunedMethod, given: Any, seeds: Sequence[int], shared: Mapping[str, Any]) -> list[Spec]:
    assert method.tuned is not None
    own = dict(method.given) or {"method": given}
    if own == {"method": None}:
        raise BadInput(f"--method {method.label}: it was tuned as a Python object; give it again")
    axes = ",".join(name for name in method.tuned if not name.startswith("method."))
    wanted = with_values({**shared, **own, "axes": axes}, method.tuned)
    return specs_of([wanted.pop("method")], seeds, wanted)
