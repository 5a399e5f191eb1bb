"""Light nodes that speak Flower's Fleet protocol, for load tests: many in one process, with a connection each.

They register, send heartbeats, poll with the intervals of tarry's nodes, train with tarry's worker, and hold each visit
for a scripted time. Requests are counted by kind, and the time at which each reply was complete is recorded.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, run_pb2
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.client.worker import Worker, prove_identity
from tarry.deploy.grid import fields_of, is_packed, numpy_arrays, to_records
from tarry.deploy.polling import idle_seconds

_HEARTBEAT = 30.0
_PIECE = 16  # bytes that a slow connection sends at a time
_SIGNATURE_AGE = 4.0  # seconds for which a signed time stamp is used


class Connection:
    """One HTTP connection that is kept open; answers are read to their end."""

    def __init__(self, host: str, port: int, counts: Counter[str]):
        self.address, self._counts = (host, port), counts
        self.rate: float | None = None  # bytes per second at which requests are sent, if they are slowed down
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    async def call(self, path: str, request: Any, answer: Any, headers: str) -> Any:
        """Send a request; return the parsed answer."""
        body = request.SerializeToString(deterministic=True)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self.address[0]}:{self.address[1]}\r\n"
            f"content-type: application/protobuf\r\naccept: application/protobuf\r\n"
            f"content-length: {len(body)}\r\n{headers}\r\n"
        )
        async with self._lock:
            self._counts[path.rpartition("/")[2]] += 1
            while True:
                try:
                    status, content = await self._exchange(head.encode() + body)
                    break
                except (OSError, asyncio.IncompleteReadError):
                    self._streams = None
                    await asyncio.sleep(0.5)
        if status != 200:
            raise RuntimeError(f"{path}: status {status}: {content[:200]!r}")
        out = answer()
        out.ParseFromString(content)
        return out

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, data: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self.address)
        reader, writer = self._streams
        if self.rate is not None:
            for at in range(0, len(data), _PIECE):
                writer.write(data[at : at + _PIECE])
                await asyncio.sleep(_PIECE / self.rate)
        else:
            writer.write(data)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = next((int(v) for k, _, v in (w.partition(":") for w in lines) if k.lower() == "content-length"), 0)
        return int(lines[0].split(" ")[1]), await reader.readexactly(length)


class StubNode:
    """One node: its key, its connection, and the client it stands for."""

    def __init__(
        self,
        host: str,
        port: int,
        place: int,
        home: Path,
        worker: Worker,
        seconds: Callable[[int], float],
        log: StubLog,
    ):
        self._connection = Connection(host, port, log.requests)
        self._new_key()
        self._versions = "".join(
            f"{k}: {v}\r\n"
            for k, v in dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()).items()
        )
        self._place, self._store, self._worker, self._seconds, self._log = (
            place,
            ClientStore(home),
            worker,
            seconds,
            log,
        )
        self._node = node_pb2.Node()
        self._known_runs: set[int] = set()
        self._fixed: tuple[dict[str, Any], str] | None = None

    def _new_key(self) -> None:
        self._private, self._public = generate_key_pairs()
        self._key = base64.b64encode(public_key_to_bytes(self._public)).decode()
        self._signed: tuple[float, str] = (-1e9, "")

    @property
    def id(self) -> int:
        return int(self._node.node_id)

    def answer_with(self, arrays: dict[str, Any], name: str) -> None:
        """Answer all messages with these arrays, without training."""
        self._fixed = (arrays, name)

    async def begin(self, heartbeat: float = _HEARTBEAT) -> None:
        """Register with the SuperLink, which waits so many seconds for the next heartbeat."""
        key = public_key_to_bytes(self._public)
        await self._fleet("register-node", fleet_pb2.RegisterNodeFleetRequest(public_key=key), "RegisterNodeFleet")
        request = fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=heartbeat)
        self._node = node_pb2.Node(node_id=(await self._fleet("activate-node", request, "ActivateNode")).node_id)

    async def run(self) -> None:
        """Take part until the task is canceled."""
        await self.begin()
        beats = asyncio.create_task(self._send_heartbeats())
        try:
            idle = 0
            while True:
                began = time.monotonic()
                if await self.work():
                    idle = 0
                else:
                    await asyncio.sleep(idle_seconds(idle, time.monotonic() - began if idle else 0.0))
                    idle = min(idle + 1, 20)
        finally:
            beats.cancel()

    async def _send_heartbeats(self) -> None:
        await asyncio.sleep(random.uniform(0, _HEARTBEAT / 2))
        while True:
            request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT)
            await self._call("send-node-heartbeat", request, heartbeat_pb2.SendNodeHeartbeatResponse)
            await asyncio.sleep(_HEARTBEAT * 0.8)

    async def work(self) -> bool:
        """Do the next message; return whether there was one."""
        answer = await self._fleet("pull-messages", fleet_pb2.PullMessagesRequest(node=self._node), "PullMessages")
        if not answer.messages_list:
            return False
        message, tree = message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]
        run = message.metadata.run_id
        if run not in self._known_runs:
            info = await self._call(
                "get-run", run_pb2.GetRunRequest(node=self._node, run_id=run), run_pb2.GetRunResponse
            )
            fab = fab_pb2.GetFabRequest(node=self._node, hash_str=info.run.fab_hash, run_id=run)
            await self._call("get-fab", fab, fab_pb2.GetFabResponse)
            self._known_runs.add(run)
        contents = {part.object_id: await self._pull(run, part.object_id) for part in iterate_object_tree(tree)}
        confirm = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=message.metadata.message_id
        )
        await self._call("confirm-message-received", confirm, message_pb2.ConfirmMessageReceivedResponse)
        whole: Any = inflate_object_from_contents(tree.object_id, contents)
        whole.metadata.__dict__["_message_id"] = message.metadata.message_id
        await self._push(run, await self._answer(whole))
        return True

    async def _pull(self, run: int, id: str) -> bytes:
        delay = 0.05
        while True:
            request = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=id)
            answer = await self._call("pull-object", request, message_pb2.PullObjectResponse)
            if answer.object_available:
                return bytes(answer.object_content)
            if not answer.object_found:
                raise RuntimeError("an object of a request is missing")
            self._log.requests["pull-object, not there yet"] += 1
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)

    async def _answer(self, message: Message) -> Message:
        content, fields = message.content, fields_of(message.content)
        if self._fixed is not None:
            arrays, name = self._fixed
            return Message(to_records({"name": name, "at": time.time()}, arrays, is_packed=True), reply_to=message)
        if message.metadata.message_type == "query.hello":
            name = f"client {self._place}"
            words = prove_identity(self._store, fields, node=self._node.node_id, name=name, place=self._place)
            return Message(to_records(words, {}), reply_to=message)
        began = time.monotonic()
        words, arrays = self._worker.train(fields, numpy_arrays(content))
        await asyncio.sleep(max(0.0, self._seconds(int(fields["visit"])) - (time.monotonic() - began)))
        words = {**words, "train-seconds": time.monotonic() - began}
        self._log.trained[int(fields["number"])] = time.time()
        return Message(to_records(words, arrays, is_packed=is_packed(content)), reply_to=message)

    async def _push(self, run: int, reply: Message) -> None:
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            contents = {id: part.deflate() for id, part in objects.items()}
        empty = Message(RecordDict(), reply_to=reply)
        empty.__dict__["_metadata"] = reply.metadata
        request = fleet_pb2.PushMessagesRequest(
            node=self._node, messages_list=[message_to_proto(empty)], message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )  # fmt: skip
        answer = await self._fleet("push-messages", request, "PushMessages")
        for id in answer.objects_to_push:
            part = message_pb2.PushObjectRequest(
                node=self._node, run_id=run, object_id=id, object_content=contents[id], session_id=answer.session_id
            )
            await self._upload(part)
        number = fields_of(reply.content).get("number")
        if number is not None:
            self._log.pushed[int(number)] = time.time()

    async def _fleet(self, path: str, request: Any, name: str) -> Any:
        return await self._call(path, request, getattr(fleet_pb2, f"{name}Response"))

    async def _upload(self, part: Any) -> None:
        """Send an object of a reply."""
        await self._call("push-object", part, message_pb2.PushObjectResponse)

    async def _call(self, path: str, request: Any, answer: Any, connection: Connection | None = None) -> Any:
        return await (connection or self._connection).call(f"/v1/fleet/{path}", request, answer, self._headers())

    def _headers(self) -> str:
        at = time.monotonic()
        if at - self._signed[0] > _SIGNATURE_AGE:
            stamp = now().isoformat()
            signature = base64.b64encode(sign_message(self._private, stamp.encode("ascii"))).decode()
            head = f"{FLEET_HTTP_PUBLIC_KEY_HEADER}: {self._key}\r\n{TIMESTAMP_HEADER}: {stamp}\r\n"
            self._signed = (at, f"{head}{FLEET_HTTP_SIGNATURE_HEADER}: {signature}\r\n{self._versions}")
        return self._signed[1]


class StubLog:
    """Counts of requests and times of visits of all nodes in a process."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.floods: Counter[str] = Counter()  # of nodes that repeat what they sent
        self.trained: dict[int, float] = {}  # ticket -> wall time of the end of the visit
        self.pushed: dict[int, float] = {}  # ticket -> wall time at which its reply was complete


async def run_nodes(nodes: list[StubNode], *, ramp: float) -> None:
    """Run the nodes, which begin one after the other within `ramp` seconds; a failure of one ends all."""

    async def later(i: int, node: StubNode) -> None:
        await asyncio.sleep(ramp * i / max(1, len(nodes)))
        await node.run()

    await asyncio.gather(*(later(i, node) for i, node in enumerate(nodes)))


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
