"""Large arrays: they are encoded with one copy, and read and stored without any."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array as FlowerArray
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from tarry.core.layout import Layout
from tarry.core.tickets import LocalResult, Ticket
from tarry.deploy.flower_app import FlowerAppProtocol, StateDict
from tarry.deploy.grid import FlowerGrid, to_records
from tarry.deploy.protocol import ClientReply, tensor_of
from tarry.deploy.wire import ArraySchema, ReplyMessage, Request, decode_arrays, view_npy
from tarry.record.journal import Journal, Row
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, npy, small_plan


def python_peak(call: Callable[[], object]) -> int:
    """The most bytes that a call had allocated in Python and numpy."""
    tracemalloc.start()
    try:
        kept = call()
        peak = tracemalloc.get_traced_memory()[1]
        del kept
        return peak
    finally:
        tracemalloc.stop()


def test_arrays_of_a_reply_are_views_of_the_message_and_no_warning_is_given(recwarn):
    numbers = np.arange(1000, dtype=np.float32)
    message = npy(numbers)
    schema = ArraySchema({"delta": (1000,)}, np.dtype(np.float32))
    found = decode_arrays({"delta": message}, schema)["delta"]
    assert np.shares_memory(found, np.frombuffer(message.data, np.uint8))
    tensor = tensor_of(found)
    assert tensor.data_ptr() == found.ctypes.data
    assert torch.equal(tensor, torch.from_numpy(numbers))
    assert not recwarn.list


def test_a_message_to_a_client_is_read_without_a_copy():
    numbers = np.arange(12, dtype=np.float64).reshape(3, 4)
    for array in (numbers, numbers.T):
        data = npy(array).data
        found = view_npy(data)
        assert np.array_equal(found, array)
        assert np.shares_memory(found, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 3), dtype=np.float32),
        np.array([True, False]),
        np.array([1, 2], dtype=np.int64),
    ],
)
def test_an_array_is_encoded_as_flower_encodes_it(array):
    record = to_records({"a": 1}, {"x": array}).array_records["arrays"]["x"]
    flower = FlowerArray(np.asarray(array, order="C"))
    assert (record.data, record.dtype, record.shape, record.stype) == (
        flower.data,
        flower.dtype,
        flower.shape,
        flower.stype,
    )


def test_an_array_is_copied_once_when_it_is_encoded():
    array = np.ones(2_000_000, dtype=np.float32)
    assert python_peak(lambda: to_records({}, {"weights": array})) < 1.05 * array.nbytes


def test_an_update_is_saved_from_the_memory_of_its_message(tmp_path):
    numbers = np.ones(2_000_000, dtype=np.float32)
    result = LocalResult(tensor_of(numbers), 3, 2, 0.5, True, {"control": tensor_of(numbers[:10])})
    journal = Journal(tmp_path)
    assert python_peak(lambda: journal.save_update(0, result)) < 0.05 * numbers.nbytes
    found = journal.load_update(0)
    assert torch.equal(found.delta, result.delta)
    assert torch.equal(found.extras["control"], result.extras["control"])
    journal.close()


def test_a_checkpoint_is_written_from_the_memory_the_weights_are_in(tmp_path):
    weights = torch.ones(2_000_000)
    journal = Journal(tmp_path)
    assert python_peak(lambda: journal.checkpoint(1, {"weights": weights, "tickets": [weights]}, set())) < 2**20
    journal.close()


def test_checkpoints_of_a_federation_write_the_weights_once(tmp_path, monkeypatch):
    written = list[str]()
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(Path(b).suffix), replace(a, b))[1])
    journal, weights = Journal(tmp_path), torch.ones(2_000_000)
    for count in range(1, 5):
        journal.checkpoint(count, {"weights": weights, "tickets": [{"sent": weights, "anchor": weights}]}, set())
    assert written.count(".npy") == 1
    assert written.count(".safetensors") == 4
    journal.close()
    again = Journal(tmp_path)
    saved = again.saved
    assert torch.equal(saved["weights"], weights)
    assert saved["tickets"][0]["sent"] is saved["weights"]
    again.close()


def test_the_delta_of_a_plain_app_is_its_weights_minus_those_it_was_sent():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    layout, sent = Layout.of(module), torch.randn(27)
    protocol = FlowerAppProtocol(StateDict(layout, module), dtype=torch.float32, lr=lambda _: 0.1)
    local = torch.randn(27)
    arrays = {k: npy(np.asfortranarray(v.numpy())) for k, v in layout.views(local).items()}
    reply = ReplyMessage("r", 1, {"num-examples": 5}, arrays)
    ticket = Ticket(0, 0, 0, 0, 0.0, sent, sent)
    assert torch.equal(protocol.decode_reply(reply, ticket).result.delta, local - sent)


def test_a_resumed_server_does_not_keep_the_weights_it_began_with(tmp_path):
    made = small_plan(method="fedasync", updates=24)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", lambda _c, _n: 2.0))
    first = driver(made, grid, tmp_path / "out", checkpoint_every=1.0)
    while first.engine.updates < 8:
        first.tick()
        grid.clock.sleep(0.1)
    first.state.checkpoint()
    first.close()
    again = driver(made, grid, tmp_path / "out")
    assert again.engine.updates == 8
    began_with = weakref.ref(again.engine.server.weights)
    assert began_with() is not None
    finished(again, grid)
    grid.log.clear()
    assert began_with() is None


def test_updates_are_freed_before_the_next_tickets_are_sent(tmp_path):
    """Else a server holds its replies and its requests at the same time."""
    made = small_plan(method="fedasync", updates=8)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", lambda _c, _n: 2.0))  # all arrive at one instant
    d, alive, left = driver(made, grid, tmp_path / "out"), list[weakref.ref[torch.Tensor]](), list[int]()
    accept, push = d.state.accept, grid.push

    def watched_accept(row: Row, reply: ClientReply) -> None:
        alive.append(weakref.ref(reply.result.delta))
        accept(row, reply)

    def watched_push(requests: Sequence[Request]) -> list[str | None]:
        left.append(sum(ref() is not None for ref in alive))
        return push(requests)

    d.state.accept, grid.push = watched_accept, watched_push  # type: ignore[method-assign]
    finished(d, grid)
    assert len(alive) == 8
    assert left
    assert set(left) == {0}


class OneNode:
    """A grid of Flower that keeps no message, and that returns what was sent."""

    def __init__(self) -> None:
        self.sent: list[RecordDict] = []

    def push_messages(self, messages: list[Message]) -> list[str]:
        self.sent += [to_records({}, {k: a.numpy() for k, a in m.content["arrays"].items()}) for m in messages]
        return ["id"] * len(messages)

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [Message(self.sent.pop(), dst_node_id=1, message_type="train") for _ in ids]


class StateInMemory:
    """The state of Flower's simulation engine, as far as messages are stored in it."""

    def __init__(self) -> None:
        self.stored: list[Message] = []

    def state(self) -> StateInMemory:
        return self

    def store_message_ins(self, message: Message) -> str:
        self.stored.append(message)
        return message.metadata.message_id


@pytest.fixture
def _a_process_of_flower(monkeypatch):
    """Messages can be made."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("_a_process_of_flower")
def test_messages_in_the_simulation_engine_keep_their_arrays():
    """Its grid hands the message itself to the client."""
    grid, numbers = InMemoryGrid(StateInMemory()), np.ones(4, dtype=np.float32)  # type: ignore[arg-type]
    FlowerGrid(grid, "1").push([Request(1, "train", {}, {"weights": numbers}, 60.0)])
    (message,) = grid.state.stored  # type: ignore[attr-defined]
    assert np.array_equal(message.content["arrays"]["weights"].numpy(), numbers)


@pytest.mark.usefixtures("_a_process_of_flower")
def test_the_arrays_of_a_message_are_freed_without_the_garbage_collector():
    """Flower's records refer to each other in a circle, which would hold a large model until much later."""
    numbers, grid = np.ones(2_000_000, dtype=np.float32), FlowerGrid(OneNode(), "1")  # type: ignore[arg-type]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            assert grid.push([Request(1, "train", {}, {"weights": numbers}, 60.0)]) == ["id"]
            (reply,) = grid.pull(["id"])
            assert np.array_equal(view_npy(reply.arrays["weights"].data), numbers)
            del reply
        assert tracemalloc.get_traced_memory()[0] < 0.5 * numbers.nbytes
    finally:
        tracemalloc.stop()
        gc.enable()
