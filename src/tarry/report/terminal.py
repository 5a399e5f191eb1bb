"""The comparison as a table for the terminal."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from ..core.optional_import import optional_import
from ..core.printable import printable
from .formatting import grid, legend
from .tables import Summary

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["table"]

_HEADING = 10  # least width of a heading


def table(summary: Summary) -> Group:
    """Return a table with a row for each method; the best is bold, and the legend is below."""
    with optional_import("rich"):
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

    headings, rows = grid(summary)
    # Text, never markup: a label may hold square brackets.
    note = Text(printable(legend(summary)), style="dim", overflow="fold")
    out = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        widest = max((len(row[i].text + row[i].secondary) for row in rows), default=0)
        folded = fill(heading, max(widest, _HEADING))  # no wider than its column needs
        out.add_column(Text(folded), justify="right" if i else "left", overflow="fold")
    for row in rows:
        cells = [Text(printable(c.text), style="bold" if c.best else "") for c in row]
        for text, cell in zip(cells, row, strict=True):
            if cell.secondary:
                text.append(f"  {printable(cell.secondary)}", style="not bold dim")
        out.add_row(*cells)
    return Group(out, note) if note else Group(out)
