"""Logs: JSON rows in an append-only file, each with a checksum of everything before it; the event log of a run.

    {"kind":"arrival","time":12.5,...,"crc":3632233996}

`crc` is the CRC-32 of all bytes of the file up to it. A changed, missing or inserted byte is found at the row it is in.
A checkpoint holds a `Mark`: the number of bytes written and the checksum there. Resuming compares the log with the mark
in one pass and truncates it there, so no row is doubled, incomplete or damaged.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core.errors import DamagedFile
from ..core.events import Event
from ..core.metric import other_metrics
from ..core.storage import storage_errors
from .storage import open_regular

__all__ = [
    "Log",
    "Mark",
    "Recorder",
    "check_prefix",
    "encode_row",
    "end_of_rows",
    "events_with_marks",
    "read_events",
    "read_rows",
]

_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder at every call
_CRC = b',"crc":'
_BUFFER = 1 << 16  # bytes of rows held back before they are written
_LONGEST_ROW = 1 << 26  # bytes; a row with diagnostics has a few thousand
_CHUNK = 1 << 20


class Mark(NamedTuple):
    """A position in a log: the number of bytes before it and their checksum."""

    nbytes: int = 0
    crc: int = 0


def encode_row(row: Mapping[str, Any], at: Mark) -> tuple[bytes, Mark]:
    """Return the line of a row that is written at a mark, and the mark after it."""
    body = _encode(row)[:-1].encode()
    crc = zlib.crc32(body, at.crc)
    tail = b"%b%d}\n" % (_CRC, crc)
    return body + tail, Mark(at.nbytes + len(body) + len(tail), zlib.crc32(tail, crc))


class Log:
    """A log that rows are appended to. It begins at a mark; rows after the mark are cut off."""

    def __init__(self, path: Path, at: Mark = Mark(), *, buffered: bool = True):  # noqa: B008 - a constant
        self._path, self._buffer, self._limit = path, bytearray(), _BUFFER if buffered else 0
        if at.nbytes:
            check_prefix(path, at)
        self._mark = at
        with storage_errors(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(self._fd, at.nbytes)
            except OSError:
                os.close(self._fd)
                raise

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row with its checksum. Without a buffer it survives a kill when this returns."""
        line, self._mark = encode_row(row, self._mark)
        self._buffer += line
        if len(self._buffer) > self._limit:
            self.flush()

    def flush(self) -> None:
        """Make the rows visible to readers of the file."""
        with storage_errors(self._path):
            while self._buffer:
                del self._buffer[: os.write(self._fd, self._buffer)]

    def sync(self) -> Mark:
        """Write the rows to disk; return the mark after them."""
        self.flush()
        with storage_errors(self._path):
            os.fsync(self._fd)
        return self._mark

    def close(self) -> None:
        """Write the rows that are held back, and close the file; a second call does nothing."""
        if self._fd < 0:
            return
        try:
            self.flush()
        finally:
            fd, self._fd = self._fd, -1
            with storage_errors(self._path):
                os.close(fd)


_COLUMNS = tuple(name for name in Event._fields if name != "weights")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("client", "ticket", "visit", "staleness"), -1),
    **dict.fromkeys(("seconds", "accuracy", "loss", "metrics", "notes")),
    "reason": "",
}


class Recorder(Log):
    """A listener that writes a row for each event, without the fields that do not apply to it."""

    #: fields to be added to the row of a ticket's arrival, by ticket number
    extras: Mapping[int, Mapping[str, Any]] = MappingProxyType({})

    def __call__(self, event: Event) -> None:
        row: dict[str, Any] = {}
        for name in _COLUMNS:
            value = getattr(event, name)
            if name == "metrics" and value is not None:
                value = {k: _finite(v) for k, v in other_metrics(value).items()} or None
            if name in _DEFAULTS and value == _DEFAULTS[name]:
                continue
            row[name] = _finite(value)
        if event.ticket in self.extras and event.kind != "hand_out":
            row |= self.extras[event.ticket]
        self.append(row)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def read_rows(path: Path, at: Mark = Mark()) -> Iterator[dict[str, Any]]:  # noqa: B008 - a constant
    """Yield the rows of a log from a mark on, without their checksums and without an incomplete last line.

    A row that is not what was written raises DamagedFile with its line.
    """
    for row, _ in _rows(path, at):
        yield row


def end_of_rows(path: Path, at: Mark = Mark()) -> Mark:  # noqa: B008 - a constant
    """Return the mark after the last complete row; the mark itself if there is no file."""
    if path.exists():
        for _, mark in _rows(path, at):
            at = mark
    return at


def read_events(path: Path, at: Mark = Mark()) -> Iterator[dict[str, Any]]:  # noqa: B008 - a constant
    """Yield the rows of an event log; a field of another type than an event's raises DamagedFile."""
    for row, _ in events_with_marks(path, at):
        yield row


def events_with_marks(path: Path, at: Mark) -> Iterator[tuple[dict[str, Any], Mark]]:
    """Yield the rows of an event log and the mark after each, from which a later call continues."""
    for number, (row, mark) in enumerate(_rows(path, at), 1):
        if bad := [name for name, types in _TYPES.items() if not isinstance(row.get(name, _ABSENT.get(name)), types)]:
            raise DamagedFile(f"{path}, row {number}: not an event: {bad[0]} is {str(row.get(bad[0]))[:40]!r}")
        yield row, mark


_NUMBER, _OPTIONAL = (int, float), (int, float, type(None))
_ABSENT: dict[str, Any] = {"client": -1, "ticket": -1, "visit": -1, "staleness": -1}
_TYPES: dict[str, Any] = {
    "kind": str,
    "time": _NUMBER,
    "version": int,
    "updates": int,
    **dict.fromkeys(_ABSENT, int),
    **dict.fromkeys(("seconds", "accuracy", "loss"), _OPTIONAL),
    **dict.fromkeys(("metrics", "notes"), (dict, type(None))),
    "reason": (str, type(None)),
}


def _rows(path: Path, at: Mark) -> Iterator[tuple[dict[str, Any], Mark]]:
    with storage_errors(path, "read"), open_regular(path) as f:
        f.seek(at.nbytes)
        number, crc, nbytes = 0, at.crc, at.nbytes
        while line := f.readline(_LONGEST_ROW):
            if not line.endswith(b"\n"):
                if len(line) < _LONGEST_ROW:
                    return
                raise DamagedFile(f"{path}: a row after byte {nbytes:,} is longer than {_LONGEST_ROW:,} bytes")
            number += 1
            cut = line.rfind(_CRC)
            here = zlib.crc32(line[:cut], crc)
            where = f"{path}, row {number}{f' after byte {at.nbytes:,}' if at.nbytes else ''}"
            if cut < 0 or line[cut + len(_CRC) :] != b"%d}\n" % here:
                raise DamagedFile(f"{where}: it is not what was written (its checksum differs)")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as e:
                raise DamagedFile(f"{where}: not a row: {e}") from e
            if not isinstance(row, dict):
                raise DamagedFile(f"{where}: not a row")
            del row["crc"]
            crc, nbytes = zlib.crc32(line[cut:], here), nbytes + len(line)
            yield row, Mark(nbytes, crc)


def check_prefix(path: Path, mark: Mark) -> None:
    """Raise DamagedFile unless the log has the bytes that the mark counts, with its checksum."""
    way_out = "restore the file from a copy, or start the run again in another --out"
    size = path.stat().st_size if path.exists() else 0
    if size < mark.nbytes:
        raise DamagedFile(f"{path}: {size} bytes are left of {mark.nbytes}; {way_out}")
    crc, left = 0, mark.nbytes
    with storage_errors(path, "read"), open_regular(path) as f:
        while left > 0 and (chunk := f.read(min(left, _CHUNK))):
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
    if crc != mark.crc:
        try:
            end = end_of_rows(path)
        except DamagedFile as e:
            raise DamagedFile(f"{e}; {way_out}") from e
        if end.nbytes < mark.nbytes:
            raise DamagedFile(f"{path}: the row after byte {end.nbytes:,} is not what was written; {way_out}")
        raise DamagedFile(f"{path}: its first {mark.nbytes:,} bytes belong to another run; {way_out}")
