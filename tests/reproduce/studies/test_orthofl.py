"""OrthoFL's studies: what is timed is the method's own reply; held-out examples; changes of a hidden layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.methods import methods
from tarry.reproduce.studies.calibration import PAPER, arrival, distilbert_lora, layout_of
from tarry.reproduce.studies.client_curves import Visits, held_out
from tarry.reproduce.studies.two_clients import cosines, hidden_layer
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import build_run


def test_layouts_have_the_papers_sizes() -> None:
    sizes = {name: layout_of(name, PAPER["models"][name]).n_params for name in PAPER["models"]}
    assert sizes["lenet5"] == 44_190
    assert sizes["distilbert-lora"] == 753_428  # 753K
    assert sizes["vgg11"] == pytest.approx(9.2e6, rel=0.01)
    assert sizes["mobilenetv2"] == pytest.approx(2.4e6, rel=0.01)
    assert sizes["resnet18-1d"] == pytest.approx(119e3, rel=0.05)


def test_lora_layout_by_hand() -> None:
    layout = distilbert_lora(3, rank=2, width=5, layers=1)
    shapes = [b.shape for b in layout.layers]
    assert shapes == [(2, 5), (5, 2), (2, 5), (5, 2), (5, 5), (5,), (3, 5), (3,)]
    assert layout.size == 4 * 10 + 25 + 5 + 15 + 3


def test_what_is_timed_is_eq_3_and_eq_5_to_7() -> None:
    layout = distilbert_lora(3, rank=2, width=5, layers=1)
    update, now = arrival(layout, 7, "cpu")
    method = methods.build("orthofl")
    start, _ = method.reply(update, method.reply.init(now.weights), now)
    step, _ = method.step(update, method.step.init(now.weights), now)
    assert start is not None
    sent, anchor, moved, here = (
        t.double().numpy() for t in (update.ticket.sent, update.ticket.anchor, update.delta, now.weights)
    )
    expected = sent + moved
    for b in layout.layers:
        shift, own = (here - anchor)[b.at], moved[b.at]
        expected[b.at] += shift - shift @ own / (own @ own) * own
    assert start.weights.numpy() == pytest.approx(expected, abs=1e-5)
    beta = 0.6 * 4**-0.5  # three steps late
    assert step.numpy() == pytest.approx((1 - beta) * here + beta * (sent + moved), abs=1e-5)


def _made(**changes: Any) -> Any:
    settings = {"task": {"name": "digits", "limit": 100}, "clients": 4, "updates": 10, "steps": 2, "batch": 8}
    return build_run(Spec.of({**settings, "method": "fedasync", **changes}))


def test_held_out_examples_are_each_clients_own_and_not_trained_on() -> None:
    made = _made()
    task, out = held_out(made.task, 0.25, seed=1)
    for (x, y), (kept, kept_y), (rest, rest_y) in zip(made.task.clients, task.clients, out, strict=True):
        assert len(rest) == round(0.25 * len(x))
        rows = sorted(map(tuple, torch.cat([kept, rest]).flatten(1).tolist()))
        assert rows == sorted(map(tuple, x.flatten(1).tolist()))
        assert sorted([*kept_y.tolist(), *rest_y.tolist()]) == sorted(y.tolist())
    again, _ = held_out(made.task, 0.25, seed=1)
    other, _ = held_out(made.task, 0.25, seed=2)
    assert torch.equal(task.clients[0][0], again.clients[0][0])
    assert not torch.equal(task.clients[0][0], other.clients[0][0])
    with pytest.raises(BadInput, match="held_out 1"):
        held_out(made.task, 1.0, seed=1)


def test_visits_score_what_was_given_and_what_was_sent_back() -> None:
    made = _made()
    _, examples = held_out(made.task, 0.25, seed=1)
    see, sent = Visits(made, examples), dict[int, torch.Tensor]()

    def both(update: Any, now: Any) -> None:
        see(update, now)
        sent.setdefault(update.ticket.client, update.local)

    run_observed(made, both)
    assert sum(map(len, see.by_client.values())) == 10
    for client, weights in sent.items():
        x, y = examples[client]
        w1, b1, w2, b2 = (t.double() for t in made.layout.views(weights).values())
        z = torch.relu(x.flatten(1).double() @ w1.T + b1) @ w2.T + b2
        right = 100 * float((z.argmax(1) == y).double().mean())
        loss = float(torch.nn.functional.cross_entropy(z, y))
        assert see.by_client[client][0][2:] == pytest.approx([right, loss], rel=1e-4)


def test_cosines_of_successive_changes_by_hand() -> None:
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    found = cosines([0, 0, 1, 0, 0], [x, 3 * x, -x, y, x + y / 2])
    assert found == pytest.approx({"fast-fast": (1 + 0.5**0.5) / 2, "fast-slow": -1.0, "slow-fast": 0.0})


def test_the_hidden_layer_is_the_last_map_before_the_head() -> None:
    made = _made()
    assert hidden_layer(made.layout).shape == (64, 64)
    lenet = layout_of("lenet5", {"shape": [1, 28, 28], "classes": 10})
    assert hidden_layer(lenet).shape == (84, 120)
    with pytest.raises(BadInput, match="no hidden layer"):
        hidden_layer(Layout((Block("head.weight", 0, 6, (2, 3), Kind.HEAD),)))


def test_noise_is_the_seeds_own() -> None:
    layout = distilbert_lora(3, rank=1, width=2, layers=1)
    (a, now), (b, _), (c, _) = arrival(layout, 1, "cpu"), arrival(layout, 1, "cpu"), arrival(layout, 2, "cpu")
    assert torch.equal(a.delta, b.delta)
    assert not torch.equal(a.delta, c.delta)
    assert not np.allclose(a.delta, now.weights)
