"""The set of idle clients. Drawing one at random is O(1), whatever the number of clients."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from . import rng

__all__ = ["IdleClients"]

_AWAY = -1


class Keyed(Protocol):
    """An object with a key for random draws."""

    @property
    def key(self) -> int: ...


class IdleClients:
    """The idle clients, as an array whose gaps are filled from the end; `limit` is the concurrency of the run."""

    def __init__(self, n_clients: int, limit: int, away: Iterable[int] = ()):
        self.n_clients, self.concurrency = n_clients, limit
        unavailable = set(away)
        self._idle = array("q", (c for c in range(n_clients) if c not in unavailable))
        self._place = array("q", [_AWAY]) * n_clients
        for i, c in enumerate(self._idle):
            self._place[c] = i

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the idle clients, in arbitrary order."""
        return iter(list(self._idle))

    def __contains__(self, client: int) -> bool:
        return self._place[client] != _AWAY

    def add(self, client: int) -> None:
        """Add a client that became idle or available."""
        assert self._place[client] == _AWAY, f"client {client} is idle already"
        self._place[client] = len(self._idle)
        self._idle.append(client)

    def remove(self, client: int) -> None:
        """Remove a client that is busy or unavailable now."""
        self._take(self._place[client])

    def draw(self, k: int, moment: Keyed) -> list[int]:
        """Remove and return `k` idle clients at random (all of them if there are no more), sorted by number."""
        if k <= 0 or not self._idle:
            return []
        if k >= len(self._idle):
            chosen = sorted(self._idle)
            for client in chosen:
                self._place[client] = _AWAY
            del self._idle[:]
            return chosen
        key = moment.key
        chosen = [self._take(rng.below(key, len(self._idle)))]
        if k == 1:
            return chosen
        for _ in range(k - 1):
            key = rng.extend(key, 0)
            chosen.append(self._take(rng.below(key, len(self._idle))))
        chosen.sort()
        return chosen

    def _take(self, index: int) -> int:
        """Remove and return the client at an index; the last client moves there."""
        idle, place = self._idle, self._place
        client, last = idle[index], idle.pop()
        if last != client:
            idle[index] = last
            place[last] = index
        place[client] = _AWAY
        return client

    def save(self) -> dict[str, Any]:
        return {"idle": list(self._idle)}

    def load(self, saved: dict[str, Any]) -> None:
        self._idle = array("q", saved["idle"])
        self._place = array("q", [_AWAY]) * self.n_clients
        for i, c in enumerate(self._idle):
            self._place[c] = i
