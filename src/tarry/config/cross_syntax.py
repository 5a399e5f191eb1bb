"""Cross syntax: a method and the parts crossed with it, written in one word.

"orthofl+local=fedsol:rho=1"                method "orthofl", local "fedsol:rho=1"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..core.errors import near
from .components import CROSSES

__all__ = ["expand_cross"]

_ANY_PART = re.compile(r"\+(\w+)=")
_PART = re.compile(rf"\+(?=(?:{'|'.join(CROSSES)})=)")


def expand_cross(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings with a cross in the place of the method split into its settings, and the problems found."""
    out, problems = dict(given), list[str]()
    method = out.get("method")
    text = method if isinstance(method, str) else method.get("name") if isinstance(method, Mapping) else None
    if not isinstance(text, str):
        return out, problems
    name, *crosses = _PART.split(text)
    if (unknown := _ANY_PART.search(name)) and ".py:" not in name[unknown.start() :]:
        problems.append(f"--method {text}: there is no part {unknown[1]!r} to cross.{near(unknown[1], CROSSES)}")
        return {k: v for k, v in out.items() if k != "method"}, problems
    if crosses:
        out["method"] = {**method, "name": name} if isinstance(method, Mapping) else name
    for cross in crosses:
        part, _, choice = cross.partition("=")
        if out.get(part) is not None:
            problems.append(f"--method {text} --{part} {out[part]}: {part} is there twice")
        out[part] = choice
    return out, problems
