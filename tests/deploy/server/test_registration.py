"""Which client has which place."""

from __future__ import annotations

import pytest

from tarry.deploy.server.registration import Clients
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
