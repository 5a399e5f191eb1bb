"""Import of optional libraries, with an error that says how to install a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import BadInput

__all__ = ["optional_import"]


@contextmanager
def optional_import(package: str, *, extra: str = "") -> Iterator[None]:
    """Raise BadInput with the command that installs `package`, or tarry's `extra`, if an import inside fails."""
    try:
        yield
    except ModuleNotFoundError as e:
        way_out = f'pip install "tarry[{extra}]"' if extra else f"pip install {package}"
        raise BadInput(f"{package} is needed for this and cannot be imported ({e}): {way_out}") from e
