from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core import rng
from tarry.core.idle_clients import IdleClients


@dataclass
class Moment:
    key: int


def test_everybody_but_those_away_is_idle_at_first():
    roster = IdleClients(6, 3, away=[1, 4])
    assert len(roster) == 4
    assert [c for c in range(6) if c in roster] == [0, 2, 3, 5]
    assert roster.draw(10, Moment(0)) == [0, 2, 3, 5]


@given(st.integers(1, 40), st.integers(0, 45), st.integers(0, 2**64 - 1))
def test_a_draw_takes_out_distinct_idle_clients_in_rising_order(n, k, key):
    roster = IdleClients(n, n)
    drawn = roster.draw(k, Moment(key))
    assert len(drawn) == min(n, k)
    assert drawn == sorted(set(drawn))
    assert all(c not in roster for c in drawn)
    assert len(roster) == n - len(drawn)
    assert sorted([*drawn, *roster.draw(n, Moment(0))]) == list(range(n))
    assert len(roster) == 0


def test_nobody_is_drawn_when_none_is_wanted_or_there():
    roster = IdleClients(3, 3)
    assert roster.draw(0, Moment(1)) == roster.draw(-2, Moment(1)) == []
    assert len(roster) == 3
    roster.draw(3, Moment(1))
    assert roster.draw(2, Moment(1)) == []


def test_a_draw_is_a_function_of_the_key_and_of_who_is_idle():
    draws = [tuple(IdleClients(50, 50).draw(5, Moment(rng.key(i)))) for i in (7, 7, 8, 9)]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_every_pair_of_clients_is_drawn_alike():
    counts = Counter(tuple(IdleClients(5, 5).draw(2, Moment(rng.key(1, i)))) for i in range(5000))
    assert set(counts) == set(combinations(range(5), 2))
    assert all(abs(c - 500) < 120 for c in counts.values())


def test_who_comes_back_is_idle_again_and_may_not_come_back_twice():
    roster = IdleClients(3, 3)
    (one,) = roster.draw(1, Moment(3))
    roster.add(one)
    assert one in roster
    with pytest.raises(AssertionError):
        roster.add(one)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_any_coming_and_going_keeps_the_same_books_as_a_set(moves):
    roster, books = IdleClients(10, 10), set(range(10))
    for comes, client in moves:
        if comes and client not in books:
            roster.add(client)
            books.add(client)
        elif not comes and client in books:
            roster.remove(client)
            books.discard(client)
        assert len(roster) == len(books)
        assert {c for c in range(10) if c in roster} == books
    assert roster.draw(99, Moment(0)) == sorted(books)


def test_a_roster_saved_and_loaded_draws_what_it_would_have_drawn():
    roster = IdleClients(30, 4, away=[3])
    for i in range(12):
        for client in roster.draw(4, Moment(rng.key(i))):
            if client % 3:
                roster.add(client)
    saved = roster.save()
    again = IdleClients(30, 4)
    again.load(saved)
    assert len(again) == len(roster)
    for i in range(20):
        drawn = roster.draw(1, Moment(rng.key(100, i)))
        assert again.draw(1, Moment(rng.key(100, i))) == drawn
        for client in drawn:
            roster.add(client)
            again.add(client)


def test_what_is_saved_does_not_change_with_the_roster():
    roster = IdleClients(4, 4)
    saved = roster.save()
    roster.draw(3, Moment(1))
    again = IdleClients(4, 4)
    again.load(saved)
    assert len(again) == 4
