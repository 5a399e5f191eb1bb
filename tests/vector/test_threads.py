"""Thread pools live as long as their process."""

from __future__ import annotations

from tarry.vector.threads import shared_pool


def test_the_same_ones_whenever_asked() -> None:
    assert shared_pool("again", 2) is shared_pool("again", 2)
    assert shared_pool("again", 2) is not shared_pool("others", 2)
