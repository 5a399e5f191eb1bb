"""Compose a method from parts of several: crosses, such as one method's server with another's clients.

    --method orthofl --local fedsol --distill fedecho         orthofl+local=fedsol+distill=fedecho
    --method fedbuff --correct orthograd --reply orthofl      fedbuff+correct=orthograd+reply=orthofl
    orthofl().compose(local=fedsol(), distill=fedecho())      the first one, in Python

    local       what clients do                               reply     what a client starts from next
    correct     what is done to an update on arrival          step      from an update to new weights, and the answer
    aggregate   when the server steps, and whom it waits for  distill    the wrapper of a method, around any server
    manifold    the curve along which the global weights move

Parts fit together unless one requires what no other provides; then the error names the flag that brought it in. A
method that is a distillation around a plain server (fedecho) is crossed at the plain server and wrapped again.
`compose` is the cross of the command line; `compose_parts` is Method.compose, which also takes single parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import BadInput, errors_as_keywords
from .local_rule import LocalRule
from .method import Geodesic, Method, Personalization, ServerView, name_of_part
from .parts import KEEP, SEND_GLOBAL, Correct, Part
from .tickets import CONTROL, DIFFERENCE, TicketExtras, Update

__all__ = ["PARTS", "compose", "compose_parts"]

#: the parts that may be taken from another method, and the fields of Method that go with each
PARTS: Mapping[str, tuple[str, ...]] = {
    "local": ("local",),
    "correct": ("correct",),
    "aggregate": ("aggregate", "dispatch"),  # a round needs its barrier
    "step": ("step", "output_weights"),  # an average is kept by the step that makes it
    "reply": ("reply",),
}
_FIELDS: Mapping[str, tuple[str, ...]] = {**PARTS, "dispatch": ("dispatch",)}
_SERVER = ("correct", "aggregate", "step", "reply")


def compose(
    base: Method,
    others: Mapping[str, Method],
    *,
    distill: Method | None = None,
    manifold: tuple[str, Geodesic] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Method:
    """Return the base with parts of other methods: `others` by part, `distill` around the result, `manifold` by name.

    `labels` are the names for error messages: of each part, "method" and "distill".
    """
    if not others and distill is None and manifold is None:
        _check_payload(base, (labels or {}).get("method", base.name))
        return base
    wrapper = (distill or base).wrapper
    plain = base.inner or base
    method = _with_parts(plain, others)
    names = {"method": base.name, **{p: o.name for p, o in others.items()}, **(labels or {})}
    whole = "local" not in others or others["local"].local.required_payload <= _sent_keys(others["local"])
    compatibility = _Compatibility(method, plain, frozenset(others), names, whole)
    problems = list(compatibility.problems())
    if manifold is not None:
        method, problem = compatibility.with_manifold(*manifold)
        problems += [problem] if problem else []
    if distill is not None and distill.wrapper is None:
        problems.append(f"--distill {names['distill']}: it has nothing to put around a server; use --distill fedecho")
    elif wrapper is not None and DIFFERENCE in method.local.uploads:
        flag = "distill" if distill is not None else "local"
        problems.append(
            f"--{flag} {names[flag]}: clients that upload differences leave no model to distill; leave out --{flag}"
        )
    elif wrapper is not None and not problems:
        method = wrapper(method)
        problems = list(_Compatibility(method, plain, frozenset({*others, "distill"}), names).misplaced_parts())
    if problems:
        raise BadInput(problems)
    return method


def compose_parts(
    base: Method,
    given: Mapping[str, Method | LocalRule | Part[Any, Any] | None],
    *,
    distill: Method | None = None,
    manifold: Geodesic | None = None,
    name: str | None = None,
) -> Method:
    """Return the base with parts taken from the methods in `given`, or with the part that stands there itself."""
    others = {part: _method_with(part, value, base) for part, value in given.items() if value is not None}
    curve = None if manifold is None else (getattr(manifold, "__name__", "manifold"), manifold)
    crosses = {part: other.name for part, other in others.items()}
    crosses |= {} if distill is None else {"distill": distill.name}
    crosses |= {} if curve is None else {"manifold": curve[0]}
    with errors_as_keywords():
        made = compose(base, others, distill=distill, manifold=curve)
    return replace(made, name=name or "+".join([base.name, *(f"{part}={other}" for part, other in crosses.items())]))


def _method_with(part: str, value: Any, base: Method) -> Method:
    """Return a method that has the part: `value` itself, or a plain method with `value` in that place."""
    if isinstance(value, Method):
        return value
    wants = LocalRule if part == "local" else Part
    if not isinstance(value, wants):
        hint = "; call it first" if callable(value) else ""
        raise BadInput(
            f"{part}={type(value).__name__}: wants a tarry.Method or a tarry.{wants.__name__}"
            f"{hint or '; tarry.methods[NAME]() makes a Method'}"
        )
    plain: dict[str, Any] = {"dispatch": base.dispatch, part: value}
    return Method(name_of_part(value), **plain)


def _check_payload(method: Method, name: str) -> None:
    """Raise BadInput if clients of a method that is not crossed need payload that its server does not send."""
    if missing := method.local.required_payload - _sent_keys(method):
        raise BadInput(
            f"--method {name}: its clients need {_list(missing)} from the server, which nothing here sends; cross"
            " it with a method that does"
        )


def _with_parts(base: Method, others: Mapping[str, Method]) -> Method:
    """Return the base with parts of other methods, unchecked, and without payload that its clients do not use."""
    method = base
    for part, other in others.items():
        server = other.inner or other
        method = replace(method, **{name: getattr(server, name) for name in _FIELDS[part]})
        if part == "correct":
            method = replace(method, correct=_correction(base, server))
        method = replace(method, personalization=_personal(method.personalization, part, server.personalization))
    parts: dict[str, Any] = {p: _without_unused_payload(getattr(method, p), method.local) for p in _SERVER}
    return replace(method, **parts)


def _sent_keys(method: Method) -> frozenset[str]:
    return frozenset[str]().union(*(getattr(method, p).payload_keys for p in _SERVER))


def _without_unused_payload(part: Part[Any, Any], local: LocalRule) -> Part[Any, Any]:
    """Drop payload entries that the client rule does not use."""
    make, unread = part.offer, part.payload_keys - local.used_payload
    if make is None or not unread or unread & part.must_be_used:
        return part

    def offer(client: int, state: Any, view: ServerView) -> TicketExtras | None:
        made = make(client, state, view)
        return made and made._replace(payload={k: v for k, v in made.payload.items() if k not in unread})

    return replace(part, offer=offer, payload_keys=part.payload_keys - unread)


def _personal(base: Personalization, part: str, other: Personalization) -> Personalization:
    """Take how clients fine-tune and predict from `local`, and where their own models are from `reply`."""
    if part == "local":
        return replace(other, own=base.own)
    return replace(base, own=other.own) if part == "reply" else base


def _correction(base: Method, other: Method) -> Correct:
    """The other method's correction, followed by the base's weight for staleness if it has one."""
    first, second = other.as_correction or other.correct, base.correct
    if first.only_scales or not second.only_scales:
        return first

    def apply(update: Update, state: Any, view: ServerView) -> tuple[Update, Any]:
        update, one = first(update, state["first"], view)
        update, two = second(update, state["second"], view)
        return update, {"first": one, "second": two}

    return replace(
        first, apply=apply, init=lambda w: {"first": first.init(w), "second": second.init(w)}, only_scales=True
    )


@dataclass(frozen=True)
class _Compatibility:
    """Compatibility checks of a composed method: its base, the parts taken from others, and their names."""

    method: Method
    base: Method
    taken: frozenset[str]
    names: Mapping[str, str]
    whole: bool = True  # whether the method of `local` sends what its clients need

    def problems(self) -> Iterator[str]:
        yield from list(self.unmet_requirements()) or self.misplaced_parts()

    def unmet_requirements(self) -> Iterator[str]:
        """Problems of parts and clients that require what the others do not provide."""
        if missing := self.method.local.required_payload - _sent_keys(self.method):
            yield self.problem(
                ("local", *(p for p in _SERVER if getattr(self.base, p).payload_keys & missing)),
                f"clients of {self.name('local')} need {_list(missing)} from the server, which nothing here sends",
                instead=f"use --method {self.names['local']}" if self.taken == {"local"} and self.whole else None,
            )
        theirs = f"those of {self.name('local')}"
        for p in _SERVER:
            part, here = self.part(p), f"the {p} of {self.name(p)}"
            if unread := part.must_be_used - self.method.local.required_payload:
                yield self.problem(
                    (p, "local"),
                    f"{here} sends {_list(unread)} for clients to use, and {theirs} do not",
                )
            if missing := part.required_extras - self.method.local.uploads:
                yield self.problem(
                    (p, "local"),
                    f"{here} needs {_list(missing)} of clients, and {theirs} send none",
                )
        yield from self.extras()

    def misplaced_parts(self) -> Iterator[str]:
        """Problems of parts that reject the method they are in."""
        for p in _SERVER:
            fits = self.part(p).incompatibility
            if fits is not None and (why := fits(self.method)):
                yield self.problem((p, *(q for q in (*_SERVER, "distill", "local") if q != p)), why)

    def extras(self) -> Iterator[str]:
        """Problems of uploads that the server would misread or lose."""
        gives = self.method.local.uploads
        if DIFFERENCE in gives:
            strange = [p for p, plain in (("correct", KEEP), ("reply", SEND_GLOBAL)) if self.part(p) is not plain]
            strange += [] if DIFFERENCE in self.method.aggregate.required_extras else ["aggregate"]
            if strange:
                yield self.problem(
                    (*strange, "local"), "clients upload differences, which only their own server understands"
                )
        if lost := gives & self.method.aggregate.dropped_extras:
            yield self.problem(
                ("aggregate", "local"),
                f"the server of {self.name('aggregate')} keeps no {_list(lost)}, which clients of "
                f"{self.name('local')} send",
            )

    def part(self, name: str) -> Part[object, object]:
        part: Part[object, object] = getattr(self.method, name)
        return part

    def name(self, part: str) -> str:
        return repr(self.names[part] if part in self.taken else self.names["method"])

    def with_manifold(self, name: str, geodesic: Geodesic) -> tuple[Method, str | None]:
        """Return the method with steps along another geodesic, and a problem if it cannot have them."""
        method, flag = self.method, f"--manifold {name}"
        if method.step.with_geodesic is None:
            return (
                method,
                f"{flag}: the step of {self.name('step')} goes the whole way, where all ways end; leave out --manifold",
            )
        if name in ("bezier", "printed") and CONTROL not in method.local.uploads:
            return method, f"{flag}: no client learns a control point here; add --local asynccurve"
        return replace(method, step=method.step.with_geodesic(geodesic)), None

    def problem(self, among: tuple[str, ...], why: str, instead: str | None = None) -> str:
        """The problem, with the first flag among those that may have brought it in."""
        flag = next((p for p in among if p in self.taken), None)
        if flag is None:
            return f"--method {self.names['method']}: {why}"
        return f"--{flag} {self.names[flag]}: {why}; {instead or f'leave out --{flag}'}"


def _list(names: frozenset[str]) -> str:
    return " and ".join(repr(n) for n in sorted(names))
