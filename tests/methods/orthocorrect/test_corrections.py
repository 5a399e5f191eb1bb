"""The delay corrections against their twins, and what they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import ServerView
from tarry.core.tickets import Ticket, Update
from tests.helpers.by_flags import build_by_flags
from tests.methods.fedasync.reference import FedAsync, constant
from tests.methods.orthocorrect.reference import Corrected, Correction, orthocorrect
from tests.reference.match import Case, cases, check, few

NAMED: list[tuple[dict[str, Any], Correction]] = [
    ({"name": "orthograd"}, orthocorrect(0.0, 0.0)),
    ({"name": "orthopos"}, orthocorrect(1.0, 0.0)),
    ({"name": "orthopos", "conflict": "endpoint"}, orthocorrect(1.0, 0.0, endpoint=True)),
    ({"name": "orthostrict"}, orthocorrect(0.0, 1.0)),
    ({"name": "orthocorrect", "alpha": 0.3, "theta": 0.4}, orthocorrect(0.3, 0.4)),
    ({"name": "orthocorrect", "alpha": -1.5, "theta": -0.2}, orthocorrect(-1.5, -0.2)),
]


@pytest.mark.parametrize(
    ("method", "correction"), NAMED, ids=lambda x: str(x.get("name")) if isinstance(x, dict) else ""
)
@few
@given(case=cases())
def test_a_delay_correction_is_its_twin(method: dict[str, Any], correction: Correction, case: Case) -> None:
    check(method, case, Corrected(case.problem.w0, 0.4, correction))


@few
@given(cases())
def test_trusting_position_without_conflicts_is_fedasync(case: Case) -> None:
    """cos ≤ −1 never holds but for exact opposites: λ = 1 always, and the endpoint is where the client ended."""
    method = {"name": "orthocorrect", "alpha": 1.0, "theta": -1.0, "eta": 0.6}
    check(method, case, FedAsync(case.problem.w0, 0.6, constant))


def after(method: tarry.Method, delta: list[float], drift: list[float]) -> torch.Tensor:
    """The corrected displacement of an update handed out before the global drifted."""
    d, g = (torch.tensor(x, dtype=torch.float64) for x in (delta, drift))
    layout = Layout((Block("w", 0, len(d), (len(d),), Kind.PARAM),))
    old = torch.ones_like(d)
    now = ServerView(old + g, layout, 3, 1.0, 0, 2, 0, 0)
    update = Update(Ticket(0, 0, 0, 0, 0.0, old, old), d, 1, 1, 3)
    corrected, _ = method.correct(update, method.correct.init(old), now)
    torch.testing.assert_close(corrected.local, now.weights + corrected.delta)
    return corrected.delta


@pytest.mark.parametrize("name", ["orthograd", "orthopos", "orthostrict"])
def test_after_a_conflict_nothing_is_left_along_the_drift(name: str) -> None:
    """δ = (−1, 2), G = (2, 0): δ·G < 0, so the part along G goes and (0, 2) stays."""
    left = after(tarry.methods.build(name), [-1.0, 2.0], [2.0, 0.0])
    assert left.tolist() == [0.0, 2.0]


def test_without_a_conflict_orthograd_keeps_the_displacement_and_orthopos_the_position() -> None:
    """δ = (1, 2), G = (2, 0): orthograd (1, 2); orthopos (1, 2) − (2, 0); strict and the endpoint test project."""
    wanted = {"orthograd": [1.0, 2.0], "orthopos": [-1.0, 2.0], "orthostrict": [0.0, 2.0]}
    for name, left in wanted.items():
        assert after(tarry.methods.build(name), [1.0, 2.0], [2.0, 0.0]).tolist() == left
    endpoint = tarry.methods.build("orthopos", conflict="endpoint")
    assert after(endpoint, [1.0, 2.0], [2.0, 0.0]).tolist() == [0.0, 2.0]  # δ·G = 2 < 4 = G·G
    assert after(endpoint, [3.0, 2.0], [2.0, 0.0]).tolist() == [1.0, 2.0]  # δ·G = 6 > 4: δ − G


@pytest.mark.parametrize("name", ["dc-asgd", "orthograd", "orthopos", "orthostrict"])
def test_a_fresh_update_is_not_corrected(name: str) -> None:
    assert after(tarry.methods.build(name), [-1.0, 2.0], [0.0, 0.0]).tolist() == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("orthocorrect", {"theta": 2.0}, "--method.theta 2.0"),
        ("orthocorrect", {"alpha": float("inf")}, "--method.alpha inf"),
    ],
)
def test_what_cannot_be_is_refused(name: str, params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, name, **params)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthostrict_leaves_nothing_of_a_displacement_along_the_drift(dtype: torch.dtype) -> None:
    """Parallel vectors, whose cosine a machine may round above 1."""
    g = torch.Generator().manual_seed(0)
    method = tarry.methods.build("orthostrict")
    for _ in range(200):
        drift = torch.randn(50, generator=g, dtype=torch.float64).to(dtype)
        delta = drift * torch.rand((), generator=g).to(dtype)
        layout = Layout((Block("w", 0, 50, (50,), Kind.PARAM),))
        now = ServerView(drift, layout, 3, 1.0, 0, 2, 0, 0)
        zero = torch.zeros_like(drift)
        update = Update(Ticket(0, 0, 0, 0, 0.0, zero, zero), delta, 1, 1, 3)
        left, _ = method.correct(update, method.correct.init(zero), now)
        assert left.delta.norm() < 1e-5 * drift.norm()
