"""Components of a run: a Choice is a registered name with parameters, and settings are parsed into choices.

    "fedbuff:buffer=3"          Choice("fedbuff", {"buffer": 3})          {"name": "fedbuff", "buffer": 3}

Errors name the flag that the choice was given with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.compose import PARTS
from ..core.errors import BadInput
from ..core.labels import CROSSES
from ..core.method import Method
from ..core.one_line import short_text
from ..core.parameter import Param
from ..core.registry import Entry, Registry
from ..core.task import Task
from ..delays.base import delays
from ..methods import methods
from ..metrics import chosen_metrics
from ..parts.manifold import manifolds
from ..tasks import partitions, tasks
from ..tasks.unlabeled import unlabeled_sets
from ..training.schedules import schedules

__all__ = [
    "CROSSES",
    "PARAMETER_GROUPS",
    "REGISTRIES",
    "Choice",
    "errors_under_flag",
    "example_of",
    "groups_with",
    "parse_setting",
    "with_absolute_file",
]

#: the registry of each group of choices
REGISTRIES: Mapping[str, Registry[Any]] = {
    "method": methods,
    "task": tasks,
    "partition": partitions,
    "delay": delays,
    **dict.fromkeys((*PARTS, "distill"), methods),
    "manifold": manifolds,
    "unlabeled": unlabeled_sets,
    "lr_schedule": schedules,
    "server_lr_schedule": schedules,
}
#: the groups in which a name that is no setting is looked for
PARAMETER_GROUPS = ("method", "task", "delay", "partition", "lr_schedule")
#: the type of the Python objects that may be given instead of a choice
_OBJECTS: Mapping[str, Any] = {
    "task": Task,
    **dict.fromkeys(("method", *PARTS, "distill"), Method),
    **dict.fromkeys(("partition", "delay", "manifold", "lr_schedule", "server_lr_schedule"), Callable),
}


@dataclass(frozen=True)
class Choice:
    """A registered name with parameters: `orthofl`, or `fedbuff:buffer=3,a=0`."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    entry: Entry[Any] | None = field(default=None, compare=False, repr=False)  # set by `with_entry`

    def __str__(self) -> str:
        """The choice in the syntax of the command line, a file's factory by its bare name."""
        given = ",".join(f"{k}={v}" for k, v in self.params.items() if not isinstance(v, list))
        name = self.name.rpartition(".py:")[2]
        return f"{name}:{given}" if given else name

    @classmethod
    def of(cls, value: Any) -> Choice:
        """Parse text, a table with a name, or a choice."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, Mapping):
            params = dict(value)
            if not isinstance(params.get("name"), str):
                raise ValueError(f'a table needs name = "...", got {dict(value)}')
            return cls(params.pop("name"), params)
        if not isinstance(value, str):
            raise ValueError(f"wants a name, got {value!r}")
        head, colon, tail = value.rpartition(":")
        if not colon or "=" not in tail:
            return cls(value)
        pairs = [p.partition("=") for p in tail.split(",")]
        return cls(head, {k.strip(): v.strip() for k, _, v in pairs})

    def with_entry(self, group: str) -> Choice:
        """The choice with its registry entry, and with parameters of their declared types; raise BadInput if wrong."""
        entry = REGISTRIES[group].find(self.name)
        return Choice(self.name, entry.check(self.params), entry)

    def build(self, group: str) -> Any:
        """Call the factory; the parameters are checked first, unless `with_entry` has done it."""
        choice = self.with_entry(group) if self.entry is None else self
        assert choice.entry is not None
        return choice.entry.make(choice.params)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the entry: the factory of a user's file cannot be imported in another process."""
        return Choice, (self.name, self.params)

    def with_absolute_paths(self) -> Choice:
        """The choice with absolute paths, so that it means the same in any working directory."""
        name = with_absolute_file(self.name)
        files = {k: v for k, v in self.params.items() if k in ("path", "speeds") and isinstance(v, str)}
        params = {**self.params, **{k: str(Path(v).expanduser().resolve()) for k, v in files.items()}}
        return replace(self, name=name, params=params)


def with_absolute_file(name: str) -> str:
    """Return `file.py:factory` with the absolute path of the file; other names as they are."""
    file, colon, attribute = name.rpartition(".py:")
    return f"{Path(file + '.py').expanduser().resolve()}:{attribute}" if colon else name


def parse_setting(param: Param, value: Any) -> Any:
    """Return a setting as its type, from text, a table, a number or a Python object; ValueError if it is wrong."""
    if param.name == "delay" and isinstance(value, list | tuple):
        return Choice("scripted", {"durations": [list(d) if isinstance(d, list | tuple) else d for d in value]})
    if param.name in REGISTRIES and value is None and param.default is None:
        return None
    if param.name in REGISTRIES:
        return value if _is_object(param.name, value) else Choice.of(value)
    if param.name == "metric":
        return None if value is None else chosen_metrics(value)
    if param.name == "availability" and isinstance(value, Mapping):
        return {str(_whole(client)): [_window(w) for w in windows] for client, windows in value.items()}
    if param.name == "availability" and not (value is None or isinstance(value, str)):
        raise ValueError(f"wants a file or a table of windows by client, got {value!r}")
    return param.parse(value)


def _is_object(group: str, value: Any) -> bool:
    """Return whether a Python object stands for a choice of this group."""
    if isinstance(value, str | Mapping | Choice):
        return False
    kind = _OBJECTS.get(group)
    if kind is None or not isinstance(value, kind):
        wants = "" if kind in (None, Callable) else f" or a {kind.__name__}"
        hint = "; call the factory first" if callable(value) else ""
        if group == "task" and hasattr(value, "__getitem__"):
            hint = "; tarry.Task.from_dataset(data, model, loss) makes a Task of a data set"
        raise ValueError(f"wants a name, a table{wants}, got {type(value).__name__}{hint}")
    return True


def _whole(client: Any) -> int:
    if not str(client).isdigit():
        raise ValueError(f"client {client!r} is not a number")
    return int(client)


def _window(window: Any) -> list[float]:
    try:
        start, end = window
        return [float(start), float(end)]
    except (TypeError, ValueError):
        raise ValueError(f"a window is a pair of seconds, got {window!r}") from None


def groups_with(parameter: str, chosen: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the groups in which what is chosen has that parameter, and those in which any entry has it."""
    own, others = list[str](), list[str]()
    for group in PARAMETER_GROUPS:
        with suppress(BadInput, ValueError):  # an unknown name is reported elsewhere
            entry = REGISTRIES[group].find(Choice.of(chosen[group]).name)
            own += [group] if _has(entry, parameter) else []
        others += [group] if any(_has(entry, parameter) for entry in REGISTRIES[group].values()) else []
    return own, others


def example_of(group: str, parameter: str, value: Any, chosen: Any) -> str:
    """Return a choice of the group with a parameter, as it is written: what is chosen, if it has the parameter."""
    names = [chosen.name] if isinstance(chosen, Choice) and chosen.name in REGISTRIES[group] else []
    entries = [*(REGISTRIES[group][name] for name in names), *REGISTRIES[group].values()]
    name = next(entry.name for entry in entries if _has(entry, parameter))
    return f'{group} = "{name}:{parameter}={short_text(value)}"'


def _has(entry: Entry[Any], parameter: str) -> bool:
    return any(p.name == parameter for p in entry.params)


@contextmanager
def errors_under_flag(group: str) -> Iterator[None]:
    """Rename flags in a BadInput: a factory says --method, where the choice was given with --local."""
    kind = REGISTRIES[group].kind
    try:
        yield
    except BadInput as e:
        flag = f"--{group.replace('_', '-')}"
        raise BadInput([re.sub(rf"--{kind}(?=[. ])", flag, problem) for problem in e.problems]) from e
