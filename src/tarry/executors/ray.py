"""Training on a Ray cluster: one actor a worker, weights through Ray's object store once a version.

Jobs are given out in the order they are due and only a few ahead of need. Tickets handed out from one global share its
tensor, so it is put into the store when the first of them is trained and taken out when the last is back; what a client
kept for itself is nobody else's and travels with its job. A worker that is lost is replaced, and its clients are
trained again by whoever is free: to the same bits, for an outcome depends on its job alone.

Ray pickles what goes between its own processes, so whoever is let onto a cluster can run code on all of it: a Ray
cluster is trusted. Its machines need tarry and torch in the versions that are here (and the same kind of processor, for
the same bits); a method or task out of a file travels along.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import BadInput, TarryError, WorkerDied
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.optim import Optimiser
from ..core.task import Shards, Task
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.determinism import deterministic
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.process import tune_malloc
from ..version import __version__
from .inline import RemoteError
from .ray_cluster import check_capacity, connect, load, one_line, register_user_modules

__all__ = ["Ray"]

log = logging.getLogger("tarry")

_DEPTH = 2  # jobs a worker has at hand: one in work, one waiting, so that it never idles
_AHEAD = 6  # jobs a worker may be ahead of need, so that one that waits for its neighbour's result never idles either
_LIVES = 3  # workers that may be lost at one job, or before they were ready, until it is no accident
_ALIGNED = 64  # bytes: a sum's last bit may depend on where it begins in memory, and tensors begin at such multiples

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Setup:
    """What a worker needs once. Arrays of a node's workers lie in its shared memory, once."""

    module: nn.Module
    layout: Layout
    task: Task
    clients: Sequence[tuple[Array, Array]]
    sizes: Sequence[int] | None  # of the shards, where the clients are one pair
    rule: LocalRule
    work: LocalWork
    seed: int
    precision: str
    device: str


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {k: v.cpu().numpy() for k, v in tensors.items()}


class _Trainer:
    """A worker: an actor that trains what it is given, one after the other."""

    def __init__(self, setup: _Setup):
        torch.set_num_threads(1)
        tune_malloc()
        self._setup = setup
        pairs = [(self._stored(x), self._stored(y)) for x, y in setup.clients]
        clients = pairs if setup.sizes is None else Shards(*pairs[0], setup.sizes)
        task = replace(setup.task, clients=clients)
        module, rough = setup.module.to(setup.device), setup.precision == "bf16"
        self._bound = FlatModel(module, setup.layout, task, setup.work.optimiser, bf16=rough)

    def ready(self) -> str:
        return __version__

    def train(
        self,
        who: tuple[int, int, int],
        optimiser: Optimiser | None,
        memory: Mapping[str, Array],
        names: Sequence[str],
        sent: Array,
        *payload: Array,
    ) -> Any:
        """What a job came to, as plain arrays, or what went wrong. `optimiser`: where it changes."""
        number, client, visit = who
        setup, along = self._setup, dict(zip(names, payload, strict=True))
        weights, (given, kept) = torch.tensor(sent, device=setup.device), map(self._tensors, (along, memory))
        if optimiser is not None:
            self._bound.use(optimiser)
        try:
            job = VisitJob(number, client, visit, weights, given, kept)
            with deterministic(exact=setup.precision == "float32"):
                out = train(job, self._bound, rule=setup.rule, work=setup.work, seed=setup.seed)
        except Exception as e:
            return RemoteError.from_exception(e)
        return (out.delta.cpu().numpy(), *out[1:5], *map(_arrays, out[5:]))

    def _tensors(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        return {k: torch.tensor(v, device=self._setup.device) for k, v in arrays.items()}

    def _stored(self, array: Array) -> Tensor:
        """The array where it lies, in memory that the node's workers share."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
            t = torch.from_numpy(array)
        return (t if t.data_ptr() % _ALIGNED == 0 else t.clone()).to(self._setup.device)


@dataclass
class _Held:
    tensor: Tensor  # kept, so that its identity stays its own
    tickets: int = 0
    ref: Any = None


class _Store:
    """Tensors that tickets carry, each put into Ray's object store once and taken out with its last ticket.

    The newest global stays when its tickets are all back: the next one may be handed out from it again.
    """

    def __init__(self, ray: Any):
        self._ray = ray
        self._held: dict[int, _Held] = {}
        self._version = -1
        self._idle: int | None = None

    def hold(self, ticket: Ticket) -> None:
        for t in (ticket.sent, *ticket.payload.values()):
            self._held.setdefault(id(t), _Held(t)).tickets += 1
            if id(t) == self._idle:
                self._idle = None
        if ticket.version > self._version:
            self._version = ticket.version
            if self._idle is not None:
                del self._held[self._idle]
                self._idle = None

    def ref(self, t: Tensor) -> Any:
        held = self._held[id(t)]
        if held.ref is None:
            held.ref = self._ray.put(t.cpu().numpy())
        return held.ref

    def release(self, ticket: Ticket) -> None:
        for t in (ticket.sent, *ticket.payload.values()):
            held = self._held[id(t)]
            held.tickets -= 1
            if held.tickets == 0 and t is ticket.anchor and ticket.version == self._version:
                self._idle = id(t)
            elif held.tickets == 0:
                del self._held[id(t)]

    def clear(self) -> None:
        self._held.clear()


class _Given(NamedTuple):
    """A job: when it is due, its ticket, and what its client kept."""

    due: float
    ticket: Ticket
    memory: Mapping[str, Tensor]


@dataclass(eq=False)
class _Worker:
    actor: Any
    starting: Any  # answers when the worker is up, and is None from then on
    jobs: dict[Any, int] = field(default_factory=dict)  # the answers to come, in the order of work, and their numbers


class Ray:
    """An executor of `workers` actors, each with one CPU and a share of a GPU where it trains on one.

    Work begins when the first of them is up; those the cluster has no room for come in when it has.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        task: Task,
        *,
        rule: LocalRule,
        work: LocalWork,
        seed: int,
        workers: int,
        lookahead: int = 0,
        precision: str = "float32",
        address: str | None = None,
        gpus: float = 0.0,
    ):
        self._ray, self._later, self._ahead = load(), work.optimizer_at, workers * _AHEAD + lookahead
        self.description = ""
        self._device = next(module.parameters()).device
        self._store = _Store(self._ray)
        self._workers: list[_Worker] = []
        self._waiting: dict[int, _Given] = {}
        self._given: dict[int, _Given] = {}
        self._queue: list[tuple[float, int]] = []
        self._done: dict[int, LocalResult] = {}
        self._deaths: Counter[int] = Counter()  # by job
        self._stillborn = 0  # workers lost before they were up, in a row
        self._leave = connect(address, cpus=workers)
        try:
            check_capacity(gpus)
            register_user_modules()
            self._setup = self._ray.put(_setup(module, layout, task, rule, work, seed, precision))
            self._trainer = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Trainer)
            self._workers = [self._hired() for _ in range(workers)]
        except BaseException:
            self.close()
            raise

    def _hired(self) -> _Worker:
        actor = self._trainer.remote(self._setup)
        return _Worker(actor, actor.ready.remote())

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._store.hold(ticket)
        self._wait(ticket.number, _Given(due, ticket, memory))
        self._feed()

    def collect(self, number: int) -> LocalResult:
        while number not in self._done:
            self._feed(needed=number)
            self._listen()
        trained = self._done.pop(number)
        self._feed()
        return trained

    def _wait(self, number: int, job: _Given) -> None:
        self._waiting[number] = job
        heapq.heappush(self._queue, (job.due, number))

    def _feed(self, needed: int = -1) -> None:
        """Give waiting jobs to workers that are up and have little to do, the earliest due first, evenly."""
        up = [w for w in self._workers if w.starting is None]
        while self._queue and (len(self._given) + len(self._done) < self._ahead or needed in self._waiting):
            worker = min(up, key=lambda w: len(w.jobs), default=None)
            if worker is None or len(worker.jobs) == _DEPTH:
                return
            number = heapq.heappop(self._queue)[1]
            _, t, memory = self._given[number] = self._waiting.pop(number)
            optimiser = None if self._later is None else self._later(t.version)
            refs = [self._store.ref(tensor) for tensor in (t.sent, *t.payload.values())]
            who = (number, t.client, t.visit)
            answer = worker.actor.train.remote(who, optimiser, _arrays(memory), tuple(t.payload), *refs)
            worker.jobs[answer] = number

    def _listen(self) -> None:
        """Wait until at least one worker answers, comes up or is lost."""
        whose = {ref: w for w in self._workers for ref in (*w.jobs, *([] if w.starting is None else [w.starting]))}
        for ref in self._ray.wait(list(whose))[0]:
            worker = whose[ref]
            if worker not in self._workers:  # buried meanwhile
                continue
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as e:
                raise TarryError(f"training failed in a Ray worker: {e}") from e
            except self._ray.exceptions.RayError as e:
                self._bury(worker, e)
                continue
            if ref == worker.starting:
                self._welcome(worker, answer)
            else:
                self._take(worker.jobs.pop(ref), answer)

    def _welcome(self, worker: _Worker, version: str) -> None:
        if version != __version__:
            raise BadInput(f"--address: a machine of the Ray cluster has tarry {version}, and here it is {__version__}")
        worker.starting, self._stillborn = None, 0

    def _take(self, number: int, answer: Any) -> None:
        if isinstance(answer, RemoteError):
            answer.reraise("a Ray worker")
        delta, *numbers, extras, memory, notes = answer
        carried = [{k: torch.tensor(v, device=self._device) for k, v in a.items()} for a in (extras, memory, notes)]
        self._done[number] = LocalResult(torch.tensor(delta, device=self._device), *numbers, *carried)
        self._store.release(self._given.pop(number).ticket)
        self._deaths.pop(number, None)

    def _bury(self, worker: _Worker, why: Exception) -> None:
        """A worker is lost: another takes its place, and what it was given is given out again."""
        self._workers.remove(worker)
        self._kill(worker)
        lost = list[int]()
        for ref, number in worker.jobs.items():
            try:
                self._take(number, self._ray.get(ref))
            except self._ray.exceptions.RayError:
                lost.append(number)
        if worker.starting is not None:
            self._stillborn += 1
            if self._stillborn == _LIVES:
                raise WorkerDied(f"Ray workers end before they begin, {_LIVES} in a row: {why}")
        for number in lost:
            self._wait(number, self._given.pop(number))
        if lost:  # the first was in work; the others had not begun
            self._deaths[lost[0]] += 1
            if self._deaths[lost[0]] == _LIVES:
                t = self._waiting[lost[0]].ticket
                raise WorkerDied(
                    f"{_LIVES} Ray workers were lost in a row while they trained client {t.client} (visit {t.visit}): "
                    f"killed, or out of memory? {one_line(why)}"
                )
        log.warning("a Ray worker was lost; another takes its place, and what it had is trained again")
        self._workers.append(self._hired())

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def close(self) -> None:
        if self._ray.is_initialized():
            for worker in self._workers:
                self._kill(worker)
        self._workers.clear()
        self._store.clear()
        self._setup = None
        leave, self._leave = self._leave, _nothing
        leave()


def _nothing() -> None:
    pass


def _setup(
    module: nn.Module,
    layout: Layout,
    task: Task,
    rule: LocalRule,
    work: LocalWork,
    seed: int,
    precision: str = "float32",
) -> _Setup:
    shards = task.clients if isinstance(task.clients, Shards) else None
    clients = task.clients if shards is None else [(shards.x, shards.y)]
    arrays = [(x.cpu().numpy(), y.cpu().numpy()) for x, y in clients]
    sizes = None if shards is None else np.diff(shards.ends).tolist()
    bare = replace(task, model=nn.Module, clients=(), test=None, unlabelled=None, unlabelled_mask=None)
    here, device = copy.deepcopy(module).cpu(), next(module.parameters()).device.type
    return _Setup(here, layout, bare, arrays, sizes, rule, replace(work, optimizer_at=None), seed, precision, device)
