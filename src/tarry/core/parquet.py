"""Rows and columns of Parquet files, read a batch at a time by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BadInput, first_line
from .storage import open_input

__all__ = ["parquet_columns", "parquet_rows"]

_BATCH = 1000  # rows that are read at once


def parquet_rows(path: str | Path, flag: str, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file of at most `limit` bytes; BadInput begins with `flag`."""
    with _opened(path, flag, limit) as file:
        for batch in file.iter_batches(_BATCH):
            yield from batch.to_pylist()


def parquet_columns(path: str | Path, flag: str) -> list[str]:
    """Return the names of the columns of a Parquet file; BadInput begins with `flag`."""
    with _opened(path, flag) as file:
        names: list[str] = file.schema_arrow.names
        return names


@contextmanager
def _opened(path: str | Path, flag: str, limit: int = 64 << 30) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise BadInput(f'{flag}: reading it needs the package pyarrow: pip install "tarry[parquet]"') from None
    try:
        with open_input(path, flag, limit) as file:
            yield parquet.ParquetFile(file)
    except (ArrowException, OSError, ValueError) as e:
        if isinstance(e, BadInput):
            raise
        raise BadInput(f"{flag}: is no Parquet file that can be read ({first_line(e)})") from e
