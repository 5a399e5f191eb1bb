"""Reports from records of runs: tables, plots and an HTML page.

    summary = summarize(results)                 rows over seeds; target and relative time as in OrthoFL, Sec. 5.1
    table(summary)                               for the terminal (rich)
    markdown(summary), to_json(summary)          for a README, for a program
    score_over_time(results, summary)         SVG (matplotlib)
    page(results, summary, title=..., ...)       a whole page in one file

rich and matplotlib are imported on first use.
"""

from __future__ import annotations

from .formatting import key_findings
from .page import page, write_page
from .plots import score_over_time, score_over_updates, staleness_bars
from .tables import Curve, MethodRow, Summary, markdown, mean_curve, plain_table, summarize, to_json
from .terminal import table

__all__ = [
    "Curve",
    "MethodRow",
    "Summary",
    "score_over_time",
    "score_over_updates",
    "key_findings",
    "markdown",
    "mean_curve",
    "page",
    "plain_table",
    "staleness_bars",
    "summarize",
    "table",
    "to_json",
    "write_page",
]
