"""Tracer: records the tensor operations of a function while it runs, without importing torch's compiler.

    record_graph(fn, args) → GraphModule          or DataDependentError

torch's make_fx does the same, but its import takes a second and a half and seventy megabytes. The function runs on
copies of its arguments, with values. A graph must not depend on values, so reading one, or a shape that depends on
values, raises DataDependentError.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ...training.determinism import generator_held

__all__ = ["DataDependentError", "record_graph"]

_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr, Tensor.untyped_storage}


class DataDependentError(Exception):
    """The function reads values of a tensor."""


def record_graph(fn: Callable[..., Any], args: Sequence[Tensor]) -> GraphModule:
    """Return a graph of all operations, in order; `val` of a node is its result. Other tensors become attributes."""
    given = [a.detach().clone() for a in args]
    devices = {a.device.index for a in given if a.is_cuda}
    recorder = _OperationRecorder(given)
    with generator_held(), torch.random.fork_rng(devices), recorder, _ForbidReads():
        out = fn(*given)
    return recorder.finish(out)


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations below autograd and batching, as they are computed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import dynamo

    def __init__(self, args: Sequence[Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._root = Graph(), nn.Module()
        self._nodes: dict[int, Node] = {}  # by id of the tensor
        self._held: list[Tensor] = []  # keeps ids unique
        for i, arg in enumerate(args):
            self._is(arg, self._graph.placeholder(f"arg{i}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _VALUES.isdisjoint(func.tags):
            raise DataDependentError(str(func))
        kwargs = kwargs or {}
        named, words = tree_map_only(Tensor, self._node, (args, kwargs))
        out = func(*args, **kwargs)
        node = self._graph.call_function(func, named, words)
        node.meta["val"] = out
        if isinstance(out, Tensor):
            self._is(out, node)
        elif isinstance(out, (tuple, list)):
            self._unpack(out, node)
        return out

    def _unpack(self, out: Sequence[Any], node: Node) -> None:
        for i, part in enumerate(out):
            if isinstance(part, Tensor):
                self._is(part, self._graph.call_function(operator.getitem, (node, i)))

    def _is(self, tensor: Tensor, node: Node) -> None:
        self._nodes[id(tensor)] = node
        self._held.append(tensor)
        node.meta.setdefault("val", tensor)

    def _node(self, tensor: Tensor) -> Node:
        if (known := self._nodes.get(id(tensor))) is not None:
            return known
        name = f"constant{len(self._held)}"
        self._root.register_buffer(name, tensor.detach())
        self._is(tensor, node := self._graph.get_attr(name))
        return node

    def finish(self, out: Any) -> GraphModule:
        self._graph.output(tree_map_only(Tensor, self._node, out))
        for node in self._graph.nodes:
            node.meta["val"] = tree_map_only(Tensor, lambda t: t.detach().to("meta"), node.meta.get("val"))
        return GraphModule(self._root, self._graph)


class _ForbidReads(TorchFunctionMode):
    """Raise DataDependentError where the values of a tensor are read without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            raise DataDependentError(str(func))
        return func(*args, **(kwargs or {}))
