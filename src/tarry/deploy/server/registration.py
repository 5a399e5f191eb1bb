"""The door: which nodes are there, and who they are. Nobody is handed work before it has said so, and proved it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection

from ..wire import Grid, Letter, Refused, Return, said
from .identities import proves, statement
from .journaled_state import Keeper

__all__ = ["Door"]

log = logging.getLogger("tarry")
_FIRST, _LONGEST = 5.0, 300.0  # seconds before somebody who was refused is asked again


class Door:
    """`greets`: whether clients can say who they are; `patience`: seconds that an answer may take."""

    def __init__(self, grid: Grid, keeper: Keeper, *, greets: bool, patience: float, note: Callable[..., None]):
        self._grid, self._keeper, self._greets, self._patience, self._note = grid, keeper, greets, patience, note
        self.nodes: set[int] = set()
        self._since: dict[int, str] = {}  # when a node began
        self._asked: dict[str, tuple[int, str]] = {}  # letter → node, nonce
        self._later: dict[int, tuple[float, int]] = {}  # node → when to ask it again, how often it was

    @property
    def waiting(self) -> Collection[str]:
        """Letters that are not answered yet."""
        return self._asked.keys()

    def look(self) -> set[int]:
        """See who is there; the nodes that began anew since, and know nothing any more."""
        since = self._grid.nodes()
        anew = {n for n, when in since.items() if self._since.get(n, when) != when}
        self.nodes = set(since)
        self._since.update(since)
        self._asked = {i: who for i, who in self._asked.items() if who[0] not in anew}
        return anew

    def greet(self, now: float) -> None:
        """Ask nodes that nobody knows who they are."""
        clients, asked = self._keeper.clients, {node for node, _ in self._asked.values()}
        strangers = [n for n in sorted(self.nodes) if clients.at(n) is None and n not in asked]
        strangers = [n for n in strangers if self._later.get(n, (0.0, 0))[0] <= now]
        if not self._greets:
            for node in strangers:
                self._meet(now, node, f"node {node}", "", None)
            return
        nonces, federation = [secrets.token_hex(16) for _ in strangers], self._keeper.federation
        letters = [
            Letter(node, "query.hello", {"federation": federation, "nonce": nonce}, {}, self._patience)
            for node, nonce in zip(strangers, nonces, strict=True)
        ]
        ids = self._grid.push(letters) if letters else []
        for node, nonce, letter in zip(strangers, nonces, ids, strict=True):
            if letter is None:
                self._ask_later(now, node)
            else:
                self._asked[letter] = (node, nonce)

    def introduced(self, now: float, back: Return) -> None:
        """Somebody says who it is."""
        node, nonce = self._asked.pop(back.letter)
        if back.error is not None:
            self._note("a node did not say who it is", why=back.error, node=node)
            self._ask_later(now, node)
            return
        try:
            w = said(back.words, name=str, key=str, signature=str, place=int)
            if back.node != node:
                raise Refused("another node than was greeted")
            if not proves(w["key"], w["signature"], statement(self._keeper.federation, nonce, node, w["name"])):
                raise Refused(f"{w['name'][:40]!r} does not hold the key it shows")
        except Refused as e:
            self._refuse(now, node, e)
            return
        self._meet(now, node, w["name"], w["key"], None if w["place"] < 0 else w["place"])

    def _meet(self, now: float, node: int, name: str, key: str, wanted: int | None) -> None:
        try:
            place = self._keeper.clients.place(name, key, node, wanted=wanted, here=self.nodes)
        except Refused as e:
            self._refuse(now, node, e)
            return
        self._keeper.do({"op": "client", "t": now, "name": name, "key": key, "place": place, "node": node})
        log.info("client %d is %r at node %d", place, name, node)

    def _refuse(self, now: float, node: int, why: Refused) -> None:
        self._note("a client was refused", why=str(why), node=node)
        self._ask_later(now, node)

    def _ask_later(self, now: float, node: int) -> None:
        tries = self._later.get(node, (0.0, 0))[1] + 1
        self._later[node] = (now + min(_LONGEST, _FIRST * 2.0 ** min(tries - 1, 10)), tries)
