"""BatchedTrainer: trains visits in stacks, with the weights of many clients in one tensor and one traced step for all.

Visits are trained in stacks of up to `size` clients, on several `lanes` at a time (threads of a CPU, streams of a GPU).
Each client makes exactly its own steps on its own batches in its own order:

    batches     shorter ones are padded to the width of the stack, and padding counts for nothing. Clients are stacked
                with others whose batches are at least half as long
    steps       clients are sorted by their number of steps, and a stack is cut when half of it is done: at most two
                steps are computed for one that counts, and a quarter more where a stack is filled up (schedule.py).
                Clients with more than 16 times the steps of another are in another stack
    compiled    compiling a kind of stack takes a while, so all batches are padded to one width, and stacks are filled
                up to one of a few sizes, at most to four times as many clients (schedule.py)

Results are those of one client at a time up to rounding: a kernel for many clients may add in another order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, zip_longest
from math import ceil, isfinite
from threading import Event
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import rng
from ...core.contracts import check_rule_dtype, check_rule_output
from ...core.local_rule import Context, LocalRule, VisitInput
from ...core.optim import Optimizer
from ...core.rng import Stream
from ...core.shards import MappedShards, Shards
from ...core.task import Task
from ...core.tickets import LocalResult, VisitJob
from ...training.flat_model import FlatModel
from ...training.visit import LocalWork
from ...vector.threads import shared_pool
from .channels_last import ChannelsLastOrder
from .functional_model import FunctionalModel
from .lanes import CpuLane, GraphLane, Stack
from .loss_check import is_example_mean
from .programs import ProgramCache
from .schedule import SizeBuckets, padded_size, schedule
from .trace import NotStackable, RecordSpec, flatten, merge_specs

__all__ = ["BatchedTrainer"]

_SHARE, _MEMORY = 0.4, 256e6  # share of a GPU's free memory, bytes of a CPU's, that stacks may take
_PLACE = 9  # bytes of an example in a schedule: its index, and whether it counts
_MOST_STEPS = 16  # times the steps of another client in the same stack


class PreparedJob(NamedTuple):
    """A visit with its start weights, context and keys."""

    job: VisitJob
    brief: VisitInput
    start: Tensor
    context: Context
    form: RecordSpec
    tensors: list[Tensor]
    examples: tuple[int, int, int]  # number, offset of the first, key of their order
    noise: int  # the key of dropout
    optimizer: Optimizer


class Group(NamedTuple):
    """Visits of one stack, the width of their batches, and the most clients that fit into memory."""

    members: list[PreparedJob]
    width: int
    most: int


class BatchedTrainer:
    """Trains lists of visits in stacks of at most `size` clients (None: as memory allows), on `lanes` at a time."""

    def __init__(
        self,
        model: FlatModel,
        *,
        rule: LocalRule,
        work: LocalWork,
        seed: int,
        lanes: int = 1,
        size: int | None = None,
        compiled: bool = False,
        bf16: bool = False,
        channels_last: bool = False,
        own_conv: str = "",
    ):
        if (why := why_not_stackable(model, work)) is not None:
            raise NotStackable(why)
        self._model, self._rule, self._work, self._seed = model, rule, work, seed
        model.load(model.flat)  # counters as built, as at the start of every visit
        self._device = model.flat.device
        cuda = self._device.type == "cuda"
        lanes = lanes if cuda or not compiled else 1  # torch.compile does not work in several threads
        self.lanes, self.size, self.most_lanes, self.own_conv, self.compiled = lanes, size, lanes, own_conv, compiled
        self._sizes = SizeBuckets()  # sizes of compiled stacks
        self._inner = ChannelsLastOrder(model.layout, self._device) if channels_last else None
        self._bytes: dict[Hashable, int] = {}
        self._fit: dict[str, int] = {}
        self._padding = 0
        x, y, self._offsets = self._examples = _all_examples(model.task)
        self._n_draws = model.task.n_draws if model.task.augment is not None else 0
        self._longest = max(b - a for a, b in pairwise(self._offsets))
        self._masked = compiled and self.masks
        self._functional = FunctionalModel(
            model.module, model.layout, model.task, work.optimizer, model.head, bf16=bf16, channels_last=channels_last
        )
        self._steps = ProgramCache(
            self._functional,
            rule,
            work.optimizer,
            x,
            y,
            rated=work.optimizer_at is not None,
            compiled=compiled,
            own_conv=own_conv,
        )
        self._lanes = [GraphLane(self._steps, self._device, i) if cuda else CpuLane(self._steps) for i in range(lanes)]
        self._threads = shared_pool("lane", lanes) if lanes > 1 and not cuda else None

    def with_max_steps(self, steps: int, *, padding: int = 0) -> BatchedTrainer:
        """Return a copy with the same programs for visits of so many steps. `padding`: rows added to every batch."""
        other = copy.copy(self)
        other._work, other._padding = replace(self._work, epochs=None, steps=steps), padding
        return other

    def save(self) -> dict[str, Any]:
        """Return what decides the sizes of later stacks, as a plain record."""
        return {"size": self.size, "compiled": self.compiled, "sizes": list(self._sizes.made), "fit": dict(self._fit)}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue with the sizes of a saved record."""
        self.size, self._fit = saved["size"], dict(saved["fit"])
        self._sizes.made[:] = saved["sizes"]

    def compile_programs(self) -> None:
        """Compile programs now, which otherwise happens after many calls."""
        self._steps.compile_programs()

    @property
    def masks(self) -> bool:
        """Return whether rows may have to be masked: of shorter batches, or of clients that are done."""
        first, *others = {b - a for a, b in pairwise(self._offsets)}
        return bool(others) or bool(first % self._work.batch if self._work.batch else first != _next_power_of_2(first))

    @torch.no_grad()
    def loss_is_mean(self) -> bool:
        """Return whether the task's loss is the mean of the examples' losses, tried on some examples of all clients."""
        x, y, ends = self._examples

        def outputs(at: Tensor) -> Any:
            return self._model.outputs(self._model.flat, x[at])

        return is_example_mean(self._model.task.loss, outputs, y[: ends[-1]], cuda=self._device.type == "cuda")

    @torch.no_grad()
    def train(self, jobs: Sequence[VisitJob]) -> list[LocalResult]:
        """Return the results in the order of the jobs."""
        groups, done = list(self._groups([self._visit(job) for job in jobs])), dict[int, LocalResult]()
        if self._device.type == "cuda":
            stacks = [(members, self._stack(members, width, most)) for members, width, most in groups]
            self._run([self._run_stacks(lane, stacks[i :: self.lanes]) for i, lane in enumerate(self._lanes)])
            torch.cuda.synchronize(self._device)
            for members, stack in stacks:
                done |= self._results(members, stack)
        else:
            self._run([self._run_groups(lane, groups[i :: self.lanes], done) for i, lane in enumerate(self._lanes)])
        return [done[j.number] for j in jobs]

    def _visit(self, job: VisitJob) -> PreparedJob:
        work, offset = self._work, self._offsets[job.client]
        n, who = self._offsets[job.client + 1] - offset, (job.client, job.visit)
        key = rng.key(self._seed, Stream.LOCAL, *who)
        brief = VisitInput(
            job.sent, job.payload, job.memory, self._model.layout, key, work.n_steps(n), work.n_batches(n)
        )
        start, context = check_rule_output(self._rule, "begin", self._rule.begin(brief), 2)
        form, tensors = flatten(context)
        optimizer = work.optimizer if work.optimizer_at is None else work.optimizer_at(job.schedule_input)
        examples = (n, offset, rng.key(self._seed, Stream.ORDER, *who))
        noise = rng.key(self._seed, Stream.DROPOUT, *who)
        return PreparedJob(job, brief, start, context, form, tensors, examples, noise, optimizer)

    def _groups(self, visits: Sequence[PreparedJob]) -> Iterator[Group]:
        """Yield the stacks, those with many steps first, spread over the lanes."""
        together: dict[Hashable, list[PreparedJob]] = {}
        aligned = len(self._rule.passes) > 1
        for v in visits:
            width = self._width(v.examples[0])
            kind = (str(v.form.spec), v.form.kinds, _next_power_of_2(v.brief.n_batches) if aligned else 0)
            together.setdefault((width, kind), []).append(v)
        for key, members in together.items():
            width = key[0]  # type: ignore[index]
            members.sort(key=lambda v: -v.brief.n_steps)
            while members:
                here = [v for v in members if v.brief.n_steps * _MOST_STEPS >= members[0].brief.n_steps]
                members = members[len(here) :]
                most = self.size or self._max_stack_size(here[0], width, key)
                n = max(min(self.lanes, len(here)), ceil(len(here) / most))
                yield from (Group(here[i::n], width, most) for i in range(n))

    def _width(self, n: int) -> int:
        """Return the width of batches for a client with n examples; one width for all where steps are compiled."""
        most = _next_power_of_2(self._longest if self.compiled else n)
        return (most if self._work.batch is None else min(self._work.batch, most)) + self._padding

    def _max_stack_size(self, visit: PreparedJob, width: int, key: Hashable) -> int:
        """Return how many clients of a kind fit into memory, with the examples' indices of all their steps.

        Computed once: free memory is less later, when such stacks have taken some, and every other number would be
        another size to compile.
        """
        steps = _next_power_of_2(visit.brief.n_steps)
        name = repr((key, steps))
        if name not in self._fit:
            if key not in self._bytes:
                stack = self._stack([visit], width)
                stack.begin(self._steps)
                self._bytes[key] = stack.program(self._steps, 0, 1).bytes_a_client
            place = _PLACE + self._n_draws * visit.start.element_size()
            need = (self._bytes[key] + steps * width * place) * self.most_lanes
            cuda = self._device.type == "cuda"
            room = _SHARE * torch.cuda.mem_get_info(self._device)[0] if cuda else _MEMORY
            self._fit[name] = max(1, int(room / need))
        return self._fit[name]

    def _stack(self, members: Sequence[PreparedJob], width: int, most: int | None = None) -> Stack:
        """Return a stack, filled up to at most `most` clients; None: it is for a look at its program only."""
        fill: Callable[[int], int] = padded_size
        left: Callable[[int], int] = padded_size
        if self.compiled and most is not None:
            fill, left = partial(self._sizes, most=most, lanes=self.lanes), partial(self._sizes.left, most=most)
        n = self._model.layout.n_params
        filled = [*members, *[members[0]] * (fill(len(members)) - len(members))]
        starts = self._to_inner(torch.stack([v.start for v in filled]))
        as_received = all(v.start is v.brief.weights for v in filled)
        constants = [starts if as_received else self._to_inner(torch.stack([v.brief.weights for v in filled]))]
        if self._work.optimizer_at is not None:
            constants.append(starts.new_tensor([v.optimizer.lr for v in filled]))
        constants += [self._to_inner(torch.stack(column)) for column in zip(*(v.tensors for v in filled), strict=True)]
        stats = torch.cat([starts[:, n:], self._functional.counts.to(starts).expand(len(filled), -1)], 1)
        changes = [starts[:, :n].contiguous(), stats, starts.new_zeros(len(filled))]
        examples = [v.examples for v in members]
        noise = [v.noise for v in members] if self._functional.drops is not None else None
        passes = len(self._rule.passes)
        plan = schedule(
            examples, self._work, passes=passes, width=width, like=starts, n_draws=self._n_draws, noise=noise,
            fill=fill, left=left, masked=self._masked,
        )  # fmt: skip
        if isinstance(shards := self._model.task.clients, MappedShards):
            plan = replace(plan, at=shards.order[plan.at])
        return Stack(plan, merge_specs([v.form for v in members]), constants, changes, width)

    def _to_inner(self, stack: Tensor) -> Tensor:
        return stack if self._inner is None else self._inner.to_inner(stack)

    def _run(self, courses: Sequence[Iterator[None]]) -> None:
        if self._threads is not None and self.lanes > 1:
            stopped = Event()
            try:
                for done in [self._threads.submit(_run_to_end, c, stopped) for c in courses[: self.lanes]]:
                    done.result()
            finally:
                stopped.set()  # an exception ends the other threads, too
        else:
            for _ in zip_longest(*courses[: self.lanes]):
                pass

    def _run_stacks(self, lane: Any, stacks: Sequence[tuple[Sequence[PreparedJob], Stack]]) -> Iterator[None]:
        for _, stack in stacks:
            yield from lane.run(stack)

    def _run_groups(self, lane: Any, groups: Sequence[Group], done: dict[int, LocalResult]) -> Iterator[None]:
        """Build, run and take apart one stack after the other, so that a lane holds the memory of one."""
        for members, width, most in groups:
            stack = self._stack(members, width, most)
            yield from lane.run(stack)
            done |= self._results(members, stack)
            del stack  # before the next one is made
            if isinstance(shards := self._model.task.clients, MappedShards):
                shards.source.release()

    def _results(self, members: Sequence[PreparedJob], stack: Stack) -> dict[int, LocalResult]:
        if self._functional.norms.pairs and stack.schedule.single:
            raise NotStackable("a client has a batch of one example, and the model has batch normalization")
        return dict(zip((v.job.number for v in members), self._outcomes(members, stack), strict=True))

    def _outcomes(self, members: Sequence[PreparedJob], stack: Stack) -> Iterator[LocalResult]:
        assert stack.state is not None
        w, stats, totals, *state = stack.carried
        layout = self._model.layout
        ends = torch.cat([w, stats[:, : layout.size - layout.n_params]], 1) if layout.stats else w
        if self._inner is not None:
            ends, state = self._inner.to_layout(ends), [self._inner.to_layout(t) for t in state]
        losses = totals.tolist()
        found = []
        for c, v in enumerate(members):
            own = stack.state.fill([t[c] for t in state], instead={Optimizer: v.optimizer})
            out = check_rule_output(self._rule, "finish", self._rule.finish(ends[c], v.context, own))
            check_rule_dtype(self._rule, ends[c], out.delta, v.brief.weights)
            delta = ends[c] - v.brief.weights if out.delta is None else _copy_row(out.delta)
            found.append((delta, out))
        sums = torch.stack([delta.sum() for delta, _ in found]).tolist() if found else []
        for c, (v, (delta, out)) in enumerate(zip(members, found, strict=True)):
            loss = losses[c] / v.brief.n_steps
            carried = ({k: _copy_row(t) for k, t in ts.items()} for ts in (out.extras, out.memory, out.notes))
            yield LocalResult(
                delta, v.examples[0], v.brief.n_steps, loss, isfinite(loss) and isfinite(sums[c]), *carried
            )


def why_not_stackable(model: FlatModel, work: LocalWork) -> str | None:
    """Return why stacking is impossible, as far as this shows without a trial; None where it does not."""
    given = model.task.clients
    if isinstance(given, MappedShards) and given.is_cast:
        return "the examples are in files, and would all have to be in memory with another type or on another device"
    shapes = (
        set()
        if isinstance(given, Shards | MappedShards)
        else {(x.shape[1:], y.shape[1:], x.dtype, y.dtype) for x, y in given}
    )
    if len(shapes) > 1:
        return "clients' examples have different shapes"
    if work.optimizer_at is not None and work.optimizer.at is None:
        return "the optimizer's rate cannot be a tensor"
    return None


def _all_examples(task: Task) -> tuple[Tensor, Tensor, list[int]]:
    """Return the examples of all clients in two tensors, and the offset of each client's."""
    clients = task.clients
    if isinstance(clients, Shards):
        return clients.x, clients.y, clients.ends
    if isinstance(clients, MappedShards):
        return *clients.source, clients.ends
    ends = [0]
    for x, _ in clients:
        ends.append(ends[-1] + len(x))
    return _concatenate([x for x, _ in clients]), _concatenate([y for _, y in clients]), ends


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors; without a copy where they are consecutive slices of one."""
    first, end = parts[0], parts[0].storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same and part.is_contiguous() and part.storage_offset() == end):
            return torch.cat(list(parts))
        end += part.numel()
    shape, strides = (sum(map(len, parts)), *first.shape[1:]), [1]
    for size in reversed(shape[1:]):  # the first may be one row of something else
        strides.insert(0, strides[0] * size)
    return first.as_strided(shape, strides)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _copy_row(t: Tensor) -> Tensor:
    """Return a tensor with memory of its own, not a row of a stack."""
    return t.clone() if t.untyped_storage().nbytes() > t.nbytes else t


def _run_to_end(course: Iterator[None], stopped: Event) -> None:
    with torch.no_grad():
        for _ in course:
            if stopped.is_set():
                break
