"""Client speeds: durations of first visits, ranks by speed, and cohorts drawn among some clients.

    Speeds.empty()                             before any visit
    record_first_duration(speeds, update, view) for a dispatch part's `observe`
    first_visits(roster, speeds, view)          a cohort with all idle clients that had no visit yet
    rank_clients(speeds, n)                    speeds.rank[k] = #{j : T_j < T_k}
    draw_among(roster, clients, k, view)        a cohort of k of these clients
    at_most_all(name, value)                   a check of a parameter: at most as many as there are clients

T_k is the time from hand-out to arrival of client k's first visit. Every client is tried once; a client whose visit was
lost has no T_k and ranks behind all others until its first arrival. Clients of equal T_k share a rank. An arrival costs
O(1), a round O(n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..core import rng
from ..core.client_table import ClientScalars
from ..core.errors import BadInput
from ..core.idle_clients import IdleClients
from ..core.method import ServerView
from ..core.state_tree import StateRecord
from ..core.task import Task
from ..core.tickets import Update

__all__ = ["Speeds", "at_most_all", "draw_among", "first_visits", "rank_clients", "record_first_duration"]

_DECIMALS = 9  # of a second: a difference of two times is rounded, so that equal durations stay equal


@dataclass(frozen=True)
class Speeds(StateRecord):
    """The durations of first visits, in seconds, and the ranks by them."""

    seconds: ClientScalars
    tried: ClientScalars  # clients that had a first visit, also if it was lost
    rank: ClientScalars
    ranked: bool  # the ranks are up to date

    @classmethod
    def empty(cls) -> Speeds:
        return cls(seconds=ClientScalars(), tried=ClientScalars(), rank=ClientScalars(), ranked=False)


def record_first_duration(speeds: Speeds, update: Update, view: ServerView) -> Speeds:
    """Record the duration of a visit if it is the client's first."""
    if update.ticket.client in speeds.seconds:
        return speeds
    speeds.seconds[update.ticket.client] = round(view.time - update.ticket.time, _DECIMALS)
    return replace(speeds, ranked=False)


def first_visits(roster: IdleClients, speeds: Speeds, view: ServerView) -> list[int]:
    """Draw a cohort of idle clients that were never tried, filled up with others; empty if all idle ones were tried."""
    tried = speeds.tried
    if len(tried) == view.n_clients:
        return []
    new = draw_among(roster, [k for k in roster if k not in tried], roster.concurrency, view)
    tried.update(dict.fromkeys(new, True))
    return sorted([*new, *roster.draw(roster.concurrency - len(new), view)]) if new else []


def rank_clients(speeds: Speeds, n: int) -> Speeds:
    """Compute the ranks of clients 0 … n − 1, if there is a new duration."""
    if speeds.ranked:
        return speeds
    order = sorted(speeds.seconds.values())
    speeds.rank.update((k, bisect_left(order, speeds.seconds.get(k, inf))) for k in range(n))
    return replace(speeds, ranked=True)


def draw_among(roster: IdleClients, clients: Sequence[int], k: int, view: ServerView) -> list[int]:
    """Take k of these idle clients out of the roster at random (all if there are no more), sorted by number.

    If these are all idle clients, the draw is the roster's own.
    """
    if len(clients) == len(roster):
        return roster.draw(k, view)
    pool, key, chosen = sorted(clients), view.key, list[int]()
    while pool and len(chosen) < k:
        i = rng.below(key, len(pool))
        pool[i], pool[-1] = pool[-1], pool[i]
        chosen.append(pool.pop())
        key = rng.extend(key, 0)
    for client in chosen:
        roster.remove(client)
    return sorted(chosen)


def at_most_all(name: str, value: int) -> Callable[[Task], None]:
    """Return a `check_task` that raises BadInput if a parameter asks for more clients than the task has."""

    def check_task(task: Task) -> None:
        if value > (n := len(task.clients)):
            clients = "is only 1 client" if n == 1 else f"are only {n} clients"
            raise BadInput(f"--method.{name} {value}: there {clients}; use --method.{name} {n}, or fewer")

    return check_task
