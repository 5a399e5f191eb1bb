"""ProgramCache: the traced steps of a rule for stacks of any size, traced when first used.

A program of c clients takes the constants (the weights received, the learning rates if they differ, the context), then
the carried tensors (weights, statistics, sum of losses, state), then the indices of the batch. It returns the carried
tensors after the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule

from ...core.errors import first_line
from ...core.local_rule import LocalRule
from ...core.optim import Optimizer
from ...vector.process import trim_memory
from .conv.numba import with_numba_convolutions
from .functional_model import FunctionalModel
from .rewrite_channels_last import rewrite_channels_last
from .rewrite_losses import rewrite_losses
from .trace import NotStackable, RecordSpec, bytes_of, flatten, forbid_vmap_fallback, stack_graph, trace_function

__all__ = ["Program", "ProgramCache"]

Rows = Callable[[], Sequence[Tensor]]  # tensors of one client, to trace with
Columns = Callable[[list[Tensor], list[Tensor], list[Tensor], list[Tensor], int, int], list[Tensor]]
StepFunction = Callable[..., Sequence[Tensor]]
_COMPILE_AFTER, _COMPILE_AFTER_OWN = 60, 10  # calls; with our own operations, whose batching rules are in Python
# torch 2.11 pads rows of a tensor that an operation of ours reads, and then reads it as if they were not padded:
# gradients were wrong
_HOW: dict[str, str | int | bool | Callable[..., Any]] = {"comprehensive_padding": False}
_MOST_FORMS = 5  # of a state, in a run: one with more takes another form at every step


@dataclass
class Program:
    """The function that is run for a stack, and the specs of the state before and after it.

    At first it runs operation by operation. Compiling it, so that no Python is left between operations and steps, takes
    as long as it saves in some steps, and so happens after `compile_after` calls.
    """

    run: StepFunction
    before: RecordSpec | None
    after: RecordSpec
    bytes_a_client: int  # upper bound of its memory
    compile_step: Callable[[list[Tensor], list[Tensor], list[Tensor]], tuple[StepFunction, Columns | None]] | None = (
        None
    )
    data: list[Tensor] = field(default_factory=list)  # the examples of all clients
    compile_after: int = _COMPILE_AFTER
    calls: int = 0
    columns: Columns | None = None

    def over(
        self, constants: list[Tensor], changes: list[Tensor], parts: list[Tensor], first: int, count: int
    ) -> list[Tensor]:
        """Return the carried tensors after `count` columns from the first on. Above 1 the state must keep its form."""
        self.calls += count
        if self.calls > self.compile_after:
            make, self.compile_step = self.compile_step, None
            if make is not None:  # else it is compiled, or another lane is compiling it
                self.run, self.columns = make(constants, changes, [p[:, first] for p in parts])
        if self.columns is not None:
            return self.columns(constants, changes, parts, self.data, first, count)
        for s in range(first, first + count):  # compiled code expects the same memory layout
            changes = list(self.run(*constants, *changes, *(p[:, s].contiguous() for p in parts)))
        return changes


@dataclass(frozen=True)
class TracedStep:
    """A traced step of one client."""

    graph: GraphModule
    after: RecordSpec


class ProgramCache:
    """The programs of a rule. `x`, `y`: the examples of all clients."""

    def __init__(
        self,
        model: FunctionalModel,
        rule: LocalRule,
        optimizer: Optimizer,
        x: Tensor,
        y: Tensor,
        *,
        rated: bool = False,  # clients' learning rates differ
        compiled: bool = False,
        own_conv: str = "",  # language of our own convolution kernels: Triton, numba or none
    ):
        self._model, self._rule, self._optimizer, self._x, self._y = model, rule, optimizer, x, y
        self._rated, self._compiled, self._own_conv = rated, compiled, own_conv
        self._ones: dict[Hashable, TracedStep] = {}
        self._for_many: dict[Hashable, GraphModule] = {}
        self._programs: dict[Hashable, Program] = {}
        self._lock = RLock()

    def init(self, c: int, context: RecordSpec, rows: Rows) -> Program:
        """Return the program of the state before the first step. `rows`: a client's constants, weights, statistics."""

        def fn(*args: Tensor) -> tuple[Any, list[Tensor]]:
            *constants, w, stats = args
            self._model.begin_step(constants[0], stats)
            state = self._rule.init(w, self._context(context, constants), self._model)
            form, tensors = flatten(state)
            return form, tensors

        return self._program("init", c, context, None, fn, rows, None)

    def turn(
        self, pass_index: int, c: int, context: RecordSpec, state: RecordSpec, rows: Rows, *, ragged: bool
    ) -> Program:
        """Return the program at the start of a pass."""

        def fn(*args: Tensor) -> tuple[Any, list[Tensor]]:
            constants, (_, stats, *tensors) = args[: self._n_constants(context)], args[self._n_constants(context) :]
            self._model.begin_step(constants[0], stats)
            after = self._rule.begin_pass(pass_index, state.fill(tensors), self._model)
            return flatten(after)

        return self._program(("turn", pass_index), c, context, state, fn, rows, _mask_begin if ragged else None)

    def step(
        self, pass_index: int, c: int, context: RecordSpec, state: RecordSpec, rows: Rows, *, ragged: bool, width: int
    ) -> Program:
        """Return the program of a step on a mini-batch."""
        k, task = self._n_constants(context), self._model.task
        augmented, noisy = task.augment is not None, self._model.drops is not None
        n_batch = 2 + augmented + noisy + ragged

        def fn(*args: Tensor) -> tuple[Any, list[Tensor]]:
            constants, rest = args[:k], args[k:]
            (w, stats, *tensors), (x, y, *more) = rest[:-n_batch], rest[-n_batch:]
            if task.augment is not None:
                x = task.augment(x, more[0])
            key = more[augmented] if noisy else None
            self._model.begin_step(constants[0], stats, more[-1] if ragged else None, key, pass_index)
            made = self._rule.passes[pass_index](
                w, (x, y), self._context(context, constants), state.fill(tensors), self._model
            )
            form, moved = flatten(made[1])
            return form, [made[0], self._model.stats, *moved, made[2]]

        def with_batch() -> list[Tensor]:
            batch = [t[:1].expand(width, *t.shape[1:]).contiguous() for t in (self._x, self._y)]
            if task.augment is not None:
                batch.append(rows()[0].new_full((width, task.n_draws), 0.5))
            if noisy:
                batch.append(torch.zeros((), dtype=torch.int64, device=self._x.device))
            mask = [torch.ones(width, dtype=torch.bool, device=self._x.device)] if ragged else []
            return [*rows(), *batch, *mask]

        kind = ("step", pass_index, width, ragged)
        gather = self._gather_batches(k, ragged, counts=pass_index == 0)
        return self._program(kind, c, context, state, fn, with_batch, gather, y=1 - n_batch)

    def compile_programs(self) -> None:
        """Let every program be compiled at its next call."""
        for program in self._programs.values():
            program.calls = program.compile_after

    # How

    def _n_constants(self, context: RecordSpec) -> int:
        return 1 + self._rated + sum(k is not None for k in context.kinds)

    def _context(self, context: RecordSpec, constants: Sequence[Tensor]) -> Any:
        if self._rated:
            assert self._optimizer.at is not None
            self._model.use(self._optimizer.at(constants[1]))
        return context.fill(constants[1 + self._rated :])

    def _program(
        self,
        kind: Any,
        c: int,
        context: RecordSpec,
        state: RecordSpec | None,
        fn: Callable[..., tuple[Any, list[Tensor]]],
        rows: Rows,
        wrap: Callable[..., Any] | None,
        y: int | None = None,
    ) -> Program:
        key = (kind, context.key, None if state is None else state.key)
        if (known := self._programs.get((key, c, wrap is None))) is not None:
            return known
        with self._lock:
            alone = rows()
            one = self._ones.get(key) or self._trace_step(key, fn, alone, state)
            wrapper, many = wrap or _as_is, self._of_many(key, one, alone, y)
            graph = one.graph if c == 1 and not self._own_conv else many
            if self._compiled and kind[0] == "step":
                run, compile_later = wrapper(self._compile(graph, c, alone)), None
            else:
                run = wrapper(_for_one_client(graph) if c == 1 else _by_rules(graph))
                compile_later = (
                    partial(self._compile_step, graph, c, wrapper, _blank(alone)) if kind[0] == "step" else None
                )
            compile_after = _COMPILE_AFTER_OWN if self._own_conv else _COMPILE_AFTER
            made = Program(run, state, one.after, bytes_of(many), compile_later, [self._x, self._y], compile_after)
            self._programs[key, c, wrap is None] = made
            return made

    def _of_many(self, key: Hashable, one: TracedStep, alone: Sequence[Tensor], y: int | None) -> GraphModule:
        """Return the graph to be stacked, with our own convolutions if wanted. `y`: the argument with targets."""
        if key not in self._for_many:
            graph = one.graph if y is None else rewrite_losses(one.graph, alone, y=y, targets=self._y)
            if self._own_conv == "Triton":
                from .conv.triton import with_triton_convolutions  # slow to import

                graph = with_triton_convolutions(graph, alone)
            elif self._own_conv == "numba":
                graph = with_numba_convolutions(graph, alone)
            self._for_many[key] = graph
        return self._for_many[key]

    def _compile_step(
        self,
        graph: GraphModule,
        c: int,
        wrap: Callable[..., Any],
        blank: Rows,
        constants: list[Tensor],
        changes: list[Tensor],
        parts: list[Tensor],
    ) -> tuple[StepFunction, Columns | None]:
        with self._lock:
            run = wrap(_for_one_client(graph) if c == 1 else stack_graph(graph, _repeat(blank(), c)))
            columns = _script_columns(run, constants, changes, parts, [self._x, self._y])
            trim_memory()
            return run, columns

    def _compile(self, one: GraphModule, c: int, alone: Sequence[Tensor]) -> Callable[..., Any]:
        if c > 1:
            graph = stack_graph(one, _repeat(alone, c))
        else:
            graph = rewrite_channels_last(one, alone) if self._model.channels_last else one
        made = _with_compile_errors(torch.compile(graph, fullgraph=True, dynamic=False, options=_HOW))
        return _for_one_client(made) if c == 1 else made

    def _trace_step(
        self, key: Any, fn: Callable[..., tuple[Any, list[Tensor]]], rows: Sequence[Tensor], state: RecordSpec | None
    ) -> TracedStep:
        after: list[RecordSpec] = []

        def tensors_alone(*args: Tensor) -> list[Tensor]:
            form, tensors = fn(*args)
            after.append(form)
            return tensors

        try:
            graph = trace_function(tensors_alone, rows)
        finally:
            self._model.use(self._optimizer)
        of_same_kind = [k for k in self._ones if k[:2] == key[:2]]  # type: ignore[index]
        if len(of_same_kind) >= _MOST_FORMS:
            raise NotStackable("its state changes at every step in something that is no tensor")
        same = state is not None and state.key == after[0].key
        self._ones[key] = TracedStep(graph, state if same and state is not None else after[0])
        return self._ones[key]

    def _gather_batches(self, k: int, ragged: bool, *, counts: bool) -> Callable[..., Any]:
        """Return a wrapper of a stacked step: it looks up the batch, and keeps clients that are done as they are."""
        x, y = self._x, self._y
        # the tensors that describe a batch
        n_batch = 1 + (self._model.task.augment is not None) + (self._model.drops is not None) + 2 * ragged

        def wrap(run: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
            def whole(*args: Tensor, data: Sequence[Tensor] = (x, y)) -> tuple[Tensor, ...]:
                constants, (w, stats, total, *state), (at, *more) = args[:k], args[k:-n_batch], args[-n_batch:]
                flat = at.reshape(-1)
                batch = [t.index_select(0, flat).view(*at.shape, *t.shape[1:]) for t in data]
                moved = run(*constants, w, stats, *state, *batch, *(more[:-1] if ragged else more))
                new, sums = moved[:-1], total + moved[-1] if counts else total  # of the first pass alone
                if not ragged:
                    return (new[0], new[1], sums, *new[2:])
                own, moved = _select_active(new[:2], [w, stats], args[-1]), _select_active(new[2:], state, args[-1])
                return (*own, torch.where(args[-1], sums, total), *moved)

            return whole

        return wrap


def _select_active(new: Sequence[Tensor], old: Sequence[Tensor], active: Tensor) -> list[Tensor]:
    """Return the new tensors for clients that step, else the old ones; all new where a state takes another form."""
    if [t.shape for t in new] != [t.shape for t in old]:
        return list(new)
    return [torch.where(active.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True)]


def _mask_begin(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the start of a pass: clients that are done keep their state."""

    def whole(*args: Tensor) -> list[Tensor]:
        *rest, active = args
        new = run(*rest)
        return _select_active(new, rest[-len(new) :], active) if new else []

    return whole


def _as_is(run: Callable[..., Any]) -> Callable[..., Any]:
    return run


def _blank(alone: Sequence[Tensor]) -> Rows:
    """Return a function that makes zero tensors of the same kinds, so that the cache holds none of a stack."""
    kinds = [(r.shape, r.dtype, r.device) for r in alone]
    return lambda: [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in kinds]


def _repeat(alone: Sequence[Tensor], c: int) -> list[Tensor]:
    """Return a stack of c times the same client, to trace with."""
    return [r.unsqueeze(0).expand(c, *r.shape).contiguous() for r in alone]


def _by_rules(one: GraphModule) -> Callable[..., Any]:
    """Return a stacked step by batching rules. An operation without one raises NoBatchingRule at the first call."""
    many, known = vmap(one), False

    def run(*args: Tensor) -> Any:
        nonlocal known
        if known:
            return many(*args)
        with forbid_vmap_fallback():
            out = many(*args)
        known = True
        return out

    return run


def _for_one_client(graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step for a stack of one client, without batching rules."""

    def run(*args: Tensor) -> list[Tensor]:
        return [t.unsqueeze(0) for t in graph(*(a.squeeze(0) for a in args))]

    return run


def _with_compile_errors(made: Callable[..., Any]) -> Callable[..., Any]:
    """Raise NotStackable where compiling fails, which shows at the first call: there may be no compiler."""

    def run(*args: Tensor) -> Any:
        try:
            return made(*args)
        except (NotStackable, torch.OutOfMemoryError):
            raise
        except Exception as e:
            why = f"{type(e).__name__}: {first_line(e)}"
            raise NotStackable(f"--compile: torch cannot compile its step ({why})") from e

    return run


# TorchScript, which torch reads from text
_COLUMNS = """
def columns(
    constants: List[Tensor], changes: List[Tensor], parts: List[Tensor], data: List[Tensor], first: int, count: int
):
    for s in range(first, first + count):
        changes = step(constants, changes, [p.select(1, s) for p in parts], data)
    return changes
"""


def _script_columns(
    run: Callable[..., Any], constants: list[Tensor], changes: list[Tensor], parts: list[Tensor], data: list[Tensor]
) -> Columns | None:
    """Return a TorchScript function for steps in a row without Python; None where TorchScript cannot express them.

    The functions that torch.jit.trace makes are never freed, which costs megabytes a run; these here are. Tensors that
    are not arguments become constants of the graph.
    """

    def one(constants: list[Tensor], changes: list[Tensor], parts: list[Tensor], data: list[Tensor]) -> list[Tensor]:
        return list(run(*constants, *changes, *parts, data=data))

    torch_c: Any = torch._C
    names = ["constants", "changes", "parts", "data"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph, _ = torch_c._create_graph_by_tracing(
                one, (constants, changes, parts, data), lambda _: "", False, False, None, names
            )
            unit = torch_c.CompilationUnit()
            unit.define(_COLUMNS, {"step": unit.create_function("step", graph, False)}.get)
            made: Columns = unit.find_function("columns")
        except Exception:  # an operation whose arguments it does not know, as of a convolution's backward
            return None
    return made
