"""arrivals.csv of a run: every visit in the order of hand-outs, read from the event log in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import DamagedFile
from ..delays.measured import TraceRow, write_trace
from ..record.rows import read_events
from ..record.run_folder import RunFolder

__all__ = ["write_arrivals"]


def write_arrivals(folder: RunFolder, *, any_lost: bool) -> None:
    """Write the visits of a run that has ended. The checksums of its log are compared on the way."""
    lost = _lost_tickets(folder.events) if any_lost else bytearray()
    write_trace(folder.arrivals, _visits(folder.events, lost))


def _lost_tickets(log: Path) -> bytearray:
    """Return 1 for every ticket whose update was lost: a byte for each ticket, which are numbered from 0 on."""
    lost = bytearray()
    for row in read_events(log):
        if row["kind"] == "hand_out":
            lost.append(0)
        elif row["kind"] == "lost":
            if not 0 <= row["ticket"] < len(lost):
                raise DamagedFile(f"{log}: ticket {row['ticket']} was lost before it was handed out")
            lost[row["ticket"]] = 1
    return lost


def _visits(log: Path, lost: bytearray) -> Iterator[TraceRow]:
    number = 0
    for row in read_events(log):
        if row["kind"] == "hand_out":
            if row["seconds"] is None:
                raise DamagedFile(f"{log}: the hand-out of ticket {row['ticket']} has no duration")
            fate = "lost" if number < len(lost) and lost[number] else "came"
            yield TraceRow(row["client"], row["visit"], row["time"], row["seconds"], fate)
            number += 1
