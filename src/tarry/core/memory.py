"""The memory of this machine, against which sizes that settings ask for are checked before anything is allocated."""

from __future__ import annotations

import os

from .errors import BadInput

__all__ = ["check_memory", "machine_memory"]


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(nbytes: int, given: str, remedy: str) -> None:
    """Raise BadInput if a machine of this size cannot hold so many bytes; `given` is the flag with its value."""
    if nbytes > (limit := machine_memory()):
        raise BadInput(
            f"{given}: at least {nbytes / 1e9:,.3g} GB are needed, and this machine has {limit / 1e9:,.3g} GB; {remedy}"
        )
