"""Partitions: how training examples are split over clients, with one factory for each scheme of the papers.

A partitioner gets the labels, the natural groups (or None), the number of clients and a generator, and returns one
list of example indices per client. The lists are disjoint. Errors name the flag to change.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..core.errors import BadInput
from ..core.task import Indices, Partitioner
from .data.apportion import apportion
from .registries import partitions

__all__ = ["at_least", "dirichlet", "groups", "halves", "iid", "lda", "main_class", "proportional", "shards"]

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

_REDRAWS = 100
_TINY = np.finfo(np.float64).tiny


@partitions.register("iid")
def iid() -> Partitioner:
    """Shuffle and split evenly: sizes differ by at most one."""

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        _check_clients(n_clients, len(labels))
        return np.array_split(rng.permutation(len(labels)), n_clients)

    return partition


@partitions.register(
    "dirichlet", paper="Orthogonal Calibration for Asynchronous Federated Learning (5.1); Hsu et al. 2019"
)
def dirichlet(
    *,
    alpha: Annotated[float, "Concentration of each client's class distribution; small values skew it"] = 0.1,
    size: Annotated[int | None, "Number of examples per client; none: the most that all clients can have"] = None,
) -> Partitioner:
    """Each client's class distribution is drawn from Dir(α); all clients have the same number of examples.

        q_k ~ Dir(α, …, α) over the classes          one for each client k
        class of an example of k ~ q_k, the example itself at random and without replacement

    When a class is exhausted, its probability is set to 0 and the rest is renormalized (Hsu et al. 2019, whose α is
    the sum over classes; here, as in OrthoFL's code, it is the concentration of each class). The places of the clients
    are filled in random order, so that a shortage affects all of them equally; OrthoFL's code also alternates at
    random. With `size` none, clients get ⌊n / clients⌋ examples and the remaining ones are not used.
    """
    _check_alpha(alpha)
    if size is not None and size < 1:
        raise BadInput(f"--partition.size {size}: must be 1 or more")

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        n = len(labels)
        _check_clients(n_clients, n)
        each = n // n_clients if size is None else size
        if each * n_clients > n:
            raise BadInput(
                f"--partition.size {size}: {n_clients} clients need {each * n_clients} examples, there are {n};"
                f" at most {n // n_clients} fit"
            )
        pools = _shuffled_classes(labels, rng)
        q = rng.dirichlet(np.full(len(pools), alpha), n_clients)
        places = rng.permutation(np.repeat(np.arange(n_clients), each))
        drawn = _draw_classes(np.maximum(q, _TINY), places, np.array([len(p) for p in pools]), rng)
        examples = np.empty(len(places), np.int64)
        for c, pool in enumerate(pools):
            here = drawn == c
            examples[here] = pool[: here.sum()]
        return [examples[places == k] for k in range(n_clients)]

    return partition


def _draw_classes(q: Floats, places: Indices, stock: Indices, rng: Rng) -> Indices:
    """Return the class of each place in turn, drawn from its client's row of q among the classes not exhausted by then.

    All classes are drawn at once and then corrected: the class that is exhausted first is closed, and its places beyond
    the stock are drawn again without it. Redrawing exhausted classes equals renormalizing, so this adds no bias.
    """
    left = q.copy()
    drawn = _draw(left, places, rng)
    while True:
        short = np.flatnonzero(np.bincount(drawn, minlength=len(stock)) > stock)
        if len(short) == 0:
            return drawn
        beyond = {c: np.flatnonzero(drawn == c)[stock[c] :] for c in short.tolist()}
        first = min(beyond, key=lambda c: int(beyond[c][0]))
        left[:, first] = 0.0
        drawn[beyond[first]] = _draw(left, places[beyond[first]], rng)


def _draw(q: Floats, places: Indices, rng: Rng) -> Indices:
    """Draw one class for each place, in the proportions of its client's row."""
    c = q.cumsum(1)
    u = rng.random(len(places))
    return np.asarray(((c / c[:, -1:])[places] <= u[:, None]).sum(1), np.int64)


@partitions.register(
    "lda", paper="FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning (4.1)"
)
def lda(
    *,
    alpha: Annotated[float, "Concentration of each class's shares over the clients; small values skew them"] = 0.1,
    cap: Annotated[bool, "Give no further classes to a client that has n / clients examples"] = False,
) -> Partitioner:
    """Split each class over the clients in proportions drawn from Dir(α); sizes differ, all examples are used.

        p_c ~ Dir(α, …, α) over the clients          one for each class c; client k gets the share p_c[k] of class c
        p_c[k] ← 0, p_c ← p_c / Σ p_c                with `cap`, where k has n / clients examples or more already

    The cap is in FedSOL's code, not in the text of the paper. Classes are split in order of label, so the last ones
    go to the fewest clients. A client may get no examples: see --min-samples.
    """
    _check_alpha(alpha)

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        _check_clients(n_clients, len(labels))
        parts: list[list[Indices]] = [[] for _ in range(n_clients)]
        sizes = np.zeros(n_clients)
        for pool in _shuffled_classes(labels, rng):
            share = rng.dirichlet(np.full(n_clients, alpha))
            if cap:  # never empty: while examples are left, some client has fewer than the mean
                share = np.where(sizes < len(labels) / n_clients, np.maximum(share, _TINY), 0.0)
            counts = apportion(share, len(pool))
            sizes += counts
            for part, share_of_pool in zip(parts, np.split(pool, np.cumsum(counts)[:-1]), strict=True):
                part.append(share_of_pool)
        return [np.concatenate(part) for part in parts]

    return partition


@partitions.register("shards", paper="McMahan et al. 2017; FedSOL (4.1)")
def shards(*, s: Annotated[int, "Number of shards per client; fewer shards skew the classes more"] = 2) -> Partitioner:
    """Sort by label, split into clients × s equal shards, give s random shards to each client; equal sizes.

    A shard may contain two labels, as in McMahan et al. The n mod (clients × s) examples that do not fill a shard,
    chosen at random, are not used.
    """
    if s < 1:
        raise BadInput(f"--partition.s {s}: must be 1 or more")

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        n, n_shards = len(labels), n_clients * s
        _check_clients(n_clients, n)
        if n_shards > n:
            raise BadInput(
                f"--partition.s {s}: {n_clients} clients × {s} shards need {n_shards} examples, there are {n};"
                " lower it or --clients"
            )
        used = rng.permutation(n)[: n - n % n_shards]
        shard_rows = used[np.argsort(labels[used], kind="stable")].reshape(n_shards, -1)
        return list(shard_rows[rng.permutation(n_shards)].reshape(n_clients, -1))

    return partition


@partitions.register(
    "main-class",
    paper="Fed-OGD: Mitigating Straggler Effects in Federated Learning via Orthogonal Gradient Descent (IV-A)",
)
def main_class(
    *,
    size: Annotated[int | None, "Number of examples per client; none: the most that all clients can have"] = None,
    main: Annotated[int, "Number of main classes per client"] = 1,
    share: Annotated[float, "Share of a client's examples that belong to its main classes"] = 0.95,
) -> Partitioner:
    """Most of a client's examples are of its main class, the rest spread evenly over the others; equal sizes.

        main classes together     round(share · size), split equally        1000 → 950; with main 2, share 0.8: 2 × 400
        other classes             the rest, split equally                   50 over 9 → 6 of five classes, 5 of four

    Main classes are assigned round robin. The odd examples of the rest are too, beginning with the class after the main
    ones. 50 clients of 1000 examples use all of CIFAR-10, and all of CIFAR-100 with main 2 and share 0.8. Counts are
    exact and no example is used twice. A size that the data cannot provide is rejected.
    """
    problems = []
    if size is not None and size < 1:
        problems.append(f"--partition.size {size}: must be 1 or more")
    if main < 1:
        problems.append(f"--partition.main {main}: must be 1 or more")
    if not 0 < share <= 1:
        problems.append(f"--partition.share {share}: must be above 0 and at most 1")
    if problems:
        raise BadInput(problems)

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        _check_clients(n_clients, len(labels))
        pools = _shuffled_classes(labels, rng)
        if main > len(pools) or (main == len(pools) and share < 1):
            raise BadInput(
                f"--partition.main {main}: the task has {len(pools)} classes; take fewer main classes"
                + (" or --partition.share 1" if main == len(pools) else "")
            )
        each = _main_class_size(size, n_clients, [len(p) for p in pools], main=main, share=share)
        counts = np.array([_main_class_counts(each, k, len(pools), main=main, share=share) for k in range(n_clients)])
        ends = counts.cumsum(0)
        return [
            np.concatenate(
                [pool[end - count : end] for pool, end, count in zip(pools, ends[k], counts[k], strict=True)]
            )
            for k in range(n_clients)
        ]

    return partition


def _main_class_counts(each: int, client: int, n_classes: int, *, main: int, share: float) -> Indices:
    """Return how many examples of each class a client with `each` examples has."""
    in_main = round(share * each)
    wheel = (client * main + np.arange(n_classes)) % n_classes
    counts = np.empty(n_classes, np.int64)
    counts[wheel[:main]] = apportion(np.ones(main), in_main)
    counts[wheel[main:]] = apportion(np.ones(n_classes - main), each - in_main)
    return counts


def _main_class_size(size: int | None, n_clients: int, stock: list[int], *, main: int, share: float) -> int:
    """Return `size` if the classes have enough examples for it, or for None the largest possible size."""

    def need(each: int) -> Indices:
        rows = [_main_class_counts(each, k, len(stock), main=main, share=share) for k in range(n_clients)]
        return np.asarray(np.sum(rows, 0))

    # the need of each class grows with the size, so a bisection finds the largest size that fits
    sizes = range(1, sum(stock) // n_clients + 1)
    largest = bisect_left(sizes, True, key=lambda each: bool((need(each) > stock).any()))
    if largest == 0:
        raise BadInput(f"--clients {n_clients}: the classes have too few examples for so many clients; use fewer")
    if size is not None and size > largest:
        c = int(np.argmax(need(size) - stock))
        raise BadInput(
            f"--partition.size {size}: {n_clients} clients need {need(size)[c]} examples of one class, which has"
            f" {stock[c]}; use at most {largest} a client"
        )
    return largest if size is None else size


@partitions.register(
    "proportional", paper="Aggregation on Learnable Manifolds for Asynchronous Federated Optimization (experiments)"
)
def proportional() -> Partitioner:
    """Give client k of 1 … K a share of the examples in proportion to k (largest remainders), otherwise iid."""

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        _check_clients(n_clients, len(labels))
        sizes = apportion(np.arange(1, n_clients + 1), len(labels))
        return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])

    return partition


@partitions.register("groups", paper="natural clients, as HAR's subjects in OrthoFL (5.1)")
def groups() -> Partitioner:
    """Whole natural groups (people, speakers, devices): one per client in order, or round robin over fewer clients."""

    def partition(_labels: Indices, groups: Indices | None, n_clients: int, _rng: Rng) -> list[Indices]:
        if groups is None:
            raise BadInput("--partition groups: the task's examples have no natural groups; choose another partition")
        ids, number = np.unique(groups, return_inverse=True)
        _check_clients(n_clients, len(ids), "groups")
        return [np.flatnonzero(number % n_clients == k) for k in range(n_clients)]

    return partition


@partitions.register("halves", paper="Orthogonal Calibration for Asynchronous Federated Learning (Fig. 1)")
def halves() -> Partitioner:
    """Split the classes into one block per client with all examples of its classes; two clients get a half each."""

    def partition(labels: Indices, _groups: Indices | None, n_clients: int, _rng: Rng) -> list[Indices]:
        classes = np.unique(labels)
        _check_clients(n_clients, len(classes), "classes")
        return [np.flatnonzero(np.isin(labels, block)) for block in np.array_split(classes, n_clients)]

    return partition


def at_least(partitioner: Partitioner, minimum: int) -> Partitioner:
    """Return the same partitioner with at least `minimum` examples for every client.

    The partition is redrawn from the same generator up to 100 times until all clients have enough. If that fails,
    the last one is repaired: one at a time, a random example of the largest client moves to the first client with
    too few.
    """
    if minimum < 0:
        raise BadInput(f"--min-samples {minimum}: must be 0 or more")

    def partition(labels: Indices, groups: Indices | None, n_clients: int, rng: Rng) -> list[Indices]:
        for _ in range(_REDRAWS):
            parts = partitioner(labels, groups, n_clients, rng)
            assigned = sum(map(len, parts))
            if n_clients * minimum > assigned:
                raise BadInput(
                    f"--min-samples {minimum}: {n_clients} clients need {n_clients * minimum} examples, the partition"
                    f" assigns {assigned} of {len(labels)}; lower it or --clients"
                )
            if min(map(len, parts)) >= minimum:
                return parts
        return _move_to_minimum(parts, minimum, rng)

    return partition


def _move_to_minimum(parts: list[Indices], minimum: int, rng: Rng) -> list[Indices]:
    lists = [p.tolist() for p in parts]
    sizes = np.array([len(h) for h in lists])
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(sizes.argmax())
            lists[poor].append(lists[rich].pop(int(rng.integers(sizes[rich]))))
            sizes[rich] -= 1
            sizes[poor] += 1
    return [np.array(h, np.int64) for h in lists]


def _shuffled_classes(labels: Indices, rng: Rng) -> list[Indices]:
    """Return the examples of each class that occurs, in order of label, each class shuffled."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]


def _check_clients(n_clients: int, n: int, what: str = "training examples") -> None:
    if n_clients < 1:
        raise BadInput(f"--clients {n_clients}: must be 1 or more")
    if n_clients > n:
        raise BadInput(f"--clients {n_clients}: the task has {n} {what}; use at most {n} clients")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < inf:
        raise BadInput(f"--partition.alpha {alpha}: must be above 0 and finite")
