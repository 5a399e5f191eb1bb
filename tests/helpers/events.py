"""Values that tests read from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable

import tarry


def hand_outs(seen: Iterable[tarry.Event]) -> list[tuple[float, int]]:
    """Time and client of every hand-out."""
    return [(e.time, e.client) for e in seen if e.kind == "hand_out"]
