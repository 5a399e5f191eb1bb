"""Values that tests read from pictures."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    """Every text of a picture."""
    return ["".join(t.itertext()).strip() for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]
