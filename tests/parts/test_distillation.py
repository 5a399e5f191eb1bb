"""A distillation put around a server: what it does to the weights, and what it leaves as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

import tarry
from tarry.core.layout import Layout
from tarry.core.method import Method, ServerView
from tarry.core.optim import make_optimizer
from tarry.core.parts import Aggregate, MixStep, stateless
from tarry.core.task import Task
from tarry.core.tickets import Ticket, TicketExtras, Update
from tarry.parts.aggregate import buffer
from tarry.parts.distillation import Distillation, distill, with_distillation
from tarry.parts.manifold import line
from tarry.parts.staleness import constant
from tarry.parts.step import add
from tarry.training.flat_model import FlatModel
from tarry.training.server_model import FlatServerModel

F64 = torch.float64
HOW = Distillation(lr=0.01, q=3, batch=4, clip=0.5)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 4)).double()


class Bench:
    """A module with a lab over some inputs, and moments to call parts at."""

    def __init__(self, make: Callable[[], nn.Module], n: int = 4):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.module = make()
        for name, stat in self.module.named_buffers():
            if stat.is_floating_point():
                stat += 0.3 if "mean" in name else 0.5
        self.layout = Layout.of(self.module)
        task = Task("bench", lambda: self.module, cross_entropy, unlabeled=drawn(n, 3, seed=2))
        bound = FlatModel(copy.deepcopy(self.module), self.layout, task, make_optimizer(lr=1.0))
        self.lab = FlatServerModel(bound)
        self.weights = self.layout.read(self.module, F64)

    def now(self, **changes: Any) -> ServerView:
        return ServerView(self.weights, self.layout, 0, 1.0, 0, 3, 11, 5, model=self.lab)._replace(**changes)

    def update(self, client: int, scale: float = 0.1, *, sent: Tensor | None = None) -> Update:
        sent = self.weights if sent is None else sent
        ticket = Ticket(client, client, 0, 0, 0.0, sent, sent)
        delta = torch.zeros_like(sent)
        delta[: self.layout.n_params] = scale * drawn(self.layout.n_params, seed=10 + client)
        return Update(ticket, delta, 1, 1, 0)

    def says(self, vec: Tensor) -> Tensor:
        """What the model of a vector says of the inputs, by an ordinary module."""
        return self.loaded(vec).eval()(self.lab.inputs).detach()

    def loaded(self, vec: Tensor) -> nn.Module:
        module = copy.deepcopy(self.module)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, value in self.layout.views(vec).items():
            tensors[name].data.copy_(value)
        return module


def by_torch(bench: Bench, x: Tensor, y: Tensor, *, lr: float, q: int, alpha: float | None, clip: float) -> Tensor:
    """Q steps over the whole set with torch's own Adam and losses."""
    module = bench.loaded(x).eval()
    params = list(module.parameters())
    adam, p = torch.optim.Adam(params, lr=lr), y.softmax(-1)
    for _ in range(q):
        entropy = torch.distributions.Categorical(logits=y).entropy().mean() / torch.tensor(float(y.shape[-1])).log()
        a = 0.8 * entropy + 0.2 * (1 - entropy) if alpha is None else alpha
        out = module(bench.lab.inputs)
        kl = kl_div(out.log_softmax(-1), p, reduction="batchmean")
        loss = a * kl + (1 - a) * cross_entropy(out, y.argmax(-1))
        adam.zero_grad()
        loss.backward()
        norm = torch.stack([g.norm() for w in params if (g := w.grad) is not None]).norm()
        for w in params:
            assert w.grad is not None
            w.grad *= min(1.0, clip / norm.item())
        adam.step()
    return bench.layout.read(module, F64)


@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("alpha", [None, 0.3])
def test_a_distillation_is_that_of_torchs_own_adam_and_losses(
    make: Callable[[], nn.Module], alpha: float | None
) -> None:
    bench = Bench(make)
    y = bench.says(bench.update(0, 1.0).local)
    how = replace(HOW, alpha="dynamic" if alpha is None else alpha)
    got, _ = distill(bench.weights, y, bench.now(), how)
    expected = by_torch(bench, bench.weights, y, lr=0.01, q=3, alpha=alpha, clip=0.5)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(got, bench.weights, rtol=1e-3)
    n = bench.layout.n_params
    assert torch.equal(got[n:], bench.weights[n:]), "running statistics are not distilled"


def receive(method: Method, bench: Bench, state: dict[str, Any], update: Update, **now: Any) -> Tensor | None:
    """As a server does: correct, aggregate, and step if there is anything to step by."""
    moment = bench.now(**now)
    corrected, state["correct"] = method.correct(update, state["correct"], moment)
    pooled, state["aggregate"] = method.aggregate(corrected, state["aggregate"], moment)
    if pooled is None:
        return None
    weights, state["step"] = method.step(pooled, state["step"], moment)
    return weights


def begun(method: Method, bench: Bench) -> dict[str, Any]:
    return {p: getattr(method, p).init(bench.weights) for p in ("correct", "aggregate", "step")}


def test_the_teacher_is_the_mean_over_clients_of_their_latest_models_logits() -> None:
    bench = Bench(normed)
    method = with_distillation(Method("m", aggregate=buffer(3), step=add(0.5)), HOW)
    state, old = begun(method, bench), bench.weights + 0.3
    updates = [bench.update(0), bench.update(1, sent=old), bench.update(0, 0.2)]
    for u in updates[:2]:
        assert receive(method, bench, state, u) is None
    new = receive(method, bench, state, updates[2])
    assert new is not None
    y = (bench.says(updates[2].local) + bench.says(old + updates[1].delta)) / 2
    x = bench.weights + 0.5 * sum(bench.now().displacement(u) for u in updates) / 3
    torch.testing.assert_close(new, distill(x, y, bench.now(), HOW)[0], rtol=1e-9, atol=1e-11)


def test_models_are_asked_as_they_came_before_any_correction() -> None:
    bench = Bench(plain)
    moved = stateless(lambda u, now: u.replace(delta=-5 * u.delta, ticket=u.ticket._replace(sent=now.weights)))
    method = with_distillation(Method("m", correct=moved), HOW)
    update, state = bench.update(0, sent=bench.weights - 1.0), begun(method, bench)
    receive(method, bench, state, update)
    torch.testing.assert_close(state["aggregate"].logits[0], bench.says(update.local))


def test_a_correct_part_that_makes_extras_of_its_own_loses_no_logits() -> None:
    bench, seen = Bench(plain), list[set[str]]()
    mine = stateless(lambda update, now: update.replace(extras={"mine": now.weights}))

    def look(update: Update | None, view: ServerView) -> Update | None:
        assert update is not None
        seen.append(set(update.extras))
        return update

    method = with_distillation(Method("m", correct=mine, aggregate=stateless(look)), HOW)
    state = begun(method, bench)
    receive(method, bench, state, bench.update(2))
    assert list(state["aggregate"].logits) == [2]
    assert seen == [{"mine"}], "the method's own parts do not see them"


def test_logits_that_are_not_finite_are_not_stored_and_older_ones_stay() -> None:
    bench, method = Bench(plain), with_distillation(Method("m", aggregate=buffer(4)), HOW)
    state, good = begun(method, bench), bench.update(0)
    wild = good.replace(delta=torch.full_like(good.delta, 1e308))
    for u in (good, wild, wild.replace(ticket=good.ticket._replace(client=1))):
        receive(method, bench, state, u)
    assert list(state["aggregate"].logits) == [0]
    torch.testing.assert_close(state["aggregate"].logits[0], bench.says(good.local))


def test_while_nobody_can_teach_the_step_is_the_methods_own() -> None:
    bench = Bench(plain)
    method = with_distillation(Method("m"), HOW)
    update = bench.update(0)
    wild = update.replace(delta=torch.full_like(update.delta, 1e308))
    new = receive(method, bench, begun(method, bench), wild)
    assert new is not None
    assert torch.equal(new, bench.weights + wild.delta)


def epochs() -> Aggregate:
    """Waits for the end of an instant; offers what it holds."""

    def apply(update: Update | None, state: dict[str, Any], view: ServerView) -> tuple[None, dict[str, Any]]:
        return None, {"held": update}

    def settle(state: dict[str, Any], view: ServerView) -> tuple[Update | None, dict[str, Any]]:
        return state["held"], {"held": None}

    def offer(client: int, state: dict[str, Any], view: ServerView) -> TicketExtras:
        return TicketExtras({"client": torch.tensor(client), "held": torch.tensor(state["held"] is not None)})

    return Aggregate(apply, lambda _: {"held": None}, offer, on_instant_end=settle, payload_keys=frozenset({"client"}))


def test_a_server_that_works_in_epochs_settles_with_the_teacher_and_offers_as_before() -> None:
    bench, update = Bench(plain), Bench(plain).update(1)
    method = with_distillation(Method("m", aggregate=epochs()), HOW)
    assert method.aggregate.on_instant_end is not None
    assert method.aggregate.offer is not None
    assert method.aggregate.payload_keys == {"client"}
    state = begun(method, bench)
    assert receive(method, bench, state, update) is None
    offer = method.aggregate.offer(2, state["aggregate"], bench.now())
    assert offer is not None
    assert {k: v.item() for k, v in offer.payload.items()} == {"client": 2, "held": True}
    pooled, after = method.aggregate.on_instant_end(state["aggregate"], bench.now())
    assert pooled is not None
    new, _ = method.step(pooled, state["step"], bench.now())
    expected = distill(bench.weights + update.delta, bench.says(update.local), bench.now(), HOW)[0]
    torch.testing.assert_close(new, expected)
    assert after.inner == {"held": None}
    assert list(after.logits) == [1]
    assert with_distillation(Method("m"), HOW).aggregate.on_instant_end is None
    assert with_distillation(Method("m"), HOW).aggregate.offer is None


def test_a_method_answers_from_its_own_states() -> None:
    bench = Bench(plain)
    seen: list[Mapping[str, Any]] = []

    def answer(weights: Tensor, states: Mapping[str, Any]) -> Tensor:
        seen.append(states)
        return 2 * weights

    method = with_distillation(Method("m", aggregate=buffer(2), output_weights=answer), HOW)
    assert method.output_weights is not None
    assert torch.equal(method.output_weights(bench.weights, begun(method, bench)), 2 * bench.weights)
    assert set(seen[0]) == {"correct", "aggregate", "step"}
    assert set(seen[0]["aggregate"].dump()) == set(buffer(2).init(bench.weights).dump())


def test_a_step_along_another_geodesic_is_still_followed_by_the_distillation() -> None:
    bench, update = Bench(plain), Bench(plain).update(0)
    method = with_distillation(Method("m", step=add(0.5)), HOW)
    assert method.step.with_geodesic is not None
    bent = replace(method, step=method.step.with_geodesic(lambda start, end, t, u: line(start, end, t, u) + 0.25))
    new = receive(bent, bench, begun(bent, bench), update)
    assert new is not None
    x = bench.weights + 0.5 * update.delta + 0.25
    torch.testing.assert_close(new, distill(x, bench.says(update.local), bench.now(), HOW)[0])
    assert with_distillation(Method("m"), HOW).step.with_geodesic is None


def test_a_step_with_a_distillation_after_it_no_longer_goes_by_its_formula() -> None:
    step = replace(add(0.5), formula=MixStep(0.5, constant()))
    assert with_distillation(Method("m", step=step), HOW).step.formula is None


def test_no_steps_is_the_method_itself() -> None:
    method = Method("m")
    assert with_distillation(method, replace(HOW, q=0)) is method


def test_a_lab_asks_models_as_in_use_and_keeps_nothing() -> None:
    """Dropout off, statistics still; so many inputs that they are run in several goes."""
    bench = Bench(normed, n=1203)
    vec = bench.weights + 0.1
    first, second = bench.lab.outputs(vec, bench.lab.inputs), bench.lab.outputs(vec, bench.lab.inputs)
    torch.testing.assert_close(first, bench.says(vec))
    assert torch.equal(first, second)
    assert not first.requires_grad
    g, value = bench.lab.grad(vec, bench.lab.inputs, lambda out: out.square().mean())
    again, _ = bench.lab.grad(vec, bench.lab.inputs, lambda out: out.square().mean())
    assert torch.equal(g, again)
    assert g.shape == (bench.layout.n_params,)
    torch.testing.assert_close(value, bench.says(vec).square().mean())
    assert torch.equal(bench.lab.outputs(vec, bench.lab.inputs), first)


CROSS: dict[str, Any] = {
    "task": {"name": "digits", "hidden": 8, "limit": 300},
    "delay": [[1.0], [2.0], [3.0, 0.5]],
    "clients": 3,
    "steps": 2,
    "updates": 9,
    "unlabeled": {"name": "noise", "samples": 40},
}


@pytest.mark.parametrize("server", ["orthofl", "fedavg", "orthograd", "fedbuff:buffer=2"])
def test_any_server_takes_a_distillation_around_it(server: str) -> None:
    alone, none, around = (
        tarry.run(server, **CROSS, **more)
        for more in ({}, {"distill": "fedecho:q=0"}, {"distill": "fedecho:lr=0.01,batch=20"})
    )
    assert alone.weights_sha256 == none.weights_sha256
    assert alone.weights is not None
    assert around.weights is not None
    assert not torch.allclose(alone.weights, around.weights, rtol=1e-3)
    assert (alone.updates, alone.rounds) == (around.updates, around.rounds)
