"""Who holds which ticket: a number the server counts by, and a token that only its holder was told.

An answer is taken for a ticket when it came for the very letter that carried it, from the node that the letter went
to, with the ticket's number and token. So nobody can hand in somebody else's ticket, an old one, or one twice.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..wire import Refused, said

__all__ = ["Book", "Held"]


@dataclass(frozen=True)
class Held:
    """A ticket that is out."""

    number: int
    client: int
    visit: int
    token: str
    time: float  # handed out
    node: int = 0
    letter: str | None = None  # None: not sent yet
    run: str = ""
    due: float = float("inf")
    nbytes: int = 0


class Book:
    """Tickets by number, and by the letter that carried them."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._by_letter: dict[str, int] = {}

    @staticmethod
    def token() -> str:
        return secrets.token_hex(16)

    def put(self, held: Held) -> None:
        self.drop(held.number)
        self._held[held.number] = held
        if held.letter is not None:
            self._by_letter[held.letter] = held.number

    def sent(self, number: int, **how: Any) -> None:
        self.put(replace(self._held[number], **how))

    def drop(self, number: int) -> Held | None:
        held = self._held.pop(number, None)
        if held is not None and held.letter is not None:
            self._by_letter.pop(held.letter, None)
        return held

    def of(self, letter: str) -> Held | None:
        number = self._by_letter.get(letter)
        return None if number is None else self._held[number]

    def __getitem__(self, number: int) -> Held:
        return self._held[number]

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def check(self, held: Held, node: int, words: Mapping[str, Any] | None) -> None:
        """Raise Refused unless the answer is its holder's; `words` None: a client that knows of no tokens."""
        if node != held.node:
            raise Refused("it comes from another node than its ticket was handed to")
        if words is not None:
            told = said(words, number=int, token=str)
            good = hmac.compare_digest(told["token"].encode(), held.token.encode())
            if told["number"] != held.number or not good:
                raise Refused("it has not the number and the token of its ticket")

    def save(self) -> list[dict[str, Any]]:
        return [vars(h) for h in self._held.values()]

    def load(self, saved: list[dict[str, Any]]) -> None:
        self._held, self._by_letter = {}, {}
        for h in saved:
            self.put(Held(**h))
