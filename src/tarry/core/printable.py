"""Text of users, files and clients, made safe to show: no control character reaches a terminal, a page or a plot.

    printable(text)      for terminals, tables and plots; what is shown there is never markup
    html_text(text)      for HTML
    markdown_text(text)  for a cell or a paragraph of Markdown

A control character becomes its escape, so that it is seen: ESC is shown as \\x1b. So do marks that reorder text (the
right-to-left override), line separators and halves of surrogate pairs, which cannot be encoded.
"""

from __future__ import annotations

import html
import re

__all__ = ["html_text", "markdown_text", "printable"]

#: control characters, marks of direction, separators of lines, surrogates, and the mark of byte order
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(text: str, *, keep: str = "") -> str:
    """Return a text on one line without control characters; those in `keep` stay.

    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(lambda m: m[0] if m[0] in keep else _escaped(m[0]), text)


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]


def html_text(text: str) -> str:
    """Return a text for HTML, in an element or a quoted attribute.

    >>> html_text("<b>&")
    '&lt;b&gt;&amp;'
    """
    return html.escape(printable(text, keep="\n\t"))


def markdown_text(text: str) -> str:
    """Return a text for Markdown, on one line; its characters are no markup.

    >>> markdown_text("a|b*")
    'a\\\\|b\\\\*'
    """
    one_line = " ".join(printable(text, keep="\n\t").split())
    return "".join(f"\\{c}" if c in "\\|*`<>[]_" else c for c in one_line)
