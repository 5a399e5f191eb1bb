"""Open tickets: which client holds which ticket, and whether a reply may be taken for one.

A reply is taken for a ticket if it answers the very request that carried the ticket, comes from the node that the
request went to, and repeats the ticket's number and its token, which no other client has seen. So a client cannot
return another client's ticket, an old one, or one twice.

A token is 128 random bits. The server keeps its SHA-256 digest alone on disk: who reads the journal or a checkpoint
cannot return a ticket. The token itself is in memory until its ticket is sent. A ticket that was not sent before a
restart gets a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.local_rule import LocalRule
from ...core.method import Method
from ...core.parts import PLACES, REFILL, SEND_GLOBAL
from ...core.rejections import Reason
from ..wire import Rejected, parse_fields

__all__ = ["OpenTicket", "OpenTickets", "max_tickets_per_client", "stored_digest", "token_digest"]

_DIGEST_LENGTH = 64  # characters of a SHA-256 digest; a token has 32


def max_tickets_per_client(method: Method) -> int:
    """Return how many tickets a client may hold: 2 if its next ticket does not depend on the result of its last.

    That is so if a client always starts from the present global weights, keeps no memory, and is handed work whenever
    there is room for it.
    """
    default = method.reply.apply is SEND_GLOBAL.apply and method.dispatch.apply is REFILL.apply
    offers = any(getattr(method, p).offer is not None for p in PLACES)
    return 2 if default and not offers and type(method.local).finish is LocalRule.finish else 1


@dataclass(frozen=True)
class OpenTicket:
    """A ticket that a client holds."""

    number: int
    client: int
    visit: int
    token: str = field(repr=False)  # empty if it was handed out before a restart
    time: float  # handed out
    node: int = 0
    request: str | None = None  # id of the request that carries it; None: not sent yet; "": it could not be sent
    run: str = ""
    due: float = float("inf")
    digest: str = ""  # of the token; computed from it if it is not given

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", token_digest(self.token))


def token_digest(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def stored_digest(entry: str) -> str:
    """Return the digest in a journal, which has the token itself if an earlier version wrote it."""
    return entry if len(entry) == _DIGEST_LENGTH else token_digest(entry)


class OpenTickets:
    """Tickets by number, and by the request that carried them."""

    def __init__(self) -> None:
        self._tickets: dict[int, OpenTicket] = {}
        self._by_request: dict[str, int] = {}

    @staticmethod
    def new_token() -> str:
        return secrets.token_hex(16)

    def put(self, ticket: OpenTicket) -> None:
        """Add a ticket, or replace the one of the same number."""
        self.drop(ticket.number)
        self._tickets[ticket.number] = ticket
        if ticket.request is not None:
            self._by_request[ticket.request] = ticket.number

    def drop(self, number: int) -> OpenTicket | None:
        ticket = self._tickets.pop(number, None)
        if ticket is not None and ticket.request is not None:
            self._by_request.pop(ticket.request, None)
        return ticket

    def by_request(self, request: str) -> OpenTicket | None:
        number = self._by_request.get(request)
        return None if number is None else self._tickets[number]

    def __getitem__(self, number: int) -> OpenTicket:
        return self._tickets[number]

    def __iter__(self) -> Iterator[OpenTicket]:
        return iter(list(self._tickets.values()))

    def __len__(self) -> int:
        return len(self._tickets)

    def check(self, ticket: OpenTicket, node: int, fields: Mapping[str, Any] | None) -> None:
        """Raise Rejected unless the reply comes from the ticket's holder; `fields` is None for apps without tokens."""
        if node != ticket.node:
            raise Rejected("it comes from another node than its ticket was handed to", Reason.FOREIGN_TICKET)
        if fields is not None:
            parsed = parse_fields(fields, number=int, token=str)
            same_token = hmac.compare_digest(token_digest(parsed["token"]), ticket.digest)
            if parsed["number"] != ticket.number or not same_token:
                raise Rejected("it has not the number and the token of its ticket", Reason.FOREIGN_TICKET)

    def save(self) -> list[dict[str, Any]]:
        saved = [(t, {key: getattr(t, name) for key, name in _SAVED.items()}) for t in self._tickets.values()]
        return [{**fields, "digest": t.digest} for t, fields in saved]

    def load(self, saved: list[dict[str, Any]]) -> None:
        self._tickets, self._by_request = {}, {}
        for record in saved:
            fields = {name: record[key] for key, name in _SAVED.items()}
            digest = record["digest"] if "digest" in record else token_digest(record["token"])  # of an earlier version
            self.put(OpenTicket(token="", digest=digest, **fields))


#: key of a saved record -> attribute; attributes may be renamed, keys may not
_SAVED = {
    "number": "number",
    "client": "client",
    "visit": "visit",
    "time": "time",
    "node": "node",
    "letter": "request",
    "run": "run",
    "due": "due",
}
