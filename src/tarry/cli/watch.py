"""`tarry watch`: follow a run or a federation while it works."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import BadInput
from . import console

__all__ = ["watch"]

_BUSIEST = 5  # clients that the summary names
_PATIENCE = 20.0  # seconds for `up --wait` to restart a server that was killed


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder (--out) of the run or federation")],
    every: Annotated[float, typer.Option("--every", help="Read the log every so many seconds")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the present state and exit")] = False,
) -> None:
    """Follow a run or a federation: print a line for every evaluation.

    Ctrl-C ends the watching; the run continues.
    """
    log = folder / "events.jsonl"
    if not log.is_file():
        raise BadInput(f"{folder}: nothing is at work here (no events.jsonl); name the --out of a run or a federation")
    if not every > 0:
        raise BadInput(f"--every {every}: must be above 0")
    over, reader = _follow(folder, LogReader(log), every, once=once)
    if over is None:
        return
    console.print_lines([f"{'it is over' if over else 'so far'}: {reader.summary()}"])
    if not over and (why := _absence(folder)[1]):
        console.print_lines([why])
        if not once:
            raise typer.Exit(1)


def _follow(folder: Path, reader: LogReader, every: float, *, once: bool) -> tuple[bool | None, LogReader]:
    """Print evaluations until the run is over, the server stays away or Ctrl-C (None); return whether it is over."""
    missing = _MissingServer(folder)
    try:
        while True:
            over = (folder / "result.json").is_file()  # checked before the log, which is complete by then
            console.print_lines(reader.read())
            if over or once or missing.is_final():
                return over, reader
            time.sleep(every)
    except KeyboardInterrupt:
        return None, reader


def _absence(folder: Path) -> tuple[str, str]:
    from .federation_status import absence

    return absence(folder)


class _MissingServer:
    """The time since which the server of a federation is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._since = folder, float("inf")

    def is_final(self) -> bool:
        """Return whether the server was taken down, or was killed and not restarted within `_PATIENCE`."""
        from ..report.formatting import duration

        state, why = _absence(self._folder)
        if state not in ("cut off", "stopped"):
            self._since = float("inf")
        elif self._since == float("inf"):
            self._since = time.monotonic()
            console.print_lines([f"{why} (watched for {duration(_PATIENCE)} more)"])
        return state == "taken down" or time.monotonic() - self._since >= _PATIENCE


class LogReader:
    """Incremental reader of an event log: the new evaluations, and counters of everything read."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._reset()

    def _reset(self) -> None:
        from ..record.rows import Mark

        self._mark = Mark()
        self.kinds, self.arrivals, self.now = Counter[str](), Counter[int](), dict[str, Any]()
        self.staleness = 0

    def read(self) -> list[str]:
        """Return a line for every evaluation since the last call."""
        from ..core.errors import DamagedFile

        if self._log.stat().st_size < self._mark.nbytes:  # the run was resumed from an earlier checkpoint
            self._reset()
        try:
            return self._read_on()
        except DamagedFile:
            if not self._mark.nbytes:
                raise
            self._reset()  # the rows that were read are others now
            return self._read_on()

    def _read_on(self) -> list[str]:
        from ..record.rows import events_with_marks

        lines = []
        for row, mark in events_with_marks(self._log, self._mark):
            self._mark = mark
            lines += self._add(row)
        return lines

    def _add(self, row: dict[str, Any]) -> list[str]:
        """Count an event; return its line if it is an evaluation."""
        from ..report.formatting import duration, pluralize

        self.now = row
        self.kinds[row["kind"]] += 1
        if row["kind"] == "arrival":
            self.arrivals[row["client"]] += 1
            self.staleness += row.get("staleness", 0)
        if row["kind"] != "evaluate":
            return []
        values = {**(row.get("metrics") or {}), **{k: row.get(k) for k in ("accuracy", "loss")}}
        score = [f"{k} {v:.4f}" for k, v in values.items() if v is not None]
        return [f"{duration(row['time']):>9}  {pluralize(row['updates'], 'update'):>14}  {', '.join(score)}".rstrip()]

    def summary(self) -> str:
        """Return the counters in one line."""
        from ..report.formatting import duration, pluralize

        if not self.now:
            return "nothing has happened yet"
        arrived = self.kinds["arrival"]
        fates = [f"{self.kinds[k]} {word}" for k, word in (("lost", "lost"), ("rejected", "rejected")) if self.kinds[k]]
        out = max(0, self.kinds["hand_out"] - arrived - self.kinds["lost"] - self.kinds["rejected"])
        busiest = ", ".join(f"{c} ({n})" for c, n in self.arrivals.most_common(_BUSIEST))
        words = [
            f"{pluralize(self.now['updates'], 'update')} after {duration(self.now['time'])}",
            f"{pluralize(self.now['version'], 'server step')}",
            f"{out} under way",
            *fates,
            f"staleness mean {self.staleness / arrived:.1f}" if arrived else "",
            f"most from clients {busiest}" if busiest else "",
        ]
        return "; ".join(w for w in words if w)
