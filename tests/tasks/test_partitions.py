from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tarry.core.errors import BadInput
from tarry.core.rng import generator
from tarry.core.task import Indices
from tarry.tasks import at_least, partitions
from tarry.tasks.partitions import _draw_classes
from tests.helpers.by_flags import build_by_flags

thorough = settings(derandomize=True, deadline=None, max_examples=80)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Indices, int, int]:
    """Labels (shuffled, uneven, with gaps), a number of clients that is not too large, and a seed."""
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any))
    seed = draw(st.integers(0, 2**32))
    labels = generator(seed).permutation(np.repeat(np.arange(len(counts)) * 3, counts))
    return labels, draw(st.integers(1, min(12, len(labels)))), seed


def cut(name: str, labels: Indices, n_clients: int, seed: int = 0, groups: Indices | None = None, **params: Any) -> Any:
    return build_by_flags(partitions, name, **params)(labels, groups, n_clients, generator(seed))


def table(labels: Indices, parts: list[Indices], n_classes: int) -> Any:
    return np.array([np.bincount(labels[p], minlength=n_classes) for p in parts])


def assert_disjoint(parts: list[Indices], n: int, *, used: int | None = None) -> None:
    """Every example at most once, `used` of them (all, if not said)."""
    together = np.concatenate(parts)
    assert all(p.dtype == np.int64 for p in parts)
    assert len(np.unique(together)) == len(together) == (n if used is None else used)
    assert together.min(initial=0) >= 0
    assert together.max(initial=0) < n


@thorough
@given(problems())
def test_iid_uses_everything_and_sizes_differ_by_at_most_one(problem: tuple[Indices, int, int]) -> None:
    labels, k, seed = problem
    parts = cut("iid", labels, k, seed)
    assert_disjoint(parts, len(labels))
    sizes = [len(p) for p in parts]
    assert max(sizes) - min(sizes) <= 1


@thorough
@given(problems(), st.floats(1e-3, 1e4))
def test_dirichlet_gives_every_client_the_same_number_of_examples(
    problem: tuple[Indices, int, int], alpha: float
) -> None:
    labels, k, seed = problem
    parts = cut("dirichlet", labels, k, seed, alpha=alpha)
    assert [len(p) for p in parts] == [len(labels) // k] * k
    assert_disjoint(parts, len(labels), used=len(labels) // k * k)


@thorough
@given(problems(), st.integers(1, 20))
def test_dirichlet_gives_the_size_that_was_asked_for_or_refuses(problem: tuple[Indices, int, int], size: int) -> None:
    labels, k, seed = problem
    if size * k > len(labels):
        with pytest.raises(BadInput, match=f"--partition.size {size}: .*at most {len(labels) // k} fit"):
            cut("dirichlet", labels, k, seed, size=size)
    else:
        assert_disjoint(parts := cut("dirichlet", labels, k, seed, size=size), len(labels), used=size * k)
        assert [len(p) for p in parts] == [size] * k


@thorough
@given(problems(), st.floats(1e-3, 1e4))
def test_lda_uses_every_example_once(problem: tuple[Indices, int, int], alpha: float) -> None:
    labels, k, seed = problem
    parts = cut("lda", labels, k, seed, alpha=alpha)
    assert len(parts) == k
    assert_disjoint(parts, len(labels))


@thorough
@given(problems(), st.integers(1, 4))
def test_shards_are_equal_and_span_few_labels(problem: tuple[Indices, int, int], s: int) -> None:
    labels, k, seed = problem
    n = len(labels)
    assume(k * s <= n)
    parts = cut("shards", labels, k, seed, s=s)
    each = n // (k * s)
    assert [len(p) for p in parts] == [each * s] * k
    assert_disjoint(parts, n, used=each * s * k)
    pieces = [sorted(labels[p].tolist()) for part in parts for p in np.split(part, s)]
    pieces.sort(key=lambda p: (p[0], p[-1]))
    assert all(a[-1] <= b[0] for a, b in pairwise(pieces)), "shards of sorted labels overlap at most at their ends"


@thorough
@given(problems(), st.sampled_from([0.05, 0.5, 5.0]))
def test_lda_with_a_cap_gives_later_classes_to_clients_below_the_mean(
    problem: tuple[Indices, int, int], alpha: float
) -> None:
    labels, k, seed = problem
    parts = cut("lda", labels, k, seed, alpha=alpha, cap=True)
    assert_disjoint(parts, len(labels), used=len(labels))
    held = np.zeros(k)
    for c in np.unique(labels):
        got = np.array([(labels[part] == c).sum() for part in parts])
        assert (got[held >= len(labels) / k] == 0).all(), "a client that has its mean share gets no later class"
        held += got


@thorough
@given(problems(), st.integers(1, 3), st.floats(0.01, 1))
def test_main_class_without_a_size_takes_the_largest_that_fits(
    problem: tuple[Indices, int, int], main: int, share: float
) -> None:
    labels, k, seed = problem
    classes = np.unique(labels)
    assume(main < len(classes))
    try:
        parts = cut("main-class", labels, k, seed, main=main, share=share)
    except BadInput as e:
        assert "--clients" in str(e)  # noqa: PT017
        with pytest.raises(BadInput, match="--clients"):
            cut("main-class", labels, k, seed, main=main, share=share, size=1)
        return
    size = len(parts[0])
    assert_disjoint(parts, len(labels), used=size * k)
    for client, part in enumerate(parts):
        counts = np.array([(labels[part] == c).sum() for c in classes])
        mains = [(client * main + j) % len(classes) for j in range(main)]
        others = np.delete(counts, mains)
        assert counts[mains].sum() == round(share * size)
        assert np.ptp(counts[mains]) <= 1
        assert np.ptp(others) <= 1
    with pytest.raises(BadInput, match=f"--partition.size {size + 1}: .*use at most {size} a client"):
        cut("main-class", labels, k, seed, main=main, share=share, size=size + 1)


@thorough
@given(problems())
def test_proportional_sizes_are_within_one_of_k_times_the_first(problem: tuple[Indices, int, int]) -> None:
    labels, k, seed = problem
    parts = cut("proportional", labels, k, seed)
    assert_disjoint(parts, len(labels))
    exact = len(labels) * np.arange(1, k + 1) / (k * (k + 1) / 2)
    assert (np.abs(exact - [len(p) for p in parts]) < 1).all()


@thorough
@given(problems(), st.integers(1, 9))
def test_groups_stay_whole(problem: tuple[Indices, int, int], n_groups: int) -> None:
    labels, k, seed = problem
    of = generator(seed).integers(0, n_groups, len(labels)) * 5 + 2
    assume(k <= len(np.unique(of)))
    parts = cut("groups", labels, k, groups=of)
    assert_disjoint(parts, len(labels))
    holder = {int(g): i for i, g in enumerate(np.unique(of))}
    for client, part in enumerate(parts):
        assert {holder[int(g)] % k for g in of[part]} == {client}


@thorough
@given(problems())
def test_halves_gives_whole_classes_in_neighboring_blocks(problem: tuple[Indices, int, int]) -> None:
    labels, k, _ = problem
    n_classes = len(np.unique(labels))
    assume(k <= n_classes)
    parts = cut("halves", labels, k)
    assert_disjoint(parts, len(labels))
    blocks = [np.unique(labels[p]) for p in parts]
    assert np.array_equal(np.concatenate(blocks), np.unique(labels))
    assert {len(b) for b in blocks} <= {n_classes // k, n_classes // k + 1}


@thorough
@given(problems(), st.integers(0, 12), st.sampled_from(["iid", "lda", "dirichlet", "proportional", "shards"]))
def test_at_least_gives_everybody_the_minimum_or_refuses(
    problem: tuple[Indices, int, int], minimum: int, name: str
) -> None:
    labels, k, seed = problem
    assume(2 * k <= len(labels))
    plain = partitions.build(name)
    dealt = sum(map(len, plain(labels, None, k, generator(seed))))
    if minimum * k > dealt:
        with pytest.raises(BadInput, match=f"--min-samples {minimum}: {k} clients need {minimum * k} examples"):
            at_least(plain, minimum)(labels, None, k, generator(seed))
    else:
        parts = at_least(plain, minimum)(labels, None, k, generator(seed))
        assert len(parts) == k
        assert min(map(len, parts)) >= minimum
        assert_disjoint(parts, len(labels), used=dealt)


def test_at_least_redraws_with_the_same_generator_until_a_draw_is_good() -> None:
    labels = np.arange(400) % 4
    plain = partitions.build("lda", alpha=0.5)
    rng = generator(4)
    draws: list[list[Indices]] = []
    while not draws or min(map(len, draws[-1])) < 10:
        draws.append(plain(labels, None, 10, rng))
    assert len(draws) > 1, "the seed should need a redraw"
    parts = at_least(plain, 10)(labels, None, 10, generator(4))
    assert all(np.array_equal(a, b) for a, b in zip(parts, draws[-1], strict=True))


def test_at_least_mends_by_taking_from_whoever_has_most() -> None:
    calls = []

    def lopsided(labels: Indices, groups: Indices | None, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        calls.append(n_clients)
        return [np.arange(0, 9), np.arange(9, 16), np.arange(16, 18), np.arange(18, 18)]

    parts = at_least(lopsided, 3)(np.zeros(18, np.int64), None, 4, generator(0))
    # 9 7 2 0: four moves, from 9, 8, 7 (the first of two sevens), then the other seven
    assert [len(p) for p in parts] == [6, 6, 3, 3]
    assert_disjoint(parts, 18)
    assert set(parts[0]) < set(range(9))
    assert len(calls) == 100


def test_a_partition_is_a_function_of_its_generator() -> None:
    labels = np.arange(300) % 7
    for name in ("iid", "dirichlet", "lda", "shards", "main-class", "proportional"):
        a, b, c = (cut(name, labels, 6, seed) for seed in (1, 1, 2))
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        assert not all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


def test_main_class_uses_cifar10_up_exactly_as_the_paper_deals_it() -> None:
    labels = np.repeat(np.arange(10), 5000)
    parts = cut("main-class", labels, 50, size=1000)
    counts = table(labels, parts, 10)
    assert_disjoint(parts, 50_000)
    for k in range(50):
        assert counts[k, k % 10] == 950
        assert sorted(np.delete(counts[k], k % 10).tolist()) == [5] * 4 + [6] * 5
    assert counts[2].tolist() == [5, 5, 950, 6, 6, 6, 6, 6, 5, 5]
    assert [len(p) for p in cut("main-class", labels, 50)] == [1000] * 50


def test_main_class_uses_cifar100_up_exactly_with_two_main_classes_of_40_percent() -> None:
    labels = np.repeat(np.arange(100), 500)
    parts = cut("main-class", labels, 50, size=1000, main=2, share=0.8)
    counts = table(labels, parts, 100)
    assert_disjoint(parts, 50_000)
    for k in range(50):
        assert counts[k, [2 * k, 2 * k + 1]].tolist() == [400, 400]
        assert set(np.delete(counts[k], [2 * k, 2 * k + 1]).tolist()) == {2, 3}


def test_main_class_with_the_whole_share_has_nothing_else() -> None:
    labels = np.arange(30) % 3
    counts = table(labels, cut("main-class", labels, 3, share=1.0), 3)
    assert counts.tolist() == [[10, 0, 0], [0, 10, 0], [0, 0, 10]]


def test_proportional_gives_eight_clients_one_to_eight_parts() -> None:
    assert [len(p) for p in cut("proportional", np.zeros(360, np.int64), 8)] == [10, 20, 30, 40, 50, 60, 70, 80]


def test_groups_are_one_a_client_in_order_and_dealt_round_robin_to_fewer() -> None:
    labels, of = np.zeros(7, np.int64), np.array([30, 10, 20, 10, 30, 40, 20])
    assert [p.tolist() for p in cut("groups", labels, 4, groups=of)] == [[1, 3], [2, 6], [0, 4], [5]]
    assert [p.tolist() for p in cut("groups", labels, 3, groups=of)] == [[1, 3, 5], [2, 6], [0, 4]]


def test_halves_gives_two_clients_disjoint_halves_of_the_classes() -> None:
    labels = np.array([4, 0, 1, 3, 2, 9, 5, 8, 7, 6, 0, 9])
    assert [p.tolist() for p in cut("halves", labels, 2)] == [[0, 1, 2, 3, 4, 10], [5, 6, 7, 8, 9, 11]]


def test_shards_of_mcmahan_have_at_most_two_labels_a_client() -> None:
    labels = np.repeat(np.arange(10), 60)
    counts = table(labels, cut("shards", labels, 10), 10)
    assert ((counts > 0).sum(1) <= 2).all()
    assert set(counts.ravel().tolist()) <= {0, 30, 60}
    assert (counts == 30).sum() > 10, "shards are dealt at random, not two neighbors of a label to each client"


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_class_shares_have_the_moments_of_the_dirichlet_multinomial(alpha: float) -> None:
    # p = 1/C; a share of m draws has variance p(1−p)/m · (m + αC)/(1 + αC); the stock is far from running out
    c, m, k = 4, 50, 2000
    labels = np.repeat(np.arange(c), k * m)
    share = table(labels, cut("dirichlet", labels, k, 5, alpha=alpha, size=m), c) / m
    p, total = 1 / c, alpha * c
    variance = p * (1 - p) / m * (m + total) / (1 + total)
    assert share.mean(0) == pytest.approx(p, abs=5 * np.sqrt(variance / k))
    assert share.var(0) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_lda_client_shares_have_the_moments_of_the_dirichlet(alpha: float) -> None:
    # p = 1/K; the share of a class that one client has: variance p(1−p)/(1 + αK)
    k, classes, n = 5, 600, 200
    labels = np.repeat(np.arange(classes), n)
    share = table(labels, cut("lda", labels, k, 6, alpha=alpha), classes).T / n
    p = 1 / k
    variance = p * (1 - p) / (1 + alpha * k)
    assert share.mean(0) == pytest.approx(p, abs=5 * np.sqrt(variance / classes))
    assert share.var(0) == pytest.approx(variance, rel=0.15)


def naive_draw(q: Any, places: Indices, stock: Indices, rng: np.random.Generator) -> Indices:
    """One place after the other, dropping the classes that have run out and renormalizing."""
    left, out = stock.copy(), []
    for client in places:
        p = np.where(left > 0, q[client], 0)
        c = rng.choice(len(stock), p=p / p.sum())
        left[c] -= 1
        out.append(c)
    return np.array(out)


def test_classes_that_run_out_are_dropped_and_the_rest_renormalized_as_one_by_one() -> None:
    q = np.array([[0.7, 0.2, 0.1, 1e-300], [0.1, 0.6, 0.05, 0.25]])
    places, stock = np.array([0, 1, 0, 0, 1, 1, 0, 1]), np.array([2, 2, 1, 3])
    ours, naive = generator(1), generator(2)
    trials = 2500
    a = np.array([_draw_classes(q, places, stock, ours) for _ in range(trials)])
    b = np.array([naive_draw(q, places, stock, naive) for _ in range(trials)])
    assert all((np.bincount(row, minlength=4) == stock).all() for row in a), "eight places use all eight examples up"
    for c in range(4):
        p, r = (a == c).mean(0), (b == c).mean(0)
        assert (np.abs(p - r) <= 5 * np.sqrt((p * (1 - p) + r * (1 - r)) / trials) + 1e-12).all()


def test_a_very_skewed_dirichlet_gives_most_clients_one_class() -> None:
    labels = np.repeat(np.arange(10), 1000)
    counts = table(labels, cut("dirichlet", labels, 10, 3, alpha=0.001, size=50), 10)
    assert (counts.max(1) >= 49).mean() >= 0.9


TEN = np.arange(10) % 5


@pytest.mark.parametrize("name", ["iid", "dirichlet", "lda", "shards", "main-class", "proportional"])
def test_more_clients_than_examples_or_none_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="--clients 11: the task has 10 training examples; use at most 10"):
        cut(name, TEN, 11)
    with pytest.raises(BadInput, match="--clients 0: must be 1 or more"):
        cut(name, TEN, 0)


@pytest.mark.parametrize(
    ("name", "params", "n_clients", "message"),
    [
        ("dirichlet", {"alpha": 0.0}, 2, "--partition.alpha 0.0: must be above 0"),
        ("lda", {"alpha": -1.0}, 2, "--partition.alpha -1.0: must be above 0"),
        ("lda", {"alpha": float("nan")}, 2, "--partition.alpha nan: wants float, got nan"),
        ("dirichlet", {"alpha": float("inf")}, 2, "--partition.alpha inf: wants float, got inf"),
        ("dirichlet", {"size": 0}, 2, "--partition.size 0: must be 1 or more"),
        ("dirichlet", {"size": 6}, 2, "--partition.size 6: 2 clients need 12 examples, there are 10; at most 5 fit"),
        ("shards", {"s": 0}, 2, "--partition.s 0: must be 1 or more"),
        (
            "shards",
            {"s": 6},
            2,
            "--partition.s 6: 2 clients × 6 shards need 12 examples, there are 10; lower it or --cl",
        ),
        ("main-class", {"size": 0}, 2, "--partition.size 0: must be 1 or more"),
        ("main-class", {"main": 0}, 2, "--partition.main 0: must be 1 or more"),
        ("main-class", {"main": 6}, 2, "--partition.main 6: the task has 5 classes; take fewer main classes"),
        ("main-class", {"main": 5}, 2, "--partition.main 5: the task has 5 classes; .* or --partition.share 1"),
        ("main-class", {"share": 0.0}, 2, "--partition.share 0.0: must be above 0 and at most 1"),
        ("main-class", {"share": 1.01}, 2, "--partition.share 1.01: must be above 0 and at most 1"),
        (
            "main-class",
            {"share": 1.0, "size": 3},
            2,
            "--partition.size 3: .*need 3 examples of one class, which has 2; use at",
        ),
        ("groups", {}, 2, "--partition groups: the task's examples have no natural groups"),
        ("halves", {}, 6, "--clients 6: the task has 5 classes; use at most 5 clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused_with_the_flag_and_the_value(
    name: str, params: dict[str, Any], n_clients: int, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        cut(name, TEN, n_clients, **params)


def test_all_wrong_parameters_of_main_class_are_named_at_once() -> None:
    with pytest.raises(BadInput) as e:
        build_by_flags(partitions, "main-class", size=0, main=-1, share=2.0)
    assert len(e.value.problems) == 3


def test_main_classes_too_small_for_one_example_a_client_are_refused() -> None:
    labels = np.array([0] * 9 + [1])
    with pytest.raises(BadInput, match="--clients 4: the classes have too few examples for so many"):
        cut("main-class", labels, 4, share=1.0)


def test_more_clients_than_groups_are_refused() -> None:
    with pytest.raises(BadInput, match="--clients 4: the task has 3 groups; use at most 3"):
        cut("groups", TEN, 4, groups=TEN % 3)


def test_an_impossible_minimum_is_refused() -> None:
    with pytest.raises(BadInput, match="--min-samples -1: must be 0 or more"):
        at_least(build_by_flags(partitions, "iid"), -1)
    with pytest.raises(
        BadInput, match=r"--min-samples 4: 3 clients need 12 .* assigns 10 of 10; lower it or --clients"
    ):
        at_least(build_by_flags(partitions, "iid"), 4)(TEN, None, 3, generator(0))


def test_every_partition_and_each_of_its_parameters_says_what_it_is() -> None:
    names = list(partitions)
    assert set(names) >= {"iid", "dirichlet", "lda", "shards", "main-class", "proportional", "groups", "halves"}
    for name in names:
        entry = partitions[name]
        assert entry.summary
        assert all(p.help for p in entry.params)
