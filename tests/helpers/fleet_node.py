"""A node on the real wire that uploads as the test says: Flower's own client of the Fleet API, without an app."""

from __future__ import annotations

from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2, node_pb2
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


class FleetNode:
    """One registered node."""

    def __init__(self, address: str):
        private, public = generate_key_pairs()
        interceptors = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(private, public)]
        self._client = FleetHttpClient.from_server_address(address, True, None, interceptors)
        key = public_key_to_bytes(public)
        self._client.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=key))
        request = fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=120)
        self.id = self._client.ActivateNode(request).node_id
        self._node = node_pb2.Node(node_id=self.id)
        self._missing: list[tuple[int, str, bytes, str]] = []

    def receive(self) -> Message | None:
        """Return the next message with its content; None if there is none."""
        answer = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        message, tree = message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]
        about, contents = message.metadata, {}
        for part in iterate_object_tree(tree):
            found = False
            while not found:
                request = message_pb2.PullObjectRequest(node=self._node, run_id=about.run_id, object_id=part.object_id)
                answer = self._client.PullObject(request)
                found, contents[part.object_id] = answer.object_available, answer.object_content
        self._client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=self._node, run_id=about.run_id, message_object_id=about.message_id
            )
        )
        whole: Any = inflate_object_from_contents(tree.object_id, contents)
        whole.metadata.__dict__["_message_id"] = about.message_id
        return whole

    def announce(self, request: Message, content: RecordDict) -> None:
        """Announce a reply; its objects are uploaded one by one."""
        reply = Message(content, reply_to=request)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree = get_object_tree(reply)
            contents = {id: part.deflate() for id, part in get_all_nested_objects(reply).items()}
        empty = Message(RecordDict(), reply_to=request)
        empty.__dict__["_metadata"] = reply.metadata
        answer = self._client.PushMessages(
            fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(empty)],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
        )
        run = reply.metadata.run_id
        wanted = set(answer.objects_to_push)
        self._missing = [(run, id, data, answer.session_id) for id, data in contents.items() if id in wanted]

    def upload(self, most: int = 1 << 30) -> int:
        """Upload so many objects of the reply; return how many are left."""
        for run, id, data, session in self._missing[:most]:
            request = message_pb2.PushObjectRequest(
                node=self._node, run_id=run, object_id=id, object_content=data, session_id=session
            )
            assert self._client.PushObject(request).stored
        self._missing = self._missing[most:]
        return len(self._missing)

    def close(self) -> None:
        self._client.close()


__all__ = ["FleetNode"]
