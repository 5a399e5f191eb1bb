"""The server's log: lines of text, or JSON lines with the same content, on standard error and in server.log.

Flower sends what an app writes to standard error to the SuperLink (`flwr log`), and discards it here. server.log is
renamed to server.log.1 at 16 MiB.

2026-01-02 03:04:05,678 tarry an answer was rejected: why ..., client 3
{"time":"2026-01-02T03:04:05.678+00:00","level":"warning","message":"an answer was rejected: ...","client":3,...}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ...core.printable import printable

__all__ = ["JsonFormatter", "TextFormatter", "logging_to"]

_LIMIT = 16 << 20  # bytes of server.log, and of server.log.1


class TextFormatter(logging.Formatter):
    """A format that shows control characters, of a client's name for example, as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: time, level, message, and what the record is about (`extra={"about": ...}`)."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, separators=(",", ":"), default=str)


class _LogFile(RotatingFileHandler):
    """A log file; lines that a full disk does not take are given up."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing."""


@contextmanager
def logging_to(folder: Path, kind: str) -> Iterator[None]:
    """Write the records of `tarry` from level INFO on to standard error and to server.log, as `text` or `json`."""
    formatter = JsonFormatter() if kind == "json" else TextFormatter("%(asctime)s tarry %(message)s")
    file = _LogFile(folder / "server.log", maxBytes=_LIMIT, backupCount=1, delay=True, encoding="utf-8")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr), file]
    logger = logging.getLogger("tarry")
    before = (logger.level, list(logger.handlers), logger.propagate)
    for handler in handlers:
        handler.setFormatter(formatter)
    logger.setLevel(logging.INFO)
    logger.handlers[:], logger.propagate = handlers, False
    try:
        yield
    finally:
        file.close()
        logger.setLevel(before[0])
        logger.handlers[:], logger.propagate = before[1], before[2]
