"""Lanes, which train one stack after the other: CpuLane on a thread, GraphLane in CUDA graphs on a stream.

Both run the programs column by column and yield after each, so that several lanes can run at a time. On a GPU the host
only launches the steps: the device looks up the batch and counts the columns itself.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ...core.errors import first_line
from ...training.determinism import nondeterministic
from .programs import Program, ProgramCache
from .schedule import Schedule
from .trace import NotStackable, RecordSpec

__all__ = ["CpuLane", "GraphLane", "Stack"]

_UNROLLED = 8  # columns in one CUDA graph
_IN_A_ROW = 16  # columns on a CPU between checks for Ctrl-C
_SPARE = 0.1  # share of a GPU's memory: with less free than this, captured graphs are dropped


@dataclass
class Stack:
    """Clients to be trained together; their results are in `carried` afterwards."""

    schedule: Schedule
    context: RecordSpec
    constants: list[Tensor]  # weights received, rates where they differ, the context's tensors
    carried: list[Tensor]  # weights, statistics, sum of losses; then the state
    width: int
    state: RecordSpec | None = None

    @property
    def size(self) -> int:
        return len(self.carried[0])

    def one(self) -> list[Tensor]:
        """Return the tensors of one client, to trace a program with."""
        w, stats, *rest = (t[0] for t in self.carried)
        return [*(t[0] for t in self.constants), w, stats, *rest[1:]]

    def begin(self, steps: ProgramCache) -> None:
        """Compute the state before the first step."""
        program = steps.init(self.size, self.context, self.one)
        self.carried += [t.contiguous() for t in program.run(*self.constants, *self.carried[:2])]
        self.state = program.after

    def program(self, steps: ProgramCache, pass_index: int, c: int, column: int = 0) -> Program:
        """Return the program for a column's step of the first c clients."""
        assert self.state is not None
        ragged, active = self.schedule.ragged, self.schedule.active
        made = steps.step(pass_index, c, self.context, self.state, self.one, ragged=ragged, width=self.width)
        if made.after is not self.state and active is not None and not bool(active[:, column].all()):
            raise NotStackable("its state takes another form on the way, when others are done already")
        return made

    def turn(self, steps: ProgramCache, pass_index: int, first: int) -> None:
        """Begin a pass, in its first column."""
        assert self.state is not None
        active = self.schedule.active
        program = steps.turn(pass_index, self.size, self.context, self.state, self.one, ragged=active is not None)
        w, stats, total, *state = self.carried
        who = [] if active is None else [active[: self.size, first]]
        self.carried = [w, stats, total, *program.run(*self.constants, w, stats, *state, *who)]
        self.state = program.after


class CpuLane:
    """A lane on a CPU thread."""

    def __init__(self, steps: ProgramCache):
        self._steps = steps

    def run(self, stack: Stack) -> Iterator[None]:
        stack.begin(self._steps)
        plan, c, constants, tails = stack.schedule, stack.size, stack.constants, list[list[Tensor]]()
        for pass_index, first, count in plan.passes:
            if len(plan.passes) > 1:
                stack.turn(self._steps, pass_index, first)
            s = first
            while s < first + count:
                if s in plan.cuts:
                    c = plan.cuts[s]
                    tails.append([t[c:] for t in stack.carried])
                    stack.carried, constants = [t[:c] for t in stack.carried], [t[:c] for t in constants]
                program = stack.program(self._steps, pass_index, c, s)
                most = min([cut for cut in plan.cuts if cut > s] + [first + count]) - s
                n = min(most, _IN_A_ROW) if program.after is stack.state else 1
                stack.carried = program.over(constants, stack.carried, [t[:c] for t in plan.parts], s, n)
                stack.state = program.after
                s += n
                yield
        for tail in reversed(tails):
            stack.carried = [torch.cat(pair) for pair in zip(stack.carried, tail, strict=True)]


@dataclass
class GraphBuffers:
    """Static buffers of CUDA graphs, for stacks of one kind."""

    constants: list[Tensor]
    carried: list[Tensor]
    parts: list[Tensor]  # of the schedule
    column: Tensor
    graphs: dict[Hashable, Any]

    @classmethod
    def like(cls, stack: Stack, columns: int) -> GraphBuffers:
        device = stack.carried[0].device
        parts = [torch.zeros(len(t), columns, *t.shape[2:], dtype=t.dtype, device=device) for t in stack.schedule.parts]
        own = [[torch.empty_like(t).copy_(t) for t in ts] for ts in (stack.constants, stack.carried)]
        return cls(own[0], own[1], parts, torch.zeros(1, dtype=torch.int64, device=device), {})

    def fill(self, stack: Stack) -> None:
        for mine, given in zip([*self.constants, *self.carried], [*stack.constants, *stack.carried], strict=True):
            mine.copy_(given)
        for places, read in zip(self.parts, stack.schedule.parts, strict=True):
            places[:, : read.shape[1]].copy_(read)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:  # noqa: ARG001 - each has its own
    """Return the stream of a lane number, shared by all runs: libraries keep tens of megabytes a stream for good."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphLane:
    """A lane on a GPU stream. A step is captured once for each kind of stack, and launched from then on."""

    def __init__(self, steps: ProgramCache, device: torch.device, number: int):
        self._steps, self._device, self._stream = steps, device, _stream(device, number)
        self._buffers: dict[Hashable, GraphBuffers] = {}
        self._pool: Any = None

    def run(self, stack: Stack) -> Iterator[None]:
        plan, on = stack.schedule, partial(torch.cuda.stream, self._stream)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with on():  # not across a yield, during which other lanes run
            stack.begin(self._steps)
            buffers = self._buffers_of(stack)
            buffers.fill(stack)
        c = stack.size
        for pass_index, first, count in plan.passes:
            with on():
                if len(plan.passes) > 1:
                    stack.carried = list(buffers.carried)
                    stack.turn(self._steps, pass_index, first)
                    _put(buffers.carried, stack.carried)
                buffers.column.fill_(first)
            s = first
            while s < first + count:
                c = plan.cuts.get(s, c)
                most = min([cut for cut in plan.cuts if cut > s] + [first + count]) - s
                with on():
                    stack.carried = [t[:c] for t in buffers.carried]
                    s += self._launch(stack, buffers, pass_index, c, s, most)
                yield
        with on():  # the next stack reuses the buffers
            stack.carried = [t.clone() for t in buffers.carried]

    def _buffers_of(self, stack: Stack) -> GraphBuffers:
        columns = 1 << (stack.schedule.at.shape[1] - 1).bit_length()
        kinds = tuple((tuple(t.shape), t.dtype) for t in (*stack.constants, *stack.carried))
        key = (stack.context.key, kinds, columns, stack.width, stack.schedule.ragged)
        if key not in self._buffers:
            self._make_room()
            self._buffers[key] = GraphBuffers.like(stack, columns)
        return self._buffers[key]

    def _make_room(self) -> None:
        """Drop captured graphs where little memory is left: kinds of stacks are many, and others use the GPU too."""
        free, total = torch.cuda.mem_get_info(self._device)
        if self._buffers and free < _SPARE * total:
            self._stream.synchronize()
            self._buffers.clear()
            self._pool = None
            gc.collect()
            torch.cuda.empty_cache()

    def _launch(self, stack: Stack, buffers: GraphBuffers, pass_index: int, c: int, column: int, most: int) -> int:
        """Launch up to `most` columns; return how many."""
        program = stack.program(self._steps, pass_index, c, column)
        same_state = program.after is stack.state
        n = _UNROLLED if same_state and most >= _UNROLLED else 1
        key = (pass_index, c, n, stack.state.key if stack.state is not None else None)
        if key not in buffers.graphs:
            buffers.graphs[key] = self._capture(program, buffers, c, n)
        buffers.graphs[key].replay()
        stack.state = program.after
        return n

    def _capture(self, program: Program, buffers: GraphBuffers, c: int, n: int) -> Any:
        saved = [t.clone() for t in (*buffers.carried, buffers.column)]
        with nondeterministic():
            graph = self._record(program, buffers, c, n)
        for mine, was in zip((*buffers.carried, buffers.column), saved, strict=True):
            mine.copy_(was)
        return graph

    def _record(self, program: Program, buffers: GraphBuffers, c: int, n: int) -> Any:
        for _ in range(2):  # libraries initialize at first use, which a capture must not contain
            buffers.column.zero_()
            self._body(program, buffers, c)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        why: Exception | None = None
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                try:
                    self._body(program, buffers, c, n)
                except Exception as e:
                    why = e  # leaving a failed capture raises another error
                    raise
        except Exception as e:
            why = why or e
            if isinstance(why, (NotStackable, torch.OutOfMemoryError)):
                raise why from None
            message = f"its step cannot be captured in a CUDA graph ({type(why).__name__}: {first_line(why)})"
            raise NotStackable(message) from why
        return graph

    def _body(self, program: Program, buffers: GraphBuffers, c: int, n: int = 1) -> None:
        """Run columns, each on the results of the one before; write those of the last into the buffers."""
        constants, own = [t[:c] for t in buffers.constants], [t[:c] for t in buffers.carried]
        changes: Sequence[Tensor] = own
        for _ in range(n):
            where = [t[:c].index_select(1, buffers.column).squeeze(1) for t in buffers.parts]
            changes = program.run(*constants, *changes, *where)
            buffers.column.add_(1)
        _put(own, changes)


def _put(own: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    if [t.shape for t in own] != [t.shape for t in new]:
        raise NotStackable("its state takes other tensors from step to step")
    for mine, given in zip(own, new, strict=True):
        if mine is not given:
            mine.copy_(given)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: freeing a graph of an earlier run during a capture breaks the capture."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
