"""Who is fast: clients timed at their first visit, and cohorts drawn among some of them.

    untimed()                          → book               before anybody has come
    timed(book, update, now)           → book               of a dispatch part's `hear`: a first visit's duration
    first_visits(roster, book, now)    → clients            a cohort with all who were not tried yet
    ranked(book, n)                    → book               book["rank"][k] = #{j : T_j < T_k}
    drawn(roster, among, k, now)       → clients            a cohort of k among idle clients
    at_most_all(name, value)           → suits              of a part: so many clients there have to be

T_k is the time from hand-out to arrival of client k's first visit. Everybody is tried once; who is lost then has no T_k
and counts as slower than all others until its first arrival. Equals have one rank. What a client costs is kept in
marks: an arrival is O(1), a round O(n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ..core import rng
from ..core.client_table import Marks
from ..core.errors import BadInput
from ..core.idle_clients import Roster
from ..core.method import Now
from ..core.task import Task
from ..core.tickets import Update

__all__ = ["at_most_all", "drawn", "first_visits", "ranked", "timed", "untimed"]

Book = dict[str, Any]
_DECIMALS = 9  # of a second: a difference of instants is rounded, and equals are to be equal


def untimed() -> Book:
    """Nobody has been tried."""
    return {"seconds": Marks(), "tried": Marks(), "rank": Marks(), "ranked": False}


def timed(book: Book, update: Update, now: Now) -> Book:
    """The duration, if it is the client's first."""
    if update.ticket.client in book["seconds"]:
        return book
    book["seconds"][update.ticket.client] = round(now.time - update.ticket.time, _DECIMALS)
    return {**book, "ranked": False}


def first_visits(roster: Roster, book: Book, now: Now) -> list[int]:
    """A cohort of those who are idle and were never tried, filled up with others; nobody when all have been tried."""
    tried = book["tried"]
    if len(tried) == now.n_clients:
        return []
    new = drawn(roster, [k for k in roster if k not in tried], roster.limit, now)
    tried.update(dict.fromkeys(new, True))
    return sorted([*new, *roster.draw(roster.limit - len(new), now)]) if new else []


def ranked(book: Book, n: int) -> Book:
    """The ranks of clients 0 … n − 1, worked out again where a duration is new."""
    if book["ranked"]:
        return book
    seconds = book["seconds"]
    order = sorted(seconds.values())
    book["rank"].update((k, bisect_left(order, seconds.get(k, inf))) for k in range(n))
    return {**book, "ranked": True}


def drawn(roster: Roster, among: Sequence[int], k: int, now: Now) -> list[int]:
    """Take out k of these idle clients at random (all if there are no more), in order of their number.

    Where these are all there are, it is the roster's own draw.
    """
    if len(among) == len(roster):
        return roster.draw(k, now)
    pool, key, chosen = sorted(among), now.key, list[int]()
    while pool and len(chosen) < k:
        i = rng.below(key, len(pool))
        pool[i], pool[-1] = pool[-1], pool[i]
        chosen.append(pool.pop())
        key = rng.extend(key, 0)
    for client in chosen:
        roster.remove(client)
    return sorted(chosen)


def at_most_all(name: str, value: int) -> Callable[[Task], None]:
    """Refuse a parameter that asks for more clients than there are."""

    def suits(task: Task) -> None:
        if value > (n := len(task.clients)):
            clients = "is only 1 client" if n == 1 else f"are only {n} clients"
            raise BadInput(f"--method.{name} {value}: there {clients}; use --method.{name} {n}, or fewer")

    return suits
