"""The state of a method survives a checkpoint with its types, and a copy of it shares nothing that is written to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from tarry.core.client_table import ClientTable
from tarry.core.state_tree import StateRecord, copy_tree, tensors
from tarry.record import checkpoint
from tarry.runs.simulation import Simulation
from tests.laws.variants import EVERYTHING, Choice, every_method, planned


def types(tree: Any) -> Any:
    """The types of a tree, node by node; numbers, text and None by their value, tensors by their size."""
    if isinstance(tree, Tensor):
        return tree.dtype, tuple(tree.shape)
    if isinstance(tree, ClientTable):
        return ClientTable, {k: types(tree[k]) for k in tree}
    if isinstance(tree, StateRecord):
        return type(tree), types(tree.dump())
    if isinstance(tree, dict):
        return type(tree), {k: types(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree), [types(v) for v in tree]
    return type(tree), tree


def mutable(tree: Any) -> Iterator[int]:
    """The identity of every node that can be written in place. A tensor is not written to: it may be shared."""
    if isinstance(tree, ClientTable | dict | list) or (
        isinstance(tree, StateRecord) and not type(tree).__dataclass_params__.frozen  # type: ignore[attr-defined]
    ):
        yield id(tree)
    values: Any = ()
    if isinstance(tree, StateRecord):
        values = tree.dump().values()
    elif isinstance(tree, dict):
        values = tree.values()
    elif isinstance(tree, list | tuple):
        values = tree
    for value in values:
        yield from mutable(value)


@every_method
def test_a_state_keeps_its_types_through_a_checkpoint_and_shares_nothing_mutable_with_a_copy(
    choice: Choice, tmp_path: Path
) -> None:
    made = planned(choice, **EVERYTHING)
    run = Simulation(made)
    executor = run.executor()
    sim, fresh, instants = run.simulator(executor, []), run.simulator(executor, []), [0]

    def between() -> None:
        instants[0] += 1
        if instants[0] not in (1, 9):
            return
        state = sim.server.state
        copy = copy_tree(state)
        assert types(copy) == types(state)
        assert not set(mutable(copy)) & set(mutable(state))
        assert [id(t) for t in tensors(copy)] == [id(t) for t in tensors(state)]
        fresh.load(checkpoint.load(checkpoint.Checkpoints(tmp_path).save(instants[0], sim.save())))
        assert types(fresh.server.state) == types(state)

    sim.run(between)
    executor.close()
    assert instants[0] >= 9
