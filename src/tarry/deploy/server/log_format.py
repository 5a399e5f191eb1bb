"""Formats of the server's log: lines of text, or JSON lines with the same content.

2026-01-02 03:04:05,678 tarry an answer was rejected: why ..., client 3
{"time":"2026-01-02T03:04:05.678+00:00","level":"warning","message":"an answer was rejected: ...","client":3,...}
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from ...core.printable import printable

__all__ = ["JsonFormatter", "TextFormatter", "log_to_stderr"]


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


def log_to_stderr(kind: str) -> None:
    """Write the records of `tarry` from level INFO on to standard error, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter("%(asctime)s tarry %(message)s"))
    logger = logging.getLogger("tarry")
    logger.setLevel(logging.INFO)
    logger.handlers[:] = [handler]
    logger.propagate = False
