"""Geodesics go from their start to their end; rotations turn what they should and nothing else."""

from __future__ import annotations

from math import cos, pi, sin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Geodesic, ServerView
from tarry.core.tickets import CONTROL, Ticket, Update
from tarry.parts.endpoint import delay_correction, orthogonal, subtract_drift
from tarry.parts.manifold import bezier, line, manifolds, printed_curve, rotate, travel
from tarry.parts.staleness import constant
from tarry.parts.step import add, mix

few = settings(max_examples=30, derandomize=True, deadline=None, database=None)
TS = [0.0, 0.2, 0.5, 0.9, 1.0]


def drawn(seed: int, n: int, dim: int = 5) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(dim, generator=g, dtype=torch.float64) for _ in range(n)]


def update_of(sent: Tensor, delta: Tensor, control: Tensor | None = None) -> Update:
    extras = {} if control is None else {CONTROL: control}
    return Update(Ticket(0, 0, 0, 0, 0.0, sent, sent), delta, 1, 1, 0, extras=extras)


def matrix(a: Tensor, b: Tensor) -> Tensor:
    """The rotation of a's direction onto b's by hand: a basis of their plane, a 2 × 2 turn in it, the rest kept."""
    u = a / a.norm()
    n = b - (b @ u) * u
    n = n / n.norm()
    rest = torch.eye(len(a), dtype=a.dtype) - torch.outer(u, u) - torch.outer(n, n)
    angle = torch.acos((u @ b / b.norm()).clamp(-1, 1)).item()
    turn = torch.tensor([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]], dtype=a.dtype)
    plane = torch.stack([u, n])
    return rest + plane.T @ turn @ plane


@few
@given(st.integers(0, 10_000), st.integers(2, 7))
def test_a_rotation_is_the_explicit_matrix(seed: int, dim: int) -> None:
    d, a, b = drawn(seed, 3, dim)
    torch.testing.assert_close(rotate(d, a, b), matrix(a, b) @ d, rtol=1e-9, atol=1e-9)


@few
@given(st.integers(0, 10_000))
def test_a_rotation_takes_a_onto_b_keeps_norms_and_angles_and_leaves_the_complement_alone(seed: int) -> None:
    d, other, a, b = drawn(seed, 4)
    torch.testing.assert_close(rotate(a / a.norm(), a, b), b / b.norm(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rotate(d, a, b).norm(), d.norm(), rtol=1e-12, atol=0)
    torch.testing.assert_close(rotate(d, a, b) @ rotate(other, a, b), d @ other, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rotate(d, a, b) @ b / b.norm(), d @ a / a.norm(), rtol=1e-10, atol=1e-12)
    basis, _ = torch.linalg.qr(torch.stack([a, b]).T)
    outside = d - basis @ (basis.T @ d)
    torch.testing.assert_close(rotate(outside, a, b), outside, rtol=1e-12, atol=1e-12)


def test_a_quarter_turn_in_the_plane() -> None:
    x, y, z = torch.eye(3, dtype=torch.float64)
    d = 2 * x + 3 * y + 5 * z
    torch.testing.assert_close(rotate(d, x, 4 * y), 2 * y - 3 * x + 5 * z)


def test_parallel_and_zero_vectors_turn_nothing() -> None:
    d, a = drawn(1, 2)
    nothing = torch.zeros_like(a)
    for b in (a, 7.0 * a, a / 3):
        assert torch.equal(rotate(d, a, b), d)
    assert torch.equal(rotate(d, a, nothing), d)
    assert torch.equal(rotate(d, nothing, a), d)


def test_antiparallel_vectors_make_a_half_turn() -> None:
    d, a = drawn(2, 2)
    b = -3.0 * a
    torch.testing.assert_close(rotate(a, a, b), -a)
    torch.testing.assert_close(rotate(d, a, b).norm(), d.norm())
    torch.testing.assert_close(rotate(d, a, b) @ b / b.norm(), d @ a / a.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tilt", [0.0, 1e-15, 1e-12, 1e-7, 1e-5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nearly_parallel_and_antiparallel_vectors_still_rotate(dtype: torch.dtype, tilt: float, sign: float) -> None:
    """However near the two lie to one line, norms stay and a goes onto b, as far as the numbers reach."""
    d, a, aside = (x.to(dtype) for x in drawn(3, 3, 1000))
    b = sign * a + tilt * aside
    loose = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(rotate(d, a, b).norm(), d.norm(), rtol=loose, atol=0)
    torch.testing.assert_close(rotate(a, a, b) / a.norm(), b / b.norm(), rtol=0, atol=loose)


GEODESICS: list[Geodesic] = [line, bezier, printed_curve]


@pytest.mark.parametrize("geodesic", GEODESICS)
@pytest.mark.parametrize("bent", [False, True])
def test_a_geodesic_goes_from_its_start_to_its_end(geodesic: Geodesic, bent: bool) -> None:
    start, end, d = drawn(4, 3)
    update = update_of(start, end - start, d if bent else None)
    torch.testing.assert_close(geodesic(start, end, 0.0, update), start)
    torch.testing.assert_close(geodesic(start, end, 1.0, update), end)


@pytest.mark.parametrize("t", TS)
def test_a_bezier_curve_with_its_control_point_in_the_middle_is_the_straight_line(t: float) -> None:
    start, end = drawn(5, 2)
    for control in (None, torch.zeros_like(start)):
        update = update_of(start, end - start, control)
        torch.testing.assert_close(bezier(start, end, t, update), line(start, end, t, update), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("t", TS)
def test_the_curves_are_their_formulas(t: float) -> None:
    start, end, d = drawn(6, 3)
    update, phi = update_of(start, end - start, d), (start + end) / 2 + d
    true = (1 - t) ** 2 * start + 2 * t * (1 - t) * phi + t**2 * end
    torch.testing.assert_close(bezier(start, end, t, update), true, rtol=1e-12, atol=1e-13)
    as_printed = (1 - t) ** 2 * start + t * (1 - t) * phi + t**2 * end
    torch.testing.assert_close(printed_curve(start, end, t, update), as_printed, rtol=1e-12, atol=1e-13)


def test_the_printed_curve_shrinks_weights_by_a_quarter_half_way() -> None:
    (start,) = drawn(7, 1)
    stay = update_of(start, torch.zeros_like(start))
    torch.testing.assert_close(printed_curve(start, start, 0.5, stay), 0.75 * start)
    torch.testing.assert_close(bezier(start, start, 0.5, stay), start)


def test_a_curve_along_another_way_than_the_clients_carries_its_bend_along() -> None:
    """Learnt on δ = x bent towards y; the server goes along y: the bend turns to −x."""
    x, y, z = torch.eye(3, dtype=torch.float64)
    update = update_of(z, x, 0.1 * y)
    torch.testing.assert_close(bezier(z, z + 2 * y, 0.5, update), z + y - 0.05 * x)


LAYOUT = Layout((Block("w", 0, 3, (3,), Kind.PARAM), Block("v", 3, 4, (1,), Kind.STAT)))


def test_running_statistics_go_straight_and_no_further_than_their_end() -> None:
    w, end = torch.tensor([0.0, 0, 0, 1.0]), torch.tensor([2.0, 0, 0, 3.0])
    update = update_of(w, end - w, torch.tensor([0.0, 1.0, 0.0]))
    now = ServerView(w, LAYOUT, 0, 0.0, 0, 1, 0, 0)
    assert travel(bezier, now, end, 0.5, update).tolist() == [1.0, 0.5, 0.0, 2.0]
    assert travel(bezier, now, end, 1.5, update)[3] == 3.0
    assert travel(line, now, end, 1.5, update).tolist() == [3.0, 0.0, 0.0, 3.0]


def late(control: Tensor | None) -> tuple[Update, ServerView]:
    """δ = x, and the global has drifted by −x + y since."""
    layout = Layout((Block("w", 0, 3, (3,), Kind.PARAM),))
    x, y, z = torch.eye(3, dtype=torch.float64)
    return update_of(z, x, control), ServerView(z - x + y, layout, 4, 0.0, 0, 1, 0, 0)


def test_a_delay_correction_turns_the_control_point_with_the_displacement() -> None:
    """Eq. 17. orthograd: δ·G = −1, ‖G‖² = 2, so δ̂ = x + (−x + y)/2 = (x + y)/2: an eighth of a turn."""
    x, y, z = torch.eye(3, dtype=torch.float64)
    update, now = late(y + 3 * z)
    turned, _ = delay_correction(orthogonal(0.0, 0.0))(update, None, now)
    torch.testing.assert_close(turned.delta, (x + y) / 2)
    torch.testing.assert_close(turned.extras[CONTROL], cos(pi / 4) * (y - x) + 3 * z)
    kept, _ = delay_correction(subtract_drift(0.0))(update, None, now)
    assert torch.equal(kept.extras[CONTROL], update.extras[CONTROL]), "where displacement is trusted, R is the identity"
    plain, _ = delay_correction(orthogonal(0.0, 0.0))(late(None)[0], None, now)
    assert CONTROL not in plain.extras


def test_trusting_position_by_correction_or_by_mixing_travels_the_same_curve() -> None:
    """fedasync's correction then a step along the curve, or a mixing step that turns the control point itself."""
    update, now = late(torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))
    moved, _ = delay_correction(subtract_drift(1.0))(update, None, now)
    one, _ = add(0.4, along=bezier)(moved, None, now)
    other, _ = mix(0.4, constant(), along=bezier)(update, None, now)
    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    straight, _ = mix(0.4, constant())(update, None, now)
    assert not torch.allclose(other, straight)


@pytest.mark.parametrize(("name", "geodesic"), [("line", line), ("bezier", bezier), ("printed", printed_curve)])
def test_geodesics_have_names(name: str, geodesic: Geodesic) -> None:
    assert manifolds.build(name) is geodesic
