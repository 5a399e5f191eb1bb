"""Build a component as the command line does: its errors name flags, where those of the registry name keywords."""

from __future__ import annotations

from typing import Any, TypeVar

from tarry.core.registry import Registry

__all__ = ["build_by_flags"]

T = TypeVar("T")


def build_by_flags(registry: Registry[T], name: str, /, **params: Any) -> T:
    entry = registry.find(name)
    return entry.make(entry.check(params))
