"""Registry: named factories whose signature is the schema that the command line, the docs and the checks read.

    @methods.register("orthofl", paper="Orthogonal Calibration for Asynchronous Federated Learning")
    def orthofl(*, beta: Annotated[float, "mixing weight of a fresh update"] = 0.6, a: ... = 0.5) -> Method:
        '''First line: what `tarry methods` shows.'''

A parameter is int, float, bool, str, a Literal, or one of these or None; its help is the Annotated string. One without
a type is of its default's.
From outside: an entry point in the group `tarry.<kind>s`, or `path/to/file.py:factory`.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import isfinite
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from .errors import BadInput, near

__all__ = ["Entry", "Param", "Registry"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Param:
    """One parameter of a factory: its name, type, default and help."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED

    @property
    def type_name(self) -> str:
        return " | ".join(_type_name(t) for t in _alternatives(self.type))

    def parse(self, value: Any) -> Any:
        """Return the value as this parameter's type: text is parsed, anything else checked; ValueError if wrong."""
        value = value.item() if isinstance(value, np.generic) else value
        for kind in _alternatives(self.type):
            try:
                read = _as(kind, value)
            except ValueError:
                continue
            if not isinstance(read, float) or isfinite(read):
                return read
        if self.type is object:
            raise ValueError(f"its factory does not say what it is; write a type there, as in `{self.name}: float`")
        raise ValueError(f"wants {self.type_name}, got {value!r}")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " | ".join(str(a) for a in typing.get_args(kind))
    if typing.get_origin(kind) in (list, tuple, Sequence):
        return "list"
    return "none" if kind is type(None) else str(getattr(kind, "__name__", kind))


def _as(kind: Any, value: Any) -> Any:
    text = value.strip().lower() if isinstance(value, str) else None
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(kind):
            if value == option or text == str(option).lower():
                return option
    elif kind is type(None):
        if value is None or text in ("none", "null", ""):
            return None
    elif kind is bool:
        if isinstance(value, bool):
            return value
        if text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text in ("true", "yes", "on", "1")
    elif kind is int:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return int(value)
    elif kind is float:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    elif kind is str:
        if isinstance(value, str):
            return value
    elif kind is object:
        if text is None:
            return value  # of no declared type; text could mean anything
    elif isinstance(value, list | tuple):
        return value
    elif isinstance(value, str):
        try:
            if isinstance(read := json.loads(value), list):
                return read
        except ValueError:
            pass
    raise ValueError(value)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory, with its parameters, summary and paper."""

    name: str
    factory: Callable[..., T]
    paper: str
    use: str  # when to choose it
    params: tuple[Param, ...]

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.factory.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.partition("\n")[0]


def _hint(p: inspect.Parameter, names: dict[str, Any]) -> Any:
    """Return the type of a parameter; annotations that only type checkers can import are skipped.

    Without an annotation it is the type of the default; an integer default allows any number.
    """
    if isinstance(p.annotation, str):
        with suppress(NameError):
            return eval(p.annotation, names)  # the factory's own module wrote it
    elif p.annotation is not inspect.Parameter.empty:
        return p.annotation
    kind = type(p.default)
    return int | float if kind is int else kind if kind in (bool, float, str) else object


def _params(factory: Callable[..., Any]) -> tuple[Param, ...]:
    names = getattr(inspect.unwrap(factory), "__globals__", {})
    out = []
    for p in inspect.signature(factory).parameters.values():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        hint, text = _hint(p, names), ""
        if typing.get_origin(hint) is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            text = next((n for n in notes if isinstance(n, str)), "")
        out.append(Param(p.name, hint, p.default, text))
    return tuple(out)


class Registry(Generic[T]):
    """The factories of one kind ('method', 'task', 'delay', 'partition'), by name; `makes` is the type they make."""

    def __init__(self, kind: str, makes: Any = object):
        self.kind, self._makes = kind, makes
        self._entries: dict[str, Entry[T]] = {}
        self._broken: dict[str, str] = {}
        self._plugins_loaded = False

    def register(self, name: str, *, paper: str = "", use: str = "") -> Callable[[F], F]:
        """Decorate a factory; its name must be new and it needs a docstring. `use` says when to choose it."""

        def add(factory: F) -> F:
            assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
            assert factory.__doc__, f"{self.kind} {name!r} needs a docstring: its first line is its summary"
            self._entries[name] = Entry(name, factory, paper, use, _params(factory))
            return factory

        return add

    def names(self) -> list[str]:
        self._load_plugins()
        return sorted(self._entries)

    def entry(self, name: str) -> Entry[T]:
        """Return the entry of that name, or of the factory in `file.py:factory`; raise BadInput if there is none."""
        if ".py:" in name:
            return self._from_file(name)
        self._load_plugins()
        if name in self._broken:
            raise BadInput(f"--{self.kind} {name}: {self._broken[name]}")
        if name not in self._entries:
            raise BadInput(f"--{self.kind} {name}: there is no such {self.kind}.{near(name, self._entries)}")
        return self._entries[name]

    def build(self, name: str, params: Mapping[str, Any] | None = None) -> T:
        """Call the factory with checked parameters."""
        return self.make(*self.check(name, params))

    def make(self, entry: Entry[T], values: Mapping[str, Any]) -> T:
        """Call the factory of an entry with parameters that `check` returned."""
        made = entry.factory(**values)
        if not isinstance(made, self._makes):
            raise BadInput(
                f"--{self.kind} {entry.name}: its factory returned {type(made).__name__}, not {self._makes.__name__}"
            )
        return made

    def check(self, name: str, params: Mapping[str, Any] | None = None) -> tuple[Entry[T], dict[str, Any]]:
        """Return the entry and the given parameters as their types; one error names every wrong parameter."""
        entry, given, problems = self.entry(name), dict(params or {}), []
        known = {p.name: p for p in entry.params}
        values: dict[str, Any] = {}
        for key, value in given.items():
            flag = f"--{self.kind}.{key} {value}"
            if key not in known:
                hint = near(key, known) if known else f" {name!r} takes no parameters."
                problems.append(f"{flag}: {self.kind} {name!r} has no parameter {key!r}.{hint}")
                continue
            try:
                values[key] = known[key].parse(value)
            except ValueError as e:
                problems.append(f"{flag}: {e}")
        for p in entry.params:
            if p.required and p.name not in given:
                problems.append(f"--{self.kind}.{p.name}: {self.kind} {name!r} needs it ({p.help or p.type_name})")
        if problems:
            raise BadInput(problems)
        return entry, values

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=f"tarry.{self.kind}s"):
            if point.name in self._entries:
                continue
            try:
                factory = point.load()
                self._entries[point.name] = _foreign(point.name, factory)
            except Exception as e:
                self._broken[point.name] = f"its plug-in does not load: {type(e).__name__}: {e}"

    def _from_file(self, name: str) -> Entry[T]:
        path_text, _, attribute = name.rpartition(":")
        path = Path(path_text).expanduser().resolve()
        if not path.is_file():
            raise BadInput(f"--{self.kind} {name}: there is no file {path}")
        module_name = f"tarry_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as e:
            raise BadInput(f"--{self.kind} {name}: {path.name} does not import: {type(e).__name__}: {e}") from e
        factory = getattr(module, attribute, None)
        if not callable(factory):
            found = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module_name]
            raise BadInput(f"--{self.kind} {name}: {path.name} has no factory {attribute!r}.{near(attribute, found)}")
        return _foreign(name, factory)


def _foreign(name: str, factory: Callable[..., Any]) -> Entry[Any]:
    """The entry of a factory that is not registered."""
    return Entry(name, factory, getattr(factory, "paper", ""), getattr(factory, "use", ""), _params(factory))
