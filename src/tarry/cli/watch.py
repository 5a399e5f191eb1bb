"""`tarry watch`: a run or a federation while it is at work."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import BadInput
from ..record.rows import read_rows
from ..report.formatting import duration, number_of
from . import console as show
from .federation import absence

__all__ = ["watch"]

_BUSIEST = 5  # clients that are named
_PATIENCE = 20.0  # seconds for `up --wait` to start a server that was killed


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the --out of a run or a federation")],
    every: Annotated[float, typer.Option("--every", help="seconds between looks")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="say how it is, and end")] = False,
) -> None:
    """Follow a run or a federation: a line for every evaluation, until it is over. Ctrl-C ends the watching alone."""
    log = folder / "events.jsonl"
    if not log.is_file():
        raise BadInput(f"{folder}: nothing is at work here (no events.jsonl); name the --out of a run or a federation")
    if not every > 0:
        raise BadInput(f"--every {every}: must be above 0")
    told, missed = _Told(), _Missed(folder)
    try:
        while True:
            over = (folder / "result.json").is_file()  # asked first: what is read then is all of it
            show.lines(told.news(log))
            if over or once or missed.for_good():
                break
            time.sleep(every)
    except KeyboardInterrupt:
        return
    show.lines([f"{'it is over' if over else 'so far'}: {told.summary()}"])
    if not over and (why := absence(folder)[1]):
        show.lines([why])
        if not once:
            raise typer.Exit(1)


class _Missed:
    """A federation's server, where it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._since = folder, float("inf")

    def for_good(self) -> bool:
        """Whether it was taken down, or killed and started by nobody since."""
        state, why = absence(self._folder)
        if state not in ("cut off", "stopped"):
            self._since = float("inf")
        elif self._since == float("inf"):
            self._since = time.monotonic()
            show.lines([f"{why} (watched for {duration(_PATIENCE)} more)"])
        return state == "taken down" or time.monotonic() - self._since >= _PATIENCE


class _Told:
    """What a log says, as far as it was read."""

    def __init__(self) -> None:
        self._size, self._rows = -1, 0
        self._reset()

    def _reset(self) -> None:
        self.kinds, self.arrivals, self.now = Counter[str](), Counter[int](), dict[str, Any]()
        self.stale = 0

    def news(self, log: Path) -> list[str]:
        """A line for every evaluation since the last look."""
        size = log.stat().st_size
        if size == self._size:
            return []
        if size < self._size:  # taken up again from an earlier place
            self._rows = 0
            self._reset()
        self._size, lines = size, []
        for number, row in enumerate(read_rows(log)):
            if number >= self._rows:
                self._rows = number + 1
                lines += self._take(row)
        return lines

    def _take(self, row: dict[str, Any]) -> list[str]:
        self.now = row
        self.kinds[row["kind"]] += 1
        if row["kind"] == "arrival":
            self.arrivals[row["client"]] += 1
            self.stale += row.get("staleness", 0)
        if row["kind"] != "evaluate":
            return []
        score = [f"{k} {row[k]:.4f}" for k in ("accuracy", "loss") if row.get(k) is not None]
        return [f"{duration(row['time']):>9}  {number_of(row['updates'], 'update'):>14}  {', '.join(score)}".rstrip()]

    def summary(self) -> str:
        if not self.now:
            return "nothing has happened yet"
        came = self.kinds["arrival"]
        fates = [f"{self.kinds[k]} {word}" for k, word in (("lost", "lost"), ("refused", "refused")) if self.kinds[k]]
        out = max(0, self.kinds["hand_out"] - came - self.kinds["lost"] - self.kinds["refused"])
        most = ", ".join(f"{c} ({n})" for c, n in self.arrivals.most_common(_BUSIEST))
        words = [
            f"{number_of(self.now['updates'], 'update')} after {duration(self.now['time'])}",
            f"{number_of(self.now['version'], 'server step')}",
            f"{out} under way",
            *fates,
            f"staleness mean {self.stale / came:.1f}" if came else "",
            f"most from clients {most}" if most else "",
        ]
        return "; ".join(w for w in words if w)
