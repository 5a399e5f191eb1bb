"""A network in memory: nodes that work one letter at a time, on a clock that only sleeping moves."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tarry.config.spec import Spec
from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.client.worker import Worker, prove_identity
from tarry.deploy.protocol import TarryProtocol
from tarry.deploy.server.driver import Driver, DriverConfig
from tarry.deploy.server.open_tickets import max_tickets_per_client
from tarry.deploy.wire import EncodedArray, ReplyMessage, Request, SingleLinkGrid, Unreachable
from tarry.runs.build import BuiltRun, build_run

SMALL = {
    "task": "digits:limit=200,hidden=8",
    "clients": 4,
    "epochs": 1,
    "delay": "constant",
    "updates": 12,
    "gate": True,
}


class Clock:
    """Seconds since a day long ago; `sleep` moves it."""

    def __init__(self, now: float = 1e9):
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def npy(a: np.ndarray) -> EncodedArray:
    out = io.BytesIO()
    np.save(out, a, allow_pickle=False)
    return EncodedArray(a.dtype.name, a.shape, "numpy.ndarray", out.getvalue())


@dataclass
class Node:
    """A client's machine: how long it takes for its next letter, and what becomes of its answers."""

    worker: Worker
    name: str
    place: int | None
    seconds: Callable[[int], float]
    spoil: Callable[[Request, ReplyMessage], ReplyMessage] = lambda _, back: back
    free: float = 0.0  # when it has done what it was sent
    worked: int = 0

    def answer(self, request: Request, id_: str) -> ReplyMessage:
        if request.kind == "query.hello":
            words: Any = prove_identity(
                self.worker.store, request.fields, node=request.node, name=self.name, place=self.place
            )
            return ReplyMessage(id_, request.node, words, {})
        if request.kind == "evaluate":
            return ReplyMessage(id_, request.node, self.worker.evaluate(request.fields, request.arrays), {})
        words, arrays = self.worker.train(request.fields, request.arrays)
        return ReplyMessage(id_, request.node, words, {k: npy(np.asarray(a)) for k, a in arrays.items()})


@dataclass
class FakeGrid(SingleLinkGrid):
    """Nodes by their number."""

    clock: Clock
    there: dict[int, Node] = field(default_factory=dict)
    run: str = "1"
    down: bool = False
    began: dict[int, str] = field(default_factory=dict)  # when a node began, if it restarted
    log: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = itertools.count()
        self._due: dict[str, tuple[float, Request, ReplyMessage]] = {}

    def nodes(self) -> dict[int, str]:
        self._reachable()
        return {n: self.began.get(n, "") for n in self.there}

    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def push(self, requests: Sequence[Request]) -> list[str | None]:
        self._reachable()
        ids: list[str | None] = []
        for request in requests:
            node = self.there.get(request.node)
            if node is None:
                ids.append(None)
                continue
            self.log.append(request)
            id_ = f"{self.run}-{next(self._ids)}"
            seconds = 0.5 if request.kind == "query.hello" else node.seconds(node.worked)
            node.worked += request.kind == "train"
            node.free = max(node.free, self.clock()) + seconds
            back = node.spoil(request, node.answer(request, id_))
            self._due[id_] = (node.free, request, back)
            ids.append(id_)
        return ids

    def pull(self, ids: Iterable[str]) -> list[ReplyMessage]:
        self._reachable()
        out = []
        for id_ in ids:
            due, request, back = self._due.get(id_, (float("inf"), None, None))
            if request is not None and request.node not in self.there:
                out.append(ReplyMessage(id_, 0, {}, {}, error="node is gone"))
                del self._due[id_]
            elif due <= self.clock():
                out.append(back)
                del self._due[id_]
        return out

    def _reachable(self) -> None:
        if self.down:
            raise Unreachable("connection rejected")


@cache
def small_plan(**settings: Any) -> BuiltRun:
    return build_run(Spec.of({**SMALL, **settings}))


def nodes(made: BuiltRun, homes: Path, seconds: Callable[[int, int], float] | None = None) -> dict[int, Node]:
    """A node for every client, node 100 + c for client c; `seconds(client, count)`."""
    took = seconds or (lambda c, _: 2.0 + 3 * c)
    s = made.spec
    out = {}
    for c in range(len(made.task.clients)):
        worker = Worker(made.bound(), made.method.local, made.work, s.seed, ClientStore(homes / str(c)))
        out[100 + c] = Node(worker, f"client {c}", c, lambda count, c=c: took(c, count))
    return out


def driver(
    made: BuiltRun,
    grid: Any,
    folder: Path,
    *,
    known: Any = None,
    knows: bool = True,
    real_time: bool = False,
    **config: Any,
) -> Driver:
    """A driver for a plan, in a folder that holds its spec."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.toml").write_text(made.spec.to_toml())
    given = {
        "eval_every": 5.0,
        "max_tickets_per_client": max_tickets_per_client(made.method),
        "checkpoint_every": 20.0,
        "poll": 0.1,
        **config,
    }

    def examples(client: int) -> tuple[int, int]:
        n = len(made.task.clients[client][0])
        return n, made.work.n_steps(n)

    def protocol(federation: str) -> TarryProtocol:
        rule = made.method.local
        return TarryProtocol(
            made.layout,
            rule,
            dtype=made.bound().flat.dtype,
            federation=federation,
            expected_work=examples if knows else None,
        )

    server = made.server(folder / "cache")
    return Driver(
        grid,
        folder,
        server,
        protocol,
        config=DriverConfig(**given),
        budget=made.budget,
        evaluate=made.evaluator(),
        gate=made.gate(),
        monitor=made.monitor(),
        measure=made.health_measure(),
        known=known,
        clock=time.time if real_time else grid.clock,
    )


def finished(d: Driver, grid: FakeGrid, *, ticks: int = 20_000) -> str:
    """Run to the end, on the fake clock."""
    left = itertools.count()

    def sleep(seconds: float) -> None:
        assert next(left) < ticks, "it does not end"
        grid.clock.sleep(seconds)

    why = d.run(sleep=sleep)
    d.close()
    return why


__all__ = ["SMALL", "Clock", "FakeGrid", "Node", "driver", "finished", "nodes", "npy", "replace", "small_plan"]
