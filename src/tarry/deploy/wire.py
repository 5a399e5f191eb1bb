"""Messages between server and nodes, and the checks that a reply passes before its arrays are decoded.

    Request    server → node: fields and arrays        ReplyMessage    node → server: fields and arrays, or an error

Arrays come as Flower carries them: a name, a type, a shape and the bytes of an .npy file. What a client sends is
compared with what it may send (`ArraySchema`): first its claims and its length, then its header; only then is it read.
Nothing is unpickled.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..core.rejections import Reason

__all__ = [
    "Array",
    "ArraySchema",
    "EncodedArray",
    "NODE_BITS",
    "FieldValue",
    "MessageGrid",
    "Rejected",
    "ReplyMessage",
    "Request",
    "RunEnded",
    "SingleLinkGrid",
    "Unreachable",
    "decode_arrays",
    "encoded_npy",
    "flower_node",
    "merge_records",
    "npy_header",
    "parse_fields",
    "view_npy",
]

FieldValue = bool | int | float | str
Array = npt.NDArray[Any]

NODE_BITS = 64
_HEADER = 1024  # bytes that the header of an .npy file may take
_MAX_FIELDS = 64
_MAX_FIELD_LENGTH = 4096  # characters of a text, numbers of a list
_MAX_NAME_LENGTH = 256  # characters of the name of a field or an array
_MAX_ARRAYS = 100_000  # of a message; a model has fewer tensors
_FIELD_TYPES = (bool, int, float, str, bytes)


class Rejected(Exception):
    """A reply is not what it may be; the message says why, and `reason` is its code."""

    def __init__(self, why: str, reason: Reason = Reason.RECORD):
        super().__init__(why)
        self.reason = reason


class Unreachable(Exception):
    """The link between server and nodes does not answer, or no longer accepts this server."""


class RunEnded(Exception):
    """The link has ended the run."""


class EncodedArray(NamedTuple):
    """An array that has not been decoded: what its sender says of it, and bytes."""

    dtype: str
    shape: tuple[int, ...]
    kind: str  # how it was serialized
    data: bytes


class Request(NamedTuple):
    """A message to a node; `kind` is the message type of Flower, `records` are the names of its two records.

    `is_packed`: small arrays travel in one record with the fields, which only tarry's own client understands.
    """

    node: int
    kind: str
    fields: Mapping[str, FieldValue]
    arrays: Mapping[str, Array]
    ttl: float
    records: tuple[str, str] = ("config", "arrays")
    is_packed: bool = False

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


class ReplyMessage(NamedTuple):
    """A message from a node. `error` is set if the link or the app reports that there is no reply."""

    request: str
    node: int
    fields: Mapping[str, Any]
    arrays: Mapping[str, EncodedArray]
    error: str | None = None
    detail: str = ""  # what the app says of the error: one short line
    malformed: str = ""  # why its records cannot be read, if they cannot

    @property
    def nbytes(self) -> int:
        return sum(len(a.data) for a in self.arrays.values())


class MessageGrid(Protocol):
    """The network as the driver needs it. No method but `wait` waits, neither for clients nor for a link."""

    @property
    def run(self) -> str:
        """Return the id of the run."""

    def run_of(self, node: int) -> str:
        """Return the id of the run on a node's link: requests of another run get no reply."""

    def nodes(self) -> dict[int, str]:
        """Return the nodes present, and when each began: one that restarted has lost what it was sent."""

    def has_room(self, node: int) -> bool:
        """Return whether another request to this node may be pushed now."""

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        """Send; return an id for each request, None for one that could not be sent."""

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        """Return the replies to these requests that are in; each is returned once."""

    def holds(self, request: str) -> bool:
        """Return whether a request is delayed by the server: it is not sent yet, or its reply is not fetched yet."""

    def delay(self, node: int) -> float:
        """Return the seconds that the slowness of a node's link may add to a visit now."""

    def stalls(self) -> dict[str, float]:
        """Return the seconds for which a link has not answered so far, by the run on this link."""

    def wait(self, seconds: float) -> None:
        """Wait until there is something new, at most for so long."""

    def requests_sent(self) -> dict[str, int]:
        """Return the number of requests to the links, by kind."""

    def links_without_run(self) -> list[int]:
        """Return the indices of the links to which the app has to be submitted again."""

    def close(self) -> None:
        """End the connections."""


def flower_node(node: int) -> int:
    """Return Flower's own number of a node; the bits above it are the index of its link."""
    return node & ((1 << NODE_BITS) - 1)


class SingleLinkGrid:
    """Base of grids over one link that send and fetch in the caller's thread, and so hold nothing themselves."""

    run: str

    def run_of(self, node: int) -> str:  # noqa: ARG002
        return self.run

    def has_room(self, node: int) -> bool:  # noqa: ARG002
        return True

    def holds(self, request: str) -> bool:  # noqa: ARG002
        return False

    def delay(self, node: int) -> float:  # noqa: ARG002
        return 0.0

    def stalls(self) -> dict[str, float]:
        return {}

    def requests_sent(self) -> dict[str, int]:
        return {}

    def links_without_run(self) -> list[int]:
        return []

    def close(self) -> None:
        """Do nothing: the link is not this grid's."""


@dataclass(frozen=True)
class ArraySchema:
    """The arrays that a client may send: required arrays, and extras of at most `max_extra_size` numbers."""

    required: Mapping[str, tuple[int, ...]]  # name → shape
    dtype: np.dtype[Any]
    extras: frozenset[str] = frozenset()
    max_extra_size: int = 0
    ignored: Mapping[str, int] | None = None  # arrays that may come and are not read, with their size limit in bytes


def decode_arrays(arrays: Mapping[str, EncodedArray], schema: ArraySchema) -> dict[str, Array]:
    """Return the arrays, checked by name, number, type, shape and length. Numbers may be infinite or NaN.

    They are read-only views of the message's bytes: nothing is copied.
    """
    allowed = len(schema.required) + len(schema.extras) + len(schema.ignored or {})
    if len(arrays) > allowed:
        raise Rejected(f"{len(arrays)} arrays where at most {allowed} may come", Reason.ARRAYS)
    if missing := schema.required.keys() - arrays.keys():
        raise Rejected(f"no array {_short(min(missing))}", Reason.ARRAYS)
    out = {}
    for name, array in arrays.items():
        if name in schema.required:
            out[name] = _decode(name, array, schema.dtype, schema.required[name])
        elif name in schema.extras:
            out[name] = _decode_extra(name, array, schema)
        elif schema.ignored is None or len(array.data) > schema.ignored.get(name, -1) + _HEADER:
            raise Rejected(f"unexpected array {_short(name)} in the reply", Reason.ARRAYS)
    return out


def _decode_extra(name: str, array: EncodedArray, schema: ArraySchema) -> Array:
    dtype = np.dtype(np.float64) if array.dtype == "float64" else schema.dtype
    if not all(isinstance(n, int) and n >= 0 for n in array.shape) or prod(array.shape) > schema.max_extra_size:
        raise Rejected(f"extra {_short(name)} of more than {schema.max_extra_size:,} numbers", Reason.ARRAYS)
    return _decode(name, array, dtype, tuple(array.shape))


def _decode(name: str, array: EncodedArray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    what = f"array {_short(name)}"
    if array.kind != "numpy.ndarray":
        raise Rejected(f"{what} is serialized as {_short(array.kind)}, not as numpy.ndarray", Reason.ARRAYS)
    if array.dtype != dtype.name or tuple(array.shape) != shape:
        raise Rejected(
            f"{what} is {_short(array.dtype)} {tuple(array.shape)[:8]}, not {dtype.name} {shape}", Reason.ARRAYS
        )
    size = prod(shape) * dtype.itemsize
    if not size <= len(array.data) <= size + _HEADER:
        raise Rejected(f"{what} has {len(array.data):,} bytes, not {size:,}", Reason.ARRAYS)
    try:
        header_shape, by_column, header_dtype, start = _read_npy_header(array.data)
    except ValueError as e:
        raise Rejected(f"{what} is no .npy file", Reason.ARRAYS) from e
    if header_shape != shape or header_dtype != dtype or len(array.data) - start != size:
        raise Rejected(f"{what} is not what its sender says of it", Reason.ARRAYS)
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape, order="F" if by_column else "C")


def encoded_npy(data: bytes) -> EncodedArray:
    """Return an array that came as the bytes of an .npy file alone; its header says what its sender says of it."""
    try:
        shape, _, dtype, _ = _read_npy_header(data)
    except ValueError:
        return EncodedArray("", (), "no .npy file", data)
    return EncodedArray(dtype.name, shape, "numpy.ndarray", data)


def _read_npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order (True: by column), type, and where the numbers begin; ValueError if it is no .npy file."""
    head = io.BytesIO(data[:_HEADER])
    try:
        version = np.lib.format.read_magic(head)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_column, dtype = read(head, max_header_size=_HEADER)
    except Exception as e:  # numpy evaluates the text of the header, which fails in many ways
        raise ValueError("no .npy file") from e
    return shape, by_column, dtype, head.tell()


def npy_header(array: Array) -> bytes:
    """Return what an .npy file of the array begins with, before its numbers."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def view_npy(data: bytes) -> Array:
    """Return the array in an .npy file, as a read-only view of its bytes."""
    shape, by_column, dtype, start = _read_npy_header(data)
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if by_column else "C")


def parse_fields(fields: Mapping[str, Any], **types: type) -> dict[str, Any]:
    """Return the fields asked for, each of its type; an int is taken where a float is asked for."""
    if len(fields) > _MAX_FIELDS:
        raise Rejected(f"{len(fields):,} fields, where at most {_MAX_FIELDS} may come")
    for name, value in fields.items():
        _check_field(name, value)
    out: dict[str, Any] = {}
    for name, kind in types.items():
        value = fields.get(name.replace("_", "-"))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**63 else inf
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Rejected(f"no {kind.__name__} {name.replace('_', '-')!r}, but {_short(value)}", Reason.FIELDS)
        out[name] = value
    return out


def _check_field(name: str, value: Any) -> None:
    """Raise Rejected if a field is too long, or is not a plain value or a flat list of them."""
    if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH:
        raise Rejected(f"a field with a name of more than {_MAX_NAME_LENGTH} characters")
    if isinstance(value, list | str | bytes) and len(value) > _MAX_FIELD_LENGTH:
        raise Rejected(f"field {_short(name)} has {len(value):,} entries, where {_MAX_FIELD_LENGTH:,} may come")
    for entry in value if isinstance(value, list) else (value,):
        if not isinstance(entry, _FIELD_TYPES) or (isinstance(entry, str | bytes) and len(entry) > _MAX_FIELD_LENGTH):
            raise Rejected(f"field {_short(name)} holds {type(entry).__name__}, or too long a text")


def merge_records(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries of several records; raise Rejected if a name occurs twice, or if there are too many."""
    merged: dict[str, Any] = {}
    for record in records:
        if len(merged) + len(record) > _MAX_ARRAYS:
            raise Rejected(f"more than {_MAX_ARRAYS:,} entries")
        for name, value in record.items():
            if name in merged:
                raise Rejected(f"the name {_short(name)} occurs in two records")
            merged[name] = value
    return merged


def _short(x: Any) -> str:
    x = x[:41] if isinstance(x, str | bytes | list | tuple) else x  # long ones are not printed first
    text = repr(x) if len(str(x)) <= 40 else f"{str(x)[:40]!r}..."
    return text.encode("ascii", "backslashreplace").decode()
