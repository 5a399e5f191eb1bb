"""What can go wrong because of what a person asked for.

    TarryError            everything tarry raises on purpose; the command line prints it and exits with 2
      BadInput            a flag, a parameter or a file says something that cannot be done (all problems at once)
      Damaged             a checkpoint or a record on disk cannot be trusted
      Diverged            a client's loss became NaN or infinite and the run is strict
      SolverFailed        a server's programme was not solved: nothing goes on with what it did not find
      WorkerDied          a training process ended without an answer

Mistakes of ours are assertions, not these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["BadInput", "Damaged", "Diverged", "SolverFailed", "TarryError", "WorkerDied", "first_line", "near"]


class TarryError(Exception):
    """Something a person can put right; the message says what, where and how."""


class BadInput(TarryError):
    """One or more things that were asked for cannot be done. `problems` holds a sentence each."""

    def __init__(self, problems: str | Sequence[str]):
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class Damaged(TarryError):
    """A file that a run left behind is torn or was changed."""


class Diverged(TarryError):
    """A client came back with a loss or weights that are not finite, and `strict` was asked for."""


class SolverFailed(TarryError):
    """A solver gave up, or what it found does not hold."""


class WorkerDied(TarryError):
    """A training process is gone: killed, or out of memory."""


def near(name: str, known: Iterable[str]) -> str:
    """' Did you mean x?' when a known name resembles `name`, in letters of any size, else the list of known names."""
    names = {k.casefold(): k for k in sorted(known)}
    if close := difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.6):
        return f" Did you mean {names[close[0]]!r}?"
    return f" Known: {', '.join(names.values())}." if names else ""


def first_line(e: BaseException) -> str:
    """Of what an exception says, in brief."""
    return next(iter(str(e).strip().splitlines()), "")[:160]
