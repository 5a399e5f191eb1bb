"""--personalize: every client tunes the answer on its own examples, and is scored on its own mix of classes."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry import Layout
from tarry.core import rng
from tarry.core.compose import compose
from tarry.core.errors import BadInput
from tarry.core.method import Personalization
from tarry.core.rng import Stream
from tarry.record.binding import seal
from tarry.runs.task_metrics import majority_accuracy
from tests.helpers.interrupted import interrupted_run


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def drawn(g: torch.Generator, classes: list[int], n: int) -> tuple[Tensor, Tensor]:
    y = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=g)]
    return torch.randn(n, 4, generator=g) + 1.5 * nn.functional.one_hot(y, 4), y


def task(**changes: Any) -> tarry.Task:
    """Four clients who hold two or three of four classes each; the test set has them all, unevenly."""
    g = torch.Generator().manual_seed(4)
    mixes = [([0, 0, 1], 9), ([1, 2], 14), ([2, 3, 3], 6), ([0, 1, 3], 11)]
    data = [drawn(g, classes, n) for classes, n in mixes]
    made = tarry.Task("four", net(), nn.functional.cross_entropy, clients=data, test=drawn(g, [0, 1, 1, 2, 3], 80))
    return replace(made, **changes)


RUN: dict[str, Any] = {
    "dtype": "float64",
    "delay": [[1.0], [2.0, 1.0], [1.5], [3.0]],
    "concurrency": 3,
    "steps": 3,
    "batch": 4,
    "lr": 0.3,
    "time": 9.0,
    "seed": 11,
}


def found(result: tarry.Result) -> dict[str, Any]:
    assert result.personalization is not None
    return result.personalization


def loaded(weights: Tensor | None) -> nn.Module:
    assert weights is not None
    model = net()
    with torch.no_grad():
        for name, value in Layout.of(model).views(weights).items():
            model.get_parameter(name).copy_(value)
    return model


def own_accuracy(model: nn.Module, labels: Tensor) -> float:
    """Σ_c (n_c / n) · accuracy on class c, an example at a time."""
    test = task().test
    assert test is not None
    total = 0.0
    for c in set(labels.tolist()):
        of_class = [(x, y) for x, y in zip(*test, strict=True) if y == c]
        right = sum(int(model(x.double()).argmax() == y) for x, y in of_class)
        total += (labels == c).double().mean().item() * right / len(of_class)
    return total


def tuned(
    model: nn.Module, client: int, *, epochs: int, batch: int | None, lr: float, seed: int = 11, **solver: float
) -> nn.Module:
    """By hand: fresh SGD over the client's examples, in the order of visit −1."""
    x, y = task().clients[client]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **solver)
    for epoch in range(epochs):
        key = rng.key(rng.key(seed, Stream.ORDER, client, -1), epoch)
        order = np.arange(len(x)) if batch is None else rng.permutation(key, len(x))
        for part in torch.split(torch.from_numpy(order), batch or len(x)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part].double()), y[part]).backward()
            optimizer.step()
    return model


# The numbers


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "orthofl", "fedsol", "fedprox"])
@pytest.mark.parametrize("batch", ["all", 4])
def test_every_client_is_tuned_by_plain_training_and_scored_on_its_own_classes(method: str, batch: Any) -> None:
    """Against a loop written out by hand, whatever the method's own local rule: FedSOL without its perturbation."""
    solver = {"momentum": 0.5, "weight_decay": 0.01}
    result = tarry.run(method, task(), personalize=3, **{**RUN, **solver, "batch": batch})
    size = None if batch == "all" else batch
    for client, (_, y) in enumerate(task().clients):
        before, model = loaded(result.weights), loaded(result.weights)
        tuned(model, client, epochs=3, batch=size, lr=0.3, **solver)
        assert found(result)["before"]["per_client"][client] == pytest.approx(own_accuracy(before, y), rel=1e-12)
        assert found(result)["after"]["per_client"][client] == pytest.approx(own_accuracy(model, y), rel=1e-12)
    assert (found(result)["epochs"], found(result)["clients"], found(result)["rejected"]) == (3, 4, 0)


def test_means_and_standard_deviations_are_over_clients() -> None:
    personal = found(tarry.run("fedavg", task(), personalize=2, **RUN))
    for when in ("before", "after"):
        values = personal[when]["per_client"]
        assert len(set(values)) > 1
        assert personal[when]["mean"] == pytest.approx(sum(values) / 4)
        assert personal[when]["sd"] == pytest.approx((sum((v - sum(values) / 4) ** 2 for v in values) / 4) ** 0.5)
    assert personal["after"]["mean"] > personal["before"]["mean"]


def test_no_epochs_scores_what_there_is() -> None:
    personal = found(tarry.run("fedavg", task(), personalize=0, **RUN))
    assert personal["after"] == personal["before"]
    assert personal["epochs"] == 0


def test_the_rate_is_what_it_was_at_the_end_of_the_run() -> None:
    result = tarry.run("fedasync", task(), personalize=2, lr_decay=0.8, **{**RUN, "batch": "all"})
    assert result.rounds > 5
    models = [tuned(loaded(result.weights), c, epochs=2, batch=None, lr=0.3 * 0.8**result.rounds) for c in range(4)]
    expected = [own_accuracy(m, y) for m, (_, y) in zip(models, task().clients, strict=True)]
    assert found(result)["after"]["per_client"] == pytest.approx(expected, rel=1e-12)


def test_classes_that_are_not_tested_count_for_nobody_and_who_has_no_other_has_no_score() -> None:
    """Client 0 holds classes 0 and 1, of which 1 alone is tested; client 1 holds only classes that are not."""
    g = torch.Generator().manual_seed(5)
    data = [drawn(g, [0, 1], 10), drawn(g, [0, 3], 10), drawn(g, [1, 2], 10)]
    few = replace(task(), clients=data, test=drawn(g, [1, 2], 40))
    result = tarry.run("fedavg", few, personalize=1, **{**RUN, "delay": [[1.0]] * 3})
    personal = found(result)
    assert [v is None for v in personal["after"]["per_client"]] == [False, True, False]
    assert personal["clients"] == 2
    there = [v for v in personal["after"]["per_client"] if v is not None]
    assert personal["after"]["mean"] == pytest.approx(fmean(there))
    assert few.test is not None
    x, y = few.test
    right = loaded(result.weights)(x[y == 1].double()).argmax(1) == 1
    assert personal["before"]["per_client"][0] == pytest.approx(right.double().mean().item())


def test_without_classes_everybody_is_scored_on_the_whole_test_set() -> None:
    g = torch.Generator().manual_seed(6)
    data = [(torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g)) for _ in range(3)]

    def near(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < 0.5).float().mean()

    line = tarry.Task("line", nn.Linear(4, 1), nn.functional.mse_loss, clients=data[:2], test=data[2], metrics=[near])
    result = tarry.run("fedavg", line, personalize=1, delay=[[1.0]] * 2, rounds=2, lr=0.01)
    assert found(result)["before"]["per_client"] == pytest.approx([result.final_score] * 2)


def test_a_tuning_that_does_not_stay_finite_leaves_the_client_with_what_it_began_with() -> None:
    def touchy(outputs: Tensor, targets: Tensor) -> Tensor:
        """Not a number for who holds class 3."""
        return nn.functional.cross_entropy(outputs, targets) * torch.where((targets == 3).any(), torch.nan, 1.0)

    personal = found(tarry.run("fedavg", task(loss=touchy), personalize=1, **{**RUN, "batch": "all"}))
    assert personal["rejected"] == 2
    for client, rejected in enumerate([False, False, True, True]):
        same = personal["after"]["per_client"][client] == personal["before"]["per_client"][client]
        assert same or not rejected
    assert personal["after"]["mean"] != personal["before"]["mean"]


# What it leaves alone


@pytest.mark.parametrize(
    "method", ["fedavg", "orthofl", "asynccurve", "fedogd", "local-only", "knn-per", "fedbabu", "perfedavg"]
)
def test_looking_changes_nothing_else(method: str) -> None:
    plain, looked = (tarry.run(method, task(), personalize=p, diagnose=True, **RUN) for p in (None, 2))
    assert plain.weights_sha256 == looked.weights_sha256
    for f in fields(tarry.Result):
        if f.compare and f.name not in ("wall_s", "personalization", "warnings"):
            assert getattr(plain, f.name) == getattr(looked, f.name), f.name


def test_who_trains_changes_no_score() -> None:
    alone, several = (tarry.run("orthofl", task(), personalize=2, workers=w, **RUN) for w in (1, 2))
    assert alone.personalization == several.personalization


def test_tuning_is_the_same_for_all_methods_that_end_with_the_same_weights() -> None:
    ours, theirs = (tarry.run(m, task(), personalize=2, **RUN) for m in ("fedavg", "fedprox:mu=0"))
    assert ours.weights_sha256 == theirs.weights_sha256
    assert ours.personalization == theirs.personalization


# Resuming


@pytest.mark.parametrize("when", ["on the way", "at the end"])
def test_a_run_that_was_killed_comes_to_the_same_scores(when: str, tmp_path: Path) -> None:
    """Killed among its visits, or while clients are being tuned."""
    settings = {**RUN, "task": {"name": "digits", "limit": 300, "hidden": 8}, "clients": 4, "dtype": "float32"}
    settings |= {"method": "local-only", "personalize": 1, "checkpoint_every": 1e-9}
    whole = tarry.run(out=tmp_path / "whole", **settings)

    def at(e: tarry.Event) -> bool:
        return e.updates > 8 if when == "on the way" else e.kind == "evaluate" and e.time == settings["time"]

    interrupted_run(tmp_path / "r", at, **settings)
    resumed = tarry.resume(tmp_path / "r")
    assert resumed.personalization == whole.personalization
    assert tarry.Result.read(tmp_path / "r").personalization == whole.personalization
    assert "personalize = 1" in (tmp_path / "r" / "spec.toml").read_text()


def test_a_record_from_before_there_was_any_can_be_read(tmp_path: Path) -> None:
    tarry.run("fedavg", {"name": "digits", "limit": 100, "hidden": 4}, clients=2, rounds=1, out=tmp_path / "r")
    path = tmp_path / "r" / "result.json"
    record = json.loads(path.read_text())
    del record["personalization"], record["sha256"]
    path.write_bytes(seal(record))
    assert tarry.Result.read(tmp_path / "r").personalization is None


# Clients with models of their own


def alone(client: int, visits: int, epochs: int) -> nn.Module:
    """So many visits in a row from the first weights, a batch of everything, then the tuning."""
    return tuned(net(), client, epochs=3 * visits + epochs, batch=None, lr=0.3)


@pytest.mark.parametrize("epochs", [0, 2])
def test_local_only_scores_every_clients_own_latest_model(epochs: int) -> None:
    """By 9 s clients 0 to 2 have been heard of 9, 6 and 6 times, with client 3 away all the time."""
    seen: list[tarry.Event] = []
    changes = {"batch": "all", "concurrency": 4, "availability": {"3": [[100.0, 101.0]]}}
    result = tarry.run("local-only", task(), personalize=epochs, callbacks=[seen.append], **{**RUN, **changes})
    visits = [sum(e.kind == "arrival" and e.client == c for e in seen) for c in range(4)]
    assert visits == [9, 6, 6, 0]
    models = [alone(c, n, epochs) for c, n in enumerate(visits)]
    expected = [own_accuracy(m, y) for m, (_, y) in zip(models, task().clients, strict=True)]
    assert found(result)["after"]["per_client"] == pytest.approx(expected, rel=1e-12)
    mean = torch.stack([nn.utils.parameters_to_vector(alone(c, n, 0).parameters()) for c, n in enumerate(visits)])
    torch.testing.assert_close(result.weights, mean.mean(0).detach(), rtol=1e-10, atol=1e-12)
    of_mean = [own_accuracy(loaded(result.weights), y) for _, y in task().clients]
    assert found(result)["before"]["per_client"] == pytest.approx(of_mean, rel=1e-12)


def test_who_is_between_visits_is_scored_by_its_next_start() -> None:
    """In a run that ends with an update, its client is idle; the others are at work on what they were sent."""
    changes: dict[str, Any] = {"batch": "all", "concurrency": 4, "updates": 5, "time": None}
    result = tarry.run("local-only", task(), personalize=0, **{**RUN, **changes})
    # 0 at 1 s, 2 at 1.5 s, 0 and 1 at 2 s, 3 at 3 s, before the others of that instant: it was handed out first
    models = [alone(c, n, 0) for c, n in enumerate([2, 1, 1, 1])]
    expected = [own_accuracy(m, y) for m, (_, y) in zip(models, task().clients, strict=True)]
    assert found(result)["after"]["per_client"] == pytest.approx(expected, rel=1e-12)


def test_how_clients_tune_goes_with_what_they_do_and_their_models_with_what_they_are_replied() -> None:
    local, babu, plain = (tarry.methods.build(name) for name in ("local-only", "fedbabu", "fedasync"))
    both = compose(plain, {"local": babu, "reply": local})
    assert both.personalization == replace(babu.personalization, own=True)
    assert compose(local, {"local": babu}).personalization == both.personalization
    assert compose(babu, {"reply": local}).personalization == both.personalization
    assert compose(local, {"reply": plain}).personalization == Personalization()
    assert compose(babu, {"local": plain}).personalization == Personalization()
    assert compose(babu, {"step": local, "aggregate": plain, "correct": plain}).personalization == babu.personalization
    echo = tarry.methods.build("fedecho")
    assert (
        compose(echo, {"local": babu}).personalization
        == compose(babu, {}, distill=echo).personalization
        == babu.personalization
    )


def test_a_method_of_ones_own_may_say_how_clients_answer() -> None:
    """Here: always their own commonest class."""

    def commonest(vec: Tensor, own: tuple[Tensor, Tensor], model: tarry.ClientModel) -> Any:
        c = own[1].bincount(minlength=4).argmax()
        return lambda x: nn.functional.one_hot(c, 4).expand(len(x), 4)

    method = tarry.Method("mine", personalization=Personalization(predict=commonest))
    result = tarry.run(method, task(), personalize=0, **RUN)
    shares = [(y.bincount().max() / len(y)).item() for _, y in task().clients]
    assert found(result)["after"]["per_client"] == pytest.approx(shares, rel=1e-6)


# What cannot be, and what is told


@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        ({}, {"personalize": -1}, "personalize=-1: must be 0 or more"),
        ({}, {"personalize": "many"}, "personalize='many'"),
        ({"test": None}, {"personalize": 1}, "personalize=1: task 'four' has no test set; leave out personalize"),
        (
            {"metrics": ["loss"]},
            {"personalize": 1},
            "personalize=1: task 'four' is scored by its loss alone; leave out",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as e:
        tarry.run("fedavg", task(**changes), **{**RUN, **settings})
    assert said in str(e.value)


def test_a_method_about_own_models_says_how_they_are_scored() -> None:
    for method in ("local-only", "perfedavg", "knn-per", "fedbabu:tune=head"):
        (said,) = tarry.run(method, task(), **RUN).warnings
        assert said == f"{method} is about clients' own models: --personalize EPOCHS scores them"
        assert tarry.run(method, task(), personalize=0, **RUN).warnings == []
    assert tarry.run("fedavg", task(), **RUN).warnings == []


def test_progress_tells_how_many_clients_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100_000))
    monkeypatch.setattr("tarry.runs.run.clock.perf_counter", lambda: float(next(ticks)))
    seen: list[tarry.Progress] = []
    tarry.run("fedavg", task(), personalize=1, progress=seen.append, **RUN)
    assert [p.personalized for p in seen if p.personalized is not None] == [0.25, 0.5, 0.75, 1.0]
    assert all(p.fraction == 1.0 for p in seen if p.personalized is not None)
    assert seen[-1].personalized is None


def test_the_callers_randomness_is_left_alone() -> None:
    torch.manual_seed(1)
    before = copy.deepcopy(torch.get_rng_state())
    tarry.run("fedavg", task(), personalize=1, **RUN)
    assert torch.equal(before, torch.get_rng_state())


def test_the_majority_accuracy_answer_is_the_commonest_class_of_the_test_set() -> None:
    x = torch.zeros(5, 4)
    assert majority_accuracy(task(test=(x, torch.tensor([2, 0, 2, 1, 2])))) == 0.6
    assert majority_accuracy(task(test=None)) is None
    assert majority_accuracy(task(metrics=["loss"])) is None
    assert majority_accuracy(task(test=(x, torch.zeros(5, 2, dtype=torch.int64)))) is None
    made = task()
    assert tarry.run("asgd", made, **RUN).majority_accuracy == majority_accuracy(made)
