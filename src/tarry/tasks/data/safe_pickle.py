"""Read pickles of plain data without Python's unpickler, which would execute the program that a pickle is.

The instructions are interpreted one by one (the standard library's `pickletools` decodes them and executes nothing).
Instructions that push numbers, texts, lists, tuples and dictionaries are followed, and those by which numpy writes an
array. All other instructions and module names are rejected. Nothing is imported or called. The result is no larger
than the file: an array is made only from bytes that are there, and keys must be texts.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .arrays import AnyArray

__all__ = ["UnsafePickle", "safe_unpickle"]


class UnsafePickle(ValueError):
    """The pickle contains something that is not allowed, or is truncated."""


class _Dtype:
    """A type as numpy writes it: a letter and a size."""

    def __init__(self, code: Any = "", *_: Any):
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        self.order = "|"

    def build(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        self.order = order.decode("latin1") if isinstance(order, bytes) else order

    def to_numpy(self) -> np.dtype[Any]:
        if self.code not in ("u1", "i1", "i2", "i4", "i8") or self.order not in ("|", "<", ">", "="):
            raise UnsafePickle(f"an array there is of the type {self.code!r}; whole numbers are read")
        return np.dtype(self.order.replace("|", "=") + self.code)


class _PickledArray:
    """An array as a pickle writes it: shape, type, order and bytes."""

    def __init__(self, *_: Any):
        self.state: Any = None

    def build(self, state: Any) -> None:
        self.state = state[1:] if isinstance(state, tuple) and len(state) == 5 else None

    def to_numpy(self) -> AnyArray:
        if not isinstance(self.state, tuple):
            raise UnsafePickle("an array there is never filled")
        shape, dtype, column_major, content = self.state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray) or not _is_shape(shape):
            raise UnsafePickle("an array there is not written as numpy writes it")
        kind = dtype.to_numpy()
        if prod(shape) * kind.itemsize != len(content):
            raise UnsafePickle(f"an array there claims {'×'.join(map(str, shape))} and holds {len(content):,} bytes")
        return np.frombuffer(content, kind).reshape(shape, order="F" if column_major else "C")


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and 0 <= n < 2**48 for n in shape)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _PickledArray:
    array = _PickledArray()
    array.build((1, shape, dtype, order == "F", content))
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise UnsafePickle("a text there is encoded in no known way")
    return text.encode("latin1")


_NAMES: dict[str, Callable[..., Any]] = {
    "numpy ndarray": _PickledArray,
    "numpy dtype": _Dtype,
    "_codecs encode": _encode,
}
for _module in ("numpy.core", "numpy._core"):
    _NAMES[f"{_module}.multiarray _reconstruct"] = _PickledArray
    _NAMES[f"{_module}.numeric _frombuffer"] = _from_buffer

_IGNORED = {"PROTO", "FRAME"}
_PYTHON_2_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # bytes, which pickletools shows as latin-1 text
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_VALUES = _NUMBERS | _BYTES | _TEXTS
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}


class _Machine:
    """The stack, the marks on it and the numbered slots that a pickle's instructions work on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.slots: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def execute(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _PYTHON_2_STRINGS:
            self.stack.append(argument.encode("latin1"))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.slots[len(self.slots) if argument is None else argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.slots[argument])
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif not self._gather(name) and not self._make(name, argument) and name not in _IGNORED:
            raise UnsafePickle(f"it has the instruction {name}; only plain numbers, texts and arrays are read")

    def _gather(self, name: str) -> bool:
        """Lists, tuples and dictionaries."""
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            self.stack[-n:] = [tuple(self.stack[-n:])]
        elif name == "TUPLE":
            self.stack.append(tuple(self.since_mark()))
        elif name == "LIST":
            self.stack.append(self.since_mark())
        elif name == "DICT":
            self.stack.append(_set_items({}, self.since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = [self.stack.pop()] if name == "APPEND" else self.since_mark()
            _expect(self.stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self.stack.pop(), self.stack.pop()][::-1] if name == "SETITEM" else self.since_mark()
            _set_items(_expect(self.stack[-1], dict), items)
        else:
            return False
        return True

    def _make(self, name: str, argument: Any) -> bool:
        """The ways in which numpy writes an array."""
        if name == "GLOBAL":
            self.stack.append(_allowed_callable(argument))
        elif name == "STACK_GLOBAL":
            attribute, module = self.stack.pop(), self.stack.pop()
            self.stack.append(
                _allowed_callable(f"{module} {attribute}" if type(module) is type(attribute) is str else "?")
            )
        elif name == "REDUCE":
            arguments, maker = _expect(self.stack.pop(), tuple), self.stack.pop()
            if not any(maker is known for known in _NAMES.values()):
                raise UnsafePickle("it calls what is no function")
            self.stack.append(maker(*arguments))
        elif name == "BUILD":
            state = self.stack.pop()
            if not isinstance(self.stack[-1], _PickledArray | _Dtype):
                raise UnsafePickle("it fills what is no array")
            self.stack[-1].build(state)
        else:
            return False
        return True


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise UnsafePickle(f"it wants a {kind.__name__} where there is none")
    return value


def _set_items(into: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes):  # a key is hashed, and a tuple of tuples can take for ever
            raise UnsafePickle("a key there is no text")
        into[key] = value
    return into


def _allowed_callable(name: str) -> Callable[..., Any]:
    if name not in _NAMES:
        raise UnsafePickle(f"it asks for {name.replace(' ', '.')}; only plain numbers, texts and arrays are read")
    return _NAMES[name]


def safe_unpickle(content: bytes) -> dict[str, Any]:
    """Return a pickled dictionary with text keys and its arrays. Raise UnsafePickle for any other pickle."""
    machine = _Machine()
    try:
        for op, argument, _ in pickletools.genops(content):
            if op.name == "STOP":
                break
            machine.execute(op.name, argument)
        found = _expect(machine.stack.pop(), dict)
    except UnsafePickle:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as e:
        raise UnsafePickle(f"it is torn or no pickle ({type(e).__name__}: {e})") from e
    return {
        k.decode("latin1") if isinstance(k, bytes) else k: v.to_numpy() if isinstance(v, _PickledArray) else v
        for k, v in found.items()
    }
