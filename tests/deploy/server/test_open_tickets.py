"""Only its holder reports a ticket."""

from __future__ import annotations

import pytest

from tarry.deploy.server.open_tickets import OpenTicket, OpenTickets, stored_digest, token_digest
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


def test_a_saved_ticket_has_the_digest_of_its_token_and_is_checked_against_it():
    book, again = OpenTickets(), OpenTickets()
    token = OpenTickets.new_token()
    book.put(OpenTicket(4, 1, 0, token, 0.0, node=7, request="x"))
    assert token not in repr(book.save())
    assert token not in repr(book[4])
    again.load(book.save())
    again.check(again[4], 7, {"number": 4, "token": token})
    for wrong in ("", book[4].digest, "0" * 32):
        with pytest.raises(Rejected):
            again.check(again[4], 7, {"number": 4, "token": wrong})


def test_records_of_an_earlier_version_have_the_token_itself():
    token, again = OpenTickets.new_token(), OpenTickets()
    assert stored_digest(token) == token_digest(token) == stored_digest(token_digest(token))
    again.load([{"number": 4, "client": 1, "visit": 0, "token": token, "time": 0.0, "node": 7, "letter": "x",
                 "run": "1", "due": 9.0}])  # fmt: skip
    again.check(again[4], 7, {"number": 4, "token": token})
