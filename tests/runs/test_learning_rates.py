"""Learning rates: a visit's is --lr times the factor of its schedule at the hand-out; so are those of server steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.runs.build import build_run
from tests.helpers.models import Scale


def task(clients: int = 1) -> tarry.Task:
    """½ w² for everybody: a step at rate η takes w to (1 − η) w."""
    one = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1))
    return tarry.Task(
        "point",
        model=Scale([1.0]),
        loss=lambda out, y: 0.5 * (out**2).mean(),
        clients=[one] * clients,
        metrics=["loss"],
    )


def test_the_rate_falls_with_every_server_step():
    result = tarry.run(
        "fedavg", task(), delay=[1.0], lr=0.5, lr_decay=0.5, steps=1, batch="all", updates=3, dtype="float64"
    )
    assert result.weights is not None
    assert result.weights.item() == pytest.approx(0.5 * 0.75 * 0.875)


def test_a_stale_client_keeps_the_rate_of_its_hand_out():
    """Client 1 is handed w = 1 at version 0 and comes third: its step is of rate 0.5 still."""
    seen: list[tuple[int, float]] = []
    tarry.run(
        "asgd",
        task(2),
        delay=[1.0, 2.5],
        lr=0.5,
        lr_decay=0.5,
        steps=1,
        batch="all",
        updates=3,
        dtype="float64",
        callbacks=[lambda e: seen.append((e.client, e.weights.item())) if e.kind == "arrival" else None],
    )
    eta = 0.4
    first = 1 - eta * 0.5
    second = first - eta * 0.25 * first
    third = second - eta * 0.5 * 1.0
    assert [c for c, _ in seen] == [0, 0, 1]
    assert [w for _, w in seen] == pytest.approx([first, second, third])


def test_the_number_of_workers_changes_nothing():
    settings = {"time": 400.0, "lr_decay": 0.9, "seed": 3}
    alone, two = (tarry.run("fedasync", "digits", workers=n, **settings).weights_sha256 for n in (1, 2))
    assert alone == two


@pytest.mark.parametrize("decay", [0.0, 1.5, -1.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(BadInput, match="lr_decay"):
        tarry.run("fedavg", "digits", lr_decay=decay)


def rates(task_: tarry.Task, **settings: Any) -> list[tuple[int, float]]:
    """The client and the learning rate of every arrival, read off its displacement: w moves by rate · w."""
    seen: list[tuple[int, float]] = []

    def look(update: tarry.Update, view: tarry.ServerView) -> tarry.Update:
        seen.append((update.ticket.client, -update.delta.item() / update.ticket.sent.item()))
        return update

    method = tarry.Method("watched", correct=tarry.stateless(look))
    tarry.run(method, task_, steps=1, batch="all", dtype="float64", **settings)
    return seen


def test_a_schedule_counts_server_steps_visits_or_seconds_at_the_hand_out():
    """Hand-outs: client 0 at 0, 1, 2 s with versions 0, 1, 2; client 1 at 0 and 2.5 s with versions 0 and 3."""
    given: dict[str, Any] = {"delay": [1.0, 2.5], "lr": 0.5, "updates": 5}
    expected = {
        "rounds": [(0, 1.0), (0, 0.5), (1, 1.0), (0, 0.25), (0, 0.0625)],
        "visits": [(0, 1.0), (0, 0.5), (1, 1.0), (0, 0.25), (0, 0.125)],
        "time": [(0, 1.0), (0, 0.5), (1, 1.0), (0, 0.25), (0, 0.125)],
    }
    for by, factors in expected.items():
        found = rates(task(2), lr_schedule=f"exponential:factor=0.5,by={by}", **given)
        assert [c for c, _ in found] == [c for c, _ in factors]
        assert [r for _, r in found] == pytest.approx([0.5 * f for _, f in factors]), by


def test_a_function_may_combine_what_is_counted():
    def factor(at: tarry.ScheduleInput) -> float:
        return 1.0 if at.time < 1.5 and at.version < 2 else 0.5**at.visit

    found = rates(task(2), lr_schedule=factor, delay=[1.0, 2.5], lr=0.5, updates=4)
    assert [r for _, r in found] == pytest.approx([0.5, 0.5, 0.5, 0.125])


def test_a_factory_in_a_file_makes_a_schedule(tmp_path):
    (tmp_path / "mine.py").write_text("def falling(*, base: float = 0.5):\n    return lambda at: base**at.visit\n")
    choice = {"name": f"{tmp_path}/mine.py:falling", "base": 0.25}
    assert [r for _, r in rates(task(), lr_schedule=choice, delay=[1.0], lr=0.5, updates=2)] == [0.5, 0.125]


def test_decay_is_a_schedule_and_both_are_rejected():
    settings = {"updates": 12, "clients": 4, "seed": 1}
    decay = tarry.run("fedasync", "digits", lr_decay=0.9, **settings)
    schedule = tarry.run("fedasync", "digits", lr_schedule="exponential:factor=0.9", **settings)
    assert decay.weights_sha256 == schedule.weights_sha256
    with pytest.raises(BadInput, match=r"lr_decay=0\.9, lr_schedule='constant': a decay is a schedule; leave out one"):
        tarry.run("fedasync", "digits", lr_decay=0.9, lr_schedule="constant")


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("fedogd:privacy=true", "cosine:length=10,warmup=3"),
        ("orthofl", "linear:by=visits,length=3,warmup=1"),
        ("scaffold", "exponential:by=time,factor=0.999,warmup=30"),
    ],
)
def test_processes_lookahead_and_clipping_change_no_bit(method, schedule):
    given: dict[str, Any] = {"updates": 10, "clients": 3, "seed": 3, "clip_norm": 0.5, "lr_schedule": schedule}
    alone = tarry.run(method, "digits", **given)
    others = [tarry.run(method, "digits", workers=2, lookahead=n, **given) for n in (0, 3)]
    assert {r.weights_sha256 for r in others} == {alone.weights_sha256}
    together = tarry.run(method, "digits", executor="batched", **given)
    torch.testing.assert_close(together.weights, alone.weights, rtol=1e-4, atol=1e-5)
    constant = tarry.run(method, "digits", **{**given, "lr_schedule": None})
    assert constant.weights is not None
    assert alone.weights is not None
    assert not torch.allclose(constant.weights, alone.weights, atol=1e-3)


@pytest.mark.parametrize("method", ["mifa", "fedogd"])
def test_a_server_that_steps_at_the_clients_rate_rejects_a_schedule_by_visits(method):
    for schedule in ("cosine:by=visits,length=4", lambda at: 0.5**at.visit):
        with pytest.raises(BadInput, match=r"steps at the clients' learning rate .* use by=rounds or by=time"):
            tarry.run(method, "digits", lr_schedule=schedule, updates=3)
    assert tarry.run(method, "digits", lr_schedule="cosine:by=time,length=400", clients=3, updates=3).updates == 3


def test_a_remembered_update_counts_at_the_rate_of_the_round():
    """MIFA over ½ w²: G = w whatever the rate was, so a round takes W to W (1 − its rate)."""
    factors = {0: 1.0, 1: 0.25, 2: 0.5}
    result = tarry.run(
        {"name": "mifa", "no_wait": True}, task(), lr_schedule=lambda at: factors[min(at.version, 2)], delay=[1.0],
        lr=0.5, steps=1, batch="all", rounds=3, dtype="float64",
    )  # fmt: skip
    assert result.weights is not None
    assert result.weights.item() == pytest.approx(0.5 * 0.875 * 0.75)


@pytest.mark.parametrize(
    "method",
    [
        "asgd",
        "fedbuff:buffer=2",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedavgm",
        "fadas:buffer=2",
        "fedac:buffer=2",
        "gradma",
    ],
)
def test_a_server_schedule_multiplies_the_rate_of_each_step(method):
    """Until the first drop the run is the one without a schedule; a constant one changes no bit."""
    given: dict[str, Any] = {"rounds": 3, "clients": 4, "seed": 1, "delay": "constant"}
    steps: dict[str, list[torch.Tensor]] = {}
    for name, schedule in {"none": None, "constant": "constant", "drop": "step:every=2,factor=0.5"}.items():
        steps[name] = weights = []

        def look(event: tarry.Event, weights: list[torch.Tensor] = weights) -> None:
            if event.version > len(weights):
                weights.append(event.weights.clone())

        tarry.run(method, "digits", server_lr_schedule=schedule, callbacks=[look], **given)
    assert all(torch.equal(a, b) for a, b in zip(steps["none"], steps["constant"], strict=True))
    assert all(torch.equal(steps["none"][i], steps["drop"][i]) for i in range(2))
    before, whole, half = steps["none"][1], steps["none"][2], steps["drop"][2]
    torch.testing.assert_close(half - before, (whole - before) / 2, rtol=1e-3, atol=1e-5)


def test_a_server_schedule_goes_with_a_cross_and_a_distillation():
    given: dict[str, Any] = {"clients": 3, "updates": 4, "seed": 1}
    for settings in ({"step": "fedadam"}, {"distill": "fedecho"}, {"manifold": "line"}):
        whole, less = (
            tarry.run("asgd", "digits", server_lr_schedule=s, **settings, **given)
            for s in (None, "exponential:factor=0.5")
        )
        assert whole.weights_sha256 != less.weights_sha256


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "orthofl", "mifa"])
def test_a_method_without_a_server_rate_names_those_that_have_one(method):
    with pytest.raises(BadInput, match=f"the step of {method} has no learning rate; asgd, .*fedadam.* have one"):
        tarry.run(method, "digits", server_lr_schedule="cosine:length=4")


def test_a_server_schedule_by_visits_is_rejected():
    with pytest.raises(BadInput, match="the server has no visits of its own; use by=rounds or by=time"):
        tarry.run("asgd", "digits", server_lr_schedule="cosine:by=visits,length=4")


def test_clients_with_an_optimizer_of_their_own_ignore_schedule_and_clipping_with_a_notice():
    with pytest.warns(tarry.TarryWarning, match="lr_schedule.* clip_norm.* changes nothing: these clients have"):
        told = tarry.run("asynccurve", "digits", clients=2, updates=2, lr_schedule="constant:warmup=5", clip_norm=1.0)
    assert told.weights_sha256 == tarry.run("asynccurve", "digits", clients=2, updates=2).weights_sha256


def test_fine_tuning_is_at_the_rate_of_the_clients_next_visit():
    """Each client made two visits; its tuning is its third: w moves to w (1 − 0.5 · 0.25)."""
    one = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1))
    mine = tarry.Task(
        "point",
        model=Scale([1.0]),
        loss=lambda out, y: 0.5 * (out**2).mean(),
        clients=[one],
        test=one,
        metrics=[tarry.Metric("output", lambda out, y: out.item())],
    )
    result = tarry.run(
        "fedavg", mine, delay=[1.0], lr=0.5, lr_schedule="exponential:factor=0.5,by=visits", epochs=1, batch="all",
        updates=2, dtype="float64", personalize=1,
    )  # fmt: skip
    final = 0.5 * 0.75
    assert result.weights is not None
    assert result.weights.item() == pytest.approx(final)
    assert result.personalization is not None
    assert result.personalization["after"]["mean"] == pytest.approx(final * 0.875)


def test_a_run_without_these_settings_has_none_of_them():
    built = build_run(Spec.of({"task": "digits"}))
    assert built.work.optimizer_at is None
    assert built.schedule is None
    assert not {"lr_schedule", "server_lr_schedule", "clip_norm", "clip_value"} & {
        line.partition(" ")[0] for line in built.spec.to_toml().splitlines()
    }
