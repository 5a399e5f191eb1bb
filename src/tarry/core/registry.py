"""Registry: a mapping of named factories, whose signatures the command line, the docs and the checks read.

    @methods.register("orthofl", paper="Orthogonal Calibration for Asynchronous Federated Learning")
    def orthofl(*, beta: Annotated[float, "mixing weight of a fresh update"] = 0.6, a: ... = 0.5) -> Method:
        '''First line: what `tarry methods` shows.'''

    methods["orthofl"](beta=0.4)          the Entry, called with checked parameters
    methods.build("orthofl", beta=0.4)    the same

From outside: an entry point in the group `tarry.<kind>s`, or `path/to/file.py:factory`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import BadInput, errors_as_keywords, near
from .one_line import cut_to_width, short_text
from .parameter import Param, params_of
from .printable import html_text
from .search_space import Dimension, parse_dimension
from .user_code import import_file

__all__ = ["Entry", "Registry", "UnknownName"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class UnknownName(BadInput, KeyError):
    """A registry has no entry of that name, or its factory cannot be imported."""

    def __str__(self) -> str:
        return "\n".join(self.problems)  # KeyError shows the repr of its argument


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
    space: Mapping[str, Dimension] = field(default_factory=dict)  # what `tarry tune` tries, by parameter

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

    def register(
        self, name: str, *, paper: str = "", use: str = "", space: Mapping[str, Dimension] | None = None
    ) -> Callable[[F], F]:
        """Decorate a factory; its name must be new and it needs a docstring.

        `use` says when to choose it, `space` which values of its parameters `tarry tune` tries.

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
            self._entries[name] = self._new_entry(name, factory, paper, use, space or {})
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

    def _repr_html_(self) -> str:
        """Return a table of the entries, for a notebook."""
        rows = "".join(_row(entry.name, entry.summary) for entry in self.values())
        return f"<p><b>{html_text(self.title)}</b></p>\n<table>{rows}</table>"

    def _new_entry(
        self, name: str, factory: Callable[..., T], paper: str, use: str, space: Mapping[str, Dimension]
    ) -> Entry[T]:
        return Entry(name, factory, paper, use, params_of(factory), self.kind, self._makes, space=space)

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
            module = import_file(path)
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
        space = getattr(factory, "space", {})
        try:
            dimensions = {
                key: parse_dimension(value) if isinstance(value, str) else value for key, value in space.items()
            }
        except (AttributeError, ValueError) as e:
            raise UnknownName(f"--{self.kind} {name}: its `space` is no table of search spaces: {e}") from e
        return self._new_entry(name, factory, getattr(factory, "paper", ""), getattr(factory, "use", ""), dimensions)


def _searched(entry: Entry[Any]) -> str:
    return " ".join((entry.name, entry.doc, entry.paper, entry.use)).casefold()
