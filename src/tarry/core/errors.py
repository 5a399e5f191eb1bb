"""Exceptions for problems that the user can fix, and the warning for notices of a run.

    TarryError            base class; the command line prints the message and exits with 2
      BadInput            a setting, a parameter or a file asks for something impossible (all problems at once)
      DamagedFile         a checkpoint or a record on disk is torn or was changed
      Diverged            a client's loss became NaN or infinite and the run is strict
      SolverFailed        a solver found no solution
      StorageError        a file or folder cannot be read or written: disk full, no permission, a device error
      WorkerDied          a training process, or a Ray cluster, ended without a result
    TarryWarning          a notice of a run that is no error: a setting without effect, a target that was missed

Bugs of tarry raise AssertionError instead. Messages name settings as flags, `--lr -1`; `errors_as_keywords` rewrites
them for callers from Python, `lr=-1`.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from .printable import printable

__all__ = [
    "BadInput",
    "DamagedFile",
    "Diverged",
    "SolverFailed",
    "StorageError",
    "TarryError",
    "TarryWarning",
    "TrainingFailed",
    "WorkerDied",
    "as_keywords",
    "errors_as_keywords",
    "first_line",
    "near",
    "nearest",
    "warn_of",
]


class TarryError(Exception):
    """A problem that the user can fix; the message says what, where and how. The other errors derive from it.

    >>> try:
    ...     tarry.run("orthofk", "digits")
    ... except tarry.TarryError as error:
    ...     print(error)
    method='orthofk': there is no such method. Did you mean 'orthofl'?
    """

    def _rephrase(self, phrase: Callable[[str], str]) -> None:
        """Apply a function to the message."""
        self.args = (phrase(str(self)),)


class BadInput(TarryError, ValueError):
    """Invalid settings, parameters or files. `problems` holds a sentence for each, and the message all of them.

    >>> try:
    ...     tarry.run("orthofl", "digits", lr=-1, epoks=3)
    ... except tarry.BadInput as error:
    ...     print(error.problems)
    ('lr=-1: must be above 0', "epoks: no such setting; did you mean 'epochs'?")
    """

    def __init__(self, problems: str | Sequence[str]):
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def _rephrase(self, phrase: Callable[[str], str]) -> None:
        """Apply a function to every problem."""
        self.problems = tuple(map(phrase, self.problems))
        self.args = ("\n".join(self.problems),)

    def __reduce__(self) -> tuple[type[BadInput], tuple[tuple[str, ...]]]:
        """Keep the problems apart when the error travels between processes."""
        return type(self), (self.problems,)


class DamagedFile(TarryError):
    """A file of a run is torn or was changed.

    >>> issubclass(tarry.DamagedFile, tarry.TarryError)
    True
    """


class Diverged(TarryError):
    """A client returned a loss or weights that are not finite, in a run with `strict`.

    >>> try:
    ...     tarry.run("fedasync", "digits", lr=1e30, updates=3, strict=True)
    ... except tarry.Diverged as error:
    ...     print("a smaller learning rate" in str(error))
    True
    """


class SolverFailed(TarryError):
    """A solver found no solution, or its solution violates the constraints.

    >>> issubclass(tarry.SolverFailed, tarry.TarryError)
    True
    """


class StorageError(TarryError):
    """A file or folder cannot be read or written: the disk is full, a permission is missing, a device fails.

    >>> try:
    ...     tarry.run("fedasync", "digits", updates=5, out="/dev/full/run")
    ... except tarry.StorageError as error:
    ...     print("/dev/full" in str(error))
    True
    """


class TrainingFailed(TarryError):
    """An exception that training raised in a worker process, with its traceback."""


class WorkerDied(TarryError):
    """A training process ended without a result: it was killed, or out of memory.

    >>> issubclass(tarry.WorkerDied, tarry.TarryError)
    True
    """


class TarryWarning(UserWarning):
    """A notice of a run that is no error: a setting without effect, a target that was missed, divergence.

    `run`, `resume` and `compare` warn of every notice, which is also in `Result.warnings`.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     result = tarry.run("fedasync", "digits", updates=5, target=0.99)
    >>> [warning.category.__name__ for warning in caught]
    ['TarryWarning']
    """


_LONGEST = 600  # characters of a list of names: the columns of a file may be anything
#: at the start of a problem, a flag with the whole value that was given: `--out /a b: it is ...`
_HEAD = re.compile(r"--(?P<name>[^\s:]+)(?: (?!--)(?P<value>.*?))?(?P<end>: | (?=--[a-z])|$)", re.DOTALL)
#: a flag in a sentence, and the next word; or a command of a shell, which is no flag of ours
_FLAG = re.compile(
    r"`tarry resume (?P<folder>[^`]+)`|`(?!-)[^`]*`|pip install --\S+|\S+\.sh .*"
    r"|(?P<before>^|: |\(|\b(?:use|give|add|or|only|by|let) )?"
    r"--(?P<name>[a-z][\w.-]*\w)(?: (?P<value>(?!--)[^\s,;()]*[^\s,;():.]))?(?P<more> (?=--[a-z]))?"
)


def as_keywords(text: str, *, prefix: str = "", is_notice: bool = False) -> str:
    """Return a message with keyword arguments in place of flags, without `prefix` in the names of parameters.

    The text before the first colon of a problem consists of flags and values; a notice is a sentence.

    >>> as_keywords("--lr-decay 2: must be above 0 and at most 1")
    'lr_decay=2: must be above 0 and at most 1'
    >>> as_keywords("--executor inline --workers 3: inline trains in one process; use --executor pool")
    "executor='inline', workers=3: inline trains in one process; use executor='pool'"
    >>> as_keywords("--method.buffer 0: must be 1 or more", prefix="method.")
    'buffer=0: must be 1 or more'
    """
    head, at = "", 0
    while not is_notice and (found := _HEAD.match(text, at)):
        head += _keyword(found["name"], found["value"], prefix) + (", " if found["end"] == " " else found["end"])
        at = found.end()
        if found["end"] != " ":
            break
    return head + _FLAG.sub(lambda m: _in_sentence(m, prefix), text[at:])


def _in_sentence(found: re.Match[str], prefix: str) -> str:
    """Return a flag of a sentence as a keyword; the next word is its value, or not: a smaller --lr may help."""
    name, value, before, more = found["name"], found["value"], found["before"], found["more"] or ""
    if found["folder"]:
        return f"tarry.resume({found['folder']!r})"
    if name is None:
        return found.group()
    if before is not None or "." in name or value is None or "/" in value or value.isupper() or _is_number(value):
        return (before or "") + _keyword(name, value, prefix) + (more and ", ")
    return f"{_keyword(name, None, prefix)} {value}{more}"


def _keyword(name: str, value: str | None, prefix: str) -> str:
    name = name.replace("-", "_").removeprefix(prefix)
    if value is None:
        return name
    plain = _is_number(value) or value in ("True", "False", "None") or value.isupper() or value[:1] in "{[('\""
    return f"{name}={value if plain else repr(value)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def errors_as_keywords(prefix: str = "") -> Iterator[None]:
    """Rewrite the flags in errors as keyword arguments, for functions that are called from Python."""
    try:
        yield
    except TarryError as e:
        e._rephrase(lambda text: as_keywords(text, prefix=prefix))
        raise


def warn_of(notices: Iterable[str], *, stacklevel: int) -> None:
    """Warn of the notices of a run, in keyword arguments."""
    for notice in notices:
        warnings.warn(as_keywords(notice, is_notice=True), TarryWarning, stacklevel=stacklevel + 1)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles `name`, ignoring case; None if there is none."""
    names = {k.casefold(): k for k in sorted(known)}
    close = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.6)
    return names[close[0]] if close else None


def near(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' if a known name resembles `name`, ignoring case, else the list of known names."""
    known = sorted(known)
    if close := nearest(name, known):
        return f" Did you mean {close!r}?"
    names = printable(", ".join(known))
    return f" Known: {names if len(names) <= _LONGEST else f'{names[: _LONGEST - 3]}...'}." if known else ""


def first_line(e: BaseException) -> str:
    """Return the first line of an exception's message, at most 160 characters."""
    return next(iter(str(e).strip().splitlines()), "")[:160]
