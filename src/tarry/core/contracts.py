"""Checks of what the parts of a method and a local rule return; the error names the part at fault.

Parts are checked at their first call, for types, shapes and in-place writes:

correct    an Update                 aggregate   an Update, or None to wait      step       the new global weights
reply      a NextStart, or None          dispatch    a list of clients               and each   its state, second

Local rules are checked at every call:

begin      (start, context)          step        (weights, state, loss)          finish     a VisitOutput
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .errors import BadInput
from .local_rule import LocalRule, VisitOutput
from .method import Method, ServerView
from .parts import ADD, EACH_ARRIVAL, KEEP, REFILL, SEND_GLOBAL
from .tickets import NextStart, Update

__all__ = ["Apply", "check_first_call", "check_rule_dtype", "check_rule_output", "check_weights"]

Apply = Callable[[Any, Any, ServerView], tuple[Any, Any]]
_OUTPUTS = {
    "correct": "an Update",
    "aggregate": "an Update, or None",
    "step": "the new global weights",
    "reply": "a NextStart, or None",
    "dispatch": "a list of clients",
}
_GIVEN = ("the global weights", "the update's delta", "the weights that were sent")
_DEFAULTS = (KEEP, EACH_ARRIVAL, ADD, SEND_GLOBAL, REFILL)  # not checked: they are right


def check_first_call(method: Method) -> dict[str, Apply]:
    """Return the server parts by name. A part that is no default is checked until it first returns a right result."""
    apply: dict[str, Apply] = {}

    def guard(part: str, own: Apply) -> Apply:
        def guarded(x: Any, state: Any, view: ServerView) -> tuple[Any, Any]:
            given = (view.weights, x.delta, x.ticket.sent) if isinstance(x, Update) else (view.weights,)
            before = [t._version for t in given]
            made = own(x, state, view)
            for name, tensor, version in zip(_GIVEN, given, before, strict=False):
                if tensor._version != version:
                    raise BadInput(
                        f"method {method.name!r}: its {part} wrote to {name}; a part never writes to what it is"
                        " given: `weights + delta`, not `weights.add_(delta)`"
                    )
            if wrong := _wrong(part, made, view.weights):
                model = f"the model has {view.weights.numel():,} {_type_of(view.weights)} numbers"
                expected = f"{_OUTPUTS[part]} ({model}) and its state"
                raise BadInput(f"method {method.name!r}: its {part} returned {wrong}; it should return {expected}")
            if made[0] is not None:  # None shows nothing of what the part returns otherwise
                apply[part] = own
            return made

        return guarded

    for part in _OUTPUTS:
        own = getattr(method, part)
        apply[part] = own.apply if own in _DEFAULTS else guard(part, own.apply)
    return apply


def _wrong(part: str, made: Any, weights: Tensor) -> str | None:
    """Return a description of a wrong result; None: it is right."""
    if type(made) is not tuple or len(made) != 2:
        return f"{_describe(made)} alone" if isinstance(made, Tensor | Update | NextStart) else _describe(made)
    out = made[0]
    if out is None and part in ("aggregate", "reply"):
        return None
    if part == "dispatch":
        return None if isinstance(out, list) else _describe(out)
    kind: Any = {"step": Tensor, "reply": NextStart}.get(part, Update)
    if not isinstance(out, kind):
        return _describe(out)
    vector = out if part == "step" else out.weights if part == "reply" else out.delta
    if isinstance(vector, Tensor) and vector.shape == weights.shape and vector.dtype == weights.dtype:
        return None
    return _describe(vector) if part == "step" else f"{_describe(out)} with {_describe(vector)}"


def check_rule_dtype(rule: LocalRule, final: Tensor, delta: Tensor | None, sent: Tensor) -> None:
    """Raise BadInput if the weights of a rule are of another type than those sent, or its own delta of a wider one."""
    made, what, where = (final, "weights are", "step") if delta is None else (delta, "delta is", "finish")
    if made.dtype != sent.dtype and (delta is None or made.element_size() > sent.element_size()):
        raise BadInput(
            f"local rule {type(rule).__name__}: its {what} {_type_of(made)}, and the client was sent"
            f" {_type_of(sent)}; convert what its {where} computes with `.to(w.dtype)`"
        )


def check_weights(method: Method, what: str, made: Tensor, weights: Tensor) -> Tensor:
    """Return weights that a method has computed; raise BadInput if their type or size is not the model's."""
    if made.dtype != weights.dtype or made.shape != weights.shape:
        raise BadInput(
            f"method {method.name!r}: its {what} returned {_describe(made)}; the model has {weights.numel():,}"
            f" {_type_of(weights)} numbers; convert it with `.to(view.weights.dtype)`"
        )
    return made


_RULE_OUTPUTS = {"begin": "(start, context)", "step": "(weights, state, loss)", "finish": "a VisitOutput"}


def check_rule_output(rule: LocalRule, what: str, made: Any, n: int | None = None) -> Any:
    """Return what a function of a rule returned, if it is a tuple of n or a VisitOutput; else raise BadInput."""
    if type(made) is tuple and len(made) == n if n is not None else isinstance(made, VisitOutput):
        return made
    got = f"a tuple of {len(made)}" if type(made) is tuple else _describe(made)
    should = _RULE_OUTPUTS[what]
    raise BadInput(f"local rule {type(rule).__name__}: its {what} returned {got}; it should return {should}")


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a {_type_of(x)} tensor of {'×'.join(map(str, x.shape)) or 'one number'}"
    return "None" if x is None else type(x).__name__


def _type_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
