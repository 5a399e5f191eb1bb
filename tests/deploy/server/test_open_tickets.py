"""Only its holder reports a ticket."""

from __future__ import annotations

import pytest

from tarry.deploy.server.open_tickets import OpenTicket, OpenTickets
from tarry.deploy.wire import Rejected


def test_tickets_are_their_holders_alone():
    book = OpenTickets()
    token = OpenTickets.new_token()
    book.put(OpenTicket(4, 1, 0, token, 0.0, node=7, request="x"))
    held = book.by_request("x")
    assert held is not None
    book.check(held, 7, {"number": 4, "token": token})
    book.check(held, 7, None)
    for node, words in (
        (8, {"number": 4, "token": token}),
        (7, {"number": 5, "token": token}),
        (7, {"number": 4, "token": "0" * 32}),
        (7, {"number": 4, "token": "ü"}),
        (7, {"number": 4}),
    ):
        with pytest.raises(Rejected):
            book.check(held, node, words)
    assert book.by_request("y") is None
    book.drop(4)
    assert book.by_request("x") is None
