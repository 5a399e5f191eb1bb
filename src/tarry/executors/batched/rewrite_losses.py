"""Rewrites losses in a traced step into operations that are faster for many small clients, with the same bits.

cross-entropy     stacked, it is two dozen operations because some targets may be ignored; four if the data set has
                  no ignored target
log-softmax       torch vectorizes over classes; for fewer classes than a vector register holds, classes come first
                  and rows are vectorized
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.functional import pad

from .trace import trace_function

__all__ = ["rewrite_losses"]

_aten = torch.ops.aten
_LANES = {"AVX512": 16, "AVX2": 8}  # numbers of single precision in a vector register
_FULL = 16  # rows: a multiple of every register size, so that all rows are computed is_uniform
_NONE, _MEAN = 0, 1  # torch's codes of reductions
_CLASSES = [torch.arange(n)[:, None] for n in range(max(_LANES.values()) * 2 + 1)]  # by their number
_TYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64


def rewrite_losses(graph: GraphModule, args: Sequence[Tensor], *, y: int, targets: Tensor) -> GraphModule:
    """Return a step of one client, to be stacked. Its argument number `y` is a batch of `targets`."""
    batch = [n for n in graph.graph.nodes if n.op == "placeholder"][y]
    ignorable = {n.args[4] for n in graph.graph.nodes if n.target is _aten.nll_loss_forward.default}
    made = _RewriteLosses(graph, batch, {i for i in ignorable if not bool((targets == i).any())}, args[y])
    other = trace_function(made.run, args)
    return other if made.any else graph


class _RewriteLosses(Interpreter):
    """`absent`: values to be ignored that no target has."""

    any = False

    def __init__(self, graph: GraphModule, y: Node, absent: Collection[Any], batch: Tensor):
        super().__init__(graph)
        self._y, self._absent = y, absent
        numbers, cpu = (0.0, -float(len(batch)), -1 / len(batch)), _on_cpu(batch)
        self._zero, self._less, self._share = (  # on a CPU scalars would become tensors at every step
            {t: torch.tensor(value, dtype=t) if cpu else value for t in _TYPES} for value in numbers
        )

    def run_node(self, n: Node) -> Any:
        if (form := _FORMS.get(n.target)) is not None:
            made = form(self, n, *self.fetch_args_kwargs_from_env(n)[0])
            if made is not None:
                self.any = True
                return made
        return super().run_node(n)

    # Cross-entropy: [rows, classes] and a target a row

    def _nll(
        self, n: Node, x: Tensor, y: Tensor, weight: Tensor | None, reduction: int, ignored: int
    ) -> tuple[Tensor, Tensor] | None:
        if not self._all_count(n.args[1], x, y, weight, reduction, ignored):
            return None
        each = x.gather(1, y[:, None]).squeeze(1)
        return each.sum() / self._less[x.dtype] if reduction == _MEAN else -each, x.new_full((), len(x))

    def _nll_backward(
        self,
        n: Node,
        grad: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignored: int,
        _: Tensor,
    ) -> Tensor | None:
        if not self._all_count(n.args[2], x, y, weight, reduction, ignored):
            return None
        is_uniform = reduction == _MEAN and isinstance(n.args[0], Node) and n.args[0].target is _aten.ones_like.default
        each: Any = -grad if reduction == _NONE else self._share[x.dtype] if is_uniform else grad / self._less[x.dtype]
        if _few(x, 1):  # the layout that log-softmax takes
            return torch.where(y == _CLASSES[x.shape[1]], each, self._zero[x.dtype]).t()
        nothing, at = torch.zeros_like(x), y[:, None]
        return nothing.scatter(1, at, -1 / len(x) if is_uniform else each.view(-1, 1).expand(len(x), 1))

    def _all_count(self, node: Any, x: Tensor, y: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> bool:
        """Return whether all rows have the same weight."""
        is_uniform = x.ndim == 2 and y.dtype == torch.int64 and weight is None and reduction in (_NONE, _MEAN)
        return is_uniform and node is self._y and ignored in self._absent

    # Log-softmax of few classes

    def _log_softmax(self, _: Node, x: Tensor, dim: int, half: bool) -> Tensor | None:
        if half or not _few(x, dim):
            return None
        return torch.log_softmax(_classes_first(x), 0).t()[: len(x)]

    def _log_softmax_backward(self, _: Node, grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
        if not _few(out, dim) or dtype is not out.dtype:
            return None
        grads: Tensor = _aten._log_softmax_backward_data.default(_classes_first(grad), _classes_first(out), 0, dtype)
        return grads.t()[: len(out)].contiguous()  # rounding of a product depends on the memory layout of its factors


_FORMS: dict[Any, Any] = {
    _aten.nll_loss_forward.default: _RewriteLosses._nll,
    _aten.nll_loss_backward.default: _RewriteLosses._nll_backward,
    _aten._log_softmax.default: _RewriteLosses._log_softmax,
    _aten._log_softmax_backward_data.default: _RewriteLosses._log_softmax_backward,
}


def _few(x: Tensor, dim: int) -> bool:
    """Return whether a row is shorter than a vector register."""
    if x.ndim != 2 or dim not in (1, -1) or not _on_cpu(x):
        return False
    at_a_time = _LANES.get(torch.backends.cpu.get_cpu_capability(), 4) * 4 // x.element_size()
    return x.shape[1] < at_a_time


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _classes_first(x: Tensor) -> Tensor:
    """Return [classes, rows], with padding rows."""
    rows = x.t() if len(x) % _FULL == 0 else pad(x.t(), (0, -len(x) % _FULL))
    return rows.contiguous()
