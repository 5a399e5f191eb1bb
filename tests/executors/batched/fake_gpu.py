"""A GPU that is none: `torch.cuda` as far as sim.lane and sim.together ask for it, on a processor's tensors.

A capture writes down every operation (after autograd and batching), with the tensors that it reads and writes; a replay
does them again in the same memory, as a CUDA graph does: numbers of Python's are what they were, and what is written to
memory of one's own is read by the next. What a capture forbids is an error: a tensor's value asked for, a shape that
depends on values, a tensor made of Python's numbers (which is copied from elsewhere), rubbish collected. What is
captured is done then, too, other than on a GPU: there has to be a column more than are launched at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tarry.executors.batched import lanes as lane
from tarry.executors.batched import rewrite_losses as quick
from tarry.executors.batched import trace as stack
from tarry.executors.batched.tracer import DataDependentError
from tarry.training.flat_model import FlatModel

_FORBIDDEN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_COPIES = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
_GPU = torch.device("cuda", 0)


class Pretended(Tensor):
    """Says that it is on a GPU; what is made of it does not."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda _: _GPU)  # type: ignore[assignment]
    is_cuda = property(lambda _: True)  # type: ignore[assignment]


class Captured(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _COPIES or not _FORBIDDEN.isdisjoint(func.tags):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        self._done.append((func, args, kwargs or {}, out))
        return out

    def again(self) -> None:
        for func, args, kwargs, was in self._done:
            if func.is_view:  # the same memory, still
                continue
            for mine, given in zip(tree_leaves(was), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(mine, Tensor) and mine.data_ptr() != given.data_ptr():
                    mine.copy_(given)


class Graph:
    captured = launched = 0  # in this test

    def __init__(self) -> None:
        self.body: Captured | None = None

    def replay(self) -> None:
        assert self.body is not None, "nothing was captured"
        Graph.launched += 1
        self.body.again()


@contextmanager
def capture(graph: Graph, *, pool: Any, stream: Any) -> Iterator[None]:
    def no_rubbish(phase: str, info: Any) -> None:
        rubbish.append(phase)

    assert pool is not None
    assert stream is not None
    rubbish, body = list[str](), Captured()
    gc.callbacks.append(no_rubbish)
    try:
        with body:
            yield
            for _ in range(10_000):
                [[] for _ in range(3)]  # as much as is sure to have rubbish collected, where that is not off
    except Exception as e:  # as torch does: the error that one sees is the end's
        raise RuntimeError("operation failed due to a previous error during capture") from e
    finally:
        gc.callbacks.remove(no_rubbish)
    assert not rubbish, "rubbish was collected during a capture"
    graph.body = body
    Graph.captured += 1


class Stream:
    def __init__(self, device: Any = None):
        self.device = device

    def wait_stream(self, other: Any) -> None: ...

    def synchronize(self) -> None: ...


def pretend(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    """From here on there is a GPU of 2 GB, half of which is free."""

    def not_here(*_: Any) -> Any:
        raise DataDependentError

    monkeypatch.setattr(stack, "record_graph", not_here)  # by torch's own tracer, as on a GPU
    monkeypatch.setattr(quick, "_on_cpu", lambda _: False)
    lane._stream.cache_clear()
    Graph.launched = Graph.captured = 0
    instead = {
        "CUDAGraph": Graph, "Stream": Stream, "graph": capture, "stream": lambda _: nullcontext(),
        "graph_pool_handle": lambda: (0, 1), "current_stream": lambda *_: Stream(),
        "mem_get_info": lambda *_: (1e9, 2e9), "synchronize": lambda *_: None, "empty_cache": lambda: None,
    }  # fmt: skip
    for name, what in instead.items():
        monkeypatch.setattr(torch.cuda, name, what)
    return Graph


def on_gpu(bound: FlatModel) -> FlatModel:
    """A bound module that says it is on a GPU."""
    bound.flat = bound.flat.as_subclass(Pretended)
    return bound
