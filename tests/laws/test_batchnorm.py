"""Running statistics travel and are averaged, are never a direction, and whole-number buffers stay at home."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry import Layout
from tests.helpers.models import batchnorm_net
from tests.helpers.spy import spied
from tests.laws.variants import Choice, built, every_method, label, planned

CLIENTS = 5
#: clients 0 and 1 are fast, 2 to 4 ever slower: their answers are old when they come
SETTINGS: dict[str, Any] = {
    "delay": [[1.0], [1.0], [2.5], [4.0], [7.0, 2.0]],
    "dtype": "float64",
    "steps": 3,
    "batch": 6,
    "lr": 0.05,
    "time": 21.0,
    "seed": 2,
}


def net(momentum: float | None = 0.5) -> nn.Module:
    return batchnorm_net(3, 4, 3, momentum=momentum, seed=8)


def task(momentum: float | None = 0.5) -> tarry.Task:
    """Client k's inputs are spread ten times as wide as client k − 1's: variances lie orders of magnitude apart."""
    g = torch.Generator().manual_seed(9)
    data = []
    for k in range(CLIENTS):
        x = torch.randn(12, 3, generator=g) * 10.0 ** (1 - k)
        data.append((x, torch.randint(3, (12,), generator=g)))
    return tarry.Task("normed", model=net(momentum), loss=nn.functional.cross_entropy, clients=data, test=data[0])


LAYOUT = Layout.of(net())
VAR = next(b.at for b in LAYOUT.blocks if b.name == "1.running_var")
STATS = slice(LAYOUT.n_params, LAYOUT.size)


@every_method
def test_running_variances_stay_positive_in_the_global_and_at_every_start(choice: Choice) -> None:
    lowest = [torch.inf]

    def look(e: tarry.Event) -> None:
        lowest[0] = min(lowest[0], e.weights[VAR].min().item())

    method, spy = spied(built(choice))
    result = tarry.run(method, task(), callbacks=[look], **SETTINGS)
    assert result.updates >= 9
    assert lowest[0] > 0
    assert min(start[VAR].min().item() for start in spy.starts) > 0
    assert result.rejected == 0


def test_a_server_that_overshoots_does_not_overshoot_the_statistics() -> None:
    """η_g above 1 goes beyond the clients' mean; a variance must not be pulled through 0."""
    lowest = [torch.inf]

    def look(e: tarry.Event) -> None:
        lowest[0] = min(lowest[0], e.weights[VAR].min().item())

    tarry.run({"name": "fedbuff", "buffer": 2, "eta": 3.0}, task(), callbacks=[look], **SETTINGS)
    assert lowest[0] > 0


def statistics(choice: Choice) -> list[tuple[tarry.Event, Tensor, Tensor]]:
    """Every arrival with the statistics of the global after it, and of the client that came."""
    method, spy = spied(built(choice))
    seen: list[tuple[tarry.Event, Tensor, Tensor]] = []

    def look(e: tarry.Event) -> None:
        if e.kind == "arrival":
            seen.append((e, e.weights[STATS], spy.ends[-1][STATS]))

    tarry.run(method, task(), callbacks=[look], **SETTINGS)
    assert len(seen) >= 10
    return seen


FIRST = LAYOUT.read(net(), torch.float64)[STATS]


def test_fedavg_averages_the_statistics_of_its_round() -> None:
    """Equal sizes: the plain mean of five."""
    seen = statistics({"name": "fedavg"})
    for k in range(0, len(seen) - CLIENTS + 1, CLIENTS):
        mean = torch.stack([own for _, _, own in seen[k : k + CLIENTS]]).mean(dim=0)
        torch.testing.assert_close(seen[k + CLIENTS - 1][1], mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "choice", [{"name": "fedasync"}, {"name": "orthofl"}, {"name": "orthofl", "projection": "full"}]
)
def test_mixing_methods_mix_statistics_like_weights(choice: Choice) -> None:
    now = FIRST
    for e, after, own in statistics(choice):
        alpha = 0.6 * (e.staleness + 1) ** -0.5
        now = (1 - alpha) * now + alpha * own
        torch.testing.assert_close(after, now, rtol=1e-11, atol=0)


def test_fedbuff_goes_the_discounted_way_towards_the_clients_statistics() -> None:
    """stat ← stat + (1/K) Σ s(τ) (stat_k − stat): a convex mix, not a sum of old differences."""
    now, waiting = FIRST, list[Tensor]()
    for e, after, own in statistics({"name": "fedbuff", "buffer": 3}):
        waiting.append((1 + e.staleness) ** -0.5 * (own - now))
        if len(waiting) == 3:
            now, waiting = now + sum(waiting) / 3, []
        torch.testing.assert_close(after, now, rtol=1e-11, atol=0)


ORTHOFL: list[Choice] = [
    {"name": "orthofl", **extra}
    for extra in (
        {},
        {"projection": "full"},
        {"projection": "none"},
        {"placement": "client"},
        {"placement": "hybrid"},
        {"ablation": "pairwise"},
        {"state": "reference"},
    )
]


@pytest.mark.parametrize("choice", ORTHOFL, ids=label)
def test_an_orthofl_client_keeps_its_own_statistics(choice: Choice) -> None:
    """Weights are calibrated; statistics are no direction, so the next visit starts from the client's own."""
    method, spy = spied(built(choice))
    own: dict[int, Tensor] = {}
    kept = [0]

    def look(e: tarry.Event) -> None:
        if e.kind == "arrival":
            if e.client in own:
                torch.testing.assert_close(spy.starts[-1][STATS], own[e.client], rtol=1e-12, atol=0)
                kept[0] += 1
            own[e.client] = spy.ends[-1][STATS]

    tarry.run(method, task(), callbacks=[look], **SETTINGS)
    assert kept[0] >= 20


@every_method
def test_whole_number_buffers_never_travel(choice: Choice) -> None:
    made = planned(choice, task=task(), **SETTINGS)
    assert not any("num_batches" in b.name for b in made.layout.blocks)
    sizes = {e.weights.numel() for e in events(made.method)}
    assert sizes == {(3 * 4 + 4) + (4 + 4) + (4 * 3 + 3) + (4 + 4)}


def events(method: tarry.Method, momentum: float | None = 0.5, **changes: Any) -> list[tarry.Event]:
    seen: list[tarry.Event] = []
    tarry.run(method, task(momentum), callbacks=[seen.append], **{**SETTINGS, **changes})
    return seen


def test_the_batch_counter_begins_every_visit_at_its_first_value() -> None:
    """momentum=None averages over the batches counted so far: counting from 0, one batch replaces what was received.

    So after a visit of one step the running mean is that of the client's data under the first layer it was sent.
    """
    method, spy = spied(built({"name": "fedasync"}))
    problem, seen = task(None), events(method, None, steps=1, batch="all")
    arrivals = [e for e in seen if e.kind == "arrival"]
    assert len(arrivals) >= 20
    for e, start, end in zip(arrivals, spy.starts, spy.ends, strict=True):
        named = LAYOUT.views(start)
        hidden = problem.clients[e.client][0].double() @ named["0.weight"].T + named["0.bias"]
        after = LAYOUT.views(end)
        torch.testing.assert_close(after["1.running_mean"], hidden.mean(dim=0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(after["1.running_var"], hidden.var(dim=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.5, None])
@pytest.mark.parametrize("how", [{"executor": "pool", "lookahead": 3}, {"workers": 2}], ids=str)
def test_statistics_do_not_depend_on_who_was_trained_before(momentum: float | None, how: dict[str, Any]) -> None:
    plain = events(built({"name": "orthofl"}), momentum)[-1].weights
    assert torch.equal(events(built({"name": "orthofl"}), momentum, **how)[-1].weights, plain)
