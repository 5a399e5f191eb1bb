"""Remove header, signature and quoted lines from a newsgroup post.

Headers and signatures name people and machines, which a classifier would learn instead of the subject. The rule is
that of scikit-learn's `fetch_20newsgroups(remove=("headers", "footers", "quotes"))`, which made the copy of 20
Newsgroups that OrthoFL trains on (SetFit/20_newsgroups).
"""

from __future__ import annotations

import re

__all__ = ["strip_headers"]

_QUOTED = re.compile(r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>")


def strip_headers(post: str) -> str:
    """Return the post without its header, then without its last paragraph (a signature), then without quoted lines."""
    _, _, text = post.partition("\n\n")
    text = _without_signature(text)
    return "\n".join(line for line in text.split("\n") if not _QUOTED.search(line))


def _without_signature(text: str) -> str:
    """Cut at the last line that is blank or dashes alone, unless nothing would be left."""
    lines = text.strip().split("\n")
    breaks = [i for i, line in enumerate(lines) if not line.strip().strip("-")]
    return "\n".join(lines[: breaks[-1]]) if breaks and breaks[-1] > 0 else text
