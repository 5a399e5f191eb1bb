"""Lets FLSim be imported since Python 3.11: `import shared_defaults` before it.

Its configs have one another as defaults, which dataclasses reject of unhashable classes from 3.11 on. Here a dataclass
that would be unhashable keeps the hash of a plain object, and is taken as a default as it was before.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_plain = dataclasses.dataclass


def _hashable(cls: type | None = None, /, **options: Any) -> Any:
    if cls is None:
        return lambda c: _hashable(c, **options)
    made: Any = _plain(cls, **options)
    if made.__hash__ is None:
        made.__hash__ = object.__hash__
    return made


dataclasses.dataclass = _hashable
