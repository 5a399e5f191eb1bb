"""Libraries that only some of this room needs, imported where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import BadInput

__all__ = ["needs"]


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Around the import of a package: one that is missing is said with the way out."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise BadInput(f"{package} is needed for this and cannot be imported ({e}): pip install {package}") from e
