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
            ticket = row.get("ticket", -1)
            if not 0 <= ticket < len(lost):
                raise DamagedFile(f"{log}: ticket {ticket} was lost before it was handed out")
            lost[ticket] = 1
    return lost


def _visits(log: Path, lost: bytearray) -> Iterator[TraceRow]:
    number = 0
    for row in read_events(log):
        if row["kind"] == "hand_out":
            client, visit, seconds = row.get("client", -1), row.get("visit", -1), row.get("seconds")
            if seconds is None:
                raise DamagedFile(f"{log}: visit {visit} of client {client} has no duration")
            fate = "lost" if number < len(lost) and lost[number] else "came"
            yield TraceRow(client, visit, row["time"], seconds, fate)
            number += 1
