"""Notices about a run that ended without an error: no progress, divergence, rejected clients, a missed target."""

from __future__ import annotations

from collections import Counter
from math import isfinite, isnan

from ..core.rejections import Reason
from ..report.formatting import pluralize
from ..sim.simulator import Simulator
from .monitor import SCORES_AT_CHANCE, stays_at_chance

__all__ = [
    "always_rejected",
    "chance_level",
    "divergence",
    "no_progress",
    "rejections",
    "result_notices",
    "target_missed",
    "undefined",
]


def result_notices(sim: Simulator, chance: float | None = None) -> list[str]:
    """Return all notices about a run that has ended; `chance`: the accuracy up to which a model may be guessing."""
    failed = divergence(sim) or chance_level(sim, chance)
    return [*no_progress(sim), *failed, *always_rejected(sim), *rejections(sim), *target_missed(sim), *undefined(sim)]


def no_progress(sim: Simulator) -> list[str]:
    """Say why the server made no step, so that the final weights are the first ones."""
    server, target = sim.server, sim.budget.target
    if server.version > 0:
        return []
    out = {t.client for t in server.tickets.values()}
    unheard = sum(visits == (client in out) for client, visits in enumerate(server.visits))
    if target is not None and sim.engine.curve and sim.budget.metric.reaches(sim.engine.curve[-1].score, target):
        why = f"the first weights reach --target {target:g}"
    elif server.numbers == 0:
        why = "no client was there to be handed work (--availability, --delay)"
    elif sim.engine.updates > 0:
        more = f"; {unheard:,} of {server.n_clients:,} clients never came back" if unheard else ""
        why = f"{server.method.name} was still waiting after all updates ({sim.engine.updates:,}){more}"
    elif sim.engine.rejected > 0:
        why = f"all {sim.engine.rejected:,} updates were rejected {_because(sim)}; a smaller --lr may help"
    elif sim.engine.lost > 0:
        why = f"all {sim.engine.lost:,} visits that ended were lost (--failure-rate, --availability, --delay)"
    else:
        why = f"no client came back within {sim.time:g} s; give it more --time"
    return [f"nothing was learned, the server made no step: {why}"]


def divergence(sim: Simulator) -> list[str]:
    """Say since when the test loss is not finite, or that all recent updates were not finite."""
    since = next((p.time for p in sim.engine.curve if p.loss is not None and not isfinite(p.loss)), None)
    if since is not None and since == sim.engine.curve[0].time and sim.engine.curve[0].updates == 0:
        return ["the loss of the first weights on the test set is not a finite number: look at the test data"]
    if since is None and isfinite(sim.server.output_weights.sum().item()):
        if not sim.engine.has_stalled or sim.server.version == 0:
            return []
        why = f"were all rejected {_because(sim)}: a smaller --lr may help"
        return [f"diverged: the last {sim.engine.consecutive_rejections:,} updates, up to {sim.time:g} s, {why}"]
    when = "" if since is None else f" (seen first at {since:g} s)"
    return [f"the global model's loss is not a finite number{when}: a smaller --lr or server rate may help"]


def chance_level(sim: Simulator, limit: float | None) -> list[str]:
    """Say that the last scores of a run that made steps are no better than guessing."""
    if not stays_at_chance(sim.engine, limit):
        return []
    accuracy = sim.engine.curve[-1].accuracy
    return [
        f"accuracy is {accuracy:.4f} and stayed at chance level in the last {SCORES_AT_CHANCE} scores: another --lr may"
        " help"
    ]


def always_rejected(sim: Simulator) -> list[str]:
    """Name the clients whose every update was rejected, if other clients' updates were accepted."""
    server, out = sim.server, {t.client for t in sim.server.tickets.values()}
    totals = {c: counts.total() for c, counts in sim.engine.rejections.items()}
    never = sorted(c for c, n in totals.items() if n >= server.visits[c] - (c in out))
    if not never or server.version == 0 or sim.engine.has_stalled:
        return []
    names = ", ".join(map(str, never[:5])) + (", …" if len(never) > 5 else "")
    clients = f"client {names}" if len(never) == 1 else f"{len(never):,} of {server.n_clients:,} clients ({names})"
    if {reason for c in never for reason in sim.engine.rejections[c]} != {Reason.NOT_FINITE}:
        return [f"{clients}: every update was rejected"]
    return [f"{clients}: every update was rejected because it was not finite; do their data hold NaN or infinity?"]


def rejections(sim: Simulator) -> list[str]:
    """Say what the gate rejected, and how often the model was restored."""
    engine, out = sim.engine, []
    if engine.gate is not None and engine.rejected:
        count = pluralize(engine.rejected, "update")
        out.append(f"{count} of {pluralize(len(engine.rejections), 'client')} rejected: {_listed(_by_reason(sim))}")
    if engine.monitor is not None and engine.monitor.alarms:
        out.append(f"the loss of the global model exploded {pluralize(engine.monitor.alarms, 'time')}; it was restored")
    return out


def _because(sim: Simulator) -> str:
    counts = _by_reason(sim)
    return "because they were not finite" if counts.keys() == {Reason.NOT_FINITE} else f"({_listed(counts)})"


def _by_reason(sim: Simulator) -> Counter[Reason]:
    return sum(sim.engine.rejections.values(), Counter[Reason]())


def _listed(counts: Counter[Reason]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())


def target_missed(sim: Simulator) -> list[str]:
    """Say that the target was not reached, and the best score."""
    target, metric = sim.budget.target, sim.budget.metric
    scores = [p.score for p in sim.engine.curve if p.score is not None and isfinite(p.score)]
    if target is None or not scores:
        return []
    best = max(scores, key=lambda score: metric.sign * score)
    what = "score" if metric.is_share else metric.name
    return (
        [] if metric.reaches(best, target) else [f"--target {target:g} was not reached: the best {what} was {best:.4g}"]
    )


def undefined(sim: Simulator) -> list[str]:
    """Name the metrics that were not a number at some evaluations, where the loss was one."""
    points = [p for p in sim.engine.curve if p.loss is not None and isfinite(p.loss)]
    count = Counter(name for p in points for name, value in p.metrics.items() if value is not None and isnan(value))
    return [
        f"{name} was not a number (NaN) at {pluralize(n, 'evaluation')} of {len(points):,}" for name, n in count.items()
    ]
