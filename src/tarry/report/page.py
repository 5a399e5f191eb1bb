"""Page of a comparison: one self-contained HTML file, without scripts, fonts or network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..core.metric import ACCURACY, LOSS, Metric
from ..core.printable import html_text
from ..record.result import Result
from ..record.storage import make_folder, write_atomic
from .diagnostics import pictures
from .diagnostics_data import sentences, speed_grid, stretch
from .formatting import NONE, TableCell, duration, grid, key_findings, legend, pluralize, warning_lines
from .plots import metric_over_time, score_over_time, score_over_updates, staleness_bars
from .significance import Significance, significance, significance_grid
from .tables import Summary, clock, finite_or_none

__all__ = ["page", "write_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b6570; --line: #d9dee3; --paper: #ffffff; --tint: #f3f6f8;
  --mark: #00664b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --soft: #9aa5b0; --line: #343c45; --paper: #14181c; --tint: #1d2329; --mark: #5fd3b0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0; max-width: 44rem; }
ul { padding-left: 1.2rem; max-width: 44rem; }
.soft, .secondary { color: var(--soft); font-size: .9rem; }
.secondary { display: block; font-weight: normal; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; margin: .8rem 0; }
.wide svg { display: block; width: 100%; min-width: 34rem; height: auto; padding: .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .75rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: baseline; }
tbody tr:last-child > * { border-bottom: 0; }
tbody tr:hover { background: var(--tint); }
thead th { color: var(--soft); font-weight: 600; font-size: .84rem; vertical-align: bottom; }
th:first-child, table.text td { text-align: left; }
td { white-space: nowrap; }
tbody th { font-weight: 600; min-width: 9rem; }
tbody th, table.text td { overflow-wrap: anywhere; white-space: normal; }
td.best { color: var(--mark); font-weight: 700; }
code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .88rem; }
pre { background: var(--tint); padding: .8rem 1rem; border-radius: .5rem; white-space: pre-wrap; }
@media (max-width: 40rem) { body { padding-top: 1rem; } h1 { font-size: 1.4rem; } th, td { padding: .4rem .55rem; } }
@media print { .wide { overflow: visible; } }
"""

# The page fetches and runs nothing, even if a label or a setting holds HTML.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SPEED = (
    "Stragglers are the clients whose visits take more than twice as long as the fastest one's. The variance is "
    "½(|a₁ − a|² + |a₂ − a|²), where a is the accuracy on the test set, a₁ and a₂ those on active clients' "
    "and on stragglers' own examples; the smaller it is, the more evenly the model serves them."
)


def page(
    results: Sequence[Result],
    summary: Summary,
    *,
    title: str,
    settings: Mapping[str, str],
    command: str | None = None,
    notices: Sequence[str] = (),
) -> str:
    """Return the whole document with all texts escaped; `notices` go before those of the runs."""
    sections = [
        _header(results, summary, title),
        _list(key_findings(summary)),
        _summary_table(summary),
        *_significance(significance(results)),
        *_pictures(results, summary),
        *_on_the_way(results),
        "<h2>Every run</h2>",
        _run_table(results, summary),
    ]
    if notes := [*notices, *warning_lines(results)]:
        sections += ["<h2>Notices</h2>", _list(notes)]
    if settings:
        sections += ["<h2>Settings</h2>", _settings_table(settings)]
    if command:
        sections += ["<h2>Run it again</h2>", f"<pre><code>{html_text(command)}</code></pre>"]
    versions = ", ".join(sorted({r.version for r in results}))
    sections.append(f'<p class="soft">Made with tarry {html_text(versions)}.</p>')
    return _document(title, "\n".join(sections))


def write_page(
    path: Path,
    results: Sequence[Result],
    summary: Summary,
    *,
    title: str,
    settings: Mapping[str, str],
    command: str | None = None,
    notices: Sequence[str] = (),
) -> None:
    """Write the document to a file; a missing folder is created."""
    text = page(results, summary, title=title, settings=settings, command=command, notices=notices)
    make_folder(path.parent)
    write_atomic(path, text.encode())


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _header(results: Sequence[Result], summary: Summary, title: str) -> str:
    clients = sorted({r.n_clients for r in results})
    facts = [
        f"task {summary.task}",
        pluralize(len(summary.rows), "method"),
        f"{' or '.join(map(str, clients))} clients",
        f"{'seed' if len(summary.seeds) == 1 else 'seeds'} {', '.join(map(str, summary.seeds))}",
    ]
    return f'<header><h1>{html_text(title)}</h1><p class="soft">{html_text(" · ".join(facts))}</p></header>'


def _summary_table(summary: Summary) -> str:
    headings, rows = grid(summary, full=True)
    several = len(summary.seeds) > 1
    notes = [
        legend(summary),
        "Numbers are means over seeds (± is the standard deviation); maxima are over all seeds." if several else "",
        "Best values are marked." if len(summary.rows) > 1 else "",
    ]
    note = " ".join(n for n in notes if n)
    return f'{_table(headings, rows)}\n<p class="soft">{html_text(note)}</p>'


def _significance(found: Significance) -> list[str]:
    """Return the section on the tests; [] if there is one row."""
    if not (sentences := found.sentences()):
        return []
    table = [_table(*significance_grid(found))] if found.tests and found.seeds > 2 else []
    return ["<h2>Significance</h2>", _list(sentences), *table]


def _pictures(results: Sequence[Result], summary: Summary) -> list[str]:
    what, better = summary.metric.name, "higher" if summary.metric.higher_is_better else "lower"
    band = " The band is one standard deviation over seeds on either side." if len(summary.seeds) > 1 else ""
    target = " The dashed line is the target." if summary.target is not None else ""
    simulated = " of the simulated clock (not of this computer)" if summary.clock == "virtual time" else ""
    return [
        f"<h2>{_title(what)} over {summary.clock}</h2>",
        _picture(
            score_over_time(results, summary),
            f"Further left and {better} is better: the line shows the {what} that had been reached at each moment"
            f"{simulated}.{band}{target}",
        ),
        f"<h2>{_title(what)} over updates</h2>",
        _picture(
            score_over_updates(results, summary),
            f"The same {what} against the number of client updates the server accepted: how much each one taught, "
            "whatever time it took.",
        ),
        *_other_metrics(results, summary),
        "<h2>Staleness</h2>",
        _picture(
            staleness_bars(results),
            "Staleness is the number of steps the server made between handing weights to a client and getting its "
            "update. The narrow bar is the mean; 95 % of the updates lie within the wide one.",
        ),
    ]


def _other_metrics(results: Sequence[Result], summary: Summary) -> list[str]:
    """Return a picture of each further metric over time."""
    parts = []
    for metric in summary.others:
        better = "higher" if metric.higher_is_better else "lower"
        picture = metric_over_time(results, summary, metric)
        parts += [
            f"<h3>{_title(metric.name)} over {summary.clock}</h3>",
            _picture(picture, f"{better} is better.".capitalize()),
        ]
    return parts


def _title(name: str) -> str:
    return html_text(name.capitalize() if name in ("accuracy", "loss") else name)


def _on_the_way(results: Sequence[Result]) -> list[str]:
    """Return the section on diagnostics, [] without diagnostics."""
    shown, speed = pictures(results), speed_grid(results)
    if not shown and speed is None:
        return []
    each = stretch(results)
    several = len({r.seed for r in results if r.diagnostics}) > 1
    notes = [
        "Noted with --diagnose, which changes no result.",
        "Lines are means over seeds, bands and thin bars one standard deviation." if several else "",
        f"A point over time is a mean over {duration(each)} of {clock(results)}." if each else "",
    ]
    sections = [
        "<h2>What happened on the way</h2>",
        f'<p class="soft">{html_text(" ".join(n for n in notes if n))}</p>',
        _list(sentences(results)),
    ]
    if speed is not None:
        sections += ["<h3>Fast and slow clients</h3>", _table(*speed), f'<p class="soft">{html_text(_SPEED)}</p>']
    for picture in shown:
        sections += [f"<h3>{html_text(picture.title)}</h3>", _picture(picture.svg, picture.reading)]
    return sections


def _picture(svg: str, reading: str) -> str:
    return f'<p>{html_text(reading)}</p>\n<div class="wide">{svg}</div>'


def _run_table(results: Sequence[Result], summary: Summary) -> str:
    shown = [
        m
        for m in (ACCURACY if summary.metric.name == LOSS.name else summary.metric, *summary.others)
        if m.name != LOSS.name
    ]
    two = summary.scored_on != summary.final_on  # sets: the score on both, and which one the others are on
    on = f"{summary.final_on} " if two else ""
    finals = [f"{on}{m.name}" for m in (*shown, LOSS)] + [f"{summary.scored_on} {m.name}" for m in shown[:1] if two]
    headings = ("run", "seed", *finals, "updates", clock(results), "wall seconds")
    headings += ("weights (SHA-256)",)
    rows = [
        (
            TableCell(r.label),
            TableCell(str(r.seed)),
            *(_score_cell(r.final_metrics, m) for m in (*shown, LOSS)),
            *(_score_cell(r.validation_metrics or {}, m) for m in shown[:1] if two),
            TableCell(f"{r.updates:,}"),
            TableCell(duration(r.virtual_time)),
            TableCell(f"{r.wall_s:,.1f}"),
            TableCell(r.weights_sha256[:12]),
        )
        for r in results
    ]
    return _table(headings, rows)


def _score_cell(metrics: Mapping[str, float | None], metric: Metric) -> TableCell:
    value = finite_or_none(metrics.get(metric.name))
    return TableCell(NONE if value is None else metric.number(value))


def _settings_table(settings: Mapping[str, str]) -> str:
    body = "".join(
        f'<tr><th scope="row">{html_text(k)}</th><td>{html_text(v)}</td></tr>\n' for k, v in settings.items()
    )
    return f'<div class="wide"><table class="text"><tbody>\n{body}</tbody></table></div>'


def _table(headings: Iterable[str], rows: Iterable[Sequence[TableCell]]) -> str:
    head = "".join(f'<th scope="col">{html_text(h)}</th>' for h in headings)
    body = "".join(
        f'<tr><th scope="row">{html_text(row[0].text)}</th>{"".join(map(_td, row[1:]))}</tr>\n' for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _td(cell: TableCell) -> str:
    secondary = f' <span class="secondary">{html_text(cell.secondary)}</span>' if cell.secondary else ""
    opening = '<td class="best">' if cell.best else "<td>"
    return f"{opening}{html_text(cell.text)}{secondary}</td>"


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html_text(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>" if items else ""
