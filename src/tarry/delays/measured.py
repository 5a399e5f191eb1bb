"""Delays read from files: rounds measured on real devices, and the record of an earlier run.

empirical    each of our clients lives the rounds of one measured client
trace        every visit takes what it took in the recorded run, and the same visits are lost
"""

from __future__ import annotations

import codecs
import csv
import io
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

import numpy as np

from ..core.errors import BadInput, near
from ..core.one_line import short_text
from ..core.parquet import parquet_rows
from ..core.rng import Stream, below, visit_keys
from ..core.storage import open_input, packing, packing_errors, unpacked
from ..record.storage import open_atomic
from .base import (
    LONGEST,
    SHORTEST,
    ClientPopulation,
    Delay,
    DelayFactory,
    assign_profiles,
    delays,
    raise_problems,
    range_errors,
)

__all__ = [
    "TraceDelays",
    "TraceRow",
    "empirical",
    "header",
    "number",
    "positive",
    "read_trace",
    "table",
    "trace",
    "write_trace",
]


_BLANK = ("", "na", "n/a", "nan", "null", "none", "-")  # cells without a value, as spreadsheets and pandas write them
_LINE_LIMIT, _TEXT_LIMIT = 1 << 20, 4 << 30  # characters of a line and of a file, unpacked


def _unpacked(file: IO[bytes], path: str | Path, flag: str) -> Iterator[str]:
    """Yield the lines of a file; raise BadInput if it is larger, unpacked, than the limits."""
    total = 0
    with io.TextIOWrapper(
        unpacked(file, path), encoding="utf-8-sig", newline=""
    ) as text:  # spreadsheets write a byte order mark
        while line := text.readline(_LINE_LIMIT + 1):
            total += len(line)
            if len(line) > _LINE_LIMIT or total > _TEXT_LIMIT:
                raise BadInput(
                    f"{flag}: at most {_TEXT_LIMIT:,} characters are read, and {_LINE_LIMIT:,} of one line;"
                    " name a CSV file of that size"
                )
            yield line


def header(path: str | Path, flag: str) -> list[str]:
    """Return the column names of a CSV file, packed or not; `flag` is the option that named it, for errors."""
    return next(_lines(path, flag))[1]


def table(path: str | Path, flag: str, columns: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the given columns of a CSV file, line by line, each with its position for error messages.

    `columns` gives, for each column, the flag that an error names if the column is missing.
    """
    lines = _lines(path, flag)
    _, names = next(lines)
    missing = [
        f"{blame}: line 1 of {path} has no column {column!r}.{near(column, names)}"
        for column, blame in columns.items()
        if column not in names
    ]
    if missing:
        raise BadInput(missing)
    places = [names.index(column) for column in columns]
    empty = True
    for where, cells in lines:
        if len(cells) != len(names):
            raise BadInput(f"{where}: {len(cells)} cells where the first line has {len(names)}")
        yield where, [cells[place] for place in places]
        empty = False
    if empty:
        raise BadInput(f"{flag}: has no lines below its first")


def _lines(path: str | Path, flag: str) -> Iterator[tuple[str, list[str]]]:
    if str(path).endswith(".parquet"):
        yield from _parquet_lines(path, flag)
        return
    try:
        with open_input(path, flag) as file, packing_errors(flag):
            reader = csv.reader(_unpacked(file, path, flag))
            nothing = True
            for cells in reader:
                if cells:
                    yield f"{flag}: line {reader.line_num}", [cell.strip() for cell in cells]
                    nothing = False
            if nothing:
                raise BadInput(f"{flag}: is empty; its first line must name the columns")
    except (UnicodeDecodeError, csv.Error) as e:
        raise BadInput(f"{flag}: is not a CSV file (plain, or packed as .gz or .xz): {e}") from e


def _parquet_lines(path: str | Path, flag: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of the columns and the rows of a Parquet file as texts; an empty cell is an empty text."""
    names: list[str] = []
    for i, row in enumerate(parquet_rows(path, flag, _TEXT_LIMIT), 1):
        if not names:
            names = list(row)
            yield f"{flag}: columns", names
        yield f"{flag}: row {i}", ["" if row[name] is None else str(row[name]) for name in names]
    if not names:
        raise BadInput(f"{flag}: has no rows")


def number(where: str, text: str) -> float:
    """Return the cell as a number; raise BadInput if it is none."""
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{where}: {short_text(repr(text))} is not a number") from None


def positive(where: str, text: str) -> float:
    """Return the cell as a finite number above 0; raise BadInput if it is none."""
    value = number(where, text)
    if not 0 < value < math.inf:
        raise BadInput(f"{where}: {short_text(text)}: must be finite and above 0")
    return value


_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class MeasuredWork:
    """The work and the bytes of the measured rounds, by which their two parts are scaled."""

    examples: float | None  # examples times passes in a round; None: computing stays as it was measured
    bytes: float | None  # of the model; None: communication stays as it was measured
    cost: float  # time of an example here over its time in the measured rounds

    def factors(self, population: ClientPopulation) -> tuple[array[float], float]:
        """Return the factor of the computing part for each client, and of the communication part."""
        work = [1.0 if self.examples is None else population.epochs * n / self.examples for n in population.samples]
        return array("d", (self.cost * w for w in work)), (
            1.0 if self.bytes is None else population.model_bytes / self.bytes
        )


class MeasuredRounds(NamedTuple):
    """The rounds of one measured client: seconds of computing, and the rest of each round."""

    computing: array[float]
    rest: array[float]


class EmpiricalDelays:
    """Each client lives the rounds of one measured client: those of client c are rounds[given[c]].

    A round has two parts, computing and the rest, each with a factor.
    """

    def __init__(
        self,
        rounds: Sequence[MeasuredRounds],
        given: Sequence[int],
        factors: tuple[Sequence[float], float],
        *,
        draw: Callable[[int, int], int] | None,
        notices: tuple[str, ...],
    ):
        self._rounds, self._given, self._draw, self.notices = rounds, given, draw, notices
        self._work, self._traffic = factors

    def __call__(self, client: int, visit: int, /) -> float:
        own = self._rounds[self._given[client]]
        n = len(own.rest)
        i = visit % n if self._draw is None else below(self._draw(client, visit), n)
        return own.computing[i] * self._work[client] + own.rest[i] * self._traffic


@delays.register("empirical")
def empirical(
    *,
    path: Annotated[str, "CSV with a line for each measured round"],
    column: Annotated[str, "its column of durations"] = "round_delay_s",
    client_column: Annotated[str, "its column that tells the measured clients apart"] = "client",
    unit: Annotated[Literal["s", "ms", "us", "min", "h"], "the unit of the durations"] = "s",
    order: Annotated[Literal["random", "recorded"], "draw a client's rounds, or run through them"] = "random",
    compute_column: Annotated[
        str | None, "its column of computing times, a part of the durations; none: durations are not scaled"
    ] = None,
    examples: Annotated[float | None, "scale computing: examples times passes in a measured round"] = None,
    cost: Annotated[float, "scale computing: time of an example here, over its time in the measured rounds"] = 1.0,
    model_bytes: Annotated[float | None, "scale the rest of a round: bytes of the measured model"] = None,
) -> DelayFactory:
    """Rounds measured on real devices: each client is given one measured client and lives its rounds.

    Measured clients are dealt without replacement while there are enough, else with; `recorded` starts again after
    the last round. Lines whose duration is blank are skipped, and a notice gives their number. With a column of
    computing times, a visit takes computing · cost · (examples · passes here / examples) + (duration − computing) ·
    (bytes of the model here / model_bytes), as OrthoFL's App. D.4 scales its measurements.
    """
    if column == client_column:
        raise BadInput(f"--delay.column {column}: is the column of clients already (--delay.client_column)")
    measured = MeasuredWork(examples, model_bytes, cost)
    _check_scaling(measured, compute_column)
    blame = {client_column: f"--delay.client_column {client_column}", column: f"--delay.column {column}"}
    if compute_column is not None:
        blame[compute_column] = f"--delay.compute_column {compute_column}"
    rounds, notices = _read_rounds(path, column, blame, _UNITS[unit], unit)

    def build(population: ClientPopulation) -> Delay:
        draw = visit_keys(population.seed, Stream.DELAY) if order == "random" else None
        given, factors = assign_profiles(population, len(rounds)), measured.factors(population)
        return EmpiricalDelays(rounds, given, factors, draw=draw, notices=notices)

    return build


def _check_scaling(measured: MeasuredWork, compute_column: str | None) -> None:
    given = {"examples": measured.examples, "model_bytes": measured.bytes, "cost": measured.cost}
    raise_problems(range_errors(SHORTEST, LONGEST, **{k: v for k, v in given.items() if v is not None}))
    if compute_column is None and (measured.examples, measured.bytes, measured.cost) != (None, None, 1.0):
        raise BadInput(
            "--delay.examples, --delay.model_bytes, --delay.cost: scale the parts of a round;"
            " name the column of computing times with --delay.compute_column"
        )


def _read_rounds(
    path: str, column: str, blame: Mapping[str, str], seconds_of_unit: float, unit: str
) -> tuple[list[MeasuredRounds], tuple[str, ...]]:
    """Return the rounds of every measured client, and notices; the columns are client, duration and maybe computing."""
    flag, blank = f"--delay.path {path}", 0
    rounds: dict[str, MeasuredRounds] = {}
    for where, (name, text, *computing) in table(path, flag, blame):
        if text.lower() in _BLANK:
            blank += 1
            continue
        seconds = positive(where, text) * seconds_of_unit
        if not seconds > 0:
            raise BadInput(f"{where}: {short_text(text)} {unit} is too short")
        part = _computing(where, computing[0], seconds / seconds_of_unit) * seconds_of_unit if computing else 0.0
        own = rounds.setdefault(name, MeasuredRounds(array("d"), array("d")))
        own.computing.append(part)
        own.rest.append(seconds - part)
    if not rounds:
        raise BadInput(f"{flag}: all {blank:,} durations in column {column!r} are blank; name another --delay.column")
    lines = "1 line with a blank {} is" if blank == 1 else f"{blank:,} lines with a blank {{}} are"
    notices = (f"{flag}: {lines.format(repr(column))} skipped",) if blank else ()
    return list(rounds.values()), notices


def _computing(where: str, text: str, most: float) -> float:
    """Return the computing time of a round, which must leave time for the rest of it."""
    value = number(where, text)
    if not 0 <= value < most:
        raise BadInput(f"{where}: computing {short_text(text)}: must be from 0 to less than the duration, {most:g}")
    return value


_DIGITS = 18  # of a whole number: it fits 64 bits


class TraceRow(NamedTuple):
    """One visit of a recorded run. A visit whose `fate` is "lost" took its time and brought nothing."""

    client: int
    visit: int
    start: float
    seconds: float
    fate: str


def write_trace(path: str | Path, rows: Iterable[TraceRow | tuple[int, int, float, float, str]]) -> None:
    """Write the visits of a run; every number reads back bit for bit."""
    with open_atomic(Path(path)) as raw, packing(raw, path) as file:
        out = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        out.writerow(TraceRow._fields)
        for client, visit, start, seconds, fate in rows:
            out.writerow((int(client), int(visit), repr(float(start)), repr(float(seconds)), fate))


def read_trace(path: str | Path) -> list[TraceRow]:
    """Read the visits of a recorded run, in the order of the file."""
    flag = f"--delay.path {path}"
    rows = []
    for where, (client, visit, start, seconds, fate) in table(path, flag, dict.fromkeys(TraceRow._fields, flag)):
        began = number(where, start)
        if not 0 <= began < math.inf:
            raise BadInput(f"{where}: start {start}: must be finite and not below 0")
        rows.append(TraceRow(_count(where, client), _count(where, visit), began, positive(where, seconds), fate))
    return rows


def _count(where: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise BadInput(f"{where}: {short_text(repr(text))} is not a whole number from 0 on")
    return int(text)


class TraceDelays:
    """The durations and losses of a recorded run: client c's visits lie at starts[c] … starts[c + 1] − 1."""

    def __init__(self, starts: Sequence[int], seconds: Sequence[float], lost: Sequence[int], *, repeat: bool):
        self._starts, self._seconds, self._lost, self._repeat = starts, seconds, lost, repeat

    def __call__(self, client: int, visit: int, /) -> float | None:
        place = self._place(client, visit)
        return None if place is None else self._seconds[place]

    @property
    def notices(self) -> tuple[str, ...]:
        """A notice that some clients have no visit in the record."""
        missing, n = sum(a == b for a, b in pairwise(self._starts)), len(self._starts) - 1
        if not missing:
            return ()
        return (f"--delay.path: {missing:,} of {n:,} clients are not in the record and take no part",)

    def lost(self, client: int, visit: int) -> bool:
        """Return whether that visit brought nothing in the recorded run."""
        place = self._place(client, visit)
        return place is not None and bool(self._lost[place])

    def _place(self, client: int, visit: int) -> int | None:
        first, end = self._starts[client], self._starts[client + 1]
        if first + visit < end:
            return first + visit
        return first + visit % (end - first) if self._repeat and end > first else None


@delays.register("trace")
def trace(
    *,
    path: Annotated[str, "CSV of a recorded run: client,visit,start,seconds,fate"],
    end: Annotated[
        Literal["leave", "repeat"], "past its last recorded visit a client leaves, or starts again"
    ] = "leave",
) -> DelayFactory:
    """Replay of a recorded run: every visit takes what it took then, and the same visits are lost.

    A client that was never handed work in the record takes no part.
    """
    flag = f"--delay.path {path}"
    rows = sorted(read_trace(path), key=lambda row: (row.client, row.visit))
    seconds = array("d", (row.seconds for row in rows))
    lost = bytearray(row.fate == "lost" for row in rows)
    _check_turns(rows, flag)

    def build(population: ClientPopulation) -> Delay:
        if rows[-1].client >= population.n_clients:
            raise BadInput(
                f"{flag}: names client {rows[-1].client}; this run has clients 0 to {population.n_clients - 1}"
            )
        counts = np.bincount([row.client for row in rows], minlength=population.n_clients)
        return TraceDelays([0, *np.cumsum(counts).tolist()], seconds, lost, repeat=end == "repeat")

    return build


def _check_turns(rows: Sequence[TraceRow], flag: str) -> None:
    """The visits of each client must count up from 0 in the sorted rows."""
    client, due = -1, 0
    for row in rows:
        if row.client != client:
            client, due = row.client, 0
        if row.visit != due:
            problem = f"has no visit {due}" if row.visit > due else f"has visit {row.visit} twice"
            raise BadInput(f"{flag}: client {row.client} {problem}: a client's visits must count up from 0")
        due += 1
