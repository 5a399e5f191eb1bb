"""Who is who. A node's number changes when it comes back; a client has a key of its own, and so keeps its place.

A client says its name and signs the server's nonce and its present node with its key (Ed25519). The first key that
comes with a name is that name's from then on, unless names and keys were written down before (`known`). A Flower app
that knows nothing of this is told apart by its node, which is the same again only where nodes are registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..wire import Refused

__all__ = ["Clients", "proves", "statement"]


class Clients:
    """Places 0 … n−1, the names and keys they belong to, and the node each is at."""

    def __init__(self, n: int, known: Mapping[str, str] | None = None):
        self.n, self._known = n, known
        self._place: dict[str, int] = {}  # by name
        self._keys: dict[str, str] = {}
        self._node: dict[int, int] = {}  # by place
        self._at: dict[int, int] = {}  # place by node

    def at(self, node: int) -> int | None:
        """The client at a node."""
        return self._at.get(node)

    def node(self, client: int) -> int | None:
        return self._node.get(client)

    def name(self, client: int) -> str | None:
        return next((name for name, place in self._place.items() if place == client), None)

    def place(self, name: str, key: str, node: int, *, wanted: int | None, here: set[int]) -> int:
        """The place of whoever proved this name at this node; Refused where it may not have one."""
        if self._known is not None and self._known.get(name) != key:
            raise Refused(f"{name!r} with this key is not among the clients of this federation")
        mine = self._place.get(name)
        if mine is not None and self._keys[name] != key:
            raise Refused(f"{name!r} is known by another key")
        if self._at.get(node, mine) != mine:
            raise Refused(f"{name!r} comes from the node of another client")
        if mine is not None and self._node.get(mine, node) != node and self._node[mine] in here:
            raise Refused(f"{name!r} is here already, at another node")
        return self._free(name, wanted) if mine is None else mine

    def _free(self, name: str, wanted: int | None) -> int:
        taken = set(self._place.values())
        if wanted is None:
            wanted = next((c for c in range(self.n) if c not in taken), None)
            if wanted is None:
                raise Refused(f"all {self.n} places are taken; {name!r} finds none")
        if not 0 <= wanted < self.n:
            raise Refused(f"{name!r} wants place {wanted}; there are 0 to {self.n - 1}")
        if wanted in taken:
            raise Refused(f"{name!r} wants place {wanted}, which is {self.name(wanted)!r}'s")
        return wanted

    def bind(self, name: str, key: str, place: int, node: int) -> None:
        """From now on."""
        self._place[name], self._keys[name] = place, key
        old = self._node.get(place)
        if old is not None:
            self._at.pop(old, None)
        self._node[place], self._at[node] = node, place

    def save(self) -> dict[str, Any]:
        return {"clients": [[n, self._keys[n], p, self._node[p]] for n, p in self._place.items()]}

    def load(self, saved: dict[str, Any]) -> None:
        for name, key, place, node in saved["clients"]:
            self.bind(name, key, place, node)


def statement(federation: str, nonce: str, node: int, name: str) -> bytes:
    """What a client signs."""
    return f"tarry hello\n{federation}\n{nonce}\n{node}\n{name}".encode()


def proves(key: str, signature: str, what: bytes) -> bool:
    """Whether the signature (hex) of these bytes is by the holder of the key (hex)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), what)
    except (InvalidSignature, ValueError):
        return False
    return True
