"""Fewer copies of an array that Flower has received: each chunk is freed when it is joined to the others.

Flower joins the chunks of an array in a buffer that grows, and then copies the buffer. With the chunks it holds more
than three copies of a large message. Here it holds one, and a chunk. The patch is made where Flower has what it needs
and small arrays come back as they were. Otherwise Flower stays as it is.

    python benchmarks/large_model.py      # rows "Flower alone, receiving", with and without `join_chunks_once`
"""

from __future__ import annotations

import io
import json
import logging
from typing import Any

__all__ = ["join_chunks_once"]

log = logging.getLogger("tarry")


def join_chunks_once() -> bool:
    """Patch Flower in this process; return False, and log it, if this version of Flower is made otherwise."""
    try:
        from flwr.app import Array

        plain = Array.__dict__["inflate"]
        if hasattr(plain.__func__, "joins_once"):
            return True
        Array.inflate = classmethod(_joining(plain.__func__))  # type: ignore[assignment, method-assign]
        try:
            _check_round_trip()
        except BaseException:
            Array.inflate = plain  # type: ignore[method-assign]
            raise
    except Exception as e:  # whatever another version does
        log.warning("Flower's arrays are joined by Flower, with more memory (%s: %s)", type(e).__name__, e)
        return False
    return True


def _joining(plain: Any) -> Any:
    """Return Array.inflate with Flower's own checks, made on chunks without content, and one copy of the content."""
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_children_ids_from_object_content,
    )

    def inflate(cls: Any, object_content: bytes, children: dict[str, Any] | None = None) -> Any:
        children = children or {}
        empty = ArrayChunk(memoryview(b""))
        array = plain(cls, object_content, dict.fromkeys(children, empty))
        ids = get_object_children_ids_from_object_content(object_content)
        order = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
        array.data = _join([children[ids[i]] for i in order])
        return array

    inflate.joins_once = True  # type: ignore[attr-defined]
    return inflate


def _join(chunks: list[Any]) -> bytes:
    """Return the content of the chunks, which become views of it: other arrays may have some of the same chunks."""
    last = {id(chunk): place for place, chunk in enumerate(chunks)}
    joined, ends = io.BytesIO(), dict[int, tuple[int, int]]()
    for place, chunk in enumerate(chunks):
        start = joined.tell()
        joined.write(chunk.data)
        ends[place] = start, joined.tell()
        if last[id(chunk)] == place:
            chunk.data = memoryview(b"")
    data = joined.getvalue()  # not a copy
    for place in last.values():
        start, end = ends[place]
        chunks[place].data = memoryview(data)[start:end]
    return data


def _check_round_trip() -> None:
    """Raise ValueError unless two arrays of several chunks, some of them equal, come back as they were."""
    from flwr.app import Array
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    found: dict[str, Any] = {}  # what Flower keeps while it decodes a message
    for pieces in ((b"abcd", b"efgh", b"abcd"), (b"efgh", b"ijkl")):
        array = Array("uint8", (4 * len(pieces),), "numpy.ndarray", b"")
        chunks = [ArrayChunk(memoryview(piece)) for piece in pieces]
        array.__dict__["_chunks"] = [(chunk.object_id, chunk) for chunk in chunks]
        contents = {o.object_id: o.deflate() for o in (*chunks, array)}
        back: Any = inflate_object_from_contents(array.object_id, contents, objects=found)
        expected = (b"".join(pieces), "uint8", (4 * len(pieces),), "numpy.ndarray")
        if (back.data, back.dtype, back.shape, back.stype) != expected:
            raise ValueError("an array does not come back as it was")
