"""Registry: a mapping of named factories, whose signatures the command line, the docs and the checks read.

    @methods.register("orthofl", paper="Orthogonal Calibration for Asynchronous Federated Learning")
    def orthofl(*, beta: Annotated[float, "mixing weight of a fresh update"] = 0.6, a: ... = 0.5) -> Method:
        '''First line: what `tarry methods` shows.'''

    methods["orthofl"](beta=0.4)          the Entry, called with checked parameters
    methods.build("orthofl", beta=0.4)    the same

A parameter is int, float, bool, str, a Literal, or one of these or None; its help is the Annotated string. One without
a type is of its default's.
From outside: an entry point in the group `tarry.<kind>s`, or `path/to/file.py:factory`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from math import isfinite
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from .errors import BadInput, errors_as_keywords, near
from .one_line import cut_to_width, short_text
from .printable import html_text

__all__ = ["LARGEST_FLOAT", "LARGEST_INT", "AtMost", "Entry", "Param", "Registry", "UnknownName"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_REQUIRED = inspect.Parameter.empty
#: the limits of parameters: floats that float32 can hold, with room for a product, and counts that fit 32 bits
LARGEST_FLOAT, LARGEST_INT = 1e38, 2**31 - 1


@dataclass(frozen=True)
class AtMost:
    """Another limit on the size of an integer: `Annotated[int, "help", AtMost(2**63 - 1)]`."""

    size: int


class UnknownName(BadInput, KeyError):
    """A registry has no entry of that name, or its factory cannot be imported."""

    def __str__(self) -> str:
        return "\n".join(self.problems)  # KeyError shows the repr of its argument


@dataclass(frozen=True)
class Param:
    """One parameter of a factory: its name, type, default and help."""

    name: str
    type: Any
    default: Any
    help: str
    largest_int: int = LARGEST_INT

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
                return self._within_limits(read)
        if self.type is object:
            raise ValueError(f"its factory does not say what it is; write a type there, as in `{self.name}: float`")
        raise ValueError(f"wants {self.type_name}, got {short_text(repr(value) if isinstance(value, str) else value)}")

    def _within_limits(self, read: Any) -> Any:
        if isinstance(read, float) and abs(read) > LARGEST_FLOAT:
            raise ValueError(f"must be between {-LARGEST_FLOAT:g} and {LARGEST_FLOAT:g}")
        if isinstance(read, int) and abs(read) > self.largest_int:
            raise ValueError(f"must be between {-self.largest_int} and {self.largest_int}")
        return read


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
            try:
                return float(value)
            except OverflowError:
                raise ValueError(value) from None
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
        except (ValueError, RecursionError):
            pass
    raise ValueError(value)


@dataclass(frozen=True, repr=False)
class Entry(Generic[T]):
    """A registered factory: call it with parameters, by keyword, to get the component.

    >>> entry = tarry.methods["fedbuff"]
    >>> entry.paper
    'Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation'
    >>> [(p.name, p.type_name, p.default) for p in entry.params]
    [('buffer', 'int', 10), ('eta', 'float', 1.0), ('a', 'float', 0.5)]
    >>> entry(buffer=3).name
    'fedbuff'
    """

    name: str
    factory: Callable[..., T]
    paper: str
    use: str  # when to choose it
    params: tuple[Param, ...]
    kind: str  # "method", "task", ...
    makes: Any = object  # the type that the factory returns
    flag: str = ""  # the prefix of its parameters' flags, if not its kind

    @property
    def doc(self) -> str:
        """The docstring of the factory.

        >>> tarry.methods["fedbuff"].doc.startswith("Collect K updates")
        True
        """
        return inspect.cleandoc(self.factory.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first line of the docstring.

        >>> tarry.methods["fedbuff"].summary
        'Collect K updates, discounted by staleness, then step by their mean.'
        """
        return self.doc.partition("\n")[0]

    def __call__(self, /, **params: Any) -> T:
        """Return the component made with checked parameters; raise BadInput if some are wrong."""
        with errors_as_keywords(f"{self.flag or self.kind}."):
            return self.make(self.check(params))

    def check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters as their types; one error names every wrong parameter.

        >>> tarry.methods["fedbuff"].check({"buffer": "3", "a": 0})
        {'buffer': 3, 'a': 0.0}
        """
        known = {p.name: p for p in self.params}
        flag, values, problems = f"--{self.flag or self.kind}", dict[str, Any](), list[str]()
        for key, value in params.items():
            given = f"{flag}.{key} {short_text(value)}"
            if key not in known:
                hint = near(key, known) if known else f" {self.name!r} takes no parameters."
                problems.append(f"{given}: {self.kind} {self.name!r} has no parameter {key!r}.{hint}")
                continue
            try:
                values[key] = known[key].parse(value)
            except ValueError as e:
                problems.append(f"{given}: {e}")
        for p in self.params:
            if p.required and p.name not in params:
                problems.append(f"{flag}.{p.name}: {self.kind} {self.name!r} needs it ({p.help or p.type_name})")
        if problems:
            raise BadInput(problems)
        return values

    def make(self, values: Mapping[str, Any]) -> T:
        """Call the factory with parameters that `check` returned.

        >>> entry = tarry.methods["fedbuff"]
        >>> entry.make({"buffer": 3}).name
        'fedbuff'
        """
        made = self.factory(**values)
        if not isinstance(made, self.makes):
            raise BadInput(
                f"--{self.kind} {self.name}: its factory returned {type(made).__name__}, not {self.makes.__name__}"
            )
        return made

    def __repr__(self) -> str:
        names = ", ".join(p.name for p in self.params)
        return cut_to_width(f"{self.kind} {self.name}({names}): {self.summary}")

    def _repr_html_(self) -> str:
        """Return a table of the parameters, for a notebook."""
        title = html_text(self.name)
        lines = [f"<p><b>{title}</b>: {html_text(self.summary)}</p>"]
        lines += [f"<p>{html_text(self.paper)}</p>"] if self.paper else []
        if self.params:
            lines += ["<table>", "<tr><th>parameter</th><th>type</th><th>default</th><th>help</th></tr>"]
            lines += [_row(p.name, p.type_name, "" if p.required else str(p.default), p.help) for p in self.params]
            lines += ["</table>"]
        return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{html_text(c)}</td>' for c in cells)}</tr>"


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
        hint, text, largest = _hint(p, names), "", LARGEST_INT
        if typing.get_origin(hint) is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            text = next((n for n in notes if isinstance(n, str)), "")
            largest = next((n.size for n in notes if isinstance(n, AtMost)), LARGEST_INT)
        out.append(Param(p.name, hint, p.default, text, largest))
    return tuple(out)


class Registry(Mapping[str, Entry[T]]):
    """The entries of one kind ('method', 'task', 'delay', 'partition') by name, in alphabetical order.

    `registry["path/to/file.py:factory"]` reads a file; such names are not `in` the registry.

    >>> tarry.manifolds
    manifolds: bezier, line, printed (3)
    >>> "fedbuff" in tarry.methods
    True
    >>> tarry.methods["fedbuff"](buffer=3)
    Method('fedbuff', correct=discount, aggregate=buffer, step=add)
    """

    def __init__(self, kind: str, makes: Any = object, *, title: str = ""):
        self.kind, self.title, self._makes = kind, title or f"{kind}s", makes
        self._entries: dict[str, Entry[T]] = {}
        self._broken: dict[str, str] = {}
        self._plugins_loaded = False

    def register(self, name: str, *, paper: str = "", use: str = "") -> Callable[[F], F]:
        """Decorate a factory; its name must be new and it needs a docstring. `use` says when to choose it.

        >>> from tarry.core.registry import Registry
        >>> shapes = Registry("shape")
        >>> @shapes.register("square")
        ... def square(*, side: float = 1.0) -> float:
        ...     '''The area of a square.'''
        ...     return side**2
        >>> shapes["square"](side="3")
        9.0
        """

        def add(factory: F) -> F:
            assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
            assert factory.__doc__, f"{self.kind} {name!r} needs a docstring: its first line is its summary"
            self._entries[name] = self._new_entry(name, factory, paper, use)
            return factory

        return add

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        self._load_plugins()
        return name in self._entries

    def __getitem__(self, name: str) -> Entry[T]:
        with errors_as_keywords():
            return self.find(name)

    def find(self, name: str) -> Entry[T]:
        """Return the entry of that name or of `file.py:factory`; UnknownName, which names the flag, if there is none.

        >>> tarry.methods.find("orthofk")
        Traceback (most recent call last):
        tarry.core.registry.UnknownName: --method orthofk: there is no such method. Did you mean 'orthofl'?
        """
        if ".py:" in name:
            return self._from_file(name)
        self._load_plugins()
        if name in self._broken:
            raise UnknownName(f"--{self.kind} {name}: {self._broken[name]}")
        if name not in self._entries:
            raise UnknownName(f"--{self.kind} {name}: there is no such {self.kind}.{near(name, self._entries)}")
        return self._entries[name]

    def build(self, name: str, /, **params: Any) -> T:
        """Return the component of that name, made with checked parameters.

        >>> tarry.methods.build("fedbuff", buffer=3)
        Method('fedbuff', correct=discount, aggregate=buffer, step=add)
        """
        return self[name](**params)

    def search(self, text: str) -> list[Entry[T]]:
        """Return the entries whose name, description or paper contains every word of the text, ignoring case.

        >>> [entry.name for entry in tarry.methods.search("semi-asynchronous rounds")]
        ['safa']
        """
        words = text.casefold().split()
        return [e for e in self.values() if all(w in _searched(e) for w in words)]

    def __repr__(self) -> str:
        shown, names = list[str](), list(self)
        while len(shown) < len(names) and len(", ".join([*shown, names[len(shown)]])) < 80:
            shown.append(names[len(shown)])
        more = ["..."] if len(shown) < len(names) else []
        return f"{self.title}: {', '.join(shown + more)} ({len(names)})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def _new_entry(self, name: str, factory: Callable[..., T], paper: str, use: str) -> Entry[T]:
        return Entry(name, factory, paper, use, _params(factory), self.kind, self._makes)

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=f"tarry.{self.kind}s"):
            if point.name in self._entries:
                continue
            try:
                factory = point.load()
                self._entries[point.name] = self._foreign(point.name, factory)
            except Exception as e:
                self._broken[point.name] = f"its plug-in does not load: {type(e).__name__}: {e}"

    def _from_file(self, name: str) -> Entry[T]:
        path_text, _, attribute = name.rpartition(":")
        path = Path(path_text).expanduser().resolve()
        if not path.is_file():
            raise UnknownName(f"--{self.kind} {name}: there is no file {path}")
        try:
            module = _module_of(path)
        except Exception as e:
            raise UnknownName(f"--{self.kind} {name}: {path.name} does not import: {type(e).__name__}: {e}") from e
        factory = self._factory(getattr(module, attribute, None))
        if factory is None:
            found = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
            raise UnknownName(
                f"--{self.kind} {name}: {path.name} has no factory {attribute!r}.{near(attribute, found)}"
            )
        return self._foreign(name, factory)

    def _factory(self, found: Any) -> Callable[..., Any] | None:
        """Return the factory that an object of a file stands for, or None."""
        return found if callable(found) else None

    def _foreign(self, name: str, factory: Callable[..., Any]) -> Entry[T]:
        """Return the entry of a factory that is not registered."""
        return self._new_entry(name, factory, getattr(factory, "paper", ""), getattr(factory, "use", ""))


def _module_of(path: Path) -> types.ModuleType:
    """Import a file. One in a package may import from its package: the folder of the package is put on sys.path."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    if len(parts) > 1 and str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name = f"tarry_user_{path.stem}"
    loader = _SourceLoader(module_name, str(path))
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except ImportError as e:
        if len(parts) == 1 or "relative import" not in str(e):
            raise
        module = importlib.import_module(".".join(parts))
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles a user's file each time. Cached bytecode of a file that changed twice in a second may be the old one."""

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002
        return self.source_to_code(self.get_data(self.path), self.path)


def _searched(entry: Entry[Any]) -> str:
    return " ".join((entry.name, entry.doc, entry.paper, entry.use)).casefold()
