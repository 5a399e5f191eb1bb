"""Tracing: a rule's step as a graph of tensor operations, for one client or for a stack of clients.

    one      step(w, statistics, sent, context…, state…, x, y, rows) → w, statistics, state…, loss      traced once
    stacked  the same over a first dimension of clients                                          by batching rules

A traced graph has no Python in it, no autograd and no hidden state: it can be run repeatedly at little cost, by several
threads, and captured in a CUDA graph. Values in a rule's context or state that are not tensors are constants of the
trace; where they change, another trace is made.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize, vmap
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...core.errors import first_line
from .simplify import simplify_graph
from .tracer import DataDependentError, record_graph

__all__ = [
    "NoBatchingRule",
    "NonUniform",
    "NotStackable",
    "RecordSpec",
    "bytes_of",
    "flatten",
    "forbid_vmap_fallback",
    "merge_specs",
    "stack_graph",
    "trace_function",
]

Operations = Callable[..., Any]

_RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "random", "bernoulli", "normal",
    "uniform", "exponential", "multinomial", "poisson", "binomial", "cauchy", "geometric", "log_normal",
    "native_dropout", "rrelu_with_noise",
}  # fmt: skip


class NotStackable(Exception):
    """A step cannot be traced or stacked; the message says why."""


class NoBatchingRule(NotStackable):
    """An operation has no batching rule: clients can be traced, one a stack."""


class NonUniform:
    """Placeholder for a value, not a tensor, that differs between clients of a stack: using it raises NotStackable."""

    def _reject(self, *_: Any, **__: Any) -> Any:
        raise NotStackable(
            "its rule uses a plain number of its context in a step; use a tensor, or a field of the rule"
        )

    __getattr__ = __bool__ = __len__ = __iter__ = __getitem__ = __call__ = __index__ = __float__ = __int__ = _reject
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _reject
    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __rpow__ = _reject


class SpecKey:
    """A hashable value that computes its hash once: programs are looked up by it at every step."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable):
        self._value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SpecKey) and self._value == other._value)


@dataclass(frozen=True)
class RecordSpec:
    """The structure of a record: where its tensors go, their shapes and types, and all other leaves."""

    spec: TreeSpec
    rest: tuple[Any, ...]  # leaves that are not tensors; None in the place of tensors
    kinds: tuple[Any, ...]  # shape and type of tensors

    @cached_property
    def key(self) -> SpecKey:
        """Equal for specs that are the same to a trace."""
        return SpecKey((str(self.spec), tuple(_key(x) for x in self.rest), self.kinds))

    def fill(self, tensors: Sequence[Tensor], instead: Mapping[type, Any] = MappingProxyType({})) -> Any:
        """Return the record with these tensors, and with the values of `instead` for leaves of a type."""
        given = iter(tensors)
        rest = (instead.get(type(x), x) for x in self.rest)
        leaves = [x if kind is None else next(given) for x, kind in zip(rest, self.kinds, strict=True)]
        return tree_unflatten(leaves, self.spec)


def flatten(record: Any) -> tuple[RecordSpec, list[Tensor]]:
    """Split a record into its spec and its tensors."""
    leaves, spec = tree_flatten(record)
    kinds = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else None for x in leaves)
    rest = tuple(None if isinstance(x, Tensor) else x for x in leaves)
    return RecordSpec(spec, rest, kinds), [x for x in leaves if isinstance(x, Tensor)]


def merge_specs(forms: Sequence[RecordSpec]) -> RecordSpec:
    """Return one spec for records whose tensors are alike. Other leaves that differ become NonUniform, and so do plain
    numbers and leaves without a hash, such as arrays: the next stack may have others, and would need another trace.
    """
    first, columns = forms[0], zip(*(f.rest for f in forms), strict=True)
    same = [type(column[0]) not in (int, float) and _one_value(column) for column in columns]
    return replace(first, rest=tuple(x if s else NonUniform() for x, s in zip(first.rest, same, strict=True)))


def _one_value(column: Sequence[Any]) -> bool:
    try:
        return len({_key(x) for x in column}) == 1
    except NotStackable:
        return False


def _key(x: Any) -> Hashable:
    """Equal for what is the same to a trace."""
    if isinstance(x, NonUniform):
        return "varies"
    if isinstance(x, slice):
        return ("slice", x.start, x.stop, x.step)
    try:
        hash(x)
    except TypeError:  # its id is no key: a later object may have the same
        raise NotStackable(
            f"its rule keeps {type(x).__name__} that is not hashable; use a tensor or a hashable value"
        ) from None
    return (type(x).__name__, x)


def trace_function(fn: Operations, args: Sequence[Tensor]) -> GraphModule:
    """Return the operations of a function on such tensors; none writes to an argument."""
    try:
        with sdpa_kernel(SDPBackend.MATH):  # its faster forms have no batching rules
            once = _trace(fn, args)
        if any(_name(node) in _RANDOM for node in once.graph.nodes):
            raise NotStackable("it draws random numbers by itself; use dropout layers of torch, or the client's key")
        return simplify_graph(_trace(functionalize(once), args) if _writes(once) else once)
    except (NotStackable, torch.OutOfMemoryError):
        raise
    except Exception as e:  # any error of a model or a rule under tracing
        raise NotStackable(f"its step cannot be traced ({type(e).__name__}: {first_line(e)})") from e


def stack_graph(one: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    """Return the same operations over a first dimension of clients."""
    with forbid_vmap_fallback():
        return simplify_graph(_trace(vmap(one), args))


@contextlib.contextmanager
def forbid_vmap_fallback() -> Iterator[None]:
    """Raise NoBatchingRule for an operation without a batching rule, instead of torch's loop over clients."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as e:
        raise NoBatchingRule(f"its step cannot be stacked ({type(e).__name__}: {first_line(e)})") from e
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _trace(fn: Operations, args: Sequence[Tensor]) -> GraphModule:
    """Trace by our own tracer on a CPU; by make_fx, which is slow to import, where that fails.

    make_fx runs on fake tensors without values: a model may detect that, and take a way without reading them.
    """
    if all(a.device.type == "cpu" for a in args):
        with contextlib.suppress(DataDependentError):
            return record_graph(fn, args)
    from torch.fx.experimental.proxy_tensor import make_fx

    noisy = logging.getLogger("torch._subclasses.fake_tensor")  # it logs what it also raises
    before, noisy.disabled = noisy.disabled, True
    try:
        made: GraphModule = make_fx(fn, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    finally:
        noisy.disabled = before
    if any(not isinstance(n, int) for node in made.graph.nodes for n in getattr(node.meta.get("val"), "shape", ())):
        raise NotStackable("how large a tensor in its step is depends on values")
    return made


def _name(node: Node) -> str:
    """Return the name of an operation, without its overload or in-place mark."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).partition("::")[2].rstrip("_")


def _writes(gm: GraphModule) -> bool:
    """Return whether an operation writes in place."""
    return any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in gm.graph.nodes)


def bytes_of(gm: GraphModule) -> int:
    """Return the size of the results of all operations together: an upper bound of the memory of a run."""
    total = 0
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(t, Tensor):
                total += t.numel() * t.element_size()
    return total
