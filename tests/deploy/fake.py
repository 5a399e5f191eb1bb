"""A network in memory: nodes that work one letter at a time, on a clock that only sleeping moves."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tarry.config.spec import Spec
from tarry.deploy.client.client_store import Home
from tarry.deploy.client.worker import Worker, hello
from tarry.deploy.protocol import Own
from tarry.deploy.server.course import most_in_flight
from tarry.deploy.server.driver import Driver, Terms
from tarry.deploy.wire import Blob, Letter, Return, Unreachable
from tarry.runs.build import BuiltRun, build_run

SMALL = {"task": "digits:limit=200,hidden=8", "clients": 4, "epochs": 1, "delay": "constant", "updates": 12}


class Clock:
    """Seconds since a day long ago; `sleep` moves it."""

    def __init__(self, now: float = 1e9):
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def npy(a: np.ndarray) -> Blob:
    out = io.BytesIO()
    np.save(out, a, allow_pickle=False)
    return Blob(a.dtype.name, a.shape, "numpy.ndarray", out.getvalue())


@dataclass
class Node:
    """A client's machine: how long it takes for its next letter, and what becomes of its answers."""

    worker: Worker
    name: str
    place: int | None
    seconds: Callable[[int], float]
    spoil: Callable[[Letter, Return], Return] = lambda _, back: back
    free: float = 0.0  # when it has done what it was sent
    worked: int = 0

    def answer(self, letter: Letter, id_: str) -> Return:
        if letter.kind == "query.hello":
            words: Any = hello(self.worker.home, letter.words, node=letter.node, name=self.name, place=self.place)
            return Return(id_, letter.node, words, {})
        if letter.kind == "evaluate":
            return Return(id_, letter.node, self.worker.evaluate(letter.words, letter.arrays), {})
        words, arrays = self.worker.train(letter.words, letter.arrays)
        return Return(id_, letter.node, words, {k: npy(np.asarray(a)) for k, a in arrays.items()})


@dataclass
class FakeGrid:
    """Nodes by their number."""

    clock: Clock
    there: dict[int, Node] = field(default_factory=dict)
    run: str = "1"
    down: bool = False
    began: dict[int, str] = field(default_factory=dict)  # when a node began, where it did so anew
    log: list[Letter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = itertools.count()
        self._due: dict[str, tuple[float, Letter, Return]] = {}

    def nodes(self) -> dict[int, str]:
        self._reachable()
        return {n: self.began.get(n, "") for n in self.there}

    def push(self, letters: Sequence[Letter]) -> list[str | None]:
        self._reachable()
        ids: list[str | None] = []
        for letter in letters:
            node = self.there.get(letter.node)
            if node is None:
                ids.append(None)
                continue
            self.log.append(letter)
            id_ = f"{self.run}-{next(self._ids)}"
            seconds = 0.5 if letter.kind == "query.hello" else node.seconds(node.worked)
            node.worked += letter.kind == "train"
            node.free = max(node.free, self.clock()) + seconds
            back = node.spoil(letter, node.answer(letter, id_))
            self._due[id_] = (node.free, letter, back)
            ids.append(id_)
        return ids

    def pull(self, ids: Iterable[str]) -> list[Return]:
        self._reachable()
        out = []
        for id_ in ids:
            due, letter, back = self._due.get(id_, (float("inf"), None, None))
            if letter is not None and letter.node not in self.there:
                out.append(Return(id_, 0, {}, {}, error="node is gone"))
                del self._due[id_]
            elif due <= self.clock():
                out.append(back)
                del self._due[id_]
        return out

    def _reachable(self) -> None:
        if self.down:
            raise Unreachable("connection refused")


@cache
def small_plan(**settings: Any) -> BuiltRun:
    return build_run(Spec.of({**SMALL, **settings}))


def nodes(made: BuiltRun, homes: Path, seconds: Callable[[int, int], float] | None = None) -> dict[int, Node]:
    """A node for every client, node 100 + c for client c; `seconds(client, count)`."""
    took = seconds or (lambda c, _: 2.0 + 3 * c)
    s = made.spec
    out = {}
    for c in range(len(made.task.clients)):
        worker = Worker(made.bound(), made.method.local, made.work, s.seed, Home(homes / str(c)))
        out[100 + c] = Node(worker, f"client {c}", c, lambda count, c=c: took(c, count))
    return out


def driver(
    made: BuiltRun, grid: FakeGrid, folder: Path, *, known: Any = None, knows: bool = True, **terms: Any
) -> Driver:
    """A driver for a plan, in a folder that holds its spec."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.toml").write_text(made.spec.to_toml())
    given = {
        "eval_every": 5.0,
        "per_client": most_in_flight(made.method),
        "checkpoint_every": 20.0,
        "poll": 0.1,
        **terms,
    }

    def examples(client: int) -> tuple[int, int]:
        n = len(made.task.clients[client][0])
        return n, made.work.n_steps(n)

    def speech(federation: str) -> Own:
        rule = made.method.local
        return Own(
            made.layout, rule, dtype=made.bound().flat.dtype, federation=federation, knows=examples if knows else None
        )

    server = made.server(folder / "cache")
    return Driver(
        grid,
        folder,
        server,
        speech,
        terms=Terms(**given),
        horizon=server._horizon,
        target=made.spec.target,
        evaluate=made.evaluator(),
        known=known,
        clock=grid.clock,
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
