"""Exceptions for problems that the user can fix.

    TarryError            base class; the command line prints the message and exits with 2
      BadInput            a flag, a parameter or a file asks for something impossible (all problems at once)
      Damaged             a checkpoint or a record on disk is torn or was changed
      Diverged            a client's loss became NaN or infinite and the run is strict
      SolverFailed        a solver found no solution
      WorkerDied          a training process ended without a result

Bugs of tarry raise AssertionError instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["BadInput", "Damaged", "Diverged", "SolverFailed", "TarryError", "WorkerDied", "first_line", "near"]


class TarryError(Exception):
    """A problem that the user can fix; the message says what, where and how."""


class BadInput(TarryError):
    """Invalid settings, parameters or files. `problems` holds a sentence for each."""

    def __init__(self, problems: str | Sequence[str]):
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class Damaged(TarryError):
    """A file of a run is torn or was changed."""


class Diverged(TarryError):
    """A client returned a loss or weights that are not finite, in a run with `strict`."""


class SolverFailed(TarryError):
    """A solver found no solution, or its solution violates the constraints."""


class WorkerDied(TarryError):
    """A training process ended: it was killed, or out of memory."""


def near(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' if a known name resembles `name`, ignoring case, else the list of known names."""
    names = {k.casefold(): k for k in sorted(known)}
    if close := difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.6):
        return f" Did you mean {names[close[0]]!r}?"
    return f" Known: {', '.join(names.values())}." if names else ""


def first_line(e: BaseException) -> str:
    """Return the first line of an exception's message, at most 160 characters."""
    return next(iter(str(e).strip().splitlines()), "")[:160]
