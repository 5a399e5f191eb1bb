"""FedSOL against its twin, and what it promises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.local_rule import LocalRule, VisitInput
from tarry.core.optim import Optimizer, make_optimizer
from tarry.core.tickets import VisitJob
from tarry.methods.fedsol.descent import StepState
from tarry.training.flat_model import FlatModel
from tarry.training.visit import BatchIterator, LocalWork, train
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import Shift, batchnorm_net, noisy_run
from tests.methods.fedasync.reference import FedAsync, polynomial
from tests.methods.fedavg.reference import FedAvg
from tests.methods.fedsol.reference import Classes, Client
from tests.reference.match import Case, check, events_of

several = settings(max_examples=6, derandomize=True, deadline=None, database=None)
Choice = dict[str, Any]


@dataclass(frozen=True)
class Classified(Case):
    k: int = 3
    after: bool = False

    @property
    def problem(self) -> Classes:  # type: ignore[override]
        return Classes.draw(self.seed, p=self.p, h=self.h, k=self.k, sizes=self.sizes, after=self.after)


@st.composite
def cases(draw: st.DrawFn) -> Classified:
    n = draw(st.integers(2, 3))
    return Classified(
        seed=draw(st.integers(0, 2**32 - 1)),
        p=draw(st.integers(1, 3)),
        h=draw(st.integers(1, 4)),
        sizes=draw(st.lists(st.integers(1, 6), min_size=n, max_size=n)),
        durations=draw(
            st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=2), min_size=n, max_size=n)
        ),
        steps=draw(st.integers(2, 4)),
        lr=draw(st.sampled_from([0.05, 0.3])),
        updates=draw(st.integers(4, 8)),
        blind=False,
        k=draw(st.integers(2, 4)),
        after=draw(st.booleans()),
    )


choices = st.fixed_dictionaries(
    {
        "rho": st.sampled_from([0.1, 2.0]),
        "proximal": st.sampled_from(["kl", "l2"]),
        "temperature": st.sampled_from([1.0, 3.0]),
        "adaptive": st.booleans(),
        "part": st.sampled_from(["head", "body", "all"]),
        "norm": st.sampled_from(["layer", "dim0"]),
        "beta": st.sampled_from([0.3, 1.0]),
    }
)


def trained_by(case: Classified, choice: Choice) -> Any:
    client = Client(case.problem, **choice)
    return lambda m, w: client.train(m, w, steps=case.steps, lr=case.lr)


@pytest.mark.parametrize("strategy", ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "projection"])
@several
@given(case=cases(), choice=choices)
def test_a_strategy_is_its_twin(strategy: str, case: Classified, choice: Choice) -> None:
    choice = {**choice, "strategy": strategy}
    server = FedAvg(case.problem.w0, case.sizes)
    check({"name": "fedsol", **choice}, case, server, train=trained_by(case, choice))


@pytest.mark.parametrize("norm", ["layer", "dim0"])
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("proximal", ["kl", "l2"])
@pytest.mark.parametrize("part", ["head", "body", "all"])
@settings(several, max_examples=2)
@given(case=cases())
def test_fedsol_is_its_twin_whatever_is_perturbed_and_how(
    part: str, proximal: str, adaptive: bool, norm: str, case: Classified
) -> None:
    choice: Choice = {"part": part, "proximal": proximal, "adaptive": adaptive, "norm": norm}
    check({"name": "fedsol", **choice}, case, FedAvg(case.problem.w0, case.sizes), train=trained_by(case, choice))


@several
@given(case=cases(), choice=choices)
def test_fedsol_clients_under_fedasyncs_server_are_both_twins(case: Classified, choice: Choice) -> None:
    local = tarry.methods.build("fedsol", **choice).local
    method = replace(tarry.methods.build("fedasync", alpha=0.5), local=local)
    check(method, case, FedAsync(case.problem.w0, 0.5, polynomial(0.5)), train=trained_by(case, choice))


@several
@given(case=cases())
def test_fedsol_weighing_all_alike_is_algorithm_1(case: Classified) -> None:
    server = FedAvg(case.problem.w0, [1] * len(case.sizes))
    check({"name": "fedsol", "weighting": "uniform"}, case, server, train=trained_by(case, {}))


@pytest.mark.parametrize("part", ["head", "all"])
def test_the_direction_goes_through_the_clients_optimizer(part: str) -> None:
    """SGD with the paper's momentum and a weight decay, by hand; weights decay where they are, not where perturbed."""
    problem = Classes.draw(4, p=3, h=4, k=3, sizes=[5])
    client, w, v = Client(problem, part=part), problem.w0, 0.0
    for _ in range(4):
        v = 0.9 * v + client.direction(0, w, problem.w0) + 0.01 * w
        w = w - 0.1 * v
    more = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "steps": 4, "dtype": "float64"}
    result = tarry.run({"name": "fedsol", "part": part}, problem.task(), delay=[1.0], rounds=1, **more)
    assert result.weights is not None
    torch.testing.assert_close(result.weights, torch.from_numpy(w), rtol=1e-10, atol=1e-13)


def test_without_a_perturbation_fedsol_is_fedavg_to_the_bit() -> None:
    shas = {"fedavg": noisy_run("fedavg")}
    for part in ("head", "body", "all"):
        shas[part] = noisy_run({"name": "fedsol", "rho": 0.0, "part": part})
    shas["A0"] = noisy_run({"name": "fedsol", "strategy": "A0"})
    assert len(set(shas.values())) == 1, shas
    assert noisy_run({"name": "fedsol", "rho": 0.01}) != shas["fedavg"]


@several
@given(mu=st.sampled_from([0.3, 2.0]), case=cases())
def test_the_auxiliary_l2_loss_with_weight_mu_is_fedprox(mu: float, case: Classified) -> None:
    ours = events_of({"name": "fedsol", "strategy": "A5", "proximal": "l2", "beta": mu}, case)
    theirs = events_of({"name": "fedprox", "mu": mu}, case)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.weights, b.weights, rtol=1e-13, atol=1e-14)


def rule(**choice: Any) -> LocalRule:
    return build_by_flags(tarry.methods, "fedsol", **choice).local


def at(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], examples: tuple[Tensor, Tensor]) -> FlatModel:
    """Functions whose optimizer answers with the direction it was given, in the weights' place."""
    task = tarry.Task("one", model=module, loss=loss, clients=[examples])
    grab = Optimizer("grab", lambda w: None, lambda w, g, state: (g, state))
    return FlatModel(copy.deepcopy(module), Layout.of(module), task, grab)


def direction(local: LocalRule, bound: FlatModel, received: Tensor, w: Tensor) -> Tensor:
    """Of a step at w, some way into a visit that began at `received`."""
    _, context = local.begin(VisitInput(received, {}, {}, bound.layout))
    bound.load(received)
    bound.visit = BatchIterator(
        received, bound.task.clients[0], LocalWork(make_optimizer("sgd", lr=0.1), steps=1, epochs=None), 0
    )
    state = local.init(w, context, bound)
    if isinstance(state, StepState):
        state = state._replace(at_start=False)
    g, _, _ = local.step(w, bound.task.clients[0], context, state, bound)
    return g


@pytest.mark.parametrize("rho", [0.1, 1.0, 3.0])
def test_on_a_quadratic_the_conflict_with_the_proximal_gradient_falls_as_proposition_1_says(rho: float) -> None:
    """⟨g_u, g_p⟩ − ⟨g_l, g_p⟩ = ρ ĝ_pᵀ H g_p, with equality where the loss has no third derivative."""
    g = torch.Generator().manual_seed(1)
    root, c, w_g, w = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (4, 1, 1, 1))
    H, w_g, w = root @ root.T, w_g[0], w[0]
    bound = at(Shift(w_g), lambda z, y: 0.5 * ((z - y) @ H * (z - y)).sum(1).mean(), (torch.zeros_like(c), c))
    choice: Choice = {"proximal": "l2", "adaptive": False, "part": "all"}
    g_l, g_u = (direction(rule(**choice, rho=r), bound, w_g, w) for r in (0.0, rho))
    g_p = w - w_g
    torch.testing.assert_close(g_l, H @ (w - c[0]))
    torch.testing.assert_close(g_u @ g_p - g_l @ g_p, rho * (g_p / g_p.norm()) @ H @ g_p, rtol=1e-12, atol=0)


def settle(method: Any, delta: float, optimum: tuple[float, float]) -> Tensor:
    """Where one long visit from (0, 0) ends under L = ½(u − u_l)² + δ/2 (v − v_l)²."""
    scale = torch.tensor([1.0, delta])
    task = tarry.Task(
        "toy",
        model=Shift(torch.zeros(2)),
        loss=lambda z, y: 0.5 * ((z - y) ** 2 * scale).sum(1).mean(),
        clients=[(torch.zeros(1, 2), torch.tensor([optimum]))],
        metrics=["loss"],
    )
    result = tarry.run(method, task, dtype="float64", steps=500, lr=0.2, delay=[1.0], updates=1)
    assert result.weights is not None
    return result.weights


@pytest.mark.parametrize("delta", [0.25, 4.0])
def test_the_papers_toy_settles_in_the_direction_of_the_local_optimum(delta: float) -> None:
    """App. L: at radius r_l − ρ, whatever δ, while FedProx's pull bends the direction."""
    optimum = torch.tensor([0.75, 1.0], dtype=torch.float64)  # r_l = 1.25
    fedsol = {"name": "fedsol", "proximal": "l2", "adaptive": False, "part": "all", "rho": 0.5}
    torch.testing.assert_close(settle(fedsol, delta, (0.75, 1.0)), optimum / 1.25 * (1.25 - 0.5), rtol=1e-9, atol=0)
    mu, (u, v) = 0.5, settle({"name": "fedprox", "mu": 0.5}, delta, (0.75, 1.0)).tolist()
    assert (u, v) == pytest.approx((0.75 / (1 + mu), delta / (delta + mu)), rel=1e-9)


def soft(z: Tensor, z_g: Tensor) -> Tensor:
    """KL(softmax(z_g/3) ‖ softmax(z/3)), plainly."""
    p, q = torch.softmax(z_g / 3, 1), torch.softmax(z / 3, 1)
    return (p * (p.log() - q.log())).sum(1).mean()


@pytest.mark.parametrize("rho", [0.3, 2.0])
def test_where_local_and_proximal_loss_are_one_fedsol_is_sharpness_aware_minimisation(rho: float) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    bound = at(net, soft, (x, net(x).detach()))
    w_g = bound.layout.read(net, torch.float64)
    w = w_g + torch.linspace(-1, 1, len(w_g), dtype=torch.float64)
    flat = {"adaptive": False, "part": "all", "rho": rho}
    g = plain_gradient(net, w, soft, (x, net(x).detach()))
    sam = plain_gradient(net, w + rho * g / g.norm(), soft, (x, net(x).detach()))
    torch.testing.assert_close(direction(rule(**flat), bound, w_g, w), sam, rtol=1e-10, atol=1e-14)
    point = at(Shift(w_g), lambda z, y: 0.5 * ((z - y) ** 2).sum(1).mean(), (torch.zeros(1, len(w_g)), w_g[None]))
    d = w - w_g
    torch.testing.assert_close(direction(rule(**flat, proximal="l2"), point, w_g, w), d + rho * d / d.norm())


def plain_gradient(net: nn.Module, w: Tensor, loss: Callable[..., Tensor], examples: tuple[Tensor, Tensor]) -> Tensor:
    """By an ordinary backward pass of a copy."""
    net = copy.deepcopy(net).train()
    nn.utils.vector_to_parameters(w, net.parameters())
    loss(net(examples[0]), examples[1]).backward()
    return torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])


@pytest.mark.parametrize("proximal", ["kl", "l2"])
def test_direct_projection_removes_the_conflicting_component_and_nothing_else(proximal: str) -> None:
    local, conflicts = rule(strategy="projection", proximal=proximal), []
    for seed in range(12):
        problem = Classes.draw(seed, p=3, h=4, k=3, sizes=[5])
        client = Client(problem, proximal=proximal)
        w_g = problem.w0
        w = client.train(0, w_g, steps=2, lr=0.3) if seed % 2 else w_g + Classes.draw(99, p=3, h=4, k=3, sizes=[1]).w0
        task = problem.task()
        g = direction(local, at(task.model, task.loss, task.clients[0]), torch.from_numpy(w_g), torch.from_numpy(w))
        g_l, g_p = (torch.from_numpy(v) for v in (problem.gradient(0, w), client.proximal_gradient(0, w, w_g)))
        conflicts.append(bool(g_l @ g_p < 0))
        if conflicts[-1]:
            assert (g @ g_p).abs() < 1e-12 * g_l.norm() * g_p.norm()
            removed = g_l - g
            torch.testing.assert_close(removed, (removed @ g_p) / (g_p @ g_p) * g_p, rtol=1e-9, atol=1e-13)
        else:
            torch.testing.assert_close(g, g_l, rtol=1e-12, atol=1e-14)
    assert set(conflicts) == {True, False}


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("more", [[], [nn.LogSoftmax(1)]], ids=["last", "not-last"])
def test_perturbing_the_head_leaves_the_body_and_equals_whole_passes(more: list[nn.Module], adaptive: bool) -> None:
    """Against an ordinary module with BatchNorm: teacher in use, student in training."""
    net = nn.Sequential(*batchnorm_net(4, 5, 3, seed=6), *more).double()
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 4, generator=g, dtype=torch.float64), torch.randint(3, (8,), generator=g)
    bound, layout = at(net, cross_entropy, (x, y)), Layout.of(net)
    received = layout.read(net, torch.float64)
    w_g = layout.params(received)
    w = w_g + torch.randn(len(w_g), generator=g, dtype=torch.float64)
    teacher = copy.deepcopy(net).eval()(x).detach()
    head = slice(layout.layers[-2].start, layout.layers[-1].stop)
    g_p = plain_gradient(net, w, soft, (x, teacher))[head]
    moved = w[head] - w_g[head]
    lam = torch.cat([moved[:15] / moved[:15].norm(), moved[15:] / moved[15:].norm()]).abs() if adaptive else 1.0
    away = w.clone()
    away[head] += 2.0 * lam * g_p / g_p.norm()
    got = direction(rule(adaptive=adaptive), bound, received, w)
    torch.testing.assert_close(got, plain_gradient(net, away, cross_entropy, (x, y)), rtol=1e-10, atol=1e-13)
    assert not torch.allclose(got, plain_gradient(net, w, cross_entropy, (x, y)), rtol=1e-2)


@pytest.mark.parametrize("proximal", ["kl", "l2"])
@pytest.mark.parametrize("part", ["head", "all"])
@pytest.mark.parametrize("strategy", ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "projection"])
def test_running_statistics_move_once_a_step_and_where_it_begins(strategy: str, part: str, proximal: str) -> None:
    """With l2, A1, A3 and A6 need no pass at w: there the one pass is at the perturbed weights."""
    net = batchnorm_net(4, 5, 3, seed=6).double()
    x, y = torch.linspace(-2, 3, 24, dtype=torch.float64).view(6, 4) ** 2, torch.tensor([0, 1, 2, 0, 1, 2])
    bound, layout = at(net, cross_entropy, (x, y)), Layout.of(net)
    received = layout.read(net, torch.float64)
    w = layout.params(received) + 0.5
    direction(rule(strategy=strategy, part=part, proximal=proximal), bound, received, w)
    assert bound.module[1].num_batches_tracked == 1
    if proximal == "kl" or part == "head" or strategy in ("A0", "A2", "A4", "A5", "projection"):
        once = copy.deepcopy(net)
        nn.utils.vector_to_parameters(w, once.parameters())
        once(x)
        torch.testing.assert_close(bound.flat[layout.n_params :], layout.read(once, torch.float64)[layout.n_params :])


def test_diagnostics_are_means_over_the_steps_and_change_nothing() -> None:
    problem = Classes.draw(5, p=3, h=4, k=3, sizes=[6])
    task, start = problem.task(), torch.from_numpy(problem.w0)
    work = LocalWork(make_optimizer("sgd", lr=0.4), epochs=None, steps=3)
    for part in ("head", "all"):
        bound = FlatModel(copy.deepcopy(task.model), Layout.of(task.model), task, work.optimizer)
        rules = [replace(rule(part=part), diagnose=watch) for watch in (False, True)]
        blind, seen = (train(VisitJob(0, 0, 0, start), bound, rule=r, work=work, seed=0) for r in rules)
        assert torch.equal(blind.delta, seen.delta)
        assert (dict(blind.notes), blind.loss) == ({}, seen.loss)
        losses, cosines, w = [], [], problem.w0
        client = Client(problem, part=part)
        for _ in range(3):
            g, g_p = (
                torch.from_numpy(v)
                for v in (client.direction(0, w, problem.w0), client.proximal_gradient(0, w, problem.w0))
            )
            if part == "head":
                g, g_p = g[problem.h * (problem.p + 1) :], g_p[problem.h * (problem.p + 1) :]
            losses.append(soft(*(torch.from_numpy(problem.outputs(0, v)) for v in (w, problem.w0))))
            cosines.append(g @ g_p / (g.norm() * g_p.norm()) if g_p.any() else torch.tensor(0.0))
            w = client.train(0, problem.w0, steps=len(losses), lr=0.4)
        assert seen.notes["proximal"].item() == pytest.approx(sum(losses).item() / 3, rel=1e-9)
        assert seen.notes["cosine_proximal"].item() == pytest.approx(sum(cosines).item() / 3, rel=1e-9)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (
            {"rho": -1.0, "beta": -2.0},
            ["method.rho=-1.0: must be 0 or more", "method.beta=-2.0: must be 0 or more"],
        ),
        ({"temperature": 0.0}, ["method.temperature=0.0: must be above 0"]),
        ({"part": "body"}, ["method.part='body': all of the model is head; use method.part='all'"]),
    ],
)
def test_what_cannot_be_is_refused(params: Choice, said: list[str]) -> None:
    task = tarry.Task("one layer", model=nn.Linear(2, 2), loss=cross_entropy, clients=[(torch.eye(2), torch.arange(2))])
    with pytest.raises(BadInput) as e:
        tarry.run({"name": "fedsol", **params}, task, delay=[1.0], rounds=1)
    assert list(e.value.problems) == said


def test_a_model_without_a_head_or_without_classes_is_refused_with_the_way_out() -> None:
    bound = at(Shift(torch.zeros(2)), lambda z, y: (z - y).square().mean(), (torch.zeros(3, 2), torch.ones(3, 2)))
    with pytest.raises(BadInput, match=r"--method.part head: .* no linear or conv map; use --method.part all"):
        direction(rule(), bound, torch.zeros(2), torch.ones(2))
    bound = at(nn.Linear(2, 1), lambda z, y: (z - y).square().mean(), (torch.zeros(3, 2), torch.ones(3, 1)))
    with pytest.raises(BadInput, match=r"--method.proximal kl: .* one output; use --method.proximal l2"):
        direction(rule(), bound, torch.zeros(3), torch.ones(3))


@pytest.mark.parametrize("part", ["head", "all"])
def test_a_visits_first_step_is_plain_though_the_received_model_is_asked_about_all_examples_at_once(part: str) -> None:
    """What the machine rounds otherwise in a larger batch is no direction to be perturbed along."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 64, generator=g), torch.randint(0, 10, (64,), generator=g)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    task = tarry.Task("rounding", model=module, loss=nn.functional.cross_entropy, clients=[(x, y)])
    local = tarry.methods.build("fedsol", adaptive=False, part=part).local
    work = LocalWork(make_optimizer("sgd", lr=0.1), epochs=2, batch=32)
    bound = FlatModel(copy.deepcopy(module), Layout.of(module), task, work.optimizer)
    start = bound.flat.clone()
    seen: list[tuple[Tensor, Tensor]] = []

    class First(LocalRule):
        def begin(self, visit: VisitInput) -> Any:
            return local.begin(visit)

        def init(self, w: Tensor, context: Any, f: Any) -> Any:
            return local.init(w, context, f)

        def step(self, w: Tensor, batch: Any, context: Any, state: Any, f: Any) -> Any:
            out = local.step(w, batch, context, state, f)
            seen.append((out[0], LocalRule().step(w, batch, context, f.init(w), f)[0]))
            return out

    train(VisitJob(0, 0, 0, start), bound, rule=First(), work=work, seed=0)
    torch.testing.assert_close(*seen[0], rtol=1e-6, atol=1e-8)
    assert not torch.allclose(*seen[2], rtol=1e-6, atol=1e-8)
