"""Ray: trains visits on a Ray cluster, with one actor a worker.

Tickets of one global share its tensor. It is put into Ray's object store when the first of them is trained, and taken
out when the last one is back; what only one client has travels with its visit. A worker that is lost is replaced. A
cluster that has ended ends the run with an error.

Ray pickles what its own processes send each other, so everyone who may use a cluster can run code on all of it: the
cluster is trusted. Its machines need the same versions of tarry and torch (and the same kind of processor, for the same
bits); a method or task read from a file is sent along.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..core.errors import BadInput, TrainingFailed, WorkerDied
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.optim import Optimizer
from ..core.shards import Shards
from ..core.task import Task
from ..core.tickets import LocalResult, Ticket, VisitJob
from ..training.determinism import deterministic
from ..training.flat_model import FlatModel
from ..training.visit import LocalWork, train
from ..vector.process import tune_malloc
from ..version import __version__
from .base import RemoteError
from .queueing import DEPTH, QueuedVisit, QueueingExecutor
from .ray_cluster import ClusterWatch, check_capacity, connect, load, one_line, register_user_modules

__all__ = ["Ray"]

log = logging.getLogger("tarry")

_POLL = 1.0  # seconds between looks at the cluster, while a result is awaited
_ALIGNED = 64  # bytes: tensors begin at such multiples, and the last bit of a sum may depend on its place in memory

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _RaySetup:
    """The arguments that a worker starts with. The workers of one machine share the arrays, in its shared memory."""

    module: nn.Module
    layout: Layout
    task: Task
    clients: Sequence[tuple[Array, Array]]
    sizes: Sequence[int] | None  # of the shards, where `clients` is one pair of arrays
    rule: LocalRule
    work: LocalWork
    seed: int
    precision: str
    device: str


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {k: v.cpu().numpy() for k, v in tensors.items()}


class _Trainer:
    """A worker: an actor that trains one visit after the other."""

    def __init__(self, setup: _RaySetup):
        torch.set_num_threads(1)
        tune_malloc()
        self._setup = setup
        pairs = [(self._shared_tensor(x), self._shared_tensor(y)) for x, y in setup.clients]
        clients = pairs if setup.sizes is None else Shards(*pairs[0], setup.sizes)
        task = replace(setup.task, clients=clients)
        module, rough = setup.module.to(setup.device), setup.precision == "bf16"
        self._model = FlatModel(module, setup.layout, task, setup.work.optimizer, bf16=rough)

    def ready(self) -> str:
        return __version__

    def train(
        self,
        who: tuple[int, int, int],
        optimizer: Optimizer | None,
        memory: Mapping[str, Array],
        names: Sequence[str],
        sent: Array,
        *payload: Array,
    ) -> Any:
        """Return a result as numpy arrays, or a RemoteError. `optimizer`: the one to use, where it changes."""
        number, client, visit = who
        setup, along = self._setup, dict(zip(names, payload, strict=True))
        weights, (given, client_memory) = torch.tensor(sent, device=setup.device), map(self._tensors, (along, memory))
        if optimizer is not None:
            self._model.use(optimizer)
        try:
            job = VisitJob(number, client, visit, weights, given, client_memory)
            with deterministic(exact=setup.precision == "float32"):
                out = train(job, self._model, rule=setup.rule, work=setup.work, seed=setup.seed)
        except Exception as e:
            return RemoteError.from_exception(e)
        return (out.delta.cpu().numpy(), *out[1:5], *map(_arrays, out[5:]))

    def _tensors(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        return {k: torch.tensor(v, device=self._setup.device) for k, v in arrays.items()}

    def _shared_tensor(self, array: Array) -> Tensor:
        """Return the array as a tensor without a copy: it lies in memory that the workers of a machine share."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # no worker writes to it
            t = torch.from_numpy(array)
        return (t if t.data_ptr() % _ALIGNED == 0 else t.clone()).to(self._setup.device)


@dataclass
class _StoredTensor:
    tensor: Tensor  # held, so that no other tensor gets its id
    tickets: int = 0
    ref: Any = None


class _ObjectStore:
    """The tensors of tickets: each is put into Ray's object store once and taken out with its last ticket.

    The newest global stays when all its tickets are back: the next ticket may be of it again.
    """

    def __init__(self, ray: Any):
        self._ray = ray
        self._held: dict[int, _StoredTensor] = {}
        self._version = -1
        self._idle: int | None = None

    def hold(self, ticket: Ticket) -> None:
        for t in (ticket.sent, *ticket.payload.values()):
            self._held.setdefault(id(t), _StoredTensor(t)).tickets += 1
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


@dataclass(eq=False)
class _TrainingActor:
    actor: Any
    starting: Any  # its answer is the version of tarry there; None from then on
    jobs: dict[Any, int] = field(default_factory=dict)  # visits by the answers to come, in the order of training


class Ray(QueueingExecutor[_TrainingActor]):
    """Executor of `workers` actors, each with one CPU and, where it trains on a GPU, a share of that.

    Training begins when the first actor is up. Those for which the cluster has no room start when it has.
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
        super().__init__(workers, lookahead)
        self._ray, self._optimizer_at = load(), work.optimizer_at
        self._device = next(module.parameters()).device
        self._store = _ObjectStore(self._ray)
        self._workers: list[_TrainingActor] = []
        self._failed_starts = 0  # workers lost before they were up, in a row
        self._leave = connect(address, cpus=workers)
        self._cluster = ClusterWatch()
        try:
            check_capacity(gpus)
            register_user_modules()
            self._setup = self._ray.put(_setup(module, layout, task, rule, work, seed, precision))
            self._trainer = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Trainer)
            self._workers = [self._start() for _ in range(workers)]
        except BaseException:
            self.close()
            raise

    def _start(self) -> _TrainingActor:
        actor = self._trainer.remote(self._setup)
        return _TrainingActor(actor, actor.ready.remote())

    def submit(self, ticket: Ticket, memory: Mapping[str, Tensor], due: float) -> None:
        self._store.hold(ticket)
        super().submit(ticket, memory, due)

    def _free_worker(self) -> _TrainingActor | None:
        up = [w for w in self._workers if w.starting is None]
        worker = min(up, key=lambda w: len(w.jobs), default=None)
        return None if worker is None or len(worker.jobs) == DEPTH else worker

    def _send(self, worker: _TrainingActor, number: int, visit: QueuedVisit) -> None:
        self._cluster.check()
        t = visit.ticket
        optimizer = None if self._optimizer_at is None else self._optimizer_at(t.schedule_input)
        refs = [self._store.ref(tensor) for tensor in (t.sent, *t.payload.values())]
        who = (number, t.client, t.visit)
        answer = worker.actor.train.remote(who, optimizer, _arrays(visit.memory), tuple(t.payload), *refs)
        worker.jobs[answer] = number

    def _listen(self) -> None:
        worker_of = {ref: w for w in self._workers for ref in (*w.jobs, *([] if w.starting is None else [w.starting]))}
        ready: list[Any] = []
        while not ready:
            ready = self._ray.wait(list(worker_of), timeout=_POLL)[0]
            self._cluster.check()
        for ref in ready:
            if worker_of[ref] in self._workers:  # else replaced meanwhile
                self._receive(ref, worker_of[ref])

    def _receive(self, ref: Any, worker: _TrainingActor) -> None:
        """Read an answer. The array of it in Ray's memory is given back here: later, the cluster may have ended."""
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as e:
            raise TrainingFailed(f"training failed in a Ray worker: {e}") from e
        except self._ray.exceptions.RayError as e:
            self._cluster.check()
            self._replace(worker, e)
            return
        if ref == worker.starting:
            self._on_started(worker, answer)
        else:
            self._on_answer(worker.jobs.pop(ref), answer)

    def _on_started(self, worker: _TrainingActor, version: str) -> None:
        if version != __version__:
            raise BadInput(f"--address: a machine of the Ray cluster has tarry {version}, and here it is {__version__}")
        worker.starting, self._failed_starts = None, 0

    def _on_answer(self, number: int, answer: Any) -> None:
        if isinstance(answer, RemoteError):
            answer.reraise("a Ray worker")
        delta, *numbers, extras, memory, notes = answer
        carried = [{k: torch.tensor(v, device=self._device) for k, v in a.items()} for a in (extras, memory, notes)]
        result = LocalResult(torch.tensor(delta, device=self._device), *numbers, *carried)
        self._store.release(self._finish(number, result).ticket)

    def _replace(self, worker: _TrainingActor, why: Exception) -> None:
        """Start a worker in the place of a lost one, and put its visits back into the queue."""
        self._workers.remove(worker)
        self._kill(worker)
        lost = list[int]()
        for ref, number in worker.jobs.items():
            try:
                self._on_answer(number, self._ray.get(ref))
            except self._ray.exceptions.RayError:
                lost.append(number)
        if worker.starting is not None:
            self._failed_starts += 1
            if self._failed_starts == self.lives:
                raise WorkerDied(f"Ray workers end before they begin, {self.lives} in a row: {why}")
        self._requeue(lost)
        if lost and self._has_lost_its_lives(lost[0]):  # the worker trained the first; the others had not begun
            t = self._waiting[lost[0]].ticket
            raise WorkerDied(
                f"{self.lives} Ray workers were lost in a row while they trained client {t.client} (visit {t.visit}): "
                f"killed, or out of memory? {one_line(why)}"
            )
        log.warning("a Ray worker was lost; another takes its place, and what it had is trained again")
        self._workers.append(self._start())

    def _kill(self, worker: _TrainingActor) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def close(self) -> None:
        if self._ray.is_initialized():
            for worker in self._workers:
                self._kill(worker)
        self._workers.clear()
        self._store.clear()
        self._setup = None
        self._cluster.close()
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
) -> _RaySetup:
    shards = task.clients if isinstance(task.clients, Shards) else None
    clients = task.clients if shards is None else [(shards.x, shards.y)]
    arrays = [(x.cpu().numpy(), y.cpu().numpy()) for x, y in clients]
    sizes = None if shards is None else np.diff(shards.ends).tolist()
    without_data = replace(task, model=nn.Module, clients=(), test=None, unlabeled=None, unlabeled_mask=None)
    here, device = copy.deepcopy(module).cpu(), next(module.parameters()).device.type
    return _RaySetup(
        here, layout, without_data, arrays, sizes, rule, replace(work, optimizer_at=None), seed, precision, device
    )
