from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Method
from tarry.core.parts import Part, stateless
from tarry.core.server import Server
from tarry.core.state_tree import MemoryMeter, tensors
from tarry.core.tickets import LocalResult, NextStart, Ticket, Update
from tarry.methods import methods
from tests.helpers.tensors import vec

LAYOUT = Layout((Block("w", 0, 2, (2,), Kind.PARAM),))
BYTES = 16  # two float64


def moved(*delta: float, n: int = 1, finite: bool = True, **kw: object) -> LocalResult:
    return LocalResult(vec(*delta), n_examples=n, n_steps=1, loss=0.5, finite=finite, **kw)  # type: ignore[arg-type]


class TinyLab:
    """Two classes, scored by the two weights times the inputs."""

    inputs, mask, distill_lr = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]), None, 0.1

    def outputs(self, w, x):
        return x * w

    def grad(self, w, x, objective):
        w = w.detach().requires_grad_()
        loss = objective(x * w)
        return torch.autograd.grad(loss, w)[0], loss.detach()


def server(method: Method | str, *, n_clients: int = 4, seed: int = 0, **params: object) -> Server:
    made = methods.build(method, **params) if isinstance(method, str) else method
    return Server(made, vec(0, 0), layout=LAYOUT, n_clients=n_clients, seed=seed, model=TinyLab())


ADD = Method("add")


def test_hand_outs_are_numbered_over_all_clients_and_visits_a_client():
    s = server(ADD)
    tickets = [s.hand_out(c, float(i)) for i, c in enumerate([2, 0, 2, 2])]
    assert [(t.number, t.client, t.visit, t.time) for t in tickets] == [
        (0, 2, 0, 0),
        (1, 0, 0, 1),
        (2, 2, 1, 2),
        (3, 2, 2, 3),
    ]
    assert all(t.sent is s.weights and t.anchor is s.weights and t.payload == {} for t in tickets)


def test_staleness_is_the_number_of_server_steps_between_hand_out_and_arrival():
    s = server(ADD)
    first, second = s.hand_out(0, 0), s.hand_out(1, 0)
    assert s.receive(first.number, moved(1, 0), 1.0)[1:4] == (True, True, 0)
    third = s.hand_out(0, 1.0)
    assert s.receive(third.number, moved(1, 0), 2.0).staleness == 0
    assert s.receive(second.number, moved(0, 1), 3.0).staleness == 2
    assert s.version == 3
    assert s.weights.tolist() == [2, 1]


def test_steps_are_counted_not_arrivals():
    s = server("fedbuff", buffer=2, a=0.0)
    tickets = [s.hand_out(c, 0) for c in range(4)]
    got = [s.receive(t.number, moved(2, 2), 1.0) for t in tickets]
    assert [(r.stepped, r.staleness) for r in got] == [(False, 0), (True, 0), (False, 1), (True, 1)]
    assert s.version == 2
    assert s.weights.tolist() == [4, 4]


def test_a_ticket_answers_once():
    s = server(ADD)
    number = s.hand_out(0, 0).number
    s.receive(number, moved(1, 1), 1.0)
    with pytest.raises(KeyError):
        s.receive(number, moved(1, 1), 1.0)


def test_late_first_contact_gets_the_global_of_the_moment_and_is_fresh():
    s = server("orthofl")
    for time in range(3):
        s.receive(s.hand_out(0, time).number, moved(1, 0), time + 0.5)
    late = s.hand_out(3, 5.0)
    assert late.sent is s.weights
    assert late.anchor is s.weights
    assert (late.version, late.visit, late.number) == (3, 0, 3)
    assert s.receive(late.number, moved(0, 1), 6.0).staleness == 0


def test_a_part_sees_the_moment_before_anything_changed():
    seen = []

    def look(update: Update, now):
        seen.append((now.weights.tolist(), now.version, now.time, now.in_flight, now.n_clients, update.staleness))
        return update

    s = server(Method("look", correct=stateless(look)), n_clients=3)
    a, b = s.hand_out(0, 0), s.hand_out(1, 0)
    s.receive(a.number, moved(1, 0), 1.5)
    s.receive(b.number, moved(1, 0), 2.5)
    assert seen == [([0, 0], 0, 1.5, 1, 3, 0), ([1, 0], 1, 2.5, 0, 3, 1)]


def test_parts_run_in_order_and_the_reply_sees_the_update_as_it_came():
    calls = []

    def recorded(name, answer):
        def apply(x, state, now):
            calls.append((name, x.weight, state))
            return answer(x), state + 1

        return Part(apply, lambda weights: 0)

    m = Method(
        "recorded",
        correct=recorded("correct", lambda u: u.replace(weight=0.5)),
        aggregate=recorded("aggregate", lambda u: u),
        step=recorded("step", lambda u: u.ticket.sent + u.weight * u.delta),
        reply=recorded("reply", lambda u: None),
    )
    s = server(m)
    for time in range(2):
        s.receive(s.hand_out(0, time).number, moved(4, 0), time)
    assert calls == [
        *[(name, weight, 0) for name, weight in (("correct", 1), ("aggregate", 0.5), ("step", 0.5), ("reply", 1))],
        *[(name, weight, 1) for name, weight in (("correct", 1), ("aggregate", 0.5), ("step", 0.5), ("reply", 1))],
    ]
    assert s.weights.tolist() == [4, 0]


def test_a_start_of_the_clients_own_is_handed_out_once_with_anchor_and_version_of_right_after():
    m = Method("own", reply=stateless(lambda u, now: NextStart(u.local * 10, {"tip": vec(7, 7)})))
    s = server(m)
    s.receive(s.hand_out(0, 0).number, moved(1, 2), 1.0)
    after = s.weights
    s.receive(s.hand_out(1, 1).number, moved(1, 0), 2.0)
    t = s.hand_out(0, 3.0)
    assert t.sent.tolist() == [10, 20]
    assert t.anchor is after
    assert (t.version, t.visit, t.payload["tip"].tolist()) == (1, 1, [7, 7])
    assert s.receive(t.number, moved(0, 0), 4.0).staleness == 1
    assert s.starts.keys() == {0, 1}


def ortho_in_flight() -> tuple[Server, Ticket]:
    """Client 0 has a start of its own and is in flight; client 1's step has moved the global since."""
    s = server("orthofl")
    a, b = s.hand_out(0, 0), s.hand_out(1, 0)
    s.receive(a.number, moved(1, 0), 1.0)
    own = s.hand_out(0, 1.0)
    s.receive(b.number, moved(0, 1), 2.0)
    return s, own


@pytest.mark.parametrize("how", ["lost", "not finite"])
def test_who_is_lost_or_refused_gets_the_same_start_again(how):
    s, own = ortho_in_flight()
    before, version = s.weights, s.version
    if how == "lost":
        receipt = s.lose(own.number, 3.0)
    else:
        receipt = s.receive(own.number, moved(float("nan"), 0, finite=False), 3.0)
    assert receipt[:4] == (own, False, False, 1)
    assert s.weights is before
    assert s.version == version
    again = s.hand_out(0, 4.0)
    assert again.sent is own.sent
    assert again.anchor is own.anchor
    assert again.version == own.version
    assert (again.visit, again.number) == (own.visit + 1, own.number + 1)
    assert s.receive(again.number, moved(1, 1), 5.0).staleness == 1


def test_a_client_lost_with_the_plain_global_gets_the_newest_global():
    s = server("orthofl")
    a, b = s.hand_out(0, 0), s.hand_out(1, 0)
    s.receive(b.number, moved(0, 1), 1.0)
    s.lose(a.number, 2.0)
    again = s.hand_out(0, 2.0)
    assert again.sent is s.weights
    assert again.version == 1


def test_a_start_with_a_payload_survives_a_loss_even_when_its_weights_are_the_anchor():
    m = Method(
        "recorded",
        step=stateless(lambda u, now: u.local),
        reply=stateless(lambda u, now: NextStart(now.weights, {"beta": vec(0.5)})),
    )
    s = server(m)
    s.receive(s.hand_out(0, 0).number, moved(1, 0), 1.0)
    t = s.hand_out(0, 1.0)
    s.lose(t.number, 2.0)
    again = s.hand_out(0, 2.0)
    assert again.sent is t.sent
    assert again.payload["beta"] is t.payload["beta"]


def test_a_round_goes_on_without_those_who_are_lost():
    s = server("fedavg", weighting="uniform")
    a, b, c = (s.hand_out(i, 0) for i in range(3))
    assert not s.lose(a.number, 1.0).stepped
    assert not s.receive(b.number, moved(2, 0), 2.0).stepped
    assert s.receive(c.number, moved(0, 4), 3.0).stepped
    assert s.weights.tolist() == [1, 2]


def test_a_round_ends_when_its_last_member_is_lost():
    s = server("fedavg", weighting="examples")
    a, b, c = (s.hand_out(i, 0) for i in range(3))
    s.receive(a.number, moved(4, 0, n=3), 1.0)
    s.receive(b.number, moved(0, 4, n=1), 2.0)
    receipt = s.lose(c.number, 3.0)
    assert (receipt.accepted, receipt.stepped) == (False, True)
    assert s.weights.tolist() == [3, 1]
    assert s.version == 1


def test_a_round_that_loses_everybody_makes_no_step_and_leaves_nothing_over():
    s = server("fedavg")
    for t in [s.hand_out(i, 0) for i in range(2)]:
        assert not s.lose(t.number, 1.0).stepped
    assert s.version == 0
    assert s.receive(s.hand_out(0, 1.0).number, moved(1, 1), 2.0).stepped
    assert s.weights.tolist() == [1, 1]


def test_inputs_are_never_written_to():
    for name in methods:
        s = server(name)
        first = s.weights
        tickets = [s.hand_out(c, 0) for c in range(4)]
        trained = [moved(1 + c, 2 - c) for c in range(4)]
        for t, got in zip(tickets, trained, strict=True):
            s.receive(t.number, got, 1.0)
        assert first.tolist() == [0, 0]
        assert [got.delta.tolist() for got in trained] == [[1 + c, 2 - c] for c in range(4)]


def test_refilling_picks_as_many_idle_clients_as_are_missing():
    s, roster = server(ADD, n_clients=6), IdleClients(6, 4)
    picked = s.select_clients(roster, 0.0)
    assert len(picked) == 4
    tickets = [s.hand_out(c, 0.0) for c in picked]
    assert s.select_clients(roster, 0.5) == []
    for t in tickets[:2]:
        s.receive(t.number, moved(0, 0), 1.0)
        roster.add(t.client)
    assert len(s.select_clients(roster, 1.0)) == 2


def test_a_barrier_picks_nobody_while_anybody_trains():
    s, roster = server("fedavg", n_clients=5), IdleClients(5, 3)
    tickets = [s.hand_out(c, 0.0) for c in s.select_clients(roster, 0.0)]
    assert len(tickets) == 3
    for t in tickets:
        assert s.select_clients(roster, 1.0) == []
        s.receive(t.number, moved(0, 0), 1.0)
        roster.add(t.client)
    assert len(s.select_clients(roster, 1.0)) == 3


def test_whom_the_server_picks_follows_from_the_seed():
    def picks(seed: int) -> list[list[int]]:
        s, roster = server(ADD, n_clients=30, seed=seed), IdleClients(30, 3)
        out = []
        for time in range(8):
            out.append(s.select_clients(roster, time))
            for c in out[-1]:
                roster.add(c)
        return out

    assert picks(1) == picks(1)
    assert picks(1) != picks(2)
    assert len({tuple(p) for p in picks(1)}) > 4


def test_a_vector_that_many_share_counts_once():
    s = server("fedasync")
    assert s.meter.peak == BYTES
    tickets = [s.hand_out(c, 0) for c in range(4)]
    assert (s.meter.held, s.meter.peak) == (BYTES, BYTES)
    s.receive(tickets[0].number, moved(1, 0), 1.0)  # the first global (three tickets hold it) and the second
    assert (s.meter.held, s.meter.peak) == (2 * BYTES, 2 * BYTES)
    s.hand_out(0, 1.0)
    s.receive(tickets[1].number, moved(1, 0), 2.0)  # two old ones in flight, and the newest
    assert s.meter.peak == 3 * BYTES
    for t in tickets[2:]:
        s.receive(t.number, moved(1, 0), 3.0)
    # the second global (client 0 holds it), the one just left behind (for an instant) and the newest
    assert s.meter.held == 2 * BYTES
    assert s.meter.peak == 4 * BYTES


def test_starts_of_the_clients_own_and_their_anchors_count():
    s = server("orthofl")
    a, b = s.hand_out(0, 0), s.hand_out(1, 0)
    s.receive(a.number, moved(1, 0), 1.0)  # W0 (client 1), W1, start of 0
    assert s.meter.held == 3 * BYTES
    s.hand_out(0, 1.0)
    assert s.meter.held == 3 * BYTES
    s.receive(b.number, moved(0, 1), 2.0)  # W0, W1 (anchor of 0), start of 0, W2, start of 1; then W0 goes
    assert s.meter.peak == 5 * BYTES
    assert s.meter.held == 4 * BYTES


def test_what_parts_remember_counts_beside_what_is_held():
    s = server("fedbuff", buffer=3)
    tickets = [s.hand_out(c, 0) for c in range(2)]
    s.receive(tickets[0].number, moved(1, 0), 1.0)
    assert s.meter.peak == 2 * BYTES  # the global and the buffer's sum


def test_a_payload_counts_its_own_bytes():
    s = server("orthofl", placement="client")
    s.receive(s.hand_out(0, 0).number, moved(1, 0), 1.0)
    # the weights before (sent to the client), those after, and β_t, one float64
    assert s.meter.held == 2 * BYTES + 8


@pytest.mark.parametrize("name", list(methods))
def test_a_server_saved_in_mid_flight_goes_on_as_if_nothing_had_been(name):
    s = server(name, n_clients=3, seed=5)
    tickets = [s.hand_out(c, 0) for c in range(3)]
    s.receive(tickets[0].number, moved(1, 2, n=3), 1.0)
    s.receive(tickets[1].number, moved(-1, 1, n=2), 2.0)
    s.hand_out(1, 2.0)
    again = server(name, n_clients=3, seed=5)
    again.load(copy.deepcopy(s.save()))
    assert again.meter.held == s.meter.held

    def rest(x: Server) -> list[object]:
        roster = IdleClients(3, 3, away=[1, 2])
        x.receive(tickets[2].number, moved(0.5, 3, n=1), 3.0)
        x.lose(3, 3.5)
        out: list[object] = [x.select_clients(roster, 3.5)]
        for time, client in ((4.0, 0), (5.0, 1), (6.0, 2)):
            t = x.hand_out(client, time)
            out.append((t.number, t.visit, t.version, t.sent.tolist(), t.anchor.tolist()))
            out.append(x.receive(t.number, moved(time, 1, n=client + 1), time + 1)[1:])
        return [*out, x.weights.tolist(), x.version, x.meter.peak, x.meter.held]

    assert rest(s) == rest(again)


@pytest.mark.parametrize("name", list(methods))
def test_what_is_saved_does_not_change_when_the_server_goes_on(name):
    s = server(name)
    tickets = [s.hand_out(c, 0) for c in range(3)]
    s.receive(tickets[0].number, moved(1, 2), 1.0)
    saved = s.save()
    then = plain(saved)
    s.receive(tickets[1].number, moved(5, 5), 2.0)
    s.hand_out(0, 2.0)
    assert plain(saved) == then


def plain(tree: object) -> object:
    """A record as one that can be compared."""
    if isinstance(tree, Tensor):
        return tree.tolist()
    if isinstance(tree, dict):
        return {k: plain(v) for k, v in tree.items()}
    return [plain(v) for v in tree] if isinstance(tree, list | tuple) else tree


def test_a_ledger_counts_a_tensor_held_twice_once_until_both_let_go():
    ledger, a, b = MemoryMeter(), vec(1, 2), vec(3)
    ledger.hold(a)
    ledger.hold(a)
    ledger.hold(b)
    assert (ledger.held, ledger.peak) == (24, 24)
    ledger.release(a)
    assert ledger.held == 24
    ledger.release(a)
    assert (ledger.held, ledger.peak) == (8, 24)
    ledger.observe({"x": [b, (vec(1, 1, 1), None)], "y": "z"})
    assert (ledger.held, ledger.peak) == (8, 32)
    with pytest.raises(KeyError):
        ledger.release(a)


def test_every_tensor_of_a_record_is_found():
    a, b, c = vec(1), vec(2), vec(3)
    assert list(tensors({"a": a, "b": [1, (b, None)], 3: {"c": c}, "d": "text"})) == [a, b, c]
    assert list(tensors(None)) == []
