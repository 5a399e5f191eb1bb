"""Settings that are stored in a folder: errors name the file that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.spec import Spec
from ..core.errors import BadInput

__all__ = ["errors_of_stored_settings", "stored_spec"]


@contextmanager
def errors_of_stored_settings(path: Path, given: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Name the file in problems of its settings, but not in those of settings that were `given` now."""
    flags = tuple(f"--{name.replace('_', '-')}" for name in given or {})
    try:
        yield
    except BadInput as e:
        known = [p.startswith(flags) or str(path.parent) in p for p in e.problems]
        raise BadInput([p if k else f"{path}: {p}" for p, k in zip(e.problems, known, strict=True)]) from e


def stored_spec(path: Path, settings: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Spec:
    """Return the spec of the settings that were read from a file; those that are `given` now take precedence."""
    with errors_of_stored_settings(path, given):
        return Spec.of({**settings, **(given or {})})
