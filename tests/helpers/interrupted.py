"""Runs that end in the middle, without a second process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tarry


class Killed(Exception):
    """Raised by a callback to end a run."""


def interrupted_run(out: Path, when: Callable[[tarry.Event], bool], *args: Any, **settings: Any) -> None:
    """Run until the first event for which `when` holds, and leave the folder as it is then."""

    def kill(event: tarry.Event) -> None:
        if when(event):
            raise Killed

    with pytest.raises(Killed):
        tarry.run(*args, out=out, callbacks=[kill], **settings)
    assert not (out / "result.json").exists()
