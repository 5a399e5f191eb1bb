"""Protocols between server and clients: how a ticket becomes a request, and how a reply becomes a result.

TarryProtocol       the flat vector and the method's payload; the reply has a delta, extras and the ticket's token
FlowerAppProtocol   for Flower apps that do not use tarry (flower_app.py)
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.rejections import Reason
from ..core.tickets import LocalResult, Ticket
from .server.open_tickets import OpenTicket
from .wire import (
    Array,
    ArraySchema,
    FieldValue,
    Rejected,
    ReplyMessage,
    Request,
    decode_arrays,
    parse_fields,
)

__all__ = [
    "ClientReply",
    "Protocol",
    "TarryProtocol",
    "check_duration",
    "make_result",
    "numpy_dtype",
    "tensor_of",
]

_MAX_COUNT = 10**12  # examples or steps that a client may report
_CLOCKS, _CLOCK_GRACE = 1.1, 60.0  # of the duration of a visit, and seconds, by which clocks may differ
EXTRA, PAYLOAD = "extra.", "payload."


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, also of one that cannot be written to."""
    try:
        return from_dlpack(array)  # torch.from_numpy warns of such an array; no part writes to what it is given
    except BufferError:  # numpy before 2.1
        return torch.from_numpy(array.copy())


class ClientReply(NamedTuple):
    """A decoded reply to a ticket."""

    result: LocalResult
    keeps_memory: bool = False  # the client keeps a memory of this visit
    train_seconds: float | None = None  # seconds that the client reports; only recorded
    memory_lost: bool = False  # the client no longer had the memory it was to use


class Protocol(typing.Protocol):
    """Conversion between tickets and messages, for one kind of client."""

    has_identities: bool  # clients can prove an identity
    has_tokens: bool  # clients return their ticket's token

    def encode_ticket(
        self, ticket: Ticket, open_ticket: OpenTicket, *, node: int, memory_visit: int, ttl: float
    ) -> Request: ...

    def encode_eval(self, weights: torch.Tensor, *, node: int, client: int, ttl: float) -> Request: ...

    def decode_reply(self, reply: ReplyMessage, ticket: Ticket) -> ClientReply:
        """Return the result; raise Rejected if the reply is malformed. Numbers that are not finite are a result."""


class TarryProtocol:
    """For tarry's own client app.

    `expected_work`: a client's examples and steps a visit, if the server knows its share of the data; `expected_steps`:
    the steps of a visit to so many examples.
    """

    has_identities = has_tokens = True

    def __init__(
        self,
        layout: Layout,
        rule: LocalRule,
        *,
        dtype: torch.dtype,
        federation: str,
        expected_work: Callable[[int], tuple[int, int]] | None = None,
        expected_steps: Callable[[int], int] | None = None,
    ):
        extras = frozenset(EXTRA + name for name in rule.uploads)
        self._schema = ArraySchema({"delta": (layout.size,)}, numpy_dtype(dtype), extras, layout.size)
        self._federation = federation
        self._expected_work, self._expected_steps = expected_work, expected_steps

    def encode_ticket(
        self, ticket: Ticket, open_ticket: OpenTicket, *, node: int, memory_visit: int, ttl: float
    ) -> Request:
        fields: dict[str, FieldValue] = {
            "federation": self._federation,
            "number": ticket.number,
            "token": open_ticket.token,
            "client": ticket.client,
            "visit": ticket.visit,
            "version": ticket.version,
            "time": ticket.time,
            "kept": memory_visit,
        }
        payload = {PAYLOAD + k: v.detach().cpu().numpy() for k, v in ticket.payload.items()}
        arrays = {"weights": ticket.sent.detach().cpu().numpy(), **payload}
        return Request(node, "train", fields, arrays, ttl, is_packed=True)

    def encode_eval(self, weights: torch.Tensor, *, node: int, client: int, ttl: float) -> Request:
        fields: dict[str, FieldValue] = {"federation": self._federation, "client": client}
        arrays = {"weights": weights.detach().cpu().numpy()}
        return Request(node, "evaluate", fields, arrays, ttl, is_packed=True)

    def decode_reply(self, reply: ReplyMessage, ticket: Ticket) -> ClientReply:
        f = parse_fields(
            reply.fields,
            num_examples=int,
            num_steps=int,
            loss=float,
            train_seconds=float,
            keeps_memory=bool,
            memory_lost=bool,
        )
        work = (f["num_examples"], f["num_steps"])
        _check_counts(*work)
        if self._expected_work is not None and work != self._expected_work(ticket.client):
            raise Rejected(f"client {ticket.client} reports {work[0]} examples, {work[1]} steps", Reason.EXAMPLES)
        if self._expected_steps is not None and work[1] != self._expected_steps(work[0]):
            raise Rejected(f"{work[1]} steps over {work[0]} examples", Reason.METADATA)
        arrays = decode_arrays(reply.arrays, self._schema)
        delta = tensor_of(arrays.pop("delta"))
        extras = {name.removeprefix(EXTRA): tensor_of(a) for name, a in arrays.items()}
        return ClientReply(
            make_result(delta, *work, f["loss"], extras), f["keeps_memory"], f["train_seconds"], f["memory_lost"]
        )


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the numpy type of a torch type."""
    return np.dtype(str(dtype).removeprefix("torch."))


def make_result(delta: torch.Tensor, n: int, steps: int, loss: float, extras: dict[str, Any]) -> LocalResult:
    """Return the result of a visit; raise Rejected if its counts cannot be true."""
    _check_counts(n, steps)
    finite = isfinite(loss) and all(isfinite(t.sum().item()) for t in (delta, *extras.values()))
    return LocalResult(delta, n, steps, loss, finite, extras)


def check_duration(seconds: float | None, elapsed: float) -> None:
    """Raise Rejected if a client reports a training time that is longer than its visit was; clocks may differ a bit."""
    if seconds is not None and not 0 <= seconds <= _CLOCKS * elapsed + _CLOCK_GRACE:
        raise Rejected(f"it reports {seconds:.6g} s of training in a visit of {elapsed:.6g} s", Reason.METADATA)


def _check_counts(n: int, steps: int) -> None:
    if not (1 <= n <= _MAX_COUNT and 1 <= steps <= _MAX_COUNT):
        shown = [str(x) if abs(x) < 10**18 else "too many" for x in (n, steps)]
        raise Rejected(f"{shown[0]} examples, {shown[1]} steps: must be 1 to {_MAX_COUNT:,}", Reason.EXAMPLES)
