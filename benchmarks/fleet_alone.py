"""The rate that SuperLinks alone sustain for the requests of a federation: the same kinds in the same order, no pauses.

Each of many loops plays both sides of a visit: it sends a message to its node as a server app does, pulls it as the
node, sends the reply, and pulls the reply as the server app. All loops share one process and do no other work.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from fleet_stub import Connection, StubLog, StubNode, cpu_seconds
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from tarry.deploy.grid import to_records
from tarry.deploy.local.local_federation import LocalFederation

_SIZE = 610  # numbers of the model


class LinksOnly(LocalFederation):
    """SuperLinks with a pending run, whose server app is this process."""

    def _start_node(self, *_: Any) -> None:
        pass

    def _warm(self, *_: Any) -> None:
        pass

    def _start_exec(self, *_: Any) -> None:
        pass


def rate_alone(loops: int, *, links: int, database: bool, seconds: float) -> dict[str, float]:
    """Return the requests of all links together per second, per second of their CPU, and per visit."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-bench-"))
    local = LinksOnly(folder / "out")
    local.prepare(1, {"method": "fedasync", "task": "digits", "time": 1.0}, tls=False, memory=not database, links=links)
    try:
        local.up()
        counts: Counter[str] = Counter()
        pids = [p.pid for n in local.processes.names() if n.startswith("link") and (p := local.processes[n])]
        cpu = asyncio.run(_load(local.setup.link_ports, max(1, loops // links), counts, folder, seconds, pids))
        total, visits = sum(counts.values()), counts["visits"]
        total -= visits
        return {
            "requests_per_s": total / seconds,
            "requests_per_cpu_s": total / cpu,
            "requests_per_visit": total / max(1, visits),
            "link_cpu": cpu / seconds,
        }
    finally:
        local.processes.end(local.processes.names())
        shutil.rmtree(folder, ignore_errors=True)


async def _load(
    ports: list[int], loops: int, counts: Counter[str], folder: Path, seconds: float, pids: list[int]
) -> float:
    """Count requests for so many seconds; return the seconds of CPU of the links."""
    tasks = []
    for port in ports:
        headers = await _server_headers(port)
        tasks.append(asyncio.create_task(_send_heartbeats(port, headers.partition("\x00")[0])))
        for i in range(loops):
            visits = _Visits(port, headers, counts, folder / f"{port}-{i}", f"{port}-{i}")
            await visits.begin()
            tasks.append(asyncio.create_task(visits.run()))
    await asyncio.sleep(2.0)
    counts.clear()
    cpu = -sum(map(cpu_seconds, pids))
    await asyncio.sleep(seconds)
    measured, cpu = dict(counts), cpu + sum(map(cpu_seconds, pids))
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    if failed := [e for e in ended if not isinstance(e, asyncio.CancelledError)]:
        raise RuntimeError(f"{len(failed)} loops failed: {failed[0]}")
    counts.clear()
    counts.update(measured)
    return cpu


async def _send_heartbeats(port: int, headers: str) -> None:
    """Tell a link that the server app runs."""
    connection = Connection("127.0.0.1", port, Counter())
    path, request = "/v1/runtime/send-task-heartbeat", runtime_pb2.SendTaskHeartbeatRequest()
    while True:
        await connection.call(path, request, runtime_pb2.SendTaskHeartbeatResponse, headers)
        await asyncio.sleep(10.0)


async def _server_headers(port: int) -> str:
    """Take the pending task of the run on a link; return the headers of its server app."""
    connection = Connection("127.0.0.1", port, Counter())
    versions = dict(RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata())
    head = "".join(f"{k}: {v}\r\n" for k, v in versions.items())
    while True:
        request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        answer = await connection.call("/v1/runtime/acquire-task", request, runtime_pb2.AcquireTaskResponse, head)
        if answer.HasField("task"):
            break
        await asyncio.sleep(0.2)
    head += f"{TASK_TOKEN_HEADER}: {answer.token}\r\n"
    path, request = "/v1/runtime/pull-task-input", runtime_pb2.PullTaskInputRequest()
    taken = await connection.call(path, request, runtime_pb2.PullTaskInputResponse, head)
    return f"{head}\x00{taken.run.run_id}"


class _Visits:
    """One loop: a node and the part of a server app that concerns it."""

    def __init__(self, port: int, headers: str, counts: Counter[str], home: Path, name: str):
        self._headers, _, run = headers.partition("\x00")
        self._run, self._counts = int(run), counts
        self._server = Connection("127.0.0.1", port, counts)
        log = StubLog()
        log.requests = counts
        self._node = StubNode("127.0.0.1", port, 0, home, None, lambda _: 0.0, log)  # type: ignore[arg-type]
        self._node.answer_with({"weights": np.zeros(_SIZE, np.float32)}, name)
        self._self = node_pb2.Node(node_id=1)

    async def begin(self) -> None:
        await self._node.begin(heartbeat=1200.0)  # longer than this lasts

    async def run(self) -> None:
        while True:
            id = await self._push()
            while not await self._node.work():
                await asyncio.sleep(0.01)
            await self._pull(id)
            self._counts["visits"] += 1

    async def _push(self) -> str:
        fields = {"federation": "0" * 16, "number": 1, "token": os.urandom(16).hex(), "client": 0, "visit": 0}
        about = Metadata(self._run, "", 1, self._node.id, "", "", now().timestamp(), 3600.0, "train")
        arrays = {"weights": np.frombuffer(os.urandom(4 * _SIZE), np.float32)}
        message = make_message(metadata=about, content=to_records(fields, arrays, is_packed=True))
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            tree, objects = get_object_tree(message), get_all_nested_objects(message)
            contents = {id: part.deflate() for id, part in objects.items()}
        proto = message_to_proto(remove_content_from_message(message))
        request = runtime_pb2.PushAppMessagesRequest(messages_list=[proto], message_object_trees=[tree])
        answer = await self._call("push-messages", request, runtime_pb2.PushAppMessagesResponse)
        for id in answer.objects_to_push:
            part = message_pb2.PushObjectRequest(
                node=self._self, run_id=self._run, object_id=id, object_content=contents[id],
                session_id=answer.session_id,
            )  # fmt: skip
            await self._call("push-object", part, message_pb2.PushObjectResponse)
        return str(answer.message_ids[0])

    async def _pull(self, id: str) -> None:
        request = runtime_pb2.PullAppMessagesRequest(message_ids=[id])
        answer = await self._call("pull-messages", request, runtime_pb2.PullAppMessagesResponse)
        tree = answer.message_object_trees[0]
        leaf = tree.children[0].children[0].object_id
        part = message_pb2.PullObjectRequest(node=self._self, run_id=self._run, object_id=leaf)
        await self._call("pull-object", part, message_pb2.PullObjectResponse)
        confirm = message_pb2.ConfirmMessageReceivedRequest(
            node=self._self, run_id=self._run, message_object_id=tree.object_id
        )
        await self._call("confirm-message-received", confirm, message_pb2.ConfirmMessageReceivedResponse)

    async def _call(self, path: str, request: Any, answer: Any) -> Any:
        return await self._server.call(f"/v1/runtime/{path}", request, answer, self._headers)


if __name__ == "__main__":
    sys.stdout.write(f"{rate_alone(16, links=1, database=False, seconds=20.0)}\n")
