"""Unusual models, losses and rules: trained together they come to what they come to one by one, or are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, binary_cross_entropy_with_logits, cross_entropy, nll_loss
from torch.utils.checkpoint import checkpoint

import tarry
from tarry.core.local_rule import LocalRule, VisitOutput
from tarry.executors import auto as together
from tarry.executors.batched.schedule import schedule
from tarry.record.result import Result
from tests.helpers.models import random_clients

Examples = tuple[Tensor, Tensor]


def drawn(*sizes: int, classes: int = 3, seed: int = 0) -> list[Examples]:
    return random_clients(sizes, 6, classes, seed=seed)


def words(*sizes: int) -> list[Examples]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 50, (n, 5), generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def task(
    model: Callable[[], nn.Module], clients: Sequence[Examples], loss: Any = cross_entropy, **more: Any
) -> tarry.Task:
    return tarry.Task("mine", model=model, loss=loss, clients=clients, **more)


def run(given: tarry.Task, executor: str, workers: int = 1, method: Any = "fedasync", **more: Any) -> Result:
    n = len(given.clients)
    settings = {"updates": 3 * n, "lr": 0.1, "batch": 16, "epochs": 2, "delay": [10 * (i % 3 + 1) for i in range(n)]}
    return tarry.run(method, given, executor=executor, workers=workers, **{**settings, **more})


def compared(make: Callable[[], tarry.Task], **more: Any) -> str:
    """What is told of clients trained together, which came to what they come to one by one."""
    alone = run(make(), "inline", **more)
    told = ""
    for workers in (1, 2):
        found = run(make(), "batched", workers, **more)
        torch.testing.assert_close(found.weights, alone.weights, rtol=1e-4, atol=1e-6)
        told = found.executor_info
    return told


class Scaled(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class OwnStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(x, self.mean, self.var, training=self.training, momentum=5e-4)


class Counting(nn.Module):
    """Its temperature goes by a whole number that it counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        self.register_buffer("n", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.n += 1
        out: Tensor = self.a(x) * (1 + 0.004 * self.n)
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(checkpoint(lambda h: torch.relu(self.b(torch.tanh(self.a(h)))), x, use_reentrant=False))
        return out


class Centered(nn.Module):
    """Every example's output depends on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        out: Tensor = self.b(torch.relu(h - h.mean(0)))
        return out


class Bag(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.e, self.o = nn.Embedding(50, 8, **more), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(self.e(x).mean(1))
        return out


class Noisy(nn.Module):
    def __init__(self, dice: str) -> None:
        super().__init__()
        self.a, self.dice = nn.Linear(6, 3), dice

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + 0.02 * torch.randn_like(x) if self.dice == "torch" else x * (1.0 if random.random() < 0.9 else 0.5)
        out: Tensor = self.a(x)
        return out


def deep(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 8), norm(), nn.Linear(8, 3))


EVEN, UNEVEN = (64, 64, 64, 64), (64, 16, 32, 48, 16)


@pytest.mark.parametrize(
    ("make", "more", "why"),
    [
        (lambda: task(lambda: deep(lambda: Scaled(8, momentum=5e-4)), drawn(*EVEN)), {"lr": 0.5}, "differs by"),
        (lambda: task(lambda: deep(OwnStatistics), drawn(*EVEN)), {"lr": 0.5}, "differs by"),
        (lambda: task(Counting, drawn(*EVEN)), {"epochs": 10}, "counts in whole numbers"),
        (lambda: task(Checkpointed, drawn(*EVEN)), {"lr": 0.02}, "differs by"),
        (lambda: task(Centered, drawn(805, 830, 1009)), {"batch": 200, "epochs": 1}, "differs by"),
        (lambda: task(lambda: Bag(scale_grad_by_freq=True), words(258, 259, 321)), {"batch": 64}, "differs by"),
    ],
    ids=[
        "norm of one's own",
        "statistics of one's own",
        "counter",
        "checkpoint",
        "batch's mean",
        "frequencies",
    ],
)
def test_a_model_that_does_what_a_stack_does_not_is_trained_one_by_one(
    make: Callable[[], tarry.Task], more: dict[str, Any], why: str
) -> None:
    assert why in compared(make, **more)


def test_whoever_draws_numbers_of_his_own_is_trained_one_by_one() -> None:
    given = task(lambda: Noisy("torch"), drawn(*EVEN))
    found = [run(given, "batched", workers) for workers in (1, 2, 2)]
    assert {r.weights_sha256 for r in found} == {run(given, "inline").weights_sha256}
    assert all("draws random numbers" in r.executor_info for r in found)
    assert "draws random numbers" in run(task(lambda: Noisy("python"), drawn(*EVEN)), "batched").executor_info


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.o = nn.EmbeddingBag(50, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(self.e(x))
        return out


@pytest.mark.parametrize("model", [lambda: Bag(max_norm=4.6), Bags], ids=["norms", "bags"])
def test_what_has_no_form_for_a_stack_is_traced_one_client_a_stack(
    model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = compared(lambda: task(model, words(*EVEN)), lr=2.0)
    assert told.startswith("clients are trained together (one client a stack"), told


class Waking(nn.Sequential):
    """Does otherwise from its third training pass on, for good."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        out: Tensor = super().forward(x)
        return 2 * out if self.passes > 3 else out


def test_a_model_that_changes_early_in_python_is_trained_one_by_one() -> None:
    told = run(task(Waking, drawn(20, 20, 20)), "batched").executor_info
    assert "keeps state in Python" in told


class Twice(nn.Sequential):
    """One layer by two names."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        inner = nn.Linear(6, 6)
        super().__init__(inner, nn.Tanh(), nn.BatchNorm1d(6), inner, nn.Tanh(), nn.Linear(6, 3))


class Attending(nn.Module):
    def __init__(self) -> None:
        torch.manual_seed(4)
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x[:, None].expand(-1, 3, -1).cumsum(1))[:, -1])
        return out


@pytest.mark.parametrize("model", [Twice, Attending])
@pytest.mark.parametrize("sizes", [(20, 20, 20), (20, 34, 48)], ids=["equal", "unequal"])
def test_a_layer_by_two_names_and_attention_are_stacked(model: Callable[[], nn.Module], sizes: tuple[int, ...]) -> None:
    told = compared(lambda: task(model, drawn(*sizes)), batch=8)
    assert told.startswith("clients are trained together"), told


def test_programs_of_runs_that_are_over_are_let_go() -> None:
    """Torch keeps what torch.jit.trace makes for as long as a process runs."""
    import torch.jit._state as state

    before = len(state._python_cu.get_functions())  # type: ignore[attr-defined]
    told = run(task(lambda: nn.Linear(6, 3), drawn(20, 20, 20)), "batched", updates=200).executor_info
    assert told.startswith("clients are trained together"), told
    assert len(state._python_cu.get_functions()) == before  # type: ignore[attr-defined]


def test_a_loss_that_keeps_something_in_python_is_trained_with_one_by_one() -> None:
    calls = [0]

    def annealed(z: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return cross_entropy(z, y) * min(1.0, 0.2 + calls[0] / 1000)

    told = run(task(lambda: nn.Linear(6, 3), drawn(*EVEN), annealed), "batched").executor_info
    assert "gives another result the second time" in told


def test_what_was_found_of_one_model_is_not_taken_for_another_of_the_same_shapes() -> None:
    clients = drawn(32, 32, 32, 32)
    assert "trained together" in compared(lambda: task(lambda: deep(lambda: nn.BatchNorm1d(8)), clients))
    assert "not trained together" in compared(lambda: task(lambda: deep(lambda: Scaled(8)), clients))


def test_a_class_that_few_have_is_among_those_a_loss_is_tried_on() -> None:
    sizes, weight = (400, 300, 500, 350), torch.tensor([1.0, 1.0, 20.0])
    clients = drawn(*sizes, classes=2)
    clients[2][1][3::100] = 2
    told = compared(
        lambda: task(lambda: nn.Linear(6, 3), clients, lambda z, y: cross_entropy(z, y, weight=weight)), epochs=1
    )
    assert "not the mean of the examples' losses" in told


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_binary_cross_entropy_is_a_mean_and_stacks(sizes: tuple[int, ...], dtype: str) -> None:
    clients = [(x, (x[:, :2] > 0).float()) for x, _ in drawn(*sizes)]
    more = {"loss": binary_cross_entropy_with_logits, "metrics": ["loss"]}
    assert "are trained together" in compared(lambda: task(lambda: nn.Linear(6, 2), clients, **more), dtype=dtype)


def test_probabilities_stay_probabilities_when_a_loss_is_tried() -> None:
    told = compared(
        lambda: task(
            lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), drawn(*UNEVEN), lambda z, y: nll_loss(z.log(), y)
        )
    )
    assert "are trained together" in told


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.a(x), self.b(x)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.a(x).clone()
        z[x[:, 0] > 0] *= 2
        return z


def of_both(z: Any, y: Tensor) -> Tensor:
    return cross_entropy(z[0], y) + cross_entropy(z[1], y.clamp_max(1))


def of_some(z: Tensor, y: Tensor) -> Tensor:
    return (z[:, 0] - y).pow(2)[y > 0].mean()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: task(Two, drawn(*UNEVEN), of_both, metrics=["loss"]), "cannot be traced"),
        (lambda: task(Masked, drawn(*UNEVEN)), "depends on values"),
        (lambda: task(lambda: nn.Linear(6, 1), drawn(*EVEN), of_some, metrics=["loss"]), "depends on values"),
    ],
    ids=["two outputs", "a mask in a model", "a mask in a loss"],
)
def test_what_cannot_be_traced_is_trained_one_by_one(make: Callable[[], tarry.Task], why: str) -> None:
    assert why in compared(make)


def test_clients_of_one_row_each_may_be_cut_from_one_tensor() -> None:
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    clients = [(x[i::4], y[i::4]) for i in range(4)]
    assert "are trained together" in compared(
        lambda: task(lambda: nn.Linear(6, 3), [(a[:1], b[:1]) for a, b in clients])
    )
    ones = [(x[0:40:40], y[0:40:40]), (x[1:20], y[1:20]), (x[20:], y[20:])]
    assert "are trained together" in compared(lambda: task(lambda: nn.Linear(6, 3), ones))


@dataclass(frozen=True)
class AStep(LocalRule):
    """Its displacement is that of a step, counted in its state."""

    def begin(self, brief: Any) -> Any:
        return brief.weights, {"sent": brief.weights}

    def init(self, w: Tensor, context: Any, f: Any) -> Any:
        return f.init(w), 0

    def step(self, w: Tensor, batch: Any, context: Any, state: Any, f: Any) -> Any:
        g, loss = f.grad(w, batch)
        w, own = f.apply_gradient(w, g, state[0])
        return w, (own, state[1] + 1), loss

    def finish(self, w: Tensor, context: Any, state: Any) -> VisitOutput:
        return VisitOutput(delta=(w - context["sent"]) / state[1])


@dataclass(frozen=True)
class InPhases(LocalRule):
    """Plain for two steps, then with momentum."""

    def begin(self, brief: Any) -> Any:
        return brief.weights, {}

    def init(self, w: Tensor, context: Any, f: Any) -> Any:
        return "first"

    def step(self, w: Tensor, batch: Any, context: Any, state: Any, f: Any) -> Any:
        g, loss = f.grad(w, batch)
        if isinstance(state, str):
            return w - 0.1 * g, "second" if state == "first" else g, loss
        v = 0.9 * state + g
        return w - 0.1 * v, v, loss


@dataclass(frozen=True)
class Halved(LocalRule):
    """Sends half precision."""

    def begin(self, brief: Any) -> Any:
        return brief.weights, {"sent": brief.weights}

    def finish(self, w: Tensor, context: Any, state: Any) -> VisitOutput:
        return VisitOutput(delta=(w - context["sent"]).half())


@pytest.mark.parametrize(
    ("rule", "told"),
    [(AStep(), "another form"), (InPhases(), "another form"), (Halved(), "are trained together")],
    ids=["counts", "in phases", "halved"],
)
def test_a_rule_whose_state_changes_its_form_while_others_are_done(rule: LocalRule, told: str) -> None:
    method = tarry.Method("r", local=rule, step=tarry.stateless(lambda u, now: now.weights + 0.5 * u.delta))
    assert told in compared(lambda: task(lambda: nn.Linear(6, 3), drawn(*UNEVEN)), method=method, epochs=1)


def test_numbers_that_examples_are_augmented_by_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(clients: Sequence[Any], *args: Any, **more: Any) -> Any:
        sizes.append(len(clients))
        return schedule(clients, *args, **more)

    monkeypatch.setattr(together.AutoExecutor, "_ways", lambda *_, **__: iter([together.BatchConfig(1, None)]))
    monkeypatch.setattr("tarry.executors.batched.trainer.schedule", noted)
    monkeypatch.setattr("tarry.executors.batched.trainer._MEMORY", 5e6)
    given = task(lambda: nn.Linear(6, 3), drawn(*[64] * 12), augment=lambda x, d: x + 0 * d[:, :6], n_draws=784)
    assert "all who wait in a stack" in run(given, "batched", epochs=4).executor_info
    a_client = 4 * 4 * 16 * 784 * 4  # epochs × batches × examples × numbers × bytes
    assert max(sizes[-6:]) * a_client <= 5e6 < 12 * a_client
