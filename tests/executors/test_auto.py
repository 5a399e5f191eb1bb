"""Clients that train together come to what each would come to alone, whatever the method, however unequal they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tarry
from tarry.config.spec import Spec
from tarry.core.local_rule import LocalRule, VisitInput
from tarry.executors.auto import AutoExecutor
from tarry.executors.batched.trace import NotStackable, forbid_vmap_fallback, trace_function
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.executors.timing import BatchConfig, TimingChoice, TrialCache
from tarry.runs.run import run_spec
from tests.helpers.models import random_clients
from tests.helpers.small_task import Small

SIZES = (1, 3, 4, 9, 10, 17)  # batches of 4: whole ones, rests of every length, a single example
#: a rule that takes batches apart
ALONE = {"perfedavg"}


def unequal(sizes: tuple[int, ...] = SIZES, model: Any = None) -> tarry.Task:
    data = random_clients(sizes, 3, 3, seed=11)
    torch.manual_seed(3)
    return tarry.Task("unequal", model=model or Small(), loss=nn.functional.cross_entropy, clients=data, test=data[-1])


def run(method: Any, executor: str, trials: TrialCache | None = None, **settings: Any) -> tarry.Result:
    fixed = {"epochs": 2, "batch": 4, "lr": 0.1, "dtype": "float64", "time": 4.0, "seed": 2, "eval_every": 4.0}
    delay = [[1.0], [1.0], [2.0], [1.0], [2.0], [2.0]]
    task = settings.pop("task", None) or unequal()
    given = {"method": method, "task": task, "executor": executor, "delay": delay, **fixed, **settings}
    return run_spec(Spec.of(given), trials=trials)


def assert_same_result(a: tarry.Result, b: tarry.Result, within: float = 1e-9) -> None:
    assert (a.updates, a.rounds, a.staleness) == (b.updates, b.rounds, b.staleness)
    assert a.weights is not None
    assert b.weights is not None
    assert (a.weights - b.weights).norm() <= within * a.weights.norm()


@pytest.mark.parametrize("name", list(tarry.methods))
def test_every_method(name: str) -> None:
    alone, together = run(name, "inline"), run(name, "batched")
    assert_same_result(alone, together)
    assert alone.executor_info == ""
    assert together.executor_info.startswith("clients are not" if name in ALONE else "clients are trained together"), (
        together.executor_info
    )


def test_a_rule_that_takes_batches_apart_is_told() -> None:
    assert "it takes batches apart, and they are padded" in run("perfedavg", "batched").executor_info


class Forgetful(nn.Sequential):
    """Units, whole channels, and units that are not set to 0."""

    def __init__(self, p: float = 0.4) -> None:
        first = nn.Conv1d(1, 4, 2), nn.Dropout1d(p), nn.Tanh(), nn.Flatten(), nn.Dropout(p), nn.Linear(8, 5)
        super().__init__(nn.Unflatten(1, (1, 3)), *first, nn.Tanh(), nn.AlphaDropout(p), nn.Linear(5, 3))


@pytest.mark.parametrize("name", list(tarry.methods))
def test_every_method_with_dropout(name: str) -> None:
    torch.manual_seed(6)
    task = unequal(model=Forgetful())
    alone, together = run(name, "inline", task=task), run(name, "batched", task=task)
    assert together.executor_info.startswith("clients are not" if name in ALONE else "clients are trained together"), (
        together.executor_info
    )
    assert_same_result(alone, together)


def test_dropout_is_something_else_than_none() -> None:
    torch.manual_seed(6)
    first, second = Forgetful(0.4), Forgetful(0.0)
    second.load_state_dict(first.state_dict())
    with_it, without = (run("fedasync", "inline", task=unequal(model=m)) for m in (first, second))
    assert with_it.weights is not None
    assert without.weights is not None
    assert (with_it.weights - without.weights).norm() > 1e-2 * without.weights.norm()


class Seeing(nn.Sequential):
    def __init__(self) -> None:
        first = nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 3, (1, 2), padding=1), nn.Tanh(), nn.Conv2d(3, 2, (3, 2))
        super().__init__(*first, nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))


@pytest.fixture
def own_conv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of our own, interpreted, and nothing else to choose from."""
    pytest.importorskip("triton", reason="for Linux alone")
    monkeypatch.setattr(AutoExecutor, "_own_conv", lambda _: "Triton")
    monkeypatch.setattr(
        AutoExecutor, "_ways", lambda *_, own_conv: [BatchConfig(1, None, whose) for whose in own_conv or [""]]
    )
    torch.manual_seed(6)


@pytest.mark.parametrize("whose", ["Triton", "numba"])
@pytest.mark.parametrize("name", ["fedsol", "asynccurve"])
def test_own_convolutions(name: str, whose: str, own_conv: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoExecutor, "_own_conv", lambda _: whose)
    few = {"task": unequal((3, 4, 9, 1, 4, 5), model=Seeing()), "dtype": "float32", "epochs": 1, "time": 2.0}
    trials = TrialCache()
    alone, *together = (run(name, e, trials, **few) for e in ("inline", "batched", "batched"))
    assert len(trials.choices) == 1
    for found in together:  # the second knows of the first's choice
        assert_same_result(alone, found, within=1e-5)
        assert f"all who wait in a stack, convolutions by {whose}" in found.executor_info


def test_whose_convolutions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor ours, where channels are few and numba is there; timing decides, which is left out here."""
    seen: list[Any] = []

    def timed(_: AutoExecutor, trainers: Any, *__: Any) -> TimingChoice:
        seen.append(set(trainers))
        return TimingChoice(BatchConfig(1, None), 1.0)

    monkeypatch.setattr(AutoExecutor, "_fastest_way", timed)
    for numba, dtype in (("1", "float32"), ("1", "float64"), ("0", "float32")):
        with monkeypatch.context() as m:
            m.setattr("tarry.executors.auto.numba", lambda _, here=numba: object() if here == "1" else None)
            run("fedasync", "batched", task=unequal(model=Seeing()), dtype=dtype)
    assert seen == [{"", "numba"}, {""}, {""}]


def test_own_convolutions_that_disagree_are_not_taken(own_conv: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tarry.executors.batched.conv import triton_kernels

    right = triton_kernels.correlate
    few = {"task": unequal((3, 4, 9, 1, 4, 5), model=Seeing()), "dtype": "float32", "epochs": 1, "time": 2.0}
    alone = run("fedavg", "inline", **few)
    monkeypatch.setattr(triton_kernels, "correlate", lambda *args: 1.1 * right(*args))
    found = run("fedavg", "batched", **few)
    assert_same_result(alone, found, within=1e-5)
    assert "Triton" not in found.executor_info
    # what an earlier run found is not said of one whose kernels are rejected
    monkeypatch.setattr(triton_kernels, "correlate", right)
    trials = TrialCache()
    assert "Triton" in run("fedavg", "batched", trials, **few).executor_info
    monkeypatch.setattr(triton_kernels, "correlate", lambda *args: 1.1 * right(*args))
    assert "Triton" not in run("fedavg", "batched", trials, **few).executor_info
    # wrong for stacks of more than the two that are tried first
    monkeypatch.setattr(triton_kernels, "correlate", lambda x, *args: (1.1 if len(x) > 2 else 1.0) * right(x, *args))
    found = run("fedavg", "batched", **few)
    assert_same_result(alone, found, within=0.0)
    assert "a client's update differs by" in found.executor_info


class Normed(nn.Sequential):
    """No bias before the normalization: its gradient would be 0 but for rounding, which Adam blows up."""

    def __init__(self) -> None:
        first, norm = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, momentum=0.5)
        super().__init__(first, norm, nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "fedprox",
        "feddyn",
        "fedsol",
        "asynccurve",
        "fedogd",
        "scaffold",
        "moon",
        "fedsam",
        "fedntd",
        "fedbabu",
    ],
)
def test_rules_with_batch_normalization(name: str) -> None:
    """Batches of 4: rests of 2 and 3, since nothing is to be learnt from one; running statistics agree, too."""
    torch.manual_seed(6)
    task = unequal((3, 4, 6, 7, 10, 11), Normed())
    alone, together = run(name, "inline", task=task, time=3.0), run(name, "batched", task=task, time=3.0)
    assert_same_result(alone, together)
    assert together.executor_info.startswith("clients are trained together"), together.executor_info


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "lr": 0.01},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"lr_schedule": "exponential:by=visits,factor=0.7", "clip_norm": 0.5, "momentum": 0.9},
        {"batch": "all"},
        {"steps": 3, "epochs": None},
        {"workers": 2},
        {"batch": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedasync", "fedsol"])
def test_every_way_to_train(name: str, settings: dict[str, Any]) -> None:
    plain = {k: v for k, v in settings.items() if k != "workers"}
    assert_same_result(run(name, "inline", **plain), run(name, "batched", **settings))


@pytest.mark.parametrize("settings", [{"lr_decay": 0.9, "workers": 2}, {"steps": 3, "epochs": None}], ids=str)
def test_rules_of_several_laps(settings: dict[str, Any]) -> None:
    plain = {k: v for k, v in settings.items() if k != "workers"}
    assert_same_result(run("asynccurve", "inline", **plain), run("asynccurve", "batched", **settings), 1e-7)


@pytest.mark.parametrize(
    "params",
    [{"proximal": "l2", "part": "all"}, {"strategy": "A3"}, {"strategy": "A5", "proximal": "ntd"}],
    ids=str,
)
def test_fedsols_losses(params: dict[str, Any]) -> None:
    method = {"name": "fedsol", **params}
    assert_same_result(run(method, "inline"), run(method, "batched"))


@pytest.mark.parametrize("name", ["fedasync", "fedsol", "asynccurve"])
def test_programs_that_have_become_quick(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some hundred calls a program is made anew, without Python; here after two."""
    monkeypatch.setattr("tarry.executors.batched.programs._COMPILE_AFTER", 2)
    assert_same_result(run(name, "inline"), run(name, "batched"), 1e-7)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One that leaves everything as it is, when it is first called, and takes no time; what it was given."""
    given: list[Any] = []

    def made(graph: Any, **_: Any) -> Any:
        def run(*args: torch.Tensor) -> Any:
            if graph not in given:
                given.append(graph)
            return graph(*args)

        return run

    monkeypatch.setattr(torch, "compile", made)
    monkeypatch.setattr(AutoExecutor, "_fastest_way", lambda *_: TimingChoice(BatchConfig(1, None), 7.0))
    monkeypatch.setattr("tarry.executors.auto.seconds", lambda work, what: work(what) and 1.0)
    return given


@pytest.mark.parametrize("name", ["fedasync", "fedsol", "asynccurve"])
def test_compiled_steps_are_few_and_come_to_the_same(name: str, compiler: list[Any]) -> None:
    """Whatever the lengths of batches, and however many wait."""
    alone, together = run(name, "inline", time=12.0), run(name, "batched", compile=True, time=12.0)
    assert_same_result(alone, together, 1e-7)
    assert ", compiled)" in together.executor_info
    assert 0 < len(compiler) <= (4 if name == "asynccurve" else 2)


def test_what_is_slower_compiled_is_not(compiler: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    slow = iter([1.0] * 3 + [2.0] * 3)
    monkeypatch.setattr("tarry.executors.auto.seconds", lambda *_: next(slow))
    plain, asked = run("fedasync", "batched"), run("fedasync", "batched", compile=True)
    assert plain.weights_sha256 == asked.weights_sha256
    assert "not compiled, which would be 0.5 times as fast): a step is 7.0 times" in asked.executor_info


def test_what_cannot_be_compiled_is_stacked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        def run(*_: Any) -> Any:
            raise RuntimeError("no compiler\nand so on")

        return run

    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr(AutoExecutor, "_fastest_way", lambda *_: TimingChoice(BatchConfig(1, None), 7.0))
    plain, asked = run("fedasync", "batched"), run("fedasync", "batched", compile=True)
    assert plain.weights_sha256 == asked.weights_sha256
    assert "not compiled: --compile: torch cannot compile its step (RuntimeError: no compiler)" in asked.executor_info


def test_what_cannot_be_compiled_on_the_way_goes_on_as_it_was_traced(
    compiler: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, inner = run("fedasync", "batched"), BatchedTrainer.train

    def train(self: BatchedTrainer, jobs: Any) -> Any:
        if self.compiled and self._work.steps is None:  # no trial
            raise NotStackable("--compile: too many kinds")
        return inner(self, jobs)

    monkeypatch.setattr(BatchedTrainer, "train", train)
    asked = run("fedasync", "batched", compile=True)
    assert plain.weights_sha256 == asked.weights_sha256
    assert "no longer compiled: --compile: too many kinds)" in asked.executor_info


class TwoLaps(LocalRule):
    """Its state takes another form at the first step of a lap."""

    @property
    def own_optimizer(self) -> bool:
        return True

    @property
    def passes(self) -> Any:
        return (self.step, self.step)

    def init(self, w: torch.Tensor, context: Any, f: Any) -> Any:
        return {"mean": None}

    def begin_pass(self, pass_index: int, state: Any, f: Any) -> Any:
        return {"mean": None}

    def step(self, w: torch.Tensor, batch: Any, context: Any, state: Any, f: Any) -> Any:
        g, loss = f.grad(w, batch)
        mean = g if state["mean"] is None else 0.5 * state["mean"] + g
        return w - 0.1 * mean, {"mean": mean}, loss


@pytest.mark.parametrize("steps", [5, 8, 12])
def test_who_is_done_stays_so_while_the_state_of_others_takes_another_form(steps: int) -> None:
    method = replace(tarry.methods.build("fedasync"), name="two", local=TwoLaps())
    how: dict[str, Any] = {"task": unequal((12, 16, 9, 13, 16, 12)), "steps": steps, "epochs": None}
    alone, together = (run(method, e, **how) for e in ("inline", "batched"))
    assert_same_result(alone, together)
    assert together.executor_info.startswith("clients are trained together"), together.executor_info


def test_clients_that_keep_something_bring_it_along() -> None:
    for name in ("moon", "scaffold", {"name": "fedogd", "privacy": True}):
        assert_same_result(run(name, "inline", time=12.0), run(name, "batched", time=12.0))


class Weighted(nn.Module):
    """Its outputs depend on who else is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.map(x - x.mean(0))
        return out


class Undecided(nn.Module):
    """Looks at a number to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.map(x) if x.sum().item() > 0 else self.map(-x)
        return out


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Weighted, "differs by"),
        (Undecided, "cannot be traced"),
    ],
)
def test_what_cannot_be_stacked_is_trained_one_by_one_to_the_bit_and_the_reason_told(model: Any, why: str) -> None:
    torch.manual_seed(1)
    made = model()
    sizes = (6, 7, 9, 10, 11, 15)
    alone, together = (run("fedasync", e, task=unequal(sizes, made)) for e in ("inline", "auto"))
    assert together.weights_sha256 == alone.weights_sha256
    assert together.executor_info.startswith("clients are not trained together: ")
    assert why in together.executor_info


def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """No mean: a batch counts by its length."""
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.parametrize("sizes", [(4, 4, 8, 8, 9, 17), (4, 4, 8, 8, 33, 12), (4, 4, 8, 8, 12, 16)])
def test_a_loss_that_is_no_mean_is_found_though_those_who_are_tried_have_whole_batches(sizes: tuple[int, ...]) -> None:
    task = replace(unequal(sizes), loss=total)
    alone, together = (run("fedasync", e, task=task, lr=0.02) for e in ("inline", "batched"))
    assert together.weights_sha256 == alone.weights_sha256
    assert "not the mean of the examples' losses" in together.executor_info


def test_a_weighted_loss_is_found_though_those_who_are_tried_have_one_class() -> None:
    """Of one class the weights cancel out."""
    task = unequal((5, 3, 9, 10, 17, 4))
    clients = [(x, y if c > 1 else torch.ones_like(y)) for c, (x, y) in enumerate(task.clients)]
    weights = torch.tensor([1.0, 10.0, 3.0])
    task = replace(task, clients=clients, loss=lambda z, y: nn.functional.cross_entropy(z, y, weight=weights.to(z)))
    alone, together = (run("fedasync", e, task=task) for e in ("inline", "batched"))
    assert together.weights_sha256 == alone.weights_sha256
    assert "not the mean of the examples' losses" in together.executor_info


class Scaled(LocalRule):
    """Keeps an array where a tensor belongs: the next visit's may lie where this one's lay."""

    def begin(self, visit: VisitInput) -> Any:
        return visit.weights, {"scale": np.random.default_rng(visit.key % 2**32).random(1)}

    def step(self, w: torch.Tensor, batch: Any, context: Any, state: Any, fns: Any) -> Any:
        grad, loss = fns.grad(w, batch)
        return w - 0.1 * float(context["scale"][0]) * grad, state, loss


def test_an_array_in_a_context_is_no_constant_of_a_trace() -> None:
    method = replace(tarry.methods.build("fedasync"), name="scaled", local=Scaled())
    alone, together = (run(method, e, concurrency=1) for e in ("inline", "batched"))
    assert together.weights_sha256 == alone.weights_sha256
    assert "use a tensor, or a field of the rule" in together.executor_info


def test_where_memory_runs_out_stacks_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, sizes = BatchedTrainer.train, list[Any]()

    def train(self: BatchedTrainer, jobs: Any) -> Any:
        if self._work.steps is None:  # no trial
            sizes.append(self.size)
            if self.size is None or self.size > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(self, jobs)

    monkeypatch.setattr(BatchedTrainer, "train", train)
    monkeypatch.setattr(AutoExecutor, "_ways", lambda *_, own_conv: [BatchConfig(1, None)])
    monkeypatch.setattr("tarry.executors.auto.check_equivalence", lambda *_, **__: True)
    assert_same_result(run("fedasync", "inline"), run("fedasync", "batched"))
    assert sizes[:3] == [None, 3, 1]
    assert set(sizes[2:]) == {1}


def test_too_little_memory_is_not_taken_for_what_cannot_be_stacked() -> None:
    def much(*_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        trace_function(much, [torch.ones(1)])
    with pytest.raises(torch.OutOfMemoryError), forbid_vmap_fallback():
        much()


def test_where_there_is_no_memory_for_one_clients_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: BatchedTrainer, jobs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(BatchedTrainer, "train", train)
    found = run("fedasync", "batched")
    assert_same_result(run("fedasync", "inline"), found, within=0.0)
    assert found.executor_info == "clients are not trained together: the device has not the memory for it"


def test_rounding_is_told_from_another_result_by_what_a_change_in_the_last_digits_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tarry.executors.batched.equivalence._LIMITS", {torch.float32: 0.0, torch.float64: 0.0})
    sizes = (6, 7, 9, 10, 11, 15)
    assert run("fedasync", "batched", task=unequal(sizes)).executor_info.startswith("clients are trained together")
    monkeypatch.setattr(BatchedTrainer, "loss_is_mean", lambda _: True)  # not by asking the loss itself
    other = run("fedasync", "batched", task=replace(unequal(sizes), loss=total), lr=0.02)
    assert "differs by" in other.executor_info


def test_where_nothing_is_masked_any_loss_is_stacked() -> None:
    task = replace(unequal((8,) * 6), loss=total)
    alone, together = (run("fedasync", e, task=task, lr=0.02) for e in ("inline", "batched"))
    assert_same_result(alone, together)
    assert together.executor_info.startswith("clients are trained together")


def test_a_run_is_taken_up_again_where_it_was_to_rounding(tmp_path: Any) -> None:
    """Who was in flight is trained anew, in other company."""
    settings = {"task": {"name": "digits", "hidden": 8, "limit": 300}, "clients": 6, "executor": "batched"}
    settings |= {"time": 400.0, "checkpoint_every": 0.0001, "dtype": "float64", "epochs": 1}
    whole = tarry.run("fedasync", out=tmp_path / "whole", **settings)

    class Stop(Exception):
        pass

    def stop(e: tarry.Event) -> None:
        if e.updates == 5 and e.kind == "arrival":
            raise Stop

    with pytest.raises(Stop):
        tarry.run("fedasync", out=tmp_path / "cut", callbacks=[stop], **settings)
    again = tarry.resume(tmp_path / "cut")
    assert_same_result(whole, again)
