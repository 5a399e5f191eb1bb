"""What the parts of a method promise to return, looked at the first time: a slip in one's own is told by name, and so
is one that writes to what it is given.

correct    an Update                 aggregate   an Update, or None to wait      step       the new global weights
reply      a Start, or None          dispatch    a list of clients               and each   its state, second

and of a local rule, which is looked at every time:

begin      (start, context)          step        (weights, state, loss)          finish     an Outcome
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .errors import BadInput
from .local_rule import LocalRule, Outcome
from .method import Method, Now
from .tickets import Start, Update

__all__ = ["Apply", "checked", "looked_at"]

Apply = Callable[[Any, Any, Now], tuple[Any, Any]]
_PROMISED = {
    "correct": "an Update",
    "aggregate": "an Update, or None",
    "step": "the new global weights",
    "reply": "a Start, or None",
    "dispatch": "a list of clients",
}


def looked_at(method: Method) -> dict[str, Apply]:
    """The server parts by name; each is itself again as soon as it has returned something as promised."""
    plain, apply = Method("plain"), dict[str, Apply]()

    def guard(part: str, own: Apply) -> Apply:
        def guarded(x: Any, state: Any, now: Now) -> tuple[Any, Any]:
            given = {"the global weights": now.weights}
            if isinstance(x, Update):
                given |= {"the update's delta": x.delta, "the weights that were sent": x.ticket.sent}
            before = {name: t._version for name, t in given.items()}
            made = own(x, state, now)
            if written := [name for name, t in given.items() if t._version != before[name]]:
                raise BadInput(
                    f"method {method.name!r}: its {part} wrote to {written[0]}; a part never writes to what it is"
                    " given: `weights + delta`, not `weights.add_(delta)`"
                )
            if wrong := _wrong(part, made, now.weights):
                promised = f"{_PROMISED[part]} (the model has {now.weights.numel():,} numbers) and its state"
                raise BadInput(f"method {method.name!r}: its {part} returned {wrong}; it should return {promised}")
            if made[0] is not None:
                apply[part] = own
            return made

        return guarded

    for part in _PROMISED:
        own = getattr(method, part).apply
        apply[part] = own if own is getattr(plain, part).apply else guard(part, own)
    return apply


def _wrong(part: str, made: Any, weights: Tensor) -> str | None:
    """What was returned in the place of what is promised, if so."""
    if type(made) is not tuple or len(made) != 2:
        return f"{_named(made)} alone" if isinstance(made, Tensor | Update | Start) else _named(made)
    out = made[0]
    if out is None and part in ("aggregate", "reply"):
        return None
    if part == "dispatch":
        return None if isinstance(out, list) else _named(out)
    kind: Any = {"step": Tensor, "reply": Start}.get(part, Update)
    if not isinstance(out, kind):
        return _named(out)
    vector = out if part == "step" else out.weights if part == "reply" else out.delta
    if isinstance(vector, Tensor) and vector.shape == weights.shape:
        return None
    return _named(vector) if part == "step" else f"{_named(out)} with {_named(vector)}"


_OF_A_RULE = {"begin": "(start, context)", "step": "(weights, state, loss)", "finish": "an Outcome"}


def checked(rule: LocalRule, what: str, made: Any, n: int | None = None) -> Any:
    """What a function of a rule returned: n things, or an Outcome."""
    if type(made) is tuple and len(made) == n if n is not None else isinstance(made, Outcome):
        return made
    got = f"{len(made)} things" if type(made) is tuple else _named(made)
    raise BadInput(f"local rule {type(rule).__name__}: its {what} returned {got}; it should return {_OF_A_RULE[what]}")


def _named(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a tensor of {'×'.join(map(str, x.shape)) or 'one number'}"
    return "None" if x is None else type(x).__name__
