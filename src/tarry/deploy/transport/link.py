"""Link: what the transport needs of one SuperLink. All its methods may block; they are called in threads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from ..wire import ReplyMessage, Request

__all__ = ["Announcement", "EncodedRequest", "Link", "ReplyLost"]


class ReplyLost(Exception):
    """A reply cannot be fetched, now or later; the message says why."""


@dataclass(frozen=True)
class EncodedRequest:
    """A request as the link sends it. `nbytes` is what it holds in memory until it is sent."""

    id: str
    node: int
    nbytes: int
    message: Any


@dataclass(frozen=True)
class Announcement:
    """A reply that its sender has announced. Its objects may still be on their way; with an `error` there are none.

    `objects` is in the order in which they are fetched. The last one to be uploaded comes first. `has_others`: there
    are objects that need not be fetched, and that may still be on their way when the reply has been fetched.
    """

    request: str
    node: int
    id: str
    objects: tuple[str, ...] = ()
    error: str | None = None
    detail: str = ""  # what the app says of the error
    has_others: bool = False


class Link(Protocol):
    """One SuperLink. Each method raises Unreachable if it does not answer, and RunEnded if it has ended the run."""

    @property
    def run(self) -> str:
        """Return the id of the run on this link."""

    def nodes(self) -> dict[int, str]:
        """Return the nodes present, and when each began."""

    def encode(self, request: Request) -> EncodedRequest:
        """Return the request as it is sent. This does not use the network."""

    def send(self, request: EncodedRequest) -> bool:
        """Send; return False if the link rejects the request. To send it a second time does no harm."""

    def announced(self, ids: Collection[str]) -> list[Announcement]:
        """Return the replies to these requests that were announced since; each is returned once."""

    def fetch(self, id: str) -> bytes | None:
        """Return an object, or None if it has not arrived; raise ReplyLost if it never will."""

    def decode(self, reply: Announcement, contents: dict[str, bytes]) -> ReplyMessage:
        """Return a reply with its content, or with why it cannot be read; take the objects out of `contents`.

        This does not use the network.
        """

    def discard(self, reply: Announcement) -> None:
        """Remove the objects of a reply from the link: it was fetched, or is not wanted."""

    def requests_sent(self) -> dict[str, int]:
        """Return the number of requests to the link, by kind."""

    def close(self) -> None:
        """End the connection."""
