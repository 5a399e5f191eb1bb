"""The Executor protocol: how a run has the visits of its clients trained, and errors that come from other processes.

In virtual time the result of a visit depends on its ticket alone. So an executor may train it at any time before it is
due, in any process, and as far ahead as it likes: no number changes.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from torch import Tensor

from ..core.errors import BadInput, TrainingFailed
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..core.user_code import user_location

__all__ = ["Executor", "RemoteError", "visit_job"]


class Executor(Protocol):
    """Trains tickets. `submit` hands one over with the client's memory and the time at which its result is due;
    `collect` returns the result, and is called at that time. Where rounding depends on which visits are trained
    together, `save` holds the results that were trained ahead of need and the choices that were made.
    """

    description: str  # a sentence on how clients are trained, where the executor had a choice; else ""

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None: ...

    def collect(self, number: int) -> LocalResult: ...

    def save(self) -> Any:
        """Return what a resumed run needs to train the rest in the same way, as a plain record; None for nothing."""
        ...

    def load(self, saved: Any) -> None:
        """Continue from a saved record, of this executor or of another one; call this before the first `submit`."""
        ...

    def close(self) -> None: ...


def visit_job(t: Ticket, memory: Mapping[str, Tensor]) -> VisitJob:
    """Return what the training loop needs of a ticket, with the memory of its client."""
    return VisitJob(t.number, t.client, t.visit, t.sent, t.payload, memory, t.version, t.time)


class RemoteError(NamedTuple):
    """An exception of a worker, sent in the place of a result."""

    text: str
    problems: tuple[str, ...] = ()  # of a BadInput: its lines, which the caller sees as without workers

    @classmethod
    def from_exception(cls, e: Exception) -> RemoteError:
        """Return the exception as text. Call this where it is caught: the text ends with the traceback."""
        problems = e.problems if isinstance(e, BadInput) else ()
        where = user_location(e)
        at = "" if where is None else f" ({where})"
        return cls(f"{type(e).__name__}: {e}{at}\n{traceback.format_exc()}", problems)

    def reraise(self, where: str) -> NoReturn:
        """Raise BadInput where the worker did; else TrainingFailed with the worker's traceback."""
        if self.problems:
            raise BadInput(self.problems)
        raise TrainingFailed(f"training failed in {where}: {self.text}")
