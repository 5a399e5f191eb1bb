"""Evaluations of the output weights on the clients' own examples, every so many seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isfinite
from typing import Any

from ..protocol import Protocol
from ..wire import MessageGrid, ReplyMessage
from .journaled_state import JournaledState
from .replies import full_reason

__all__ = ["ClientEvaluations"]

_MAX_METRICS, _MAX_NAME_LENGTH = 16, 40  # of a reply that are kept; characters of a name


class ClientEvaluations:
    """Requests for evaluations, and their replies. `every`: seconds between two rounds of requests."""

    def __init__(
        self,
        grid: MessageGrid,
        state: JournaledState,
        protocol: Protocol,
        *,
        every: float,
        timeout: float,
        log_problem: Callable[..., None],
    ):
        self._grid, self._state, self._protocol, self._log_problem = grid, state, protocol, log_problem
        self._every, self._timeout, self._next = every, timeout, every
        self._pending: dict[str, int] = {}  # request → client

    @property
    def pending(self) -> Collection[str]:
        """The requests without a reply."""
        return self._pending.keys()

    def request(self, now: float, present: Callable[[], Collection[int]]) -> None:
        """Send the requests that are due to the clients that are present."""
        if now < self._next or self._state.ended:
            return
        self._next = now + self._every
        clients, weights = self._state.clients, self._state.engine.server.output_weights
        here = [(c, n) for c in sorted(present()) if (n := clients.node(c)) is not None]
        requests = [self._protocol.encode_eval(weights, node=n, client=c, ttl=self._timeout) for c, n in here]
        ids = self._grid.push(requests) if requests else []
        self._pending.update({i: c for (c, _), i in zip(here, ids, strict=True) if i is not None})

    def on_reply(self, now: float, reply: ReplyMessage) -> None:
        """Record a client's metrics."""
        client = self._pending.pop(reply.request)
        if reply.error is not None:
            why = full_reason(reply.error, reply.detail)
            self._log_problem("an evaluation on a client failed", why=why, client=client)
            return
        first: list[tuple[str, Any]] = list(reply.fields.items())[:_MAX_METRICS]
        numbers = {name[:_MAX_NAME_LENGTH]: float(v) for name, v in first if isinstance(v, int | float)}
        metrics = {name: number for name, number in numbers.items() if isfinite(number)}
        self._state.commit({"op": "client_eval", "t": now, "client": client, "metrics": metrics})
