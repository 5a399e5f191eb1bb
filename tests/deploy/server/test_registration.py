"""Who is who, how long they may take, and what they keep."""

from __future__ import annotations

import stat

import pytest
import torch

from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.server.deadlines import Deadlines
from tarry.deploy.server.open_tickets import OpenTicket, OpenTickets
from tarry.deploy.server.registration import Clients, is_signed_by, statement
from tarry.deploy.wire import Rejected


def test_a_client_keeps_its_place_at_another_node():
    clients = Clients(3)
    place = clients.place("a", "key", 7, wanted=2, here={7})
    clients.bind("a", "key", place, 7)
    assert clients.place("a", "key", 8, wanted=None, here={8}) == 2
    clients.bind("a", "key", 2, 8)
    assert clients.at(8) == 2
    assert clients.at(7) is None


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (("a", "other", 9, None), "another key"),
        (("b", "k", 9, 2), "wants place 2, which is 'a'"),
        (("b", "k", 9, 3), "wants place 3"),
        (("b", "k", 9, -2), "wants place -2"),
        (("b", "k", 7, None), "node of another client"),
        (("a", "key", 9, None), "here already"),
    ],
)
def test_nobody_takes_the_place_of_another(who, why):
    clients = Clients(3)
    clients.bind("a", "key", 2, 7)
    name, key, node, wanted = who
    with pytest.raises(Rejected, match=why):
        clients.place(name, key, node, wanted=wanted, here={7, 9})


def test_newcomers_get_free_places_while_there_are_any():
    clients = Clients(2)
    for name, node in (("a", 1), ("b", 2)):
        clients.bind(name, name, clients.place(name, name, node, wanted=None, here={1, 2, 3}), node)
    assert (clients.at(1), clients.at(2)) == (0, 1)
    with pytest.raises(Rejected, match="all 2 places are taken"):
        clients.place("c", "c", 3, wanted=None, here={3})


def test_with_a_list_of_clients_only_they_may_come():
    clients = Clients(2, {"a": "key"})
    assert clients.place("a", "key", 1, wanted=None, here={1}) == 0
    for name, key in (("a", "other"), ("b", "key")):
        with pytest.raises(Rejected, match="not among the clients"):
            clients.place(name, key, 1, wanted=None, here={1})


def test_a_key_proves_who_one_is_and_stays(tmp_path):
    what = statement("f", "nonce", 3, "a")
    key, signature = ClientStore(tmp_path).sign(what)
    assert is_signed_by(key, signature, what)
    assert not is_signed_by(key, signature, statement("f", "nonce", 4, "a"))
    assert not is_signed_by(ClientStore(tmp_path / "b").sign(what)[0], signature, what)
    assert not is_signed_by("no hex", signature, what)
    assert ClientStore(tmp_path).sign(what)[0] == key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_only_the_visit_that_counts_is_remembered(tmp_path):
    home = ClientStore(tmp_path)
    for visit in (0, 1, 2):
        home.save_memory("ab", visit, {"v": torch.tensor([float(visit)])})
    kept = home.load_memory("ab", 1)
    assert kept is not None
    assert kept["v"].tolist() == [1.0]
    assert home.load_memory("ab", 2) is None
    assert home.load_memory("cd", 1) is None


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


def test_deadlines_are_learnt_and_bounded():
    pace = Deadlines(1000.0)
    assert pace.deadline(0) == 1000.0
    for seconds in (10.0, 12.0, 11.0):
        pace.record_duration(0, seconds)
    assert pace.deadline(0) == 2 * 12.0 + 15.0
    pace.record_duration(0, 400.0, late=True)
    assert pace.deadline(0) > 800.0
    pace.record_duration(0, 9000.0)
    assert pace.deadline(0) == 1000.0
    assert pace.deadline(1) == 1000.0
    again = Deadlines(1000.0)
    again.load(pace.save())
    assert again.deadline(0) == pace.deadline(0)


def test_failing_clients_are_left_alone_longer_and_longer():
    pace = Deadlines(100.0)
    assert [pace.record_failure(0) for _ in range(4)] == [5.0, 10.0, 20.0, 40.0]
    for _ in range(30):
        last = pace.record_failure(0)
    assert last == 600.0
    pace.record_duration(0, 1.0)
    assert pace.record_failure(0) == 5.0
