"""FlowerLink: a SuperLink over the Runtime API of Flower's own HTTP client, one request at a time.

Flower's grid fetches whole messages in one call, which lasts as long as the slowest uploader. Here a message is a
message and its objects, so that an object that has not arrived delays nothing else.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.errors import first_line
from ..failures import failure_text
from ..grid import arrays_of, error_text, fields_of, remove_arrays, to_records
from ..wire import ReplyMessage, Request, RunEnded, Unreachable
from .link import Announcement, EncodedRequest, ReplyLost

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.runtime import RuntimeHttpClient

__all__ = ["Address", "FlowerLink", "address_of", "http_errors", "runtime_client"]

_Answer = TypeVar("_Answer")
_TIMEOUT, _CONNECT_TIMEOUT = 120.0, 10.0  # seconds; an answer that is not waited for is lost with its replies
_MAX_OBJECTS = 100_000  # of one message
_MARGIN = 64 << 20  # bytes that an answer may have beside the objects of one reply
_ENDED = (401, 403)  # HTTP: the token is not known, the run is not running


@dataclass(frozen=True)
class Address:
    """Where a SuperLink is, and the token of the run's task on it."""

    address: str
    token: str
    run_id: int
    task_id: int | None = None
    root_certificates: bytes | None = None
    is_insecure: bool = False


def address_of(grid: Any) -> Address | None:
    """Return the address and the token of the grid that Flower passed to the app; None for another kind of grid."""
    from flwr.supercore.task_identity import TaskIdentity

    names = ("_addr", "_token", "_cert", "_insecure", "_run")
    if type(grid).__name__ != "HttpGrid" or not all(hasattr(grid, name) for name in names):
        return None
    return Address(
        grid._addr, grid._token, grid._run.run_id, TaskIdentity.task_id, grid._cert, is_insecure=grid._insecure
    )


@dataclass(frozen=True)
class _Message:
    """A message of Flower, its tree of objects, and how to make the content of each."""

    proto: Any
    tree: ObjectTree
    objects: dict[str, Any]
    content: RecordDict


class FlowerLink:
    """One SuperLink. `reply_bytes`: the largest reply that is fetched."""

    def __init__(self, address: Address, *, reply_bytes: int):
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.node_pb2 import Node

        self._address, self._reply_bytes = address, reply_bytes
        self._client = runtime_client(address, reply_bytes + _MARGIN)
        self._self_id, self._node = SUPERLINK_NODE_ID, Node(node_id=SUPERLINK_NODE_ID)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def run(self) -> str:
        return str(self._address.run_id)

    def nodes(self) -> dict[int, str]:
        from flwr.proto.runtime_pb2 import GetNodesRequest

        answer = self._call("nodes", self._client.GetNodes, GetNodesRequest())
        return {n.node_id: n.last_activated_at for n in answer.nodes}

    def encode(self, request: Request) -> EncodedRequest:
        from flwr.app.message.message import make_message, remove_content_from_message
        from flwr.app.metadata import Metadata
        from flwr.common.serde import message_to_proto
        from flwr.supercore.date import now
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )

        message = make_message(
            metadata=Metadata(
                run_id=self._address.run_id,
                message_id="",
                src_node_id=self._self_id,
                dst_node_id=request.node,
                reply_to_message_id="",
                group_id="",
                created_at=now().timestamp(),
                ttl=request.ttl,
                message_type=request.kind,
                src_task_id=self._address.task_id,
            ),
            content=to_records(request.fields, request.arrays, request.records, is_packed=request.is_packed),
        )
        with no_object_id_recompute():
            id = message.object_id
            message.metadata.__dict__["_message_id"] = id
            encoded = _Message(
                message_to_proto(remove_content_from_message(message)),
                get_object_tree(message),
                dict(get_all_nested_objects(message)),
                message.content,
            )
        return EncodedRequest(id, request.node, request.nbytes, encoded)

    def send(self, request: EncodedRequest) -> bool:
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest

        message: _Message = request.message
        answer = self._call(
            "push message",
            self._client.PushMessages,
            PushAppMessagesRequest(messages_list=[message.proto], message_object_trees=[message.tree]),
        )
        if not answer.message_ids[0]:
            return False
        missing = set(answer.objects_to_push)
        for id, object_ in message.objects.items():
            if id in missing:
                sent = self._call(
                    "push object",
                    self._client.PushObject,
                    PushObjectRequest(
                        node=self._node,
                        run_id=self._address.run_id,
                        object_id=id,
                        object_content=object_.deflate(),
                        session_id=answer.session_id,
                    ),
                )
                if not sent.stored:
                    return False
        remove_arrays(message.content)
        return True

    def announced(self, ids: Collection[str]) -> list[Announcement]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        answer = self._call("pull messages", self._client.PullMessages, PullAppMessagesRequest(message_ids=sorted(ids)))
        trees = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [_announcement(message, tree) for message, tree in trees]

    def fetch(self, id: str) -> bytes | None:
        from flwr.proto.message_pb2 import PullObjectRequest

        request = PullObjectRequest(node=self._node, run_id=self._address.run_id, object_id=id)
        answer = self._call("pull object", self._client.PullObject, request)
        if not answer.object_found:
            raise ReplyLost("the message was gone")
        return bytes(answer.object_content) if answer.object_available else None

    def decode(self, reply: Announcement, contents: dict[str, bytes]) -> ReplyMessage:
        try:
            content = _content(reply, contents)
            return ReplyMessage(reply.request, reply.node, fields_of(content), arrays_of(content))
        except Exception as e:  # whatever a node sends must not end a thread
            why = first_line(e) or type(e).__name__
            return ReplyMessage(reply.request, reply.node, {}, {}, malformed=why)

    def discard(self, reply: Announcement) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        request = ConfirmMessageReceivedRequest(
            node=self._node, run_id=self._address.run_id, message_object_id=reply.id
        )
        self._call("confirm", self._client.ConfirmMessageReceived, request)

    def requests_sent(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        self._client.close()

    def _call(self, kind: str, method: Callable[[Any], _Answer], request: Any) -> _Answer:
        with self._lock:
            self._counts[kind] += 1
        with http_errors():
            return method(request)


def runtime_client(address: Address, most: int = _MARGIN) -> RuntimeHttpClient:
    """Return Flower's client without its endless retries, with a bound on the length of an answer."""
    import httpx
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    def check_length(response: httpx.Response) -> None:
        if int(response.headers.get("content-length", 0)) > most:
            raise ReplyLost(f"an answer of more than {most:,} bytes")

    client = RuntimeHttpClient.from_server_address(
        server_address=address.address,
        insecure=address.is_insecure,
        root_certificates=address.root_certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
            *([RuntimeTokenHttpInterceptor(token=address.token)] if address.token else []),
        ],
    )
    client._client.timeout = httpx.Timeout(_TIMEOUT, connect=_CONNECT_TIMEOUT)
    client._client.event_hooks = {"response": [check_length]}
    return client


def _announcement(message: Any, tree: ObjectTree) -> Announcement:
    about = message.metadata
    request, node = about.reply_to_message_id, about.src_node_id
    if message.HasField("error"):
        why, detail = error_text(message.error.code), failure_text(message.error.reason)
        return Announcement(request, node, about.message_id, error=why, detail=detail)
    objects: list[str] = []
    waiting = [tree]
    while waiting and len(objects) <= _MAX_OBJECTS:
        part = waiting.pop()
        objects.append(part.object_id)
        waiting += part.children
    if len(objects) > _MAX_OBJECTS:
        return Announcement(request, node, about.message_id, error=f"a message of more than {_MAX_OBJECTS:,} objects")
    if len(objects) == 3 and len(tree.children) == 1:  # message, content and one record, which has all that matters
        return Announcement(request, node, about.message_id, (objects[2],), has_others=True)
    return Announcement(request, node, about.message_id, tuple(dict.fromkeys(objects)))


def _content(reply: Announcement, contents: dict[str, bytes]) -> Any:
    """Return the records of a reply; its objects are taken out of `contents` as they are decoded."""
    from flwr.app import RecordDict
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    first = inflate_object_from_contents(reply.objects[0], contents)
    if reply.objects[0] != reply.id:
        return RecordDict({"config": first})  # type: ignore[dict-item]
    return first.content  # type: ignore[attr-defined]


@contextmanager
def http_errors() -> Iterator[None]:
    """Raise the transport's errors in place of those of HTTP."""
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as e:
        if e.response.status_code in _ENDED:
            raise RunEnded("Flower has ended the run") from e
        raise Unreachable(f"HTTP status {e.response.status_code}") from e
    except (httpx.HTTPError, ConnectionError, OSError) as e:
        raise Unreachable(str(e) or type(e).__name__) from e
