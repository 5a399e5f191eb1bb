"""What AsyncCurve's client and server promise: closed forms, and small numbers by hand."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tarry
from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.local_rule import LocalRule, VisitInput
from tarry.core.method import ServerView
from tarry.core.optim import make_optimizer
from tarry.core.tickets import LocalResult, Ticket, TicketExtras, Update, VisitJob
from tarry.parts.curve import CurveLearning
from tarry.parts.manifold import line
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train
from tests.helpers.by_flags import build_by_flags
from tests.helpers.models import random_clients
from tests.methods.asynccurve.reference import lorentz_gradient, lorentz_term
from tests.reference.problem import Problem


def rule(**changes: Any) -> CurveLearning:
    plain: dict[str, Any] = {"lr": 1e-3, "control_lr": 1e-4, "solver": "adam", "rho": 0.5, "proximal": "lorentz"}
    return CurveLearning(**{**plain, "mu": 0.1, "sigma": 1.0, "gamma": 1.0, "shape": "bezier", **changes})


@pytest.mark.parametrize("apart", [1e-3, 0.1, 1.0])
def test_the_lorentz_gradient_is_the_slope_of_the_lorentz_term(apart: float) -> None:
    g = np.random.default_rng(3)
    start = g.normal(size=6)
    theta = start + apart * g.normal(size=6)
    made = rule(mu=0.7, sigma=2.5).transform_grad(
        torch.zeros(6, dtype=torch.float64), torch.from_numpy(theta), {"start": torch.from_numpy(start)}
    )
    h = 1e-5
    slope = [
        (lorentz_term(theta + h * e, start, 0.7, 2.5) - lorentz_term(theta - h * e, start, 0.7, 2.5)) / (2 * h)
        for e in np.eye(6)
    ]
    np.testing.assert_allclose(made.numpy(), slope, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(made.numpy(), lorentz_gradient(theta, start, 0.7, 2.5), rtol=1e-12, atol=1e-15)


def test_the_lorentz_term_holds_nobody_who_has_not_moved_and_keeps_small_moves_in_single_precision() -> None:
    """π_L's first coordinates are near 100 and nearly alike: their difference must not be drowned."""
    g = torch.Generator().manual_seed(0)
    start = torch.randn(10_000, generator=g)
    pull = partial(rule(mu=1.0).transform_grad, torch.zeros(10_000))
    assert not pull(start, {"start": start}).any()
    w = start + 1e-4 * torch.randn(10_000, generator=g)
    exact = lorentz_gradient_in_double(w, start)
    torch.testing.assert_close(pull(w, {"start": start}).double(), exact, rtol=1e-3, atol=1e-8)


def lorentz_gradient_in_double(w: Tensor, start: Tensor) -> Tensor:
    x, y = w.double(), start.double()
    a, b = (1 + x @ x).sqrt(), (1 + y @ y).sqrt()
    gap = (x - y) @ (x - y) - (a - b) ** 2
    return torch.exp(gap) * (x - y - (a - b) / a * x)


def visit(made: CurveLearning, *, seed: int = 0) -> LocalResult:
    """One client's visit of three epochs of three batches."""
    problem, unused = Problem.draw(seed, p=3, h=3, sizes=[6]), make_optimizer("sgd", lr=1.0)
    task = problem.task()
    assert isinstance(task.model, torch.nn.Module)
    bound, work = FlatModel(task.model, Layout.of(task.model), task, unused), LocalWork(unused, epochs=3, batch=2)
    return train(VisitJob(0, 0, 0, torch.from_numpy(problem.w0)), bound, rule=made, work=work, seed=0)


def test_a_control_point_is_orthogonal_to_the_line_unless_gamma_lets_it_be() -> None:
    for seed in range(5):
        out = visit(rule(lr=0.02, control_lr=0.02), seed=seed)
        d = out.extras["control"]
        assert d.norm() > 1e-3
        assert abs(torch.dot(d, out.delta)) < 1e-15
    out = visit(rule(lr=0.02, control_lr=0.02, gamma=0.0))
    assert abs(torch.dot(out.extras["control"], out.delta)) > 1e-6


def test_what_a_client_notes_is_the_loss_on_the_line_and_on_the_curve() -> None:
    """Where control points are not trained, both are the same; where they are, the curve is the better way."""
    assert visit(rule()).notes == {}
    still = visit(rule(diagnose=True, lr=0.02, control_lr=1e-300))
    torch.testing.assert_close(still.notes["line_loss"], still.notes["curve_loss"], rtol=1e-12, atol=0)
    moved = visit(rule(diagnose=True, lr=0.02, control_lr=0.05))
    assert moved.notes["curve_loss"] < moved.notes["line_loss"]
    assert torch.equal(moved.delta, visit(rule(lr=0.02, control_lr=0.05)).delta), "watching changes nothing"


def test_the_initial_moments_are_the_last_global_step_shared_out_over_an_epochs_batches() -> None:
    layout, w = Layout.of(torch.nn.Linear(1, 1)), torch.tensor([1.0, 2.0])
    shift = torch.tensor([4.0, -8.0])
    made = rule()
    _, context = made.begin(VisitInput(w, {"shift": shift}, {}, layout, key=7, n_steps=12, n_batches=4))
    first, second, steps = made.init(w, context, None).solver  # type: ignore[arg-type]
    assert (first.tolist(), second.tolist(), steps) == ([1.0, -2.0], [1.0, 4.0], 0)
    drawn = [rng.uniform(rng.extend(rng.extend(7, 1), k)) for k in range(12)]
    assert context["lam"][:12].tolist() == pytest.approx(drawn)


def test_every_client_is_sent_the_last_global_step_once_there_is_one() -> None:
    problem = Problem.draw(4, p=3, h=2, sizes=[6, 5])
    method = tarry.methods.build("asynccurve")
    assert method.step.payload_keys == {"shift"}
    state = method.step.init(torch.from_numpy(problem.w0))
    assert method.step.offer is not None
    assert method.step.offer(0, state, None) is None  # type: ignore[arg-type]
    for off in ({"moments": False}, {"optimizer": "sgd"}):
        assert tarry.methods.build("asynccurve", **off).step.offer is None


def at(version: int, weights: Tensor) -> ServerView:
    layout = Layout((Block("w", 0, len(weights), (len(weights),), Kind.PARAM),))
    return ServerView(weights, layout, version, 0.0, 0, 4, 0, 0)


def step_of(client: int, seen: list[int], **params: Any) -> list[float]:
    """Where the step of one more update goes from 0, its displacement (1, 0) and its control point (0, 1) off."""
    step = tarry.methods.build("asynccurve", low=1.0, **params).step
    w, delta, control = torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    state = step.init(w)
    for number, who in enumerate([*seen, client]):
        update = Update(Ticket(0, who, 0, 0, 0.0, w, w), delta, 1, 1, 0, extras={"control": control})
        new, state = step(update, state, at(number, w))
    return [round(x, 6) for x in new.tolist()]


def test_the_dominance_penalty_counts_who_came_how_often() -> None:
    """Four clients, η = 0.4: the first to come ever has p = 1, so α = 0.1; one of five updates: 0.5, then 2α(1−α)."""
    assert step_of(0, []) == [0.1, 0.18]
    assert step_of(1, [0, 0, 0, 0]) == [0.5, 0.5]
    assert step_of(0, [1, 1, 0]) == [0.2, 0.32]
    assert step_of(1, [0] * 11) == [1.0, 0.0], "0.4 · 12/4 = 1.2: never further than the endpoint"
    assert step_of(0, [1, 1, 0], penalty=False) == [0.4, 0.48]


def test_the_penalty_may_be_of_a_client_given_the_time_since_its_last_update() -> None:
    """Client 0 has waited 2 updates twice, and came both times; four clients, η = 0.4.

    At updates 2, 4 and 6 its wait is 2 and it comes; waits of 2 or 3 are alike: it came at all of its chances, p = 1.
    """
    assert step_of(0, [1, 0, 1, 0, 1], participation="since-last") == [0.1, 0.18]
    # client 1 waits 1, 2 and now 3: of the waits of 2 or 3, at updates 3, 5 and 6, it came at 3 and 6
    assert step_of(1, [1, 0, 1, 0, 0], participation="since-last") == [0.15, 0.255]
    assert step_of(1, [1, 0, 1, 0, 0], participation="since-last", penalty=False) == [0.4, 0.48]


def test_an_update_of_several_clients_is_not_penalised() -> None:
    assert step_of(-1, [0, 0, 1]) == [0.4, 0.48]


def test_the_step_may_travel_another_way() -> None:
    with_geodesic = tarry.methods.build("asynccurve", penalty=False, low=1.0).step.with_geodesic
    assert with_geodesic is not None
    step, w = with_geodesic(line), torch.zeros(2)
    update = Update(Ticket(0, 0, 0, 0, 0.0, w, w), torch.ones(2), 1, 1, 0, extras={"control": torch.ones(2)})
    new, state = step(update, step.init(w), at(0, w))
    assert new.tolist() == pytest.approx([0.4, 0.4])
    assert step.offer is not None
    assert step.offer(0, state, at(1, new)) == TicketExtras({"shift": state.shift})
    assert state.shift.tolist() == pytest.approx([-0.4, -0.4])


def normed_task() -> tarry.Task:
    data = random_clients([8] * 3, 3, 2, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return tarry.Task("normed", model=module, loss=torch.nn.functional.cross_entropy, clients=data)


@pytest.mark.parametrize("solver", ["adam", "asam"])
def test_running_statistics_move_once_a_batch_with_the_endpoint(solver: str) -> None:
    """Where weights hardly move they are plain training's: neither control steps nor asam's second look count."""
    task, unmoved, stats = normed_task(), make_optimizer("sgd", lr=1e-300), []
    assert isinstance(task.model, torch.nn.Module)
    layout = Layout.of(task.model)
    sent = layout.read(task.model, torch.float32)
    for made in (LocalRule(), rule(solver=solver, lr=1e-300, control_lr=1e-300)):
        bound = FlatModel(copy.deepcopy(task.model), layout, task, unmoved)
        out = train(VisitJob(0, 1, 0, sent), bound, rule=made, work=LocalWork(unmoved, epochs=2, batch=4), seed=3)
        stats.append(out.delta[layout.n_params :])
    assert stats[0].norm() > 0.1
    torch.testing.assert_close(stats[1], stats[0], rtol=1e-6, atol=1e-7)


def test_the_answer_is_the_mean_of_every_cth_global_statistics_and_all() -> None:
    seen: list[tarry.Event] = []
    method = {"name": "asynccurve", "swa": 0.5, "cycle": 3}
    settings: dict[str, Any] = {"delay": [[1.0], [1.5], [2.0]], "updates": 20, "dtype": "float64", "batch": 4}
    result = tarry.run(method, normed_task(), callbacks=[seen.append], **settings)
    taken = [e.weights for e in seen if e.kind == "arrival" and e.updates > 10 and (e.version - 1) % 3 == 0]
    assert len(taken) == 3
    assert result.weights is not None
    torch.testing.assert_close(result.weights, torch.stack(taken).mean(dim=0), rtol=1e-12, atol=1e-14)
    off = tarry.run({**method, "swa": 1.0}, normed_task(), callbacks=[seen.append], **settings)
    assert off.weights is not None
    assert torch.equal(off.weights, seen[-1].weights)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"eta": 0.0, "low": 2.0}, "--method.eta 0.0: .*\n--method.low 2.0"),
        ({"cycle": 0}, "--method.cycle 0"),
        ({"swa": -1.0}, "--method.swa -1.0"),
        ({"periodic": -1}, "--method.periodic -1"),
        ({"lr": 0.0, "control_lr": 0.0}, "--method.lr 0.0: .*\n--method.control_lr 0.0"),
        ({"rho": -1.0}, "--method.rho -1.0"),
        ({"mu": -1.0, "sigma": 0.0, "gamma": 1.5}, "--method.mu -1.0.*\n--method.sigma 0.0.*\n--method.gamma 1.5"),
        ({"statistic": "progres"}, "--method.statistic progres"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "asynccurve", **params)
