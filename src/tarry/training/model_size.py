"""The size of a model against the memory of the machine, checked before its tensors are allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core.errors import BadInput, TarryError, first_line
from ..core.memory import check_memory

__all__ = ["errors_of_model_size"]

_COPIES = 2  # of the weights that a run holds at least: the model that trains and the model of the server
_ALLOCATING = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
_REMEDY = "choose a smaller model"


@contextmanager
def errors_of_model_size(flags: str) -> Iterator[None]:
    """Raise BadInput if the model that is built inside has more weights than the memory of this machine can hold.

    `flags` are those that chose the model.
    """
    try:
        with _AllocationLimit(flags):
            yield
    except TarryError:
        raise
    except (OverflowError, MemoryError) as e:
        raise BadInput(f"{flags}: the model cannot be allocated ({first_line(e)}); {_REMEDY}") from e
    except (RuntimeError, TypeError) as e:  # torch has no types for these
        if not any(words in str(e) for words in ("t allocate memory", "overflow", "out of range", "not enough memory")):
            raise
        raise BadInput(f"{flags}: the model cannot be allocated ({first_line(e)}); {_REMEDY}") from e


class _AllocationLimit(TorchFunctionMode):
    """Counts the bytes of the tensors that torch is asked for, and raises BadInput before they exceed the memory."""

    def __init__(self, flags: str):
        super().__init__()
        self._flags, self._total = flags, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ALLOCATING and str(kwargs.get("device")) != "meta":
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self._total += _numel(args, kwargs) * dtype.itemsize
            check_memory(self._total * _COPIES, f"{self._flags}: {_COPIES} copies of the model", _REMEDY)
        return func(*args, **kwargs)


def _numel(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the number of elements that a call such as torch.empty(2, 3) or torch.empty((2, 3)) asks for."""
    size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
    return math.prod(n for n in size if isinstance(n, int))
