"""The corrections that are swept are the methods' own arithmetic, and looking changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.core.events import Event
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import ServerView
from tarry.core.tickets import CONTROL, Ticket, Update
from tarry.methods import methods
from tarry.reproduce.studies.control_corrections import after_delay, along, places
from tarry.reproduce.studies.endpoint_corrections import PAPER, Sweep, sets_of
from tarry.reproduce.studies.endpoint_corrections import run as endpoint_study
from tarry.reproduce.studies.manifold_assumptions import Assumptions
from tarry.reproduce.studies.manifold_quality import quality, with_own
from tarry.reproduce.studies.watch import run_observed
from tarry.runs.build import build_run

Vec = npt.NDArray[np.float64]
N = 6


def _tiny(**changes: Any) -> Any:
    settings = {"task": {"name": "digits", "limit": 80}, "clients": 4, "updates": 12, "steps": 2, "batch": 8}
    return build_run(
        Spec.of({**settings, "delay": {"name": "scripted", "durations": [3.0, 5.0, 7.0, 11.0]}, **changes})
    )


def _arrival(seed: int, control: Vec | None = None) -> tuple[Update, ServerView, Vec, Vec, Vec]:
    draw = np.random.default_rng(seed)
    sent, delta, here = (draw.normal(size=N) for _ in range(3))
    layout = Layout((Block("w", 0, N, (N,), Kind.PARAM),))
    as_tensor = torch.from_numpy
    w = as_tensor(sent)
    extras = {} if control is None else {CONTROL: as_tensor(control)}
    update = Update(Ticket(0, 1, 0, 0, 0.0, w, w), as_tensor(delta), 5, 5, staleness=2, extras=extras)
    now = ServerView(as_tensor(here), layout, 2, 1.0, in_flight=1, n_clients=3, stream=0, decision=0)
    return update, now, sent, delta, here


def _expected(name: str, sent: Vec, delta: Vec, here: Vec, v: Vec) -> Vec:
    """Θ̂ as AsyncManifold writes it, uphill: Δ = Θ^t − Θ_i, b = Θ^t − Θ^τ; v is DC-ASGD's mean square."""
    up, b = -delta, sent - here
    along_b = up @ b
    projected = up - along_b / (b @ b) * b
    corrected = {
        "asgd": up,
        "fedasync": up - b,
        "dc-asgd": up + 5.0 / np.sqrt(v + 1e-7) * up**2 * (here - sent),
        "orthograd": projected if along_b <= 0 else up,
        "orthopos": projected if along_b <= 0 else up - b,
        "orthostrict": projected,
    }[name]
    return np.asarray(here - corrected)


@pytest.mark.parametrize("name", list(PAPER["corrections"]))
def test_every_swept_endpoint_is_that_of_the_equations(name: str) -> None:
    choice = PAPER["corrections"][name]
    table = {"name": choice} if isinstance(choice, str) else choice
    method = methods.build(table["name"], **{k: v for k, v in table.items() if k != "name"})
    sweep, v, signs = (
        Sweep(_tiny(), {name: method}, [_tiny().task.test], share=1.0, every=1, most=10),
        np.zeros(N),
        set(),
    )
    for seed in range(6):
        update, now, sent, delta, here = _arrival(seed)
        v = 0.95 * v + 0.05 * delta**2
        signs.add(bool(-delta @ (sent - here) <= 0))
        (end,) = sweep.endpoints(update, now)
        assert end.numpy() == pytest.approx(_expected(name, sent, delta, here, v), rel=1e-6)
    assert signs == {True, False}  # conflicts and none


@pytest.mark.parametrize("name", ["asgd", "orthograd", "orthopos", "orthostrict", "dc-asgd"])
def test_a_sweep_by_a_runs_own_correction_finds_its_next_globals(name: str) -> None:
    made = _tiny(method={"name": name, "eta": 0.5})
    sweep = Sweep(made, {"own": made.method}, [made.task.test], share=0.5, every=1, most=10)
    ends: list[Tensor] = []
    steps: list[Tensor] = []

    def see(update: Update, view: ServerView) -> None:
        ends.extend(sweep.endpoints(update, view))

    def after(event: Event) -> None:
        if event.kind == "arrival":
            steps.append(event.weights)

    run_observed(made, see, callbacks=[after])
    assert len(ends) == len(steps) == 12
    for end, step in zip(ends, steps, strict=True):
        assert torch.allclose(end, step, atol=1e-6)


@pytest.mark.parametrize(
    "method", ["fedasync", {"name": "tifl", "tiers": 2}, {"name": "asynccurve", "correction": "asgd"}]
)
def test_looking_changes_no_result(method: Any) -> None:
    made, seen = _tiny(method=method), list[int]()
    plain = run_observed(made)
    looked = run_observed(made, lambda update, now: seen.append(update.ticket.client))
    assert plain.weights_sha256 == looked.weights_sha256
    assert len(seen) == plain.updates == 12


def test_sweeps_give_a_row_of_losses_for_every_other_round() -> None:
    made = _tiny(method="fedasync")
    parts = {n: methods.build(n) for n in ("asgd", "fedasync")}
    sweep = Sweep(made, parts, [made.task.test], share=1.0, every=2, most=20)
    run_observed(made, sweep)
    assert [r[0] for r in sweep.rows] == [0, 2, 4, 6, 8, 10]
    assert sweep.rows[0][1] == pytest.approx(sweep.rows[0][2], rel=1e-5)  # nothing has moved yet: no delay
    assert sweep.rows[-1][1] != sweep.rows[-1][2]


def test_losses_are_on_the_sets_that_are_named() -> None:
    made, sets = sets_of(_tiny(method="fedasync"), ["train", "validation", "test"], 0.25, seed=3)
    train, validation, test = sets
    assert made.task.test is not None
    assert torch.equal(test[0], made.task.test[0])
    whole = _tiny(method="fedasync").task.clients
    assert len(train[0]) + len(validation[0]) == sum(len(x) for x, _ in whole)
    assert len(train[0]) == sum(len(x) for x, _ in made.task.clients)  # nothing of the validation set is trained on
    sweep = Sweep(made, {"asgd": methods.build("asgd")}, sets, share=1.0, every=1, most=None)
    run_observed(made, sweep)
    assert {len(row) for row in sweep.rows} == {4}
    one = Sweep(made, {"asgd": methods.build("asgd")}, [validation], share=1.0, every=1, most=None)
    run_observed(made, one)
    assert [row[2] for row in sweep.rows] == [row[1] for row in one.rows]
    with pytest.raises(BadInput, match="'tests' is not one of train, validation, test"):
        sets_of(made, ["tests"], 0.1, seed=3)


def test_a_study_of_three_sets_has_columns_for_each(tmp_path: Path) -> None:
    settings = {"task": {"name": "digits", "model": "mlp", "limit": 80}, "clients": 3, "updates": 9, "steps": 1}
    options: Any = {
        "settings": {**settings, "batch": 8, "partition": "iid", "optimizer": "sgd", "lr": 0.1, "epochs": None},
        "stand_ins": [],
        "sets": ["train", "test"],
        "algorithms": {"fedasync": {"method": "fedasync"}},
        "corrections": {"asgd": "asgd", "fedasync": "fedasync"},
        "every": 1,
    }
    found = endpoint_study(options, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print)
    assert set(found["numbers"]["asgd"]) == {"train-early", "train-late", "early", "late"}
    alone = endpoint_study(
        {**options, "sets": ["test"]}, quick=True, seeds=[0], device="cpu", folder=tmp_path, tell=print
    )
    assert alone["numbers"]["asgd"] == {c: found["numbers"]["asgd"][c] for c in ("early", "late")}


def test_assumptions_4_and_7_by_hand() -> None:
    made, look = _tiny(method={"name": "asynccurve", "correction": "asgd", "lr": 0.01}), Assumptions(points=3)
    seen: list[tuple[Update, Tensor]] = []

    def both(update: Update, now: ServerView) -> None:
        look(update, now)
        seen.append((update, now.weights.clone()))

    run_observed(made, both)
    n = made.layout.n_params
    globals_ = [w[:n] for _, w in seen]
    steps = [float(torch.linalg.vector_norm(b - a)) for a, b in pairwise(globals_)]
    stale = [(v, u) for v, (u, _) in enumerate(seen) if u.staleness]
    assert [row["staleness"] for row in look.rows] == [u.staleness for _, u in stale]
    for row, (v, u) in zip(look.rows, stale, strict=True):
        drift = float(torch.linalg.vector_norm(globals_[v] - globals_[v - u.staleness]))
        assert row["s"] == pytest.approx(drift / max(steps[v - u.staleness : v]), rel=1e-5)
        assert row["s"] <= u.staleness + 1e-5  # the triangle inequality
    far = [[0.0, 0.0] for _ in range(3)]
    for u, _ in seen:  # the displacement's endpoint: Θ + λ δ, and 2 λ (1 − λ) d beside it
        delta, d = u.delta[:n], u.extras[CONTROL]
        for sums, t in zip(far, (1 / 6, 1 / 2, 5 / 6), strict=True):
            sums[0] += float(torch.linalg.vector_norm(t * delta + 2 * t * (1 - t) * d))
            sums[1] += float(torch.linalg.vector_norm(t * delta))
    assert look.divergence("gradient") == pytest.approx(max(a / b for a, b in far), rel=1e-4)


def test_control_points_are_where_their_names_say() -> None:
    control = np.random.default_rng(9).normal(size=N)
    update, now, sent, delta, here = _arrival(4, control)
    phi, drift, ways = sent + delta / 2 + control, here - sent, after_delay(update, now)
    points = {name: _control(*way) for name, way in ways.items()}
    assert points["gradient-kept"] == pytest.approx(phi)
    assert points["position-kept"] == pytest.approx(phi)
    assert points["gradient-midpoint"] == pytest.approx(phi + drift)
    assert points["position-moved"] == pytest.approx(phi + drift)
    assert points["position-midpoint"] == pytest.approx((here + sent + delta) / 2 + control)
    turned = points["position-rotated"] - (here + sent + delta) / 2
    way = sent + delta - here
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(control))
    angle = turned @ way / np.linalg.norm(way)
    assert angle == pytest.approx(control @ delta / np.linalg.norm(delta))


def _control(start: Tensor, end: Tensor, bend: Tensor | None) -> Vec:
    """φ out of γ(½) = ¼ start + ½ φ + ¼ end."""
    half = along(start, end, bend, 0.5)
    return np.asarray((2 * half - (start + end) / 2).numpy())


def test_a_way_is_the_quadratic_bezier_curve() -> None:
    start, end, bend = (torch.from_numpy(np.random.default_rng(i).normal(size=N)) for i in range(3))
    phi = (start + end) / 2 + bend
    for t in (0.0, 0.3, 1.0):
        expected = (1 - t) ** 2 * start + 2 * t * (1 - t) * phi + t**2 * end
        assert torch.allclose(along(start, end, bend, t), expected)
    assert places(2) == [0.25, 0.75]


def test_a_control_point_in_the_middle_has_the_quality_of_the_line() -> None:
    update, now, *_ = _arrival(5, np.zeros(N))
    ways = with_own(update, now)
    assert set(ways) == {
        "own-linear",
        "own-learnt",
        "gradient-linear",
        "gradient-midpoint",
        "position-linear",
        "position-rotated",
    }

    def loss(w: Tensor) -> float:
        return float((w**4).sum())

    losses = {name: [loss(along(*way, t)) for t in places(4)] for name, way in ways.items()}
    assert quality(losses["own-linear"], losses["own-learnt"]) == [1.0] * 4
    assert quality(losses["position-linear"], losses["position-rotated"]) == [1.0] * 4
    assert quality([3.0], [2.0]) == [1.5]


def test_a_better_curve_has_a_quality_above_one() -> None:
    update, now, sent, delta, _ = _arrival(6, np.zeros(N))
    bent = update.replace(extras={CONTROL: torch.from_numpy(-(sent + delta / 2))})  # towards 0
    ways = with_own(bent, now)
    own = [float((along(*ways[name], 0.5) ** 2).sum()) for name in ("own-linear", "own-learnt")]
    assert quality(own[:1], own[1:])[0] > 1


def test_a_plan_with_another_task_is_run_on_that_task() -> None:
    made = _tiny(method="fedasync")
    fewer = replace(made, task=replace(made.task, clients=[(x[:3], y[:3]) for x, y in made.task.clients]))
    sizes: list[int] = []
    run_observed(fewer, lambda update, now: sizes.append(update.n_examples))
    assert set(sizes) == {3}
