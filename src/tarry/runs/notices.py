"""What a person should know of a run that is not wrong: settings that change nothing, what was chosen for them, and
that nothing was learnt.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from math import isfinite
from typing import Any

from ..config.components import REGISTRIES, Choice
from ..config.compose import PARTS
from ..config.spec import Spec
from ..core.errors import BadInput
from ..core.method import Method
from ..sim.simulator import Simulator

__all__ = ["alike", "diverged", "in_vain", "missed", "remarks", "shut_out"]

_OPTIMISER = ("optimiser", "lr", "lr_decay", "momentum", "weight_decay")
_METHODS = ("method", *PARTS, "distil")


def remarks(spec: Spec, method: Method, *, unlabelled: str | None) -> list[str]:
    """In a few words each; `unlabelled` says what was taken where the spec names no inputs without labels."""
    out = [said for group in _METHODS for said in _idle(spec, group)]
    if method.local.own_optimiser:
        given = [n for n in _OPTIMISER if getattr(spec, n) != getattr(Spec, n)]
        flags = " ".join(f"--{n.replace('_', '-')} {getattr(spec, n)}" for n in given)
        out += [f"{flags} changes nothing: these clients have an optimiser of their own"] if given else []
    if method.unlabelled and unlabelled is not None:
        out.append(f"inputs without labels: {unlabelled}; --unlabelled chooses others")
    elif spec.unlabelled is not None and not method.unlabelled:
        out.append(f"--unlabelled {spec.unlabelled} changes nothing: {spec.label} uses no such inputs")
    return out


def in_vain(sim: Simulator) -> list[str]:
    """Why a run that is over has learnt nothing, if so: its answer is what it began with."""
    server, target = sim.server, sim.budget.target
    if server.version > 0:
        return []
    out = {t.client for t in server.tickets.values()}
    unheard = sum(visits == (client in out) for client, visits in enumerate(server.visits))
    if target is not None and sim.curve and (sim.curve[-1][2] or 0.0) >= target:
        why = f"the first weights reach --target {target:g}"
    elif server.numbers == 0:
        why = "no client was there to be handed work (--presence, --delay)"
    elif sim.updates > 0:
        more = f"; {unheard:,} of {server.n_clients:,} clients never came back" if unheard else ""
        why = f"{server.method.name} was still waiting after all updates ({sim.updates:,}){more}"
    elif sim.refused > 0:
        why = f"all {sim.refused:,} updates were refused because they were not finite; a smaller --lr may help"
    elif sim.lost > 0:
        why = f"all {sim.lost:,} visits that ended were lost (--failure-rate, --presence, --delay)"
    else:
        why = f"no client came back within {sim.time:g} s; give it more --time"
    return [f"nothing was learnt, the server made no step: {why}"]


def diverged(sim: Simulator) -> list[str]:
    """That the answer has no loss any more, and since when that is seen; or that updates are no numbers any more."""
    since = next((t for t, _, _, loss in sim.curve if loss is not None and not isfinite(loss)), None)
    if since is not None and since == sim.curve[0][0] and sim.curve[0][1] == 0:
        return ["the loss of the first weights on the test set is no number: look at the test data"]
    if since is None and isfinite(sim.server.answer.sum().item()):
        if not sim.hopeless or sim.server.version == 0:
            return []
        why = "were all refused because they were not finite: a smaller --lr may help"
        return [f"diverged: the last {sim.in_vain:,} updates, up to {sim.time:g} s, {why}"]
    when = "" if since is None else f" (seen first at {since:g} s)"
    return [f"the global model's loss is no number any more{when}: a smaller --lr or server rate may help"]


def shut_out(sim: Simulator) -> list[str]:
    """Who was refused every time, while others were not."""
    server, out = sim.server, {t.client for t in sim.server.tickets.values()}
    never = sorted(c for c, n in sim.refusals.items() if n >= server.visits[c] - (c in out))
    if not never or server.version == 0 or sim.hopeless:
        return []
    who = ", ".join(map(str, never[:5])) + (", …" if len(never) > 5 else "")
    clients = f"client {who}" if len(never) == 1 else f"{len(never):,} of {server.n_clients:,} clients ({who})"
    return [f"{clients}: every update was refused because it was not finite; do their data hold NaN or infinity?"]


def missed(sim: Simulator) -> list[str]:
    """That the target was not reached."""
    target, scores = sim.budget.target, [accuracy for _, _, accuracy, _ in sim.curve if accuracy is not None]
    if target is None or not scores or max(scores) >= target:
        return []
    return [f"--target {target:g} was not reached: the best score was {max(scores):.4g}"]


def _idle(spec: Spec, group: str) -> Iterator[str]:
    """The parameters of a choice without which the same would be built."""
    choice = getattr(spec, group)
    if not isinstance(choice, Choice) or ".py:" in choice.name:
        return
    registry = REGISTRIES[group]
    entry, values = registry.check(choice.name, choice.params)
    gone = {name for part in PARTS if getattr(spec, part) is not None for name in PARTS[part]}
    made = _taken(registry.build(choice.name, values), group, gone)
    defaults = {p.name: p.default for p in entry.params}
    for name, value in values.items():
        if value == defaults[name]:
            continue
        others = [{k: v for k, v in values.items() if k != name}]
        if defaults[name] is None and isinstance(value, float):
            others.append({**values, name: value / 2})  # it may be what none stands for, said aloud
        try:
            builds = [_taken(registry.build(choice.name, other), group, gone) for other in others]
        except BadInput:
            continue  # it holds another one up
        if all(alike(made, build) for build in builds):
            flag = "server" if group == "method" and spec.server is not None else group
            yield f"--{flag}.{name} {value} changes nothing here"


def _taken(method: Method, group: str, gone: set[str]) -> Any:
    """What of a method comes into the run; of the server's own, what was not taken from others."""
    if group == "method":
        gone = gone | ({"personal"} if "local" in gone else set())
        return [getattr(method, f.name) for f in fields(method) if f.name not in gone]
    if group == "distil":
        return method.around
    server = method.plain or method
    if group == "correct":
        return server.correction or server.correct
    taken = [getattr(server, name) for name in PARTS[group]]
    return [*taken, server.personal] if group == "local" else taken


def alike(a: Any, b: Any) -> bool:
    """Whether two things were made alike: functions by their code and what they enclose, records field by field."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, types.FunctionType):
        insides = [[c.cell_contents for c in f.__closure__ or ()] for f in (a, b)]
        return a.__code__ is b.__code__ and alike(a.__defaults__, b.__defaults__) and alike(*insides)
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and alike(a.__self__, b.__self__)
    if isinstance(a, partial):
        return alike([a.func, a.args, a.keywords], [b.func, b.args, b.keywords])
    if is_dataclass(a):
        return all(alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)
