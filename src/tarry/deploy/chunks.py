"""Fewer copies of an array that Flower has received: its chunks are joined once.

Flower joins the chunks of an array in a buffer that grows, and then copies the buffer. With the chunks it holds more
than three copies of a large message. Here it holds two. The patch is made where Flower has what it needs and a small
array comes back as it was. Otherwise Flower stays as it is.

    python benchmarks/large_model.py      # rows "Flower alone, receiving", with and without `join_chunks_once`
"""

from __future__ import annotations

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
        array.data = b"".join([children[ids[i]].data for i in order])
        return array

    inflate.joins_once = True  # type: ignore[attr-defined]
    return inflate


def _check_round_trip() -> None:
    """Raise ValueError unless an array of several chunks, two of them equal, comes back as it was."""
    from flwr.app import Array
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    array = Array("uint8", (12,), "numpy.ndarray", b"")
    chunks = [ArrayChunk(memoryview(part)) for part in (b"abcd", b"efgh", b"abcd")]
    array.__dict__["_chunks"] = [(chunk.object_id, chunk) for chunk in chunks]
    contents = {o.object_id: o.deflate() for o in (*chunks, array)}
    found: Any = inflate_object_from_contents(array.object_id, contents)
    if (found.data, found.dtype, found.shape, found.stype) != (b"abcdefghabcd", "uint8", (12,), "numpy.ndarray"):
        raise ValueError("an array does not come back as it was")
