"""What travels between server and clients, and how it is looked at before it is opened.

    Letter    server → node: words and arrays          Return    node → server: an answer, or why there is none

Arrays come as Flower carries them: a name, a type, a shape and the bytes of an .npy file. What a client sends is
compared with what it may send (`Form`) by its claims and its length first, then by its header; only then is it read.
Nothing is unpickled.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Blob", "Form", "Grid", "Letter", "Over", "Refused", "Return", "Unreachable", "Word", "opened", "said"]

Word = bool | int | float | str
Array = npt.NDArray[Any]

_HEADER = 1024  # bytes that an .npy file may have before its numbers
_MOST_WORDS = 64
_LONGEST_WORD = 4096


class Refused(Exception):
    """What came back is not what may come back; the message says why."""


class Unreachable(Exception):
    """The link between server and nodes does not answer, or will not have us any more."""


class Over(Exception):
    """The link has ended the run."""


class Blob(NamedTuple):
    """An array that has not been opened: what its sender says of it, and bytes."""

    dtype: str
    shape: tuple[int, ...]
    kind: str  # how it was serialised
    data: bytes


class Letter(NamedTuple):
    """To a node; `kind` is the message type of Flower."""

    node: int
    kind: str
    words: Mapping[str, Word]
    arrays: Mapping[str, Array]
    ttl: float

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


class Return(NamedTuple):
    """What came for a letter. `error`: the link's or the app's word that nothing will."""

    letter: str
    node: int
    words: Mapping[str, Any]
    arrays: Mapping[str, Blob]
    error: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(len(b.data) for b in self.arrays.values())


class Grid(Protocol):
    """What the driver needs of a network. Nothing here waits for clients."""

    run: str  # letters of another run are not answered

    def nodes(self) -> dict[int, str]:
        """Who is there, and since when: a node that began anew has forgotten what it was sent."""

    def push(self, letters: Sequence[Letter]) -> list[str | None]:
        """Send; an id for each, None for one that could not be sent."""

    def pull(self, ids: Iterable[str]) -> list[Return]:
        """What has come for these letters; each comes once."""


@dataclass(frozen=True)
class Form:
    """What a client may send: arrays that must be there, and extras that may be, of at most so many numbers."""

    needs: Mapping[str, tuple[int, ...]]  # name → shape
    dtype: np.dtype[Any]
    extras: frozenset[str] = frozenset()
    most: int = 0  # numbers of an extra
    ignored: Mapping[str, int] | None = None  # what may come along unread, with its most bytes; None = nothing


def opened(arrays: Mapping[str, Blob], form: Form) -> dict[str, Array]:
    """The arrays, checked by name, number, type, shape and length, and finite or not left to others."""
    allowed = len(form.needs) + len(form.extras) + len(form.ignored or {})
    if len(arrays) > allowed:
        raise Refused(f"{len(arrays)} arrays where at most {allowed} may come")
    if missing := form.needs.keys() - arrays.keys():
        raise Refused(f"no array {_short(min(missing))}")
    out = {}
    for name, blob in arrays.items():
        if name in form.needs:
            out[name] = _read(name, blob, form.dtype, form.needs[name])
        elif name in form.extras:
            out[name] = _extra(name, blob, form)
        elif form.ignored is None or len(blob.data) > form.ignored.get(name, -1) + _HEADER:
            raise Refused(f"an array {_short(name)} that nobody asked for")
    return out


def _extra(name: str, blob: Blob, form: Form) -> Array:
    dtype = np.dtype(np.float64) if blob.dtype == "float64" else form.dtype
    if not all(isinstance(n, int) and n >= 0 for n in blob.shape) or prod(blob.shape) > form.most:
        raise Refused(f"extra {_short(name)} of more than {form.most:,} numbers")
    return _read(name, blob, dtype, tuple(blob.shape))


def _read(name: str, blob: Blob, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if blob.kind != "numpy.ndarray":
        raise Refused(f"array {_short(name)} is serialised as {_short(blob.kind)}, not as numpy.ndarray")
    if blob.dtype != dtype.name or tuple(blob.shape) != shape:
        raise Refused(f"array {_short(name)} is {_short(blob.dtype)} {tuple(blob.shape)[:8]}, not {dtype.name} {shape}")
    size = prod(shape) * dtype.itemsize
    if not size <= len(blob.data) <= size + _HEADER:
        raise Refused(f"array {_short(name)} has {len(blob.data):,} bytes, not {size:,}")
    head = io.BytesIO(blob.data[:_HEADER])
    try:
        version = np.lib.format.read_magic(head)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        told, by_column, kind = read(head, max_header_size=_HEADER)
    except (ValueError, KeyError, SyntaxError, TypeError) as e:
        raise Refused(f"array {_short(name)} is no .npy file") from e
    if told != shape or kind != dtype or len(blob.data) - head.tell() != size:
        raise Refused(f"array {_short(name)} is not what its sender says of it")
    numbers = np.frombuffer(blob.data, dtype, offset=head.tell()).copy()
    return numbers.reshape(shape, order="F" if by_column else "C")


def said(words: Mapping[str, Any], **kinds: type) -> dict[str, Any]:
    """The words asked for, each of its kind; a number may be whole where any number is asked for."""
    if len(words) > _MOST_WORDS or any(isinstance(v, str | bytes) and len(v) > _LONGEST_WORD for v in words.values()):
        raise Refused("more words than anybody asked for")
    out: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = words.get(name.replace("_", "-"))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Refused(f"no {kind.__name__} {name.replace('_', '-')!r}, but {_short(value)}")
        out[name] = value
    return out


def _short(x: Any) -> str:
    text = repr(x) if len(str(x)) <= 40 else f"{str(x)[:40]!r}..."
    return text.encode("ascii", "backslashreplace").decode()
