"""Replies to tickets: which tickets end now, by a reply, by their deadline or because their node restarted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ...core.rejections import Reason
from ...engine.gate import GateVerdict
from ..protocol import ClientReply, Protocol, check_duration
from ..wire import MessageGrid, Rejected, ReplyMessage
from .journaled_state import JournaledState
from .open_tickets import OpenTicket

__all__ = ["EARLIER_RUN", "Arrival", "Replies", "full_reason"]

_MAX_ANSWERED = 4096  # requests whose answers are remembered, to tell second answers
_UNSENT, EARLIER_RUN = "could not be sent", "the run was resumed"


@dataclass(frozen=True)
class Arrival:
    """The end of a ticket: a reply that is accepted, or why there is none."""

    ticket: OpenTicket
    reply: ClientReply | None = None
    why: str = ""
    rejection: GateVerdict | None = None
    nbytes: int = 0
    detail: str = ""  # what the app says of its error


class Replies:
    """The requests of tickets for which a reply may come, also after the ticket has ended."""

    def __init__(
        self, grid: MessageGrid, state: JournaledState, protocol: Protocol, *, log_problem: Callable[..., None]
    ):
        self._grid, self._state, self._protocol, self._log_problem = grid, state, protocol, log_problem
        self._restarted: set[str] = set()  # requests to nodes that restarted since
        self._answered: dict[str, None] = {}  # the last requests whose ticket has ended
        self.late: dict[str, OpenTicket] = {}  # requests whose ticket has ended, and whose reply may still come

    def requests(self) -> list[str]:
        """Return the requests to which a reply may come."""
        waiting = [t.request for t in self._state.open_tickets if t.request and t.run == self._grid.run_of(t.node)]
        return [*waiting, *self.late]

    def late_clients(self) -> set[int]:
        """Return the clients that are still at work on a ticket that has ended."""
        return {ticket.client for ticket in self.late.values()}

    def forget_nodes(self, restarted: Collection[int]) -> None:
        """Wait no longer for what was sent to nodes that have restarted."""
        tickets = self._state.open_tickets
        self._restarted.update(t.request for t in tickets if t.request and t.node in restarted)
        self.late = {request: t for request, t in self.late.items() if t.node not in restarted}

    def void(self, tickets: Iterable[OpenTicket]) -> None:
        """Note tickets that were taken back: their clients end their visits before they get work again."""
        for ticket in tickets:
            is_waiting = ticket.run == self._grid.run_of(ticket.node)
            if ticket.request and is_waiting and ticket.request not in self._restarted:
                self.late[ticket.request] = ticket

    def note_end(self, ticket: OpenTicket) -> None:
        """Remember the request of a ticket that has ended."""
        if ticket.request:
            self._answered[ticket.request] = None
            if len(self._answered) > _MAX_ANSWERED:
                self._answered.pop(next(iter(self._answered)))

    def ends(self, replies: Iterable[ReplyMessage], now: float) -> list[Arrival]:
        """Return the tickets that end now, by their number: those of these replies, and those past their deadline."""
        arrivals = [a for reply in replies if (a := self._handle(reply, now)) is not None]
        ended = {a.ticket.number for a in arrivals}
        open_tickets = [t for t in self._state.open_tickets if t.number not in ended]
        arrivals += [a for t in open_tickets if (a := self._check_deadline(t, now)) is not None]
        return sorted(arrivals, key=lambda a: a.ticket.number)

    def _check_deadline(self, ticket: OpenTicket, now: float) -> Arrival | None:
        """Return the end of a ticket for which no reply is waited any longer; None if one is."""
        if ticket.request is None:
            return None
        if not ticket.request:
            return Arrival(ticket, why=_UNSENT)
        if ticket.run != self._grid.run_of(ticket.node):
            return Arrival(ticket, why=EARLIER_RUN)
        node = self._state.clients.node(ticket.client)
        if node != ticket.node or ticket.request in self._restarted:
            self._restarted.discard(ticket.request)
            return Arrival(ticket, why="its slot was released" if node is None else "its node restarted")
        if now <= ticket.due + self._grid.delay(ticket.node) or self._grid.holds(ticket.request):
            return None
        self.late[ticket.request] = ticket
        return Arrival(ticket, why="deadline")

    def _handle(self, reply: ReplyMessage, now: float) -> Arrival | None:
        if reply.request in self.late:
            self._on_late(self.late.pop(reply.request), reply, now)
        elif (ticket := self._state.open_tickets.by_request(reply.request)) is not None:
            return self._decode(ticket, reply, now)
        else:
            self._reject_stray(reply)
        return None

    def _on_late(self, ticket: OpenTicket, reply: ReplyMessage, now: float) -> None:
        """Record a reply to a ticket that has ended."""
        stats, about = self._state.stats, {"client": ticket.client, "ticket": ticket.number}
        if reply.error is not None:
            why = full_reason(reply.error, reply.detail)
            stats[ticket.client].last_failure = f"deadline; then: {why}"
            self._log_problem("a visit that missed its deadline has failed", why=why, **about)
            return
        stats[ticket.client].late += 1
        stats.count_rejection(Reason.EXPIRED_TICKET, ticket.client)
        self._state.deadlines.record_duration(ticket.client, now - ticket.time, late=True)
        self._log_problem("an answer to a ticket that has ended", **about)

    def _reject_stray(self, reply: ReplyMessage) -> None:
        """Record a reply to no request that is waited for; no ticket ends by it."""
        reason = Reason.USED_TICKET if reply.request in self._answered else Reason.UNKNOWN_TICKET
        self._state.stats.count_rejection(reason, self._state.clients.at(reply.node))
        self._log_problem("an answer was rejected", why=reason, node=reply.node)

    def _decode(self, ticket: OpenTicket, reply: ReplyMessage, now: float) -> Arrival:
        """Return the end of a ticket: a reply whose form is right, or why it is rejected."""
        if reply.error is not None:
            return Arrival(ticket, why=reply.error, detail=reply.detail)
        try:
            if reply.malformed:
                raise Rejected(reply.malformed)
            fields = reply.fields if self._protocol.has_tokens else None
            self._state.open_tickets.check(ticket, reply.node, fields)
            decoded = self._protocol.decode_reply(reply, self._state.engine.server.tickets[ticket.number])
            check_duration(decoded.train_seconds, now - ticket.time)
        except Rejected as e:
            return Arrival(ticket, rejection=GateVerdict(e.reason, str(e)), nbytes=reply.nbytes)
        return Arrival(ticket, decoded, nbytes=reply.nbytes)


def full_reason(why: str | None, detail: str) -> str:
    """Return a reason with what the app says of it."""
    return f"{why}: {detail}" if detail else str(why)
