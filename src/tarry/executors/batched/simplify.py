"""Simplification of traced graphs: tracing leaves operations that do nothing, and repeats others.

Dead code is removed, and of equal operations on equal arguments one is left.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["simplify_graph"]

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}
_RESHAPES = {
    _aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.reshape.default, _aten.slice.Tensor,
}  # fmt: skip
_IMPURE = ("rand", "dropout", "bernoulli", "normal", "uniform", "copy_", "empty")


def simplify_graph(gm: GraphModule) -> GraphModule:
    """Remove operations that change nothing and repeated ones, in place; return the graph."""
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and (same := _same_as(node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif node.target is _aten.view.default:  # in a stack its memory may have another order
            node.target = _aten.reshape.default
        elif node.target is _aten.fill.Scalar:  # which has no batching rule
            node.target = _aten.full_like.default
    graph.eliminate_dead_code()
    _merge_repeated(gm)
    graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _same_as(node: Node) -> Node | None:
    """Return the node whose value this one repeats, or None."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if node.target in _SAME:
        return source
    if node.target is _aten.copy.default:  # what is left of a write: the value written
        written = node.args[1]
        same = isinstance(written, Node) and _shape(node) == _shape(written) and _dtype(node) == _dtype(written)
        return written if same else None  # type: ignore[return-value]
    if node.target in _RESHAPES and _shape(node) == _shape(source):
        return source
    if node.target is _aten.mul.Scalar and node.args[1] == 1 and _dtype(node) == _dtype(source):
        return source
    if node.target is _aten.transpose.int and source.target is _aten.transpose.int and source.args[1:] == node.args[1:]:
        return source.args[0]  # type: ignore[return-value]
    return None


def _shape(node: Node) -> Any:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else node


def _dtype(node: Node) -> Any:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else node


def _merge_repeated(gm: GraphModule) -> None:
    """Common subexpression elimination."""
    seen: dict[Hashable, Node] = {}
    for node in list(gm.graph.nodes):
        name = str(node.target)
        if node.op != "call_function" or any(word in name for word in _IMPURE):
            continue
        try:
            key = (node.target, _hashable(node.args), _hashable(tuple(sorted(node.kwargs.items()))))
            first = seen.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)


def _hashable(x: Any) -> Hashable:
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, *(_hashable(v) for v in x))
    return (type(x).__name__, x)
