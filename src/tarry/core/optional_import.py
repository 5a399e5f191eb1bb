"""Import of optional libraries, with an error that says how to install a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import BadInput

__all__ = ["optional_import"]


@contextmanager
def optional_import(package: str) -> Iterator[None]:
    """Raise BadInput with the command that installs `package` if an import inside fails."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise BadInput(f"{package} is needed for this and cannot be imported ({e}): pip install {package}") from e
