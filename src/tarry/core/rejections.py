"""Reason: why an update, a message or a registration was rejected. Rows, events and statistics have the same codes."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Reason"]


class Reason(StrEnum):
    """A reason code. The values are written to journals and event logs: names may change, values may not."""

    UNKNOWN_TICKET = "unknown ticket"  # an answer to a request that the server did not make
    USED_TICKET = "used ticket"  # a second answer to a request
    EXPIRED_TICKET = "expired ticket"  # an answer after the deadline, or to a ticket that was taken back
    FOREIGN_TICKET = "foreign ticket"  # from another node, or with another number or token than the ticket's
    RECORD = "malformed record"  # a name in two records, too many entries, too long ones, nested ones
    FIELDS = "fields"  # a field is missing or of another type
    ARRAYS = "arrays"  # an array is missing, unexpected, or of another type, shape or length
    METADATA = "metadata"  # a loss, a number of steps or a duration that cannot be true
    EXAMPLES = "examples"  # a number of examples that cannot be true
    NOT_FINITE = "not finite"  # NaN or infinity in the update or its loss
    NORM = "norm"  # an update, or an extra, that is far larger than others
    IDENTITY = "identity"  # a registration without proof, or of a name or place that is another's
