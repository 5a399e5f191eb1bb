"""Progress bars for calls from Python: tqdm's, which suit notebooks as well as terminals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.optional_import import optional_import

if TYPE_CHECKING:
    from .run import Progress

__all__ = ["comparison_bar", "in_notebook", "run_bar"]

_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


def in_notebook() -> bool:
    """Return whether the code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def run_bar(show: bool | Callable[[Progress], None] | None, label: str) -> Iterator[Callable[[Progress], None] | None]:
    """Yield the callback of a run's progress: that of the caller, one that moves a bar, or None."""
    if callable(show) or not (in_notebook() if show is None else show):
        yield show if callable(show) else None
        return
    with _bar(label, 1.0) as bar:

        def move(progress: Progress) -> None:
            bar.n = progress.fraction
            score = "" if progress.score is None else f", {progress.metric.text(progress.score)}"
            bar.set_postfix_str(f"{progress.updates:,} updates{score}")

        yield move


@contextmanager
def comparison_bar(show: Any, n_runs: int) -> Iterator[Callable[[int, Any, Progress], None] | None]:
    """Yield the callback of a comparison's progress, as `run_bar` does for a run."""
    if callable(show) or not (in_notebook() if show is None else show):
        yield show if callable(show) else None
        return
    done: dict[int, float] = {}
    with _bar("compare", float(n_runs)) as bar:

        def move(index: int, spec: Any, progress: Progress) -> None:
            done[index] = progress.fraction
            bar.n = sum(done.values())
            bar.set_postfix_str(f"{sum(f == 1.0 for f in done.values())} of {n_runs} runs, {spec.label}")

        yield move


@contextmanager
def _bar(label: str, total: float) -> Iterator[Any]:
    with optional_import("tqdm"):
        from tqdm.auto import tqdm
    with tqdm(total=total, desc=label, bar_format=_FORMAT) as bar:
        yield bar
