"""Choices, and how whatever is given for a setting is read: a name, a table, a Python object, a cross in one word.

    "fedbuff:buffer=3"                          {"name": "fedbuff", "buffer": 3}
    "orthofl+local=fedsol:rho=1"                method "orthofl", local "fedsol:rho=1"

What is wrong with a choice is told by the flag that it was given with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, near
from ..core.method import Method
from ..core.registry import Param, Registry
from ..core.task import Task
from ..delays.base import delays
from ..methods import methods
from ..parts.manifold import manifolds
from ..tasks import partitions, tasks
from ..tasks.unlabeled import unlabeled_sets
from .compose import PARTS

__all__ = ["CROSSES", "REGISTRIES", "Choice", "read", "uncrossed", "under_flag"]

#: what a choice of each group is looked up in
REGISTRIES: Mapping[str, Registry[Any]] = {
    "method": methods,
    "task": tasks,
    "partition": partitions,
    "delay": delays,
    **dict.fromkeys(("server", *PARTS, "distil"), methods),
    "manifold": manifolds,
    "unlabelled": unlabeled_sets,
}
CROSSES = (*PARTS, "distil", "manifold")
_STRANGE = re.compile(r"\+(\w+)=")
_CROSSING = re.compile(rf"\+(?=(?:{'|'.join(CROSSES)})=)")
#: what Python object may stand for a choice of a group
_OBJECTS: Mapping[str, Any] = {
    "task": Task,
    **dict.fromkeys(("method", "server", *PARTS, "distil"), Method),
    **dict.fromkeys(("partition", "delay", "manifold"), Callable),
}


@dataclass(frozen=True)
class Choice:
    """A registered name with parameters: `orthofl`, or `fedbuff:buffer=3,a=0`."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it is written on the command line, a file's factory by its bare name."""
        given = ",".join(f"{k}={v}" for k, v in self.params.items() if not isinstance(v, list))
        name = self.name.rpartition(".py:")[2]
        return f"{name}:{given}" if given else name

    @classmethod
    def of(cls, value: Any) -> Choice:
        """From text, a table with a name, or a choice."""
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

    def resolved(self) -> Choice:
        """The same with whole paths, so that it means the same from any folder."""
        file, colon, attribute = self.name.rpartition(".py:")
        name = f"{Path(file + '.py').expanduser().resolve()}:{attribute}" if colon else self.name
        files = {k: v for k, v in self.params.items() if k in ("path", "speeds") and isinstance(v, str)}
        return Choice(name, {**self.params, **{k: str(Path(v).expanduser().resolve()) for k, v in files.items()}})


def read(param: Param, value: Any) -> Any:
    """A setting as its type: from text, a table, a number or a Python object; ValueError says what it wants."""
    if param.name == "delay" and isinstance(value, list | tuple):
        return Choice("scripted", {"durations": [list(d) if isinstance(d, list | tuple) else d for d in value]})
    if param.name in REGISTRIES and value is None and param.default is None:
        return None
    if param.name in REGISTRIES:
        return value if _is_object(param.name, value) else Choice.of(value)
    if param.name == "presence" and isinstance(value, Mapping):
        return {str(_whole(client)): [_window(w) for w in windows] for client, windows in value.items()}
    if param.name == "presence" and not (value is None or isinstance(value, str)):
        raise ValueError(f"wants a file or a table of windows by client, got {value!r}")
    return param.parse(value)


def _is_object(group: str, value: Any) -> bool:
    """Whether a Python object stands for a choice of this group."""
    if isinstance(value, str | Mapping | Choice):
        return False
    kind = _OBJECTS.get(group)
    if kind is None or not isinstance(value, kind):
        wants = "" if kind in (None, Callable) else f" or a {kind.__name__}"
        hint = "; call the factory first" if callable(value) else ""
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


def uncrossed(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`server` is the method; `orthofl+local=fedsol` in the method's place is a method and a local."""
    out, problems = dict(given), list[str]()
    if (server := out.get("server")) is not None:
        if out.get("method") not in (None, server):
            problems.append(f"--server {server} --method {out['method']}: they say the same thing; give one of them")
        out["method"] = server
    method = out.get("method")
    text = method if isinstance(method, str) else method.get("name") if isinstance(method, Mapping) else None
    if not isinstance(text, str):
        return out, problems
    name, *crosses = _CROSSING.split(text)
    if (strange := _STRANGE.search(name)) and ".py:" not in name[strange.start() :]:
        problems.append(f"--method {text}: there is no part {strange[1]!r} to cross.{near(strange[1], CROSSES)}")
        return {k: v for k, v in out.items() if k not in ("method", "server")}, problems
    if crosses:
        out["method"] = {**method, "name": name} if isinstance(method, Mapping) else name
        out["server"] = out["method"] if server is not None else None
    for cross in crosses:
        part, _, choice = cross.partition("=")
        if out.get(part) is not None:
            problems.append(f"--method {text} --{part} {out[part]}: {part} is there twice")
        out[part] = choice
    return out, problems


@contextmanager
def under_flag(group: str) -> Iterator[None]:
    """Problems of a choice are told by the flag it was given with: what a method calls --method is --local here."""
    kind = "method" if group == "server" else REGISTRIES[group].kind
    try:
        yield
    except BadInput as e:
        raise BadInput([re.sub(rf"--{kind}(?=[. ])", f"--{group}", problem) for problem in e.problems]) from e
