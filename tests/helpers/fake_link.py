"""A link in memory whose objects arrive when the test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tarry.deploy.transport.link import Announcement, EncodedRequest, ReplyLost
from tarry.deploy.wire import EncodedArray, ReplyMessage, Request, RunEnded, Unreachable


@dataclass
class FakeLink:
    """Replies by request. An object that is None has not arrived; `LOST` never will."""

    run: str = "1"
    present: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.open = threading.Event()  # cleared: the link hangs
        self.open.set()
        self.down = self.ended = False
        self.refused: set[int] = set()  # nodes whose requests the link rejects
        self.sent: list[EncodedRequest] = []
        self.replies: dict[str, Announcement] = {}
        self.objects: dict[str, bytes | None] = {}
        self.lost: set[str] = set()
        self.fetched: list[str] = []
        self.fetching = self.most_fetching = 0
        self.decoded: list[str] = []
        self.discarded: list[str] = []
        self.began_to_send: list[str] = []
        self._ids = itertools.count()

    def reply(self, request: str, node: int, *parts: bytes | None) -> None:
        """Announce a reply with these objects; None is one that is still to be uploaded."""
        with self.lock:
            names = tuple(f"{request}:{i}" for i in range(len(parts)))
            self.objects.update(zip(names, parts, strict=True))
            self.replies[request] = Announcement(request, node, f"reply to {request}", names)

    def upload(self, request: str, part: int, content: bytes) -> None:
        with self.lock:
            self.objects[f"{request}:{part}"] = content

    def nodes(self) -> dict[int, str]:
        self._reach()
        return dict(self.present)

    def encode(self, request: Request) -> EncodedRequest:
        return EncodedRequest(f"m{next(self._ids)}", request.node, request.nbytes, request)

    def send(self, request: EncodedRequest) -> bool:
        self.began_to_send.append(request.id)
        self._reach()
        if request.node in self.refused:
            return False
        with self.lock:
            self.sent.append(request)
        return True

    def announced(self, ids: Collection[str]) -> list[Announcement]:
        self._reach()
        with self.lock:
            return [self.replies.pop(id) for id in sorted(ids) if id in self.replies]

    def fetch(self, id: str) -> bytes | None:
        self._reach()
        with self.lock:
            self.fetched.append(id)
            if id in self.lost:
                raise ReplyLost("the message was gone")
            return self.objects[id]

    def decode(self, reply: Announcement, contents: Mapping[str, bytes]) -> ReplyMessage:
        with self.lock:
            self.decoded.append(reply.request)
        data = b"".join(contents[id] for id in reply.objects)
        return ReplyMessage(reply.request, reply.node, {}, {"x": EncodedArray("", (), "", data)})

    def discard(self, reply: Announcement) -> None:
        with self.lock:
            self.discarded.append(reply.request)

    def requests_sent(self) -> dict[str, int]:
        return {"push message": len(self.sent)}

    def close(self) -> None:
        pass

    def _reach(self) -> None:
        self.open.wait(20)
        if self.ended:
            raise RunEnded("Flower has ended the run")
        if self.down:
            raise Unreachable("connection rejected")


__all__ = ["FakeLink"]
