"""Availability: the windows of time in which a client takes part.

    client,start,end                                                  seconds; end may be inf
    client,trace_start_s,trace_end_s,ready_start_s,ready_end_s        FLASH's phones, relative to each trace_start_s

A window holds its start and not its end. Files may be packed with xz.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from ..core.errors import BadInput
from ..core.one_line import short_text
from .measured import header, number, table

__all__ = ["Availability"]

_FLASH = ("client", "trace_start_s", "ready_start_s", "ready_end_s")
_PLAIN = ("client", "start", "end")
_RULE = "must begin at 0 or later and not end before it begins"


class Availability:
    """Windows of availability by client; a client without an entry is always available, one with an empty entry never.

    Windows may come in any order; empty ones are dropped, those that overlap or touch become one.
    """

    def __init__(self, windows: Mapping[int, Sequence[tuple[float, float]]], *, dealt_to: int | None = None):
        """With `dealt_to` = n there are n clients, and client c has the windows of c mod m, m = len(windows)."""
        problems = [
            f"--availability: client {client}, window {start} to {end}: {_RULE}"
            for client, entry in windows.items()
            for start, end in entry
            if not _is_valid(start, end)
        ]
        if problems:
            raise BadInput(problems)
        assert dealt_to is None or sorted(windows) == list(range(len(windows)))
        self._bounds = {client: _merge(entry) for client, entry in windows.items()}
        self._dealt_to = dealt_to

    def __repr__(self) -> str:
        return f"Availability(windows of {len(self._bounds):,} clients)"

    @classmethod
    def read(cls, path: str | Path, n_clients: int) -> Availability:
        """Read windows from a file.

        In the plain form `client` is the number of a client of this run, and clients not named are always there.
        FLASH's phones are dealt to clients 0 … n−1 in the order in which they first appear; fewer are dealt out again
        from the first, more are left over.
        """
        flag = f"--availability {path}"
        flash = set(_FLASH) <= set(header(path, flag))
        found: dict[str, list[tuple[float, float]]] = {}
        for where, (name, *cells) in table(path, flag, dict.fromkeys(_FLASH if flash else _PLAIN, flag)):
            times = [number(where, cell) for cell in cells]
            origin = times.pop(0) if flash else 0.0
            start, end = times[0] - origin, times[1] - origin
            if not _is_valid(start, end):
                raise BadInput(f"{where}: window {start} to {end}: {_RULE}")
            if not flash and not (name.isascii() and name.isdigit() and len(name) < 19 and int(name) < n_clients):
                rule = f"must be a client of this run, 0 to {n_clients - 1}"
                raise BadInput(f"{where}: client {short_text(name)}: {rule}")
            found.setdefault(name, []).append((start, end))
        if flash:
            return cls(dict(zip(range(n_clients), found.values(), strict=False)), dealt_to=n_clients)
        return cls({int(name): windows for name, windows in found.items()})

    def here(self, client: int, time: float) -> bool:
        """Return whether the client is available at that time."""
        bounds = self._of(client)
        return bounds is None or bisect_right(bounds, time) % 2 == 1

    def until(self, client: int, time: float) -> float:
        """The end of the window that holds `time`; `time` itself when the client is away then."""
        bounds = self._of(client)
        if bounds is None:
            return math.inf
        place = bisect_right(bounds, time)
        return bounds[place] if place % 2 == 1 else time

    @property
    def absent_at_start(self) -> list[int]:
        """The clients that are not available at time 0, in rising order."""
        away = (client for client in self._bounds if not self.here(client, 0.0))
        return sorted(sharer for client in away for sharer in self._sharers(client))

    def changes(self) -> Iterator[tuple[float, int, bool]]:
        """Yield (time, client, arrives) of every join and leave after time 0.

        In order of time; at the same time leaves come before joins, each by client number.
        """
        moves = sorted(
            (time, place % 2 == 0, client)
            for client, bounds in self._bounds.items()
            for place, time in enumerate(bounds)
            if 0 < time < math.inf
        )
        for (time, arrives), together in groupby(moves, key=lambda move: move[:2]):
            for client in sorted(sharer for *_, owner in together for sharer in self._sharers(owner)):
                yield time, client, arrives

    def _of(self, client: int) -> Sequence[float] | None:
        return self._bounds.get(client if self._dealt_to is None else client % len(self._bounds))

    def _sharers(self, client: int) -> Iterable[int]:
        return (client,) if self._dealt_to is None else range(client, self._dealt_to, len(self._bounds))


def _is_valid(start: float, end: float) -> bool:
    return 0 <= start <= end and start < math.inf


def _merge(windows: Sequence[tuple[float, float]]) -> Sequence[float]:
    """start, end, start, end … strictly rising: a time is inside when an odd number of them is not after it."""
    bounds = array("d")
    for start, end in sorted(windows):
        if start == end:
            continue
        if bounds and start <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds.extend((start, end))
    return bounds
