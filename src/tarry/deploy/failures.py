"""Failures as a client's app tells them, made one short line that is safe to show: the error's type and message."""

from __future__ import annotations

import re

from ..core.printable import printable

__all__ = ["failure_text"]

_LONGEST = 200  # characters that are kept
_READ = 4000  # characters that are looked at
#: the text that Flower makes of an exception
_FLOWER = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)
#: how the actors of Flower's simulation engine wrap the exception of an app
_WRAPPED = re.compile(r"^\s*Exception \w+ occurred\. Message: ", re.MULTILINE)


def failure_text(reason: str) -> str:
    """Return the type and message of an error.

    >>> from tarry.deploy.failures import failure_text
    >>> failure_text("<class 'ZeroDivisionError'>:<'division by zero'>")
    'ZeroDivisionError: division by zero'
    """
    text = reason[:_READ]
    if found := _FLOWER.fullmatch(text.strip()):
        kind, message = found[1], found[2].strip()
        wrapped = _WRAPPED.sub("", message).strip()
        text = _last_line(wrapped) if wrapped != message else f"{kind}: {_first_line(message)}" if message else kind
    else:
        text = _first_line(text)
    return printable(text)[:_LONGEST]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _last_line(text: str) -> str:
    """Return the last line that is not indented: that of the exception in a traceback."""
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1].strip() if lines else ""
