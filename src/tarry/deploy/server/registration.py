"""Registration: which nodes are present, and which client is at each. A node gets no work before it is registered.

A client is known by its key, because the number of its node changes when it comes back. It states its name and signs
the server's nonce and its present node with the key (Ed25519). The first key that comes with a name belongs to that
name from then on, unless names and keys were given in advance (`known`). A Flower app without keys is known by its
node, which stays the same only where nodes are registered with Flower. So a place without a key whose node has been
absent for a while is released when another node finds no place.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.rejections import Reason
from ..wire import FieldValue, MessageGrid, Rejected, ReplyMessage, Request, flower_node, parse_fields
from .slots import requested_releases

if TYPE_CHECKING:
    from .journaled_state import JournaledState

__all__ = ["Clients", "Registration", "is_signed_by", "statement"]

log = logging.getLogger("tarry")
_MOST_PENDING = 64  # nodes that are asked for their identity at a time
_FIRST_RETRY, _LAST_RETRY = 5.0, 300.0  # seconds until a rejected node gets another request; doubles each time


class Clients:
    """Places 0 … n−1, the names and keys they belong to, and the node each client is at."""

    def __init__(self, n: int, known: Mapping[str, str] | None = None):
        self.n, self._known = n, known
        self._place: dict[str, int] = {}  # by name
        self._keys: dict[str, str] = {}  # by name
        self._node: dict[int, int] = {}  # by place
        self._at: dict[int, int] = {}  # place by node

    def at(self, node: int) -> int | None:
        """Return the client at a node."""
        return self._at.get(node)

    def node(self, client: int) -> int | None:
        """Return the node that a client is at, or was at last."""
        return self._node.get(client)

    def name(self, client: int) -> str | None:
        return next((name for name, place in self._place.items() if place == client), None)

    def place(self, name: str, key: str, node: int, *, wanted: int | None, here: set[int]) -> int:
        """Return the place of the client that proved this name; raise Rejected where it may not have one."""
        if self._known is not None and self._known.get(name) != key:
            raise Rejected(f"{name!r} with this key is not among the clients of this federation")
        place = self._place.get(name)
        if place is not None and self._keys[name] != key:
            raise Rejected(f"{name!r} is known by another key")
        if self._at.get(node, place) != place:
            raise Rejected(f"{name!r} comes from the node of another client")
        if place is not None and self._node.get(place, node) != node and self._node[place] in here:
            raise Rejected(f"{name!r} is here already, at another node")
        return self._free_place(name, wanted) if place is None else place

    def _free_place(self, name: str, wanted: int | None) -> int:
        taken = set(self._place.values())
        if wanted is None:
            wanted = next((c for c in range(self.n) if c not in taken), None)
            if wanted is None:
                raise Rejected(f"all {self.n} places are taken; {name!r} finds none")
        if not 0 <= wanted < self.n:
            raise Rejected(f"{name!r} wants place {wanted}; there are 0 to {self.n - 1}")
        if wanted in taken:
            raise Rejected(f"{name!r} wants place {wanted}, which is {self.name(wanted)!r}'s")
        return wanted

    def bind(self, name: str, key: str, place: int, node: int) -> None:
        """Give a place to a name and its key, and note the node that the client is at."""
        self._place[name], self._keys[name] = place, key
        old = self._node.get(place)
        if old is not None:
            self._at.pop(old, None)
        self._node[place], self._at[node] = node, place

    def release(self, name: str) -> int:
        """Take the place of a client from it; return the place."""
        place = self._place.pop(name)
        self._keys.pop(name)
        self._at.pop(self._node.pop(place, 0), None)
        return place

    def place_of(self, name: str) -> int | None:
        """Return the place that a client has."""
        return self._place.get(name)

    def without_key(self) -> dict[str, int]:
        """Return the clients that are known by their node alone, and these nodes."""
        return {name: self._node[place] for name, place in self._place.items() if not self._keys[name]}

    @property
    def is_full(self) -> bool:
        """Return whether no place is free."""
        return len(self._place) >= self.n

    def save(self) -> dict[str, Any]:
        return {"clients": [[n, self._keys[n], p, self._node[p]] for n, p in self._place.items()]}

    def load(self, saved: dict[str, Any]) -> None:
        for name, key, place, node in saved["clients"]:
            self.bind(name, key, place, node)


class Registration:
    """Asks new nodes for their identity and binds them to clients.

    `has_identities`: whether the clients' apps can prove an identity; `timeout`: seconds that a reply may take;
    `release_after`: seconds of absence after which a place without a key may go to another node.
    """

    def __init__(
        self,
        grid: MessageGrid,
        state: JournaledState,
        *,
        has_identities: bool,
        timeout: float,
        release_after: float,
        log_problem: Callable[..., None],
    ):
        self._grid, self._state, self._has_identities = grid, state, has_identities
        self._timeout, self._release_after, self._log_problem = timeout, release_after, log_problem
        self._seen: dict[str, float] = {}  # client without a key → when its node was present last
        self.nodes: set[int] = set()
        self._activated: dict[int, str] = {}  # when a node began
        self._pending: dict[str, tuple[int, str]] = {}  # request → node, nonce
        self._retries: dict[int, tuple[float, int]] = {}  # node → time of the next request, number of requests

    @property
    def pending(self) -> Collection[str]:
        """The requests without a reply."""
        return self._pending.keys()

    def update_nodes(self) -> set[int]:
        """See which nodes are present; return those that restarted since the last time and have lost their state."""
        activated = self._grid.nodes()
        restarted = {n for n, when in activated.items() if self._activated.get(n, when) != when}
        self.nodes = set(activated)
        known = {n: when for n, when in self._activated.items() if self._state.clients.at(n) is not None}
        self._activated = {**known, **activated}  # a client's node may restart while its link does not answer
        self._retries = {n: retry for n, retry in self._retries.items() if n in activated}
        self._pending = {i: sent for i, sent in self._pending.items() if sent[0] not in restarted}
        return restarted

    def request_identity(self, now: float) -> None:
        """Ask the nodes without a client for their identity."""
        self._note_presence(now)
        clients, requested = self._state.clients, {node for node, _ in self._pending.values()}
        unknown = [n for n in sorted(self.nodes) if clients.at(n) is None and n not in requested]
        unknown = [n for n in unknown if self._retries.get(n, (0.0, 0))[0] <= now]
        if not self._has_identities:
            for node in unknown:
                self._register(now, node, f"node {node}", "", None)
            return
        for node in unknown[: max(0, _MOST_PENDING - len(self._pending))]:
            if not self._grid.has_room(node):
                continue
            nonce = secrets.token_hex(16)
            fields: dict[str, FieldValue] = {"federation": self._state.federation, "nonce": nonce}
            (request,) = self._grid.push([Request(node, "query.hello", fields, {}, self._timeout)])
            if request is None:
                self._retry_later(now, node)
            else:
                self._pending[request] = (node, nonce)

    def on_identity(self, now: float, reply: ReplyMessage) -> None:
        """Handle a node's reply to a request for its identity."""
        node, nonce = self._pending.pop(reply.request)
        if reply.error is not None:
            self._log_problem("a node did not say who it is", why=reply.error, node=node)
            self._retry_later(now, node)
            return
        try:
            f = parse_fields(reply.fields, name=str, key=str, signature=str, place=int)
            if reply.node != node:
                raise Rejected("the reply comes from another node than the request went to")
            signed = statement(self._state.federation, nonce, flower_node(node), f["name"])
            if not is_signed_by(f["key"], f["signature"], signed):
                raise Rejected(f"client {f['name'][:40]!r}: the signature does not match its public key")
        except Rejected as e:
            self._reject(now, node, e)
            return
        self._register(now, node, f["name"], f["key"], None if f["place"] < 0 else f["place"])

    def release(self, now: float, name: str) -> None:
        """Take the place of a client from it; its open tickets are lost, and its node must register again."""
        place = self._state.clients.place_of(name)
        if place is None:
            return
        self._state.commit({"op": "release", "t": now, "name": name}, sync=True)
        self._seen.pop(name, None)
        log.info("the slot of client %d, %r, is released", place, name)

    def release_requested(self, now: float, folder: Path) -> None:
        """Release the slots that `tarry federation release` asks for."""
        for path, name in requested_releases(folder):
            self.release(now, name)
            path.unlink(missing_ok=True)

    def _note_presence(self, now: float) -> None:
        """Note when each client without a key was here last; from the start of this server on, if it was not since."""
        clients = self._state.clients.without_key()
        present = {name: now for name, node in clients.items() if node in self.nodes or name not in self._seen}
        self._seen = {name: present.get(name, self._seen.get(name, now)) for name in clients}

    def _make_room(self, now: float) -> None:
        """Release the place whose node has been absent longest, if no place is free and it has been so long enough."""
        self._note_presence(now)
        if self._state.clients.is_full and self._seen:
            name = min(self._seen, key=self._seen.__getitem__)
            if now - self._seen[name] >= self._release_after:
                self.release(now, name)

    def _register(self, now: float, node: int, name: str, key: str, wanted: int | None) -> None:
        if self._state.clients.place_of(name) is None:
            self._make_room(now)
        try:
            place = self._state.clients.place(name, key, node, wanted=wanted, here=self.nodes)
        except Rejected as e:
            self._reject(now, node, e)
            return
        self._state.commit({"op": "client", "t": now, "name": name, "key": key, "place": place, "node": node})
        log.info("client %d is %r at node %d", place, name, node)

    def _reject(self, now: float, node: int, why: Rejected) -> None:
        self._state.stats.count_rejection(Reason.IDENTITY, self._state.clients.at(node))
        self._log_problem("a client was rejected", why=str(why), node=node)
        self._retry_later(now, node)

    def _retry_later(self, now: float, node: int) -> None:
        count = self._retries.get(node, (0.0, 0))[1] + 1
        self._retries[node] = (now + min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(count - 1, 10)), count)


def statement(federation: str, nonce: str, node: int, name: str) -> bytes:
    """Return the bytes that a client signs to prove its identity."""
    return f"tarry hello\n{federation}\n{nonce}\n{node}\n{name}".encode()


def is_signed_by(key: str, signature: str, statement: bytes) -> bool:
    """Return whether the signature (hex) of the statement was made with the private key of this public key (hex)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True
