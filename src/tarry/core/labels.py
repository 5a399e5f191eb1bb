"""Labels of runs: the method with its parameters and crosses, and the settings that a comparison varies.

fedbuff:buffer=3+local=fedsol+lr=0.1            method fedbuff:buffer=3+local=fedsol, axis lr
"""

from __future__ import annotations

import re
from typing import Any

from .compose import PARTS

__all__ = ["CROSSES", "axis_text", "split_label", "with_axes"]

#: settings of a cross, which belong to the method in a label
CROSSES = (*PARTS, "distill", "manifold")
_AXIS = re.compile(r"\+([a-z][\w.]*)=([^\s]*?)(?=\+[a-z][\w.]*=|$)")


def with_axes(method: str, axes: dict[str, Any]) -> str:
    """Return a label: the method, and the value of each axis.

    >>> with_axes("fedbuff:buffer=3", {"lr": 0.1, "epochs": 2})
    'fedbuff:buffer=3+lr=0.1+epochs=2'
    """
    return "+".join([method, *(f"{name}={axis_text(value)}" for name, value in axes.items())])


def axis_text(value: Any) -> str:
    """Return a value of an axis as text; 2.0 is 2."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def split_label(label: str) -> tuple[str, dict[str, float | str]]:
    """Return the method of a label, and the values of its axes by name: numbers where they are numbers.

    >>> split_label("fedavg+local=fedsol+lr=0.1+optimizer=adam")
    ('fedavg+local=fedsol', {'lr': 0.1, 'optimizer': 'adam'})
    """
    axes: dict[str, float | str] = {}
    method = label
    for found in _AXIS.finditer(label):
        if found[1] not in CROSSES:
            axes[found[1]] = _value(found[2])
            method = method.replace(found[0], "", 1)
    return method, axes


def _value(text: str) -> float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
