"""Typed records in a state tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from tarry.core.client_table import ClientScalars, ClientTable
from tarry.core.layout import Layout
from tarry.core.method import Method, Part, ServerView
from tarry.core.server import Server
from tarry.core.state_tree import MemoryMeter, StateRecord, copy_tree, restore_records, tables, tensors
from tarry.core.tickets import LocalResult, Update
from tarry.record import checkpoint


@dataclass(frozen=True)
class Inner(StateRecord):
    rows: ClientTable = field(default_factory=ClientTable)
    total: Tensor = field(default_factory=lambda: torch.zeros(3))


@dataclass
class Outer(StateRecord):
    inner: Inner
    seen: ClientScalars = field(default_factory=ClientScalars)
    count: int = 0


class Pair(NamedTuple):
    record: Inner
    mark: ClientScalars


def filled() -> Outer:
    inner = Inner(total=torch.ones(3))
    inner.rows.put(4, torch.arange(3.0))
    return Outer(inner, ClientScalars({4: True}), 7)


def test_a_copy_has_the_types_of_the_original_and_its_own_tables_and_marks() -> None:
    first = filled()
    copy = copy_tree(first)
    assert (type(copy), type(copy.inner), copy.count) == (Outer, Inner, 7)
    first.seen[5] = True
    first.inner.rows.put(4, torch.zeros(3))
    first.count = 8
    assert copy.seen == {4: True}
    assert copy.inner.rows[4].tolist() == [0, 1, 2]
    assert copy.count == 7
    assert copy.inner.total is first.inner.total


def test_a_record_is_on_disk_as_the_dict_of_its_fields(tmp_path: Path) -> None:
    state = filled()
    saved = checkpoint.load(checkpoint.Checkpoints(tmp_path).save(1, {"state": state}))["state"]
    assert type(saved) is dict
    assert list(saved) == ["inner", "seen", "count"]
    assert list(saved["inner"]) == ["rows", "total"]
    assert saved["seen"] == {4: True}
    record, as_dict = (
        Outer(Inner()),
        {"inner": {"rows": ClientTable(), "total": torch.zeros(3)}, "seen": ClientScalars(), "count": 0},
    )
    skeletons = []
    for i, tree in enumerate((record, as_dict)):
        with safe_open(checkpoint.Checkpoints(tmp_path).save(2 + i, tree), framework="np") as f:
            skeletons.append(f.metadata())
    assert skeletons[0] == skeletons[1]


def test_a_checkpoint_is_restored_to_the_types_of_the_first_state(tmp_path: Path) -> None:
    saved = checkpoint.load(
        checkpoint.Checkpoints(tmp_path).save(1, [{"a": filled(), "b": Pair(Inner(), ClientScalars({1: 2}))}])
    )[0]
    like: dict[str, Any] = {"a": Outer(Inner()), "b": Pair(Inner(), ClientScalars())}
    back = restore_records(saved, like)
    assert (type(back["a"]), type(back["a"].inner), type(back["a"].seen)) == (Outer, Inner, ClientScalars)
    assert back["a"].inner.rows[4].tolist() == [0, 1, 2]
    assert back["b"] == Pair(back["b"].record, ClientScalars({1: 2}))
    assert type(back["b"]) is Pair
    assert type(back["b"].record) is Inner
    assert like["a"].count == 0


def test_tables_and_tensors_of_a_record_have_the_names_they_would_have_in_a_dict() -> None:
    state = filled()
    as_dict = {"part": {**state.dump(), "inner": state.inner.dump()}}
    assert [name for name, _ in tables({"part": state})] == [name for name, _ in tables(as_dict)]
    assert [name for name, _ in tables({"part": state}, "server")] == ["server-part-inner-rows"]
    assert [t.tolist() for t in tensors(state)] == [[0, 1, 2], [1, 1, 1]]


def test_a_named_tuple_is_copied_with_its_type_and_shares_no_marks() -> None:
    first = Pair(Inner(), ClientScalars({1: 1}))
    copy = copy_tree(first)
    first.mark[2] = 2
    assert type(copy) is Pair
    assert copy.mark == {1: 1}


def test_the_memory_of_a_record_is_counted_once() -> None:
    ledger, state = MemoryMeter(), filled()
    ledger.observe([state, state])
    assert ledger.peak == 24


def test_a_server_resumes_a_method_whose_state_is_a_record(tmp_path: Path) -> None:
    def count(update: Update | None, state: Outer, _: ServerView) -> tuple[Update | None, Outer]:
        assert isinstance(state, Outer)
        if update is None:
            return None, state
        state.seen[update.ticket.client] = update.staleness
        state.inner.rows.put(update.ticket.client, update.delta)
        return update, replace(state, count=state.count + 1)

    method = Method("counting", aggregate=Part(count, lambda w: Outer(Inner(total=torch.zeros_like(w)))))
    layout = Layout.of(torch.nn.Linear(2, 1))

    def server() -> Server:
        return Server(method, torch.zeros(3), layout=layout, n_clients=4, seed=0)

    def arrive(s: Server, client: int) -> None:
        ticket = s.hand_out(client, 0.0)
        s.receive(ticket.number, LocalResult(torch.ones(3), 5, 1, 0.5), 1.0)

    first = server()
    arrive(first, 2)
    saved: dict[str, Any] = checkpoint.load(checkpoint.Checkpoints(tmp_path).save(1, first.save()))
    second = server()
    second.load(saved)
    for s in (first, second):
        arrive(s, 3)
    states = [s.state["aggregate"] for s in (first, second)]
    assert [type(s) for s in states] == [Outer, Outer]
    assert [(s.count, s.seen, list(s.inner.rows)) for s in states] == [(2, {2: 0, 3: 0}, [2, 3])] * 2
    assert torch.equal(first.weights, second.weights)
