"""Projections onto cones against brute force and scipy, and what they promise on awkward rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from torch import Tensor

from tarry.core.errors import BadInput, SolverFailed
from tarry.parts import cone
from tarry.parts.cone import Angles, few, many, nearest, products, within

Vec = npt.NDArray[np.float64]
some = settings(max_examples=20, derandomize=True, deadline=None, database=None)


def by_few(g: Vec, M: Vec) -> Vec:
    return within(torch.from_numpy(g), list(torch.from_numpy(M)), [slice(0, len(g))])[0].numpy()


def by_many(g: Vec, M: Vec) -> Vec:
    vectors, whole = list(torch.from_numpy(np.vstack([g, M]))), [slice(0, len(g))]
    angles = Angles.of(products(vectors, vectors, whole[0]).unsqueeze(0))
    return nearest(vectors[0], vectors[1:], many(angles) * angles.scale, whole).numpy()


both = pytest.mark.parametrize("project", [by_few, by_many])
Project = Callable[[Vec, Vec], Vec]


def brute(g: Vec, M: Vec) -> Vec:
    """Orthogonal to every set of rows in turn; of what meets all constraints, the nearest."""
    found = []
    for chosen in (list(c) for size in range(len(M) + 1) for c in combinations(range(len(M)), size)):
        z = g - M[chosen].T @ np.linalg.lstsq(M[chosen].T, g, rcond=None)[0]
        if (M @ z >= -1e-10 * np.linalg.norm(M, axis=1)).all():
            found.append(z)
    return min(found, key=lambda z: float(np.linalg.norm(z - g)))


def slsqp(g: Vec, M: Vec) -> Vec:
    def distance(z: Vec) -> tuple[float, Vec]:
        return 0.5 * float((z - g) @ (z - g)), z - g

    constraint: Any = {"type": "ineq", "fun": lambda z: M @ z, "jac": lambda z: M}
    found = minimize(distance, np.zeros_like(g), jac=True, method="SLSQP", constraints=[constraint], tol=1e-14)
    z: Vec = found.x
    return z


def primal_nnls(g: Vec, M: Vec) -> Vec:
    """z = g + Mᵀ v by least squares over the long vectors themselves."""
    return g + M.T @ nnls(M.T, -g)[0]


def drawn(seed: int, rows: int, dim: int) -> tuple[Vec, Vec]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=dim), rng.normal(size=(rows, dim))


seeds = st.integers(0, 2**32 - 1)


def assert_within(z: Vec, M: Vec, g: Vec, tol: float = 1e-12) -> None:
    assert (M @ z >= -tol * np.linalg.norm(M, axis=1) * np.linalg.norm(g)).all()


# Against others


@both
@pytest.mark.parametrize("reference", [brute, slsqp, primal_nnls])
@some
@given(seed=seeds, rows=st.integers(1, 3), dim=st.integers(3, 8))
def test_it_is_the_projection_that_others_find(
    project: Project, reference: Project, seed: int, rows: int, dim: int
) -> None:
    g, M = drawn(seed, rows, dim)
    tol = 1e-6 if reference is slsqp else 1e-11
    np.testing.assert_allclose(project(g, M), reference(g, M), rtol=0, atol=tol * np.linalg.norm(g))


@some
@given(seed=seeds, rows=st.integers(1, 40), dim=st.sampled_from([2, 5, 30, 100]))
def test_many_rows_are_met_with_the_projection_of_the_long_vectors(seed: int, rows: int, dim: int) -> None:
    """Also with more rows than dimensions, where all that is left may be a ray, or the point 0."""
    g, M = drawn(seed, rows, dim)
    z = by_many(g, M)
    assert_within(z, M, g)
    np.testing.assert_allclose(z, primal_nnls(g, M), rtol=0, atol=1e-10 * np.linalg.norm(g))


@both
@some
@given(seed=seeds, rows=st.integers(1, 3), dim=st.integers(1, 6))
def test_the_result_is_within_90_degrees_of_every_row_and_no_detour(
    project: Project, seed: int, rows: int, dim: int
) -> None:
    """z is orthogonal to what was added to g, and a projection of a projection is itself."""
    g, M = drawn(seed, rows, dim)
    z = project(g, M)
    assert_within(z, M, g)
    assert abs(z @ (z - g)) <= 1e-12 * (g @ g)
    np.testing.assert_allclose(project(z, M), z, rtol=0, atol=1e-11 * np.linalg.norm(g))


# Closed forms


@both
@some
@given(seed=seeds, dim=st.integers(1, 6))
def test_one_row_is_the_projection_onto_a_half_space(project: Project, seed: int, dim: int) -> None:
    g, M = drawn(seed, 1, dim)
    (r,) = M
    expected = g - min(g @ r, 0.0) / (r @ r) * r
    np.testing.assert_allclose(project(g, M), expected, rtol=0, atol=1e-13 * np.linalg.norm(g))


@both
def test_orthogonal_rows_each_take_their_part(project: Project) -> None:
    g = np.array([-1.0, 2.0, -3.0, 4.0])
    np.testing.assert_allclose(project(g, 5.0 * np.eye(4)[:3]), [0.0, 2.0, 0.0, 4.0], atol=1e-15)


@both
def test_two_rows_at_an_angle_by_hand(project: Project) -> None:
    """The cone between (0, 1) and (1, 0) seen from rows (1, 0) and (0, 1) + (−1, 0): y ≥ x ≥ 0."""
    M = np.array([[1.0, 0.0], [-1.0, 1.0]])
    for g, z in [((-1.0, 2.0), (0.0, 2.0)), ((3.0, 1.0), (2.0, 2.0)), ((-1.0, -2.0), (0.0, 0.0)), ((1.0, 2.0), (1, 2))]:
        np.testing.assert_allclose(project(np.array(g), M), z, atol=1e-15)


@both
@some
@given(seed=seeds, rows=st.integers(1, 3), dim=st.integers(1, 6))
def test_without_a_conflict_nothing_changes_to_the_bit(project: Project, seed: int, rows: int, dim: int) -> None:
    g, M = drawn(seed, rows, dim)
    M *= np.where(M @ g < 0, -1.0, 1.0)[:, None]
    np.testing.assert_array_equal(project(g, M), g)


@both
@some
@given(seed=seeds, rows=st.integers(1, 3), exponents=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
def test_how_long_the_rows_and_g_are_does_not_matter(
    project: Project, seed: int, rows: int, exponents: list[int]
) -> None:
    g, M = drawn(seed, rows, 5)
    scaled = M * 10.0 ** np.array(exponents[:rows])[:, None]
    size = 10.0 ** exponents[3]
    np.testing.assert_allclose(project(size * g, scaled) / size, project(g, M), rtol=0, atol=1e-11 * np.linalg.norm(g))


# Awkward rows


@both
def test_rows_of_zeros_ask_for_nothing(project: Project) -> None:
    g, M = np.array([-1.0, 2.0]), np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(project(g, M), [0.0, 2.0], atol=1e-15)
    np.testing.assert_array_equal(project(g, 0 * M), g)


@both
def test_nothing_stays_nothing(project: Project) -> None:
    _, M = drawn(1, 3, 4)
    np.testing.assert_array_equal(project(np.zeros(4), M), np.zeros(4))


@both
@some
@given(seed=seeds, factor=st.sampled_from([1e-5, 0.3, 1.0, 7.0, 1e5]), noise=st.sampled_from([0.0, 1e-16, 1e-15]))
def test_parallel_rows_count_once(project: Project, seed: int, factor: float, noise: float) -> None:
    g, M = drawn(seed, 2, 4)
    other = M[:1] * factor * (1 + noise)
    np.testing.assert_allclose(project(g, np.vstack([M, other])), brute(g, M), rtol=0, atol=1e-11 * np.linalg.norm(g))
    np.testing.assert_allclose(
        project(g, np.vstack([other, M[:1]])), brute(g, M[:1]), rtol=0, atol=1e-11 * np.linalg.norm(g)
    )


@both
@some
@given(seed=seeds, factor=st.sampled_from([0.5, 1.0, 8.0]))
def test_opposite_rows_leave_what_is_orthogonal_to_both(project: Project, seed: int, factor: float) -> None:
    g, M = drawn(seed, 1, 4)
    (r,) = M
    z = project(g, np.vstack([M, -factor * M]))
    np.testing.assert_allclose(z, g - (g @ r) / (r @ r) * r, rtol=0, atol=1e-13 * np.linalg.norm(g))


@both
@pytest.mark.parametrize("angle", [10.0**-k for k in range(1, 17, 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_nearly_dependent_rows_are_still_met(project: Project, angle: float, sign: int) -> None:
    """However thin the wedge between two opposite half-spaces."""
    for seed in range(10):
        g, M = drawn(seed, 3, 6)
        M[1] = sign * M[0] + angle * M[1]
        assert_within(project(g, M), M, g, tol=2e-6)


@both
def test_in_one_dimension_opposite_wishes_leave_nothing(project: Project) -> None:
    M = np.array([[2.0], [-0.1], [5.0]])
    for g in (np.array([3.0]), np.array([-3.0])):
        np.testing.assert_allclose(project(g, M), [0.0], atol=1e-15)


def test_more_rows_than_dimensions_that_surround_everything_leave_nothing() -> None:
    turns = np.linspace(0, 2 * np.pi, 50, endpoint=False)
    M = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    np.testing.assert_allclose(by_many(np.array([3.0, -1.0]), M), [0.0, 0.0], atol=1e-14)


# Stretches, precision, stacking


def test_every_stretch_is_a_programme_of_its_own() -> None:
    g, M = drawn(5, 3, 9)
    cuts = [slice(0, 2), slice(2, 3), slice(3, 9)]
    expected = np.concatenate([brute(g[at], M[:, at]) for at in cuts])
    z, conflict = within(torch.from_numpy(g), list(torch.from_numpy(M)), cuts)
    np.testing.assert_allclose(z.numpy(), expected, atol=1e-12)
    assert conflict
    vectors = list(torch.from_numpy(np.vstack([g, M])))
    angles = Angles.of(torch.stack([products(vectors, vectors, at) for at in cuts]))
    z = nearest(vectors[0], vectors[1:], many(angles) * angles.scale, cuts)
    np.testing.assert_allclose(z.numpy(), expected, atol=1e-12)


def test_products_of_long_vectors_are_summed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """In double precision: 2^24 ones and a one more are not lost."""
    monkeypatch.setattr(cone, "_AT_ONCE", 12)
    a, b = (torch.from_numpy(x) for x in drawn(2, 3, 11))
    torch.testing.assert_close(products([a], list(b), slice(1, 10)), a[None, 1:10] @ b[:, 1:10].T)
    big = torch.tensor([4096.0, 1.0, 1.0], dtype=torch.float32)
    assert products([big], [big], slice(0, 3)).item() == 2**24 + 2


def test_vectors_of_single_precision_are_met_to_single_precision() -> None:
    for seed in range(20):
        g, M = drawn(seed, 3, 50)
        z, _ = within(torch.from_numpy(g).float(), [torch.from_numpy(r).float() for r in M], [slice(0, 50)])
        assert z.dtype == torch.float32
        assert_within(z.double().numpy(), M, g, tol=1e-6)
        np.testing.assert_allclose(z.numpy(), brute(g, M), rtol=0, atol=3e-6 * np.linalg.norm(g))


def test_a_stack_of_programmes_is_one_by_one() -> None:
    """No branch on a value: vmap goes through."""
    stack = torch.from_numpy(np.random.default_rng(3).normal(size=(30, 4, 5)))

    def project(vectors: Tensor) -> Tensor:
        return within(vectors[0], list(vectors[1:]), [slice(0, 2), slice(2, 5)])[0]

    torch.testing.assert_close(torch.func.vmap(project)(stack), torch.stack([*map(project, stack)]))


def test_what_is_handed_in_is_not_written_to() -> None:
    g, *rows = torch.from_numpy(np.vstack(drawn(4, 3, 6)))
    kept = [t.clone() for t in (g, *rows)]
    within(g, rows, [slice(0, 6)])
    assert all(map(torch.equal, kept, (g, *rows)))


# What fails is told


def conflicting() -> Angles:
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]]).double()
    return Angles.of((vectors @ vectors.T).unsqueeze(0))


def test_what_is_no_number_is_not_passed_over() -> None:
    angles = conflicting()
    broken = angles._replace(rows=angles.rows * torch.nan)
    assert few(broken).isnan().any()
    for wrong in (broken, angles._replace(g=angles.g * torch.nan)):
        with pytest.raises(SolverFailed, match="no direction within 90° of 2 remembered ones was found"):
            many(wrong)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda A, b, maxiter: (np.zeros(2), 0.0), "breaks a condition by 1.0e"),
        (lambda A, b, maxiter: (np.array([1.0, 0.5]), 0.0), "breaks a condition by"),
        (lambda A, b, maxiter: (np.array([1.0, -0.5]), 0.0), "breaks a condition by"),
        (lambda A, b, maxiter: (np.full(2, np.nan), 0.0), "breaks a condition by inf|no number|nan"),
    ],
)
def test_an_answer_that_does_not_hold_is_refused(
    answer: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cone, "solver", lambda: answer)
    with pytest.raises(SolverFailed, match=said):
        many(conflicting())


def test_a_solver_that_gives_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any, **__: Any) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(cone, "solver", lambda: give_up)
    with pytest.raises(SolverFailed, match=r"Maximum number of iterations reached.*remember fewer of them"):
        many(conflicting())


def test_a_library_that_is_missing_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(cone, "import_module", missing)
    with pytest.raises(BadInput, match=r"scipy is needed.*pip install scipy"):
        cone.solver()
