"""TiFL (Chai et al. 2020): who is in which tier, and how Algorithm 2 changes the tiers' probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def tiers(latency: Mapping[int, float], m: int, n: int) -> list[set[int]]:
    """m tiers of n clients, the fastest first; a client's is that of how many are faster. Unknown is slowest."""
    out: list[set[int]] = [set() for _ in range(m)]
    for k in range(n):
        mine = latency.get(k, float("inf"))
        faster = sum(1 for other in latency.values() if other < mine)
        out[min(tier for tier in range(m) if faster < (tier + 1) * n / m)].add(k)
    return out


def change_probs(losses: Sequence[float], credits: Sequence[int]) -> list[float]:
    """The worse, the likelier: n for the worst of the n tiers with credits, 1 for the best, over their sum."""
    left = [t for t in range(len(losses)) if credits[t] > 0]
    shares = {t: 1 + sum(losses[o] < losses[t] for o in left) for t in left}
    return [shares.get(t, 0) / sum(shares.values()) for t in range(len(losses))]


def cohorts(handed: Sequence[tuple[float, int]]) -> list[set[int]]:
    """The rounds of a run, from its hand-outs (time, client)."""
    return [{k for at, k in handed if at == time} for time in sorted({at for at, _ in handed})]
