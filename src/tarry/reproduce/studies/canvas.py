"""Figures without a window: the studies' pictures, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.errors import BadInput
from ...report.plots import clean_texts

__all__ = ["panels"]


@contextmanager
def panels(path: Path, rows: int, columns: int, *, width: float = 3.6, height: float = 3.0) -> Iterator[Any]:
    """A grid of axes (rows × columns), written to `path` at the end; the same result gives the same bytes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as e:
        raise BadInput("drawing needs matplotlib: pip install matplotlib") from e
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tarry", "font.size": 9}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False)
        clean_texts(figure)
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
