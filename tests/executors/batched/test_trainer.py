"""Stacks of clients: the same bits whatever their size, memory bounded, lanes and rates, and what is rejected."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core.layout import Layout
from tarry.core.local_rule import ClientModel, Context, LocalRule
from tarry.core.optim import Optimizer, make_optimizer
from tarry.core.task import Examples
from tarry.core.tickets import LocalResult, VisitJob
from tarry.executors.batched.trace import NonUniform, NotStackable, flatten, merge_specs
from tarry.executors.batched.trainer import BatchedTrainer, _concatenate
from tarry.tasks.models import mlp
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tests.helpers.models import random_clients

SIZES = (5, 8, 16, 16, 24, 40, 41, 64, 8)


def bound_of(sizes: tuple[int, ...] = SIZES, how: Optimizer | None = None) -> FlatModel:
    data = random_clients(sizes, 6, 4, seed=5)
    torch.manual_seed(0)
    module = mlp(6, 16, 4)
    task = tarry.Task("stack", model=module, loss=nn.functional.cross_entropy, clients=data)
    return FlatModel(module, Layout.of(module), task, how or make_optimizer("sgd", lr=0.1))


def jobs_of(bound: FlatModel) -> list[VisitJob]:
    sent = 0.3 * torch.randn(bound.layout.size, generator=torch.Generator().manual_seed(9))
    return [VisitJob(7 * c, c, 3, sent, version=c) for c in range(len(bound.task.clients))]


def stacked(bound: FlatModel, work: LocalWork, rule: LocalRule | None = None, **how: Any) -> list[LocalResult]:
    return BatchedTrainer(bound, rule=rule or LocalRule(), work=work, seed=1, **how).train(jobs_of(bound))


def work(**how: Any) -> LocalWork:
    return LocalWork(make_optimizer("sgd", lr=0.1), **{"epochs": 2, "batch": 8, **how})


def alone(bound: FlatModel, how: LocalWork, rule: LocalRule | None = None) -> list[LocalResult]:
    return [train(j, bound, rule=rule or LocalRule(), work=how, seed=1) for j in jobs_of(bound)]


@pytest.mark.parametrize("size", [1, 2, 4, None])
def test_whole_batches_of_linear_layers_come_to_the_bits_of_one_by_one(size: int | None) -> None:
    bound, how = bound_of((8, 16, 16, 24, 40, 64, 8)), work()
    for a, b in zip(alone(bound, how), stacked(bound, how, size=size), strict=True):
        assert torch.equal(a.delta, b.delta)
        assert (a.n_examples, a.n_steps, a.finite) == (b.n_examples, b.n_steps, b.finite)
        assert a.loss == pytest.approx(b.loss, rel=1e-6)


def test_padded_batches_come_to_the_same_bits_in_stacks_of_any_size_and_on_any_lane() -> None:
    bound, how = bound_of(), work()
    first, *others = (
        stacked(bound, how, **ways) for ways in ({"size": 1}, {"size": 2}, {"size": 5}, {}, {"lanes": 2}, {"lanes": 3})
    )
    for other in others:
        assert all(torch.equal(a.delta, b.delta) for a, b in zip(first, other, strict=True))
    for a, b in zip(first, alone(bound, how), strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-4, atol=1e-6)


def test_targets_to_be_ignored_are_so_in_padded_batches() -> None:
    bound = bound_of((6, 8, 16, 20, 24, 45))
    clients = [(x, torch.where(torch.arange(len(y)) % 5 == 3, -100, y)) for x, y in bound.task.clients]
    bound.task = replace(bound.task, clients=clients)
    for a, b in zip(alone(bound, work()), stacked(bound, work()), strict=True):
        assert a.finite
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("in_a_row", [1, 3, 16])
def test_steps_in_a_row_without_python_come_to_the_same_bits(in_a_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many, with stacks that are cut down on the way and clients that are done."""
    bound, how = bound_of(), work(epochs=3)
    slowly = stacked(bound, how)
    monkeypatch.setattr("tarry.executors.batched.lanes._IN_A_ROW", in_a_row)
    trainer, quickly = hurried(bound, how)
    for a, b in zip(slowly, quickly, strict=True):
        assert torch.equal(a.delta, b.delta)
        assert a.loss == b.loss
    assert sum(p.columns is not None for p in trainer._steps._programs.values()) > 3  # of several sizes


def hurried(bound: FlatModel, how: LocalWork) -> tuple[BatchedTrainer, list[LocalResult]]:
    trainer = BatchedTrainer(bound, rule=LocalRule(), work=how, seed=1)
    trainer.train(jobs_of(bound))
    trainer.compile_programs()
    return trainer, trainer.train(jobs_of(bound))


def test_what_torch_keeps_of_a_script_has_no_examples_in_it() -> None:
    trainer, _ = hurried(bound_of(), work())
    made: list[Any] = [p.columns for p in trainer._steps._programs.values() if p.columns is not None]
    assert made
    assert not any("value=<Tensor>" in str(columns.inlined_graph) for columns in made)


def test_what_cannot_be_scripted_is_run_as_it_was_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Any:
        raise RuntimeError("an operation whose arguments it does not know")

    bound, how = bound_of(), work()
    slowly = stacked(bound, how)
    monkeypatch.setattr(torch._C, "_create_graph_by_tracing", unknown)
    before = BatchedTrainer(bound, rule=LocalRule(), work=how, seed=1)
    before.train(jobs_of(bound))
    runs = {k: p.run for k, p in before._steps._programs.items()}
    before.compile_programs()
    for a, b in zip(slowly, before.train(jobs_of(bound)), strict=True):
        assert torch.equal(a.delta, b.delta)
    after = before._steps._programs
    assert all(p.columns is None for p in after.values())
    assert sum(after[k].run is not run for k, run in runs.items()) > 3


def test_compiled_stacks_are_filled_up_to_what_fits_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    bound, seen = bound_of((16,) * 5), list[int]()
    for size, most in ((2, 2), (None, 5)):
        trainer = BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1, size=size, compiled=True)
        for n in range(10, 16):
            trainer._sizes(10 * n)  # a handful: whoever comes next would be stacked as 8
        inner = trainer._stack
        monkeypatch.setattr(trainer, "_stack", lambda *a, inner=inner, **k: _noted(inner(*a, **k), seen))
        monkeypatch.setattr(trainer, "_max_stack_size", lambda *_: 5)
        for a, b in zip(trainer.train(jobs_of(bound)), alone(bound, work()), strict=True):
            assert torch.equal(a.delta, b.delta)
        assert max(seen) == most
        seen.clear()


def _noted(stack: Any, seen: list[int]) -> Any:
    seen.append(stack.size)
    return stack


def test_an_update_holds_no_memory_of_its_stack() -> None:
    for t in stacked(bound_of(), work()):
        assert t.delta.untyped_storage().nbytes() == t.delta.nbytes


def test_stacks_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, seen = bound_of((16,) * 12), list[int]()
    trainer = BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1)
    inner = trainer._stack
    monkeypatch.setattr(trainer, "_stack", lambda members, *how: seen.append(len(members)) or inner(members, *how))
    trainer.train(jobs_of(bound))
    assert seen == [1, 12]  # of one it is read how much memory a client takes
    seen.clear()
    monkeypatch.setattr("tarry.executors.batched.trainer._MEMORY", 1.0)
    trainer.train(jobs_of(bound))
    assert seen == [12], "how many fit is found once: what drifts would be a size to compile every time"
    seen.clear()
    trainer._fit.clear()
    trainer.train(jobs_of(bound))
    assert seen == [1] * 12


def test_rates_that_differ_are_each_clients_own() -> None:
    rates = [make_optimizer("sgd", lr=0.1 * 0.8**v, momentum=0.5) for v in range(20)]
    how = replace(work(), optimizer=rates[0], optimizer_at=lambda at: rates[at.version])
    bound = bound_of(how=rates[0])
    for a, b in zip(alone(bound, how), stacked(bound, how), strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-4, atol=1e-6)


def test_clients_whose_examples_have_other_shapes_are_not_stacked() -> None:
    bound = bound_of()
    bound.task = replace(
        bound.task, clients=[(torch.randn(4, 6), torch.zeros(4).long()), (torch.randn(4, 2, 3), torch.zeros(4).long())]
    )
    with pytest.raises(NotStackable, match="different shapes"):
        BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1)


class Counting(LocalRule):
    """Counts its steps in Python."""

    def init(self, w: Tensor, context: Context, model: ClientModel) -> Any:
        return 0

    def step(self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel) -> Any:
        g, loss = model.grad(w, batch)
        return w - 0.1 / (1 + state) * g, state + 1, loss


def test_a_rule_that_counts_in_python_is_told_instead_of_traced_for_ever() -> None:
    bound = bound_of()
    bound.task = replace(bound.task, clients=[(x[:8], y[:8]) for x, y in bound.task.clients if len(x) >= 8])
    with pytest.raises(NotStackable, match="changes at every step"):
        stacked(bound, work(epochs=8), Counting())
    with pytest.raises(NotStackable, match="when others are done already"):
        stacked(bound_of(), work(epochs=4), Counting())


class Telling(LocalRule):
    """Uses a plain number of its context in a step."""

    def begin(self, brief: Any) -> Any:
        return brief.weights, {"n": brief.n_steps}

    def transform_grad(self, g: Tensor, w: Tensor, context: Context) -> Tensor:
        scaled: Tensor = g / context["n"]
        return scaled


def test_a_rule_that_tells_clients_apart_by_plain_numbers_is_told() -> None:
    with pytest.raises(NotStackable, match="a plain number of its context"):
        stacked(bound_of(), work(), Telling())


def test_a_form_is_a_record_taken_apart_and_what_differs_varies() -> None:
    one, tensors = flatten({"a": torch.ones(2), "n": 3, "what": "x", "at": slice(0, 2)})
    two, _ = flatten({"a": torch.zeros(2), "n": 4, "what": "x", "at": slice(0, 2)})
    assert one.fill(tensors)["what"] == "x"
    assert one.key != two.key
    both = merge_specs([one, two])
    assert isinstance(both.fill(tensors)["n"], NonUniform)
    assert both.fill(tensors)["at"] == slice(0, 2)
    assert both.key == merge_specs([two]).key, "a plain number always varies, so that nobody is traced for one"


def test_examples_that_lie_side_by_side_are_not_copied() -> None:
    whole = torch.arange(60.0).view(10, 2, 3)
    a, b, c = whole[1:].split([4, 0, 5])
    joined = _concatenate([a, b, c])
    assert torch.equal(joined, whole[1:])
    assert joined.data_ptr() == whole[1:].data_ptr()
    for parts in (
        [a, c.clone()],
        [c, a],
        [a, a],
        [whole[:2], a],
        [whole.transpose(1, 2)[:4], whole.transpose(1, 2)[4:]],
    ):
        copied = _concatenate(parts)
        assert torch.equal(copied, torch.cat(parts))
        assert copied.data_ptr() not in {p.data_ptr() for p in parts}


def test_threads_of_lanes_outlive_their_stacks() -> None:
    """One that ends may hold a lock of the algebra library's, and a process forked just then would wait for ever."""

    def lanes() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("lane")}

    stacked(bound_of(), work(), lanes=2)
    first = lanes()
    assert len(first) >= 2
    stacked(bound_of(), work(), lanes=2)
    assert lanes() == first


def test_who_makes_many_times_the_steps_is_stacked_with_others_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, how = bound_of((8, 16, 8 * 300, 8 * 40, 8, 24)), work(epochs=1)
    trainer, made = BatchedTrainer(bound, rule=LocalRule(), work=how, seed=1), list[tuple[int, ...]]()
    inner = trainer._stack

    def stack(members: Any, *how: Any) -> Any:
        out = inner(members, *how)
        made.append((len(members), out.schedule.at.numel()))
        return out

    monkeypatch.setattr(trainer, "_stack", stack)
    found = trainer.train(jobs_of(bound))
    assert made[1:] == [(2, 2 * 300 * 8), (4, 4 * 3 * 8)]  # the first is looked at alone, for its memory
    for a, b in zip(found, alone(bound, how), strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-4, atol=1e-6)


def test_a_stack_is_made_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, seen = bound_of((16,) * 4), list[str]()
    trainer = BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1, size=1)
    stack, finished = trainer._stack, trainer._results
    monkeypatch.setattr(trainer, "_stack", lambda *args: seen.append("made") or stack(*args))
    monkeypatch.setattr(trainer, "_results", lambda *args: seen.append("done") or finished(*args))
    trainer.train(jobs_of(bound))
    assert seen == ["made", "done"] * 4


def test_what_cannot_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any, **__: Any) -> Any:
        def run(*_: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nat length")

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.raises(NotStackable, match=r"--compile: torch cannot compile .*No working C\+\+ compiler found\)"):
        stacked(bound_of(), work(), compiled=True)


def test_compiled_on_a_processor_there_is_one_lane() -> None:
    assert BatchedTrainer(bound_of(), rule=LocalRule(), work=work(), seed=1, lanes=3, compiled=True).lanes == 1


def test_a_loss_is_a_mean_or_not() -> None:
    def trainer(loss: Any) -> BatchedTrainer:
        bound = bound_of()
        bound.task = replace(bound.task, loss=loss)
        return BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1)

    weights = torch.tensor([1.0, 1.0, 1.0, 1.01])
    assert trainer(nn.functional.cross_entropy).loss_is_mean()
    assert trainer(lambda z, y: nn.functional.cross_entropy(z, y, label_smoothing=0.1)).loss_is_mean()
    assert not trainer(lambda z, y: nn.functional.cross_entropy(z, y, reduction="sum")).loss_is_mean()
    assert not trainer(lambda z, y: nn.functional.cross_entropy(z, y, weight=weights)).loss_is_mean()


def trainer_of(model: nn.Module, loss: Any, clients: list[Examples]) -> BatchedTrainer:
    task = tarry.Task("loss", model=model, loss=loss, clients=clients)
    bound = FlatModel(model, Layout.of(model), task, make_optimizer("sgd", lr=0.1))
    return BatchedTrainer(bound, rule=LocalRule(), work=work(), seed=1)


def normal(*sizes: int, outputs: int = 1) -> list[Examples]:
    g = torch.Generator().manual_seed(3)
    return [(torch.randn(n, 3, generator=g), torch.randn(n, outputs, generator=g)) for n in sizes]


class Tokens(nn.Module):
    """Outputs [texts, 7, tokens]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x).transpose(1, 2)
        return out


def own_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(z, y)


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, own_cross_entropy], ids=["torch's", "own"])
def test_a_single_text_with_other_tokens_to_ignore_is_enough_to_tell_that_a_loss_is_no_mean(loss: Any) -> None:
    g = torch.Generator().manual_seed(3)
    texts = [(torch.randint(7, (n, 6), generator=g), torch.randint(7, (n, 6), generator=g)) for n in (41, 90, 300)]
    assert trainer_of(Tokens(), loss, texts).loss_is_mean()
    for _, y in texts:
        y[:, -1] = -100  # there is no next token
    assert trainer_of(Tokens(), loss, texts).loss_is_mean()
    texts[2][1][100, :2] = -100  # between those that are looked at in any case
    assert not trainer_of(Tokens(), loss, texts).loss_is_mean()


@pytest.mark.parametrize("whole", [False, True], ids=["floats", "whole numbers"])
@pytest.mark.parametrize("column", [1, 2])
def test_a_single_example_of_another_weight_is_enough_to_tell_that_a_loss_is_no_mean(column: int, whole: bool) -> None:
    def weighed(z: Tensor, y: Tensor) -> Tensor:
        return ((z[:, 0] - y[:, 0]) ** 2 * y[:, column]).sum() / y[:, column].sum()

    clients = [(x, 5 * y.round()) for x, y in normal(41, 90, 300, outputs=3)]
    for _, y in clients:
        y[:, column] = 1
    given = [(x, y.long() if whole else y) for x, y in clients]
    assert trainer_of(nn.Linear(3, 1), weighed, given).loss_is_mean()
    given[2][1][100, column] = 5  # which is a target's value, too
    assert not trainer_of(nn.Linear(3, 1), weighed, given).loss_is_mean()


def test_the_lowest_and_the_highest_target_are_among_those_that_a_loss_is_tried_on() -> None:
    def robust(z: Tensor, y: Tensor) -> Tensor:
        near = ((y < 9) & (y > -9)).to(z.dtype)
        return ((z - y) ** 2 * near).sum() / near.sum().clamp_min(1)

    clients = normal(41, 90, 300)
    assert trainer_of(nn.Linear(3, 1), robust, clients).loss_is_mean()
    for far in (-10.0, 10.0):
        clients[2][1][100] = far
        assert not trainer_of(nn.Linear(3, 1), robust, clients).loss_is_mean()
        clients[2][1][100] = 0


def probability() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())


def weighed_entropy(z: Tensor, y: Tensor) -> Tensor:
    weight = 1 + y
    return (nn.functional.binary_cross_entropy(z, y, reduction="none") * weight).sum() / weight.sum()


def test_a_loss_of_probabilities_is_tried_on_probabilities() -> None:
    clients = [(x, (y > 0).to(y.dtype)) for x, y in normal(41, 90)]
    assert trainer_of(probability(), nn.functional.binary_cross_entropy, clients).loss_is_mean()
    assert not trainer_of(probability(), weighed_entropy, clients).loss_is_mean()


def test_on_a_gpu_a_loss_is_given_no_output_larger_than_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process, where it rejects them; elsewhere it may."""

    class Elsewhere(Tensor):
        pass

    seen = dict[bool, list[float]]()

    def loss(z: Tensor, y: Tensor) -> Tensor:
        seen.setdefault(isinstance(z, Elsewhere), []).append(z.max().item())
        if isinstance(z, Elsewhere):
            raise RuntimeError("there are tensors of a GPU in it")
        return nn.functional.binary_cross_entropy(z, y)

    monkeypatch.setattr(Tensor, "cpu", lambda t: t.as_subclass(Elsewhere))
    clients = [(x, (y > 0).to(y.dtype)) for x, y in normal(41, 90)]
    trainer = trainer_of(probability(), loss, clients)
    trainer._device = torch.device("cuda")
    assert trainer.loss_is_mean()
    assert max(seen[True]) > 1
    assert 0.4 < max(seen[False]) < 1
