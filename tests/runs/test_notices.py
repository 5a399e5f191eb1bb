"""Settings that change nothing are told, not swallowed; and so is what was chosen unasked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tarry
from tarry.core.errors import BadInput
from tarry.metrics.classification import Accuracy
from tests.helpers.models import random_clients

SHORT = {"time": 100.0, "clients": 3, "epochs": 1, "delay": "constant:seconds=30"}


def test_inputs_without_labels_are_told_when_nobody_chose_them_and_when_nobody_needs_them() -> None:
    (said,) = tarry.run("fedecho", "digits", **SHORT).warnings
    assert "noise" in said
    assert "--unlabeled" in said
    assert tarry.run("fedecho", "digits", unlabeled="mixup", **SHORT).warnings == []
    (said,) = tarry.run("fedasync", "digits", unlabeled="mixup", **SHORT).warnings
    assert said.startswith("--unlabeled mixup changes nothing")


@pytest.mark.parametrize("value", ["inf", "nan", float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match=r"method\.eta=.*wants float"):
        tarry.run({"name": "asgd", "eta": value}, "digits")
    with pytest.raises(BadInput, match=r"lr="):
        tarry.run("asgd", "digits", lr=value)


@pytest.mark.parametrize("value", ["inf", "nan", float("inf")])
@pytest.mark.parametrize(
    ("method", "name"),
    [("dc-asgd", "lam"), ("fedecho", "lr"), ("asynccurve", "control_lr"), ("fedasync", "a"), ("mifa", "epoch")],
)
def test_a_number_that_may_be_left_out_is_no_infinity_either(method: str, name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=rf"method\.{name}=.*wants float \| none"):
        tarry.run({"name": method, name: value}, "digits")


def test_a_run_without_end_is_refused() -> None:
    with pytest.raises(BadInput, match=r"time=inf: wants float"):
        tarry.run("asgd", "digits", time=float("inf"))


def test_a_batch_of_one_under_batch_normalization_is_told_by_its_flag() -> None:
    clients = random_clients((8, 9), 4, 2, seed=0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    task = tarry.Task("tiny", model=net, loss=nn.functional.cross_entropy, clients=clients)
    with pytest.raises(BadInput, match=r"batch=4: client 1 has 9 examples"):
        tarry.run("fedasync", task, batch=4, delay=[1.0, 1.0], updates=4)


def test_a_servers_payload_that_clients_do_not_read_is_not_sent() -> None:
    plain, bases = (
        tarry.run(m, "digits", **{**SHORT, "time": 1000.0, "delay": [30.0, 45.0, 80.0]})
        for m in ("fedogd+local=fedavg", "fedogd")
    )
    assert plain.updates == bases.updates
    assert plain.bytes_down < bases.bytes_down


def test_what_a_step_between_arrivals_notes_is_kept() -> None:
    noted = tarry.run("fedogd+distill=fedecho", "digits", diagnose=True, **SHORT).diagnostics
    assert noted is not None
    assert {"entropy", "alpha", "teachers"} <= noted["series"].keys()


def test_settings_of_an_optimizer_that_clients_do_not_use_are_told() -> None:
    (said,) = tarry.run("asynccurve", "digits", lr=0.5, momentum=0.9, **SHORT).warnings
    assert said.startswith("--lr 0.5 --momentum 0.9 changes nothing")
    assert tarry.run("asynccurve", "digits", **SHORT).warnings == []


def test_outputs_that_are_no_numbers_are_never_right_and_targets_that_are_no_classes_are_refused() -> None:
    outputs = torch.tensor([[float("nan"), 0.0], [2.0, 1.0], [float("-inf"), 1.0]])
    assert Accuracy.per_example(outputs, torch.tensor([0, 0, 1])).sum() == 2
    for targets in (torch.full((3, 2), 0.5), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3)):
        with pytest.raises(BadInput, match="--metric accuracy: it is for"):
            Accuracy().update(outputs, targets)


def two_clients(scale: float = 1.0, **given: Any) -> tarry.Task:
    clients = random_clients([8] * 2, 4, 2, seed=0, scales=[scale] * 2)
    loss = nn.functional.cross_entropy
    return tarry.Task("two", model=lambda: nn.Linear(4, 2), loss=loss, clients=clients, **given)


NOTHING_LEARNT = {
    "a buffer larger than all updates": (
        {"method": "fedbuff:buffer=99", "delay": [1.0, 1.0], "time": 3.0},
        "fedbuff was still waiting after all updates (6)",
    ),
    "a server that waits for somebody slow": (
        {"method": "mifa", "delay": [1.0, 50.0], "time": 3.0},
        "mifa was still waiting after all updates (1); 1 of 2 clients never came back",
    ),
    "nobody there": ({"availability": {0: [], 1: []}, "delay": [1.0, 1.0], "time": 3.0}, "no client was there"),
    "no time": ({"delay": [5.0, 5.0], "time": 3.0}, "no client came back within 3 s; give it more --time"),
    "all lost": ({"delay": [1.0, 1.0], "time": 3.0, "failure_rate": 1 - 1e-12}, "all 6 visits that ended were lost"),
    "all rejected": (
        {"task": two_clients(float("nan")), "delay": [1.0, 1.0], "time": 3.0},
        "all 6 updates were rejected because they were not finite; a smaller --lr may help",
    ),
}


@pytest.mark.parametrize("what", NOTHING_LEARNT)
def test_a_run_that_learnt_nothing_says_why(what: str) -> None:
    given, why = NOTHING_LEARNT[what]
    result = tarry.run(**{"task": two_clients(), **given})
    assert result.rounds == 0
    (said,) = result.warnings
    assert said.startswith("nothing was learned, the server made no step: ")
    assert why in said


def test_a_run_whose_updates_are_none_any_more_ends_with_what_it_had_and_says_so() -> None:
    class Once:
        """A loss that is a number when it is tried and for the first three visits alone."""

        calls = 0

        def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return nn.functional.cross_entropy(output, y) * (1.0 if self.calls <= 4 else float("nan"))

    task = replace(two_clients(), loss=Once())
    for budget in ({"rounds": 50}, {"time": 200.0}):
        task.loss.calls = 0  # type: ignore[attr-defined]
        result = tarry.run("asgd", task, delay=[1.0, 1.0], steps=1, **budget)  # type: ignore[arg-type]
        assert result.updates == 3
        assert result.weights is not None
        assert result.weights.isfinite().all()
        (said,) = result.warnings
        assert said.startswith(f"diverged: the last {result.rejected:,} updates, up to ")
        assert result.rejected == (100 if "rounds" in budget else 397)


def test_a_target_that_the_first_weights_reach_is_told() -> None:
    test = (torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64))
    task = two_clients(test=test, metrics=[tarry.Metric("one", lambda *_: 1.0, unit="%")])
    (said,) = tarry.run("asgd", task, delay=[1.0, 1.0], time=3.0, target=0.5).warnings
    assert "the first weights reach --target 0.5" in said


def test_a_target_where_nothing_is_scored_is_refused() -> None:
    with pytest.raises(BadInput, match=r"target=0.5: task 'two' has no test set; leave out target"):
        tarry.run("asgd", two_clients(), delay=[1.0, 1.0], time=3.0, target=0.5)


def test_a_global_that_has_left_all_bounds_is_told() -> None:
    result = tarry.run({"name": "asgd", "eta": 1e30}, "digits", clients=3, time=200.0, lr=0.05, steps=1)
    assert any("the global model's loss is not a finite number (seen first at" in said for said in result.warnings)
    fine = tarry.run("asgd", "digits", clients=3, time=200.0, steps=1)
    assert not any("not a finite number" in said for said in fine.warnings)


def test_a_client_that_is_always_refused_is_named() -> None:
    task = two_clients()
    (x, y), other = task.clients
    task = replace(task, clients=[(torch.full_like(x, float("nan")), y), other])
    result = tarry.run("asgd", task, delay=[1.0, 1.0], updates=20)
    (said,) = result.warnings
    assert said.startswith("client 0: every update was rejected because it was not finite")
    assert result.rejected > 10


def test_test_data_that_hold_no_numbers_are_told_from_a_rate_too_high() -> None:
    task = two_clients(test=(torch.full((4, 4), float("nan")), torch.zeros(4, dtype=torch.int64)))
    (said,) = tarry.run("asgd", task, delay=[1.0, 1.0], updates=5).warnings
    assert said == "the loss of the first weights on the test set is not a finite number: look at the test data"


def test_a_target_that_is_missed_is_told() -> None:
    result = tarry.run("fedasync", "digits", time=300.0, target=0.999)
    assert any(r.startswith("--target 0.999 was not reached: the best score was 0.") for r in result.warnings)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda z, y: nn.functional.cross_entropy(z, y, reduction="none"), r"its loss returned a tensor of \(2,\)"),
        (lambda z, y: nn.functional.cross_entropy(z, y).item(), "its loss returned float"),
        (
            lambda z, y: nn.functional.cross_entropy(z, y.float()),
            "its model or loss fails on client 0's first 2 examples",
        ),
    ],
)
def test_a_loss_that_is_no_loss_is_told_before_anything_is_written(loss: Any, said: str, tmp_path: Any) -> None:
    with pytest.raises(BadInput, match=said):
        tarry.run("asgd", replace(two_clients(), loss=loss), delay=[1.0, 1.0], updates=5, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_examples_that_are_no_tensors_are_told() -> None:
    task = two_clients()
    clients: Any = [(x.numpy(), y.numpy()) for x, y in task.clients]
    with pytest.raises(BadInput, match=r"client 0 has ndarray and ndarray; torch\.as_tensor makes tensors of them"):
        tarry.run("asgd", replace(task, clients=clients), delay=[1.0, 1.0], updates=5)
