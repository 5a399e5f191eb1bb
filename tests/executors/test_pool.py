from __future__ import annotations

import multiprocessing as mp
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import StorageError, TarryError, WorkerDied
from tarry.core.events import Event
from tarry.core.local_rule import VisitOutput
from tarry.executors.pool import Pool
from tarry.runs.build import build_run
from tarry.runs.simulation import Simulation
from tests.helpers.models import random_clients
from tests.helpers.processes import process_ended, wait_until

HERE = os.getpid()


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    yield
    assert mp.active_children() == []


DIGITS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 400, "hidden": 16},
    "clients": 6,
    "delay": [1.0, 1.3, 2.1, 2.9, 0.8, 4.0],
    "failure_rate": 0.1,
    "time": 9.0,
    "epochs": 1,
    "eval_every": 3.0,
}


def story(**settings: Any) -> tuple[list[tuple[Any, ...]], tarry.Result]:
    """Every event (weights as bytes) and the result."""
    events: list[tuple[Any, ...]] = []

    def listen(e: Event) -> None:
        events.append(e._replace(weights=e.weights.numpy().tobytes()))  # type: ignore[arg-type]

    return events, tarry.run(callbacks=[listen], **settings)


METHODS = [
    {"name": "orthofl", "placement": "client"},
    {"name": "orthofl", "placement": "hybrid"},
    {"name": "fedbuff", "buffer": 3},
    "fedprox",
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_processes_come_to_the_same_bits_as_one_by_one(method):
    inline, alone = story(method=method, **DIGITS)
    for kw in ({"workers": 2}, {"workers": 3, "lookahead": 4}, {"executor": "pool", "workers": 1, "lookahead": 5}):
        pooled, result = story(method=method, **DIGITS, **kw)
        assert pooled == inline
        assert result.weights_sha256 == alone.weights_sha256
        assert result.curve == alone.curve
        assert (result.bytes_up, result.bytes_down) == (alone.bytes_up, alone.bytes_down)
        assert result.peak_server_bytes == alone.peak_server_bytes


def noisy_task(loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> tarry.Task:
    """BatchNorm statistics and dropout, in a model made by a lambda."""
    clients = random_clients([10] * 3, 4, 3, seed=0)
    return tarry.Task(
        "noisy",
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)),
        loss=loss,
        clients=clients,
        test=clients[0],
    )


SMALL: dict[str, Any] = {"delay": [1.0, 1.5, 2.5], "time": 6.0, "batch": 5, "epochs": 2, "eval_every": 2.0}


def test_lambdas_statistics_and_dropout_are_the_same_in_processes():
    task = noisy_task(lambda out, y: cross_entropy(out, y) + 0.01 * out.square().mean())
    inline, _ = story(task=task, dtype="float64", **SMALL)
    assert story(task=task, dtype="float64", workers=2, **SMALL)[0] == inline


@dataclass(frozen=True)
class Counted(tarry.LocalRule):
    """Keeps a count, and sends it along in several shapes and types."""

    def begin(self, brief):
        visits = brief.memory.get("visits", torch.tensor(0))
        return brief.weights, {"visits": visits + 1, "hint": brief.payload.get("hint", torch.zeros(2, 0))}

    def finish(self, w, context, state):
        v = context["visits"]
        extras = {"count": v, "double": v.double() / 3, "row": v.repeat(2, 2), "hint": context["hint"]}
        return VisitOutput(extras, {"visits": v})


def test_extras_memory_and_payload_travel_in_any_shape_and_type():
    seen: list[tuple[Any, ...]] = []

    def look(update: tarry.Update, view: tarry.ServerView) -> tarry.Update:
        extras = {k: (t.dtype, tuple(t.shape), t.tolist()) for k, t in update.extras.items()}
        seen.append((update.ticket.client, update.ticket.visit, extras))
        return update

    def hinted(update: tarry.Update, view: tarry.ServerView) -> tarry.NextStart:
        return tarry.NextStart(view.weights, {"hint": torch.full((2, 1), update.staleness, dtype=torch.int32)})

    method = tarry.Method("counted", local=Counted(), correct=tarry.stateless(look), reply=tarry.stateless(hinted))
    stories = []
    for kw in ({}, {"workers": 2}):
        seen.clear()
        stories.append((story(method=method, task=noisy_task(), **SMALL, **kw)[0], list(seen)))
    assert stories[0] == stories[1]
    _, visit, extras = seen[-1]
    assert visit > 0
    assert extras["count"] == (torch.int64, (), visit + 1)
    assert extras["double"] == (torch.float64, (), (visit + 1) / 3)
    assert extras["row"][1] == (2, 2)
    assert extras["hint"][:2] == (torch.int32, (2, 1))


def test_an_exception_in_a_worker_reaches_the_caller_with_its_text():
    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE:
            raise ZeroDivisionError("there is a worm in this apple")
        return cross_entropy(out, y)

    with pytest.raises(TarryError, match=r"(?s)ZeroDivisionError: there is a worm in this apple.*in loss"):
        tarry.run(task=noisy_task(loss), workers=2, **SMALL)


def test_an_update_that_is_not_finite_is_refused_in_processes_too():
    task = noisy_task()
    task.clients[1][0][0, 0] = float("nan")
    result = tarry.run(task=task, workers=2, **{**SMALL, "batch": "all"})
    assert result.rejected == 4  # visits of 1.5 s in 6 s
    assert result.updates == 6 + 2


def test_clients_of_a_worker_that_was_killed_at_work_are_trained_again_to_the_same_bits(tmp_path, caplog):
    flag = tmp_path / "killed"

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(out, y)

    inline, _ = story(task=noisy_task(), method="orthofl", **SMALL)
    for workers in (1, 2):
        flag.unlink(missing_ok=True)
        caplog.clear()
        pooled, _ = story(task=noisy_task(loss), method="orthofl", executor="pool", workers=workers, **SMALL)
        assert pooled == inline
        assert flag.exists()
        assert re.fullmatch(
            r"training process \d+ was lost \(code -9\); another takes its place, and trains again what it had",
            caplog.messages[0],
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_stopped_at_work_is_replaced_after_the_timeout_to_the_same_bits(workers, tmp_path, caplog):
    flag = tmp_path / "stopped"

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return cross_entropy(out, y)

    inline, _ = story(task=noisy_task(), method="orthofl", **SMALL)
    given = {"executor": "pool", "workers": workers, "worker_timeout": 3.0}
    pooled, _ = story(task=noisy_task(loss), method="orthofl", **given, **SMALL)
    assert pooled == inline
    assert re.fullmatch(
        r"training process \d+ did not respond for 3 s; another takes its place, and trains again what it had",
        caplog.messages[0],
    )


def test_a_worker_that_is_stopped_while_the_parent_sends_more_than_a_pipe_holds_is_replaced():
    """SCAFFOLD's vectors go through the pipe: the parent waits in the middle of a message."""
    wide = replace(noisy_task(), model=lambda: nn.Sequential(nn.Linear(4, 60_000), nn.Linear(60_000, 3)))
    settings: dict[str, Any] = {"method": "scaffold", "task": wide, "delay": [1.0] * 3, "batch": "all", "epochs": 1}
    made = build_run(Spec.of({**settings, "workers": 1, "executor": "pool", "updates": 6, "worker_timeout": 3.0}))
    pool = Simulation(made).executor()
    assert isinstance(pool, Pool)
    try:
        (worker,) = mp.active_children()
        os.kill(worker.pid or 0, signal.SIGSTOP)
        Simulation(made).simulator(pool, []).run()
    finally:
        pool.close()
    assert not worker.is_alive()


def test_a_client_whose_workers_stop_again_and_again_is_named(monkeypatch):
    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGSTOP)
        return cross_entropy(out, y)

    monkeypatch.setattr(Pool, "lives", 2)
    words = (
        "2 training processes in a row did not respond for 2 s while they trained client 0 (visit 0): stopped, or in"
    )
    with pytest.raises(WorkerDied, match=re.escape(words) + ".*worker_timeout=0 waits for ever"):
        tarry.run(task=noisy_task(loss), executor="pool", worker_timeout=2.0, **SMALL)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_that_are_killed_all_at_once_and_again_are_replaced_to_the_same_bits(workers):
    inline, _ = story(task=noisy_task(), **SMALL)
    events, pids = list[Any](), set[int]()

    def listen(e: Event) -> None:
        events.append(e._replace(weights=e.weights.numpy().tobytes()))  # type: ignore[arg-type]
        if e.kind == "arrival" and e.updates in (2, 6):
            for p in mp.active_children():
                pids.add(p.pid or 0)
                os.kill(p.pid or 0, signal.SIGKILL)

    tarry.run(task=noisy_task(), workers=workers, executor="pool", callbacks=[listen], **SMALL)
    assert events == inline
    assert len(pids) > workers
    assert all(process_ended(p) for p in pids)


def test_an_answer_that_a_killed_worker_did_not_finish_is_asked_for_again():
    pool = made_pool()
    mine, theirs = mp.Pipe()
    try:
        for p in mp.active_children():
            os.kill(p.pid or 0, signal.SIGKILL)
            p.join()
        whole, pool._conns[0] = pool._conns[0], mine
        os.write(theirs.fileno(), b"\0\0\1\0and no more")
        theirs.close()
        whole.close()
        assert all(pool.collect(number).finite for number in range(3))
    finally:
        pool.close()


def test_a_client_that_kills_its_workers_again_and_again_is_named_and_the_others_are_ended():
    pids: set[int] = set()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and y.shape[0] == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(out, y)

    def listen(_: Event) -> None:
        pids.update(p.pid for p in mp.active_children() if p.pid is not None)

    poisoned = noisy_task(loss)
    x, y = poisoned.clients[1]
    clients = [poisoned.clients[0], (x[:7], y[:7]), poisoned.clients[2]]
    words = r"3 training processes in a row were lost \(code -9\) while they trained client 1 \(visit 0\): "
    for workers, way_out in ((2, " Fewer workers take less of it"), (1, "")):
        with pytest.raises(WorkerDied, match=f"^{words}killed, or out of memory\\?{way_out}$"):
            tarry.run(
                task=replace(poisoned, clients=clients), workers=workers, executor="pool", callbacks=[listen],
                **{**SMALL, "batch": "all"},
            )  # fmt: skip
    assert len(pids) >= 3
    assert all(process_ended(p) for p in pids)


def test_shared_memory_that_cannot_be_made_is_a_storage_error_and_the_run_goes_on_later(tmp_path):
    whole = tarry.run("fedasync", **DIGITS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(
            StorageError, match=r"^shared memory of [\d,]+ bytes for workers.* it cannot be made"
        ) as found:
            tarry.run("fedasync", **DIGITS, workers=2, out=tmp_path / "r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"tarry.resume({str(tmp_path / 'r')!r}) continues this run" in str(found.value)
    assert tarry.resume(tmp_path / "r").weights_sha256 == whole.weights_sha256


def test_workers_that_never_get_to_work_are_given_up():
    class Unlucky(nn.Linear):
        def train(self, mode: bool = True) -> Unlucky:
            if os.getpid() != HERE:
                os._exit(3)
            return super().train(mode)

    unlucky = replace(noisy_task(), model=lambda: nn.Sequential(Unlucky(4, 3)))
    with pytest.raises(WorkerDied, match=r"3 training processes in a row were lost \(code 3\)"):
        tarry.run(task=unlucky, workers=2, **SMALL)


ORPHANS = """
import multiprocessing as mp, os, signal
import torch
import tarry
from torch.nn.functional import cross_entropy

pids, killed = set(), []

def listen(e):
    if e.kind != "arrival":
        return
    pids.update(p.pid for p in mp.active_children())
    if len(pids) == 2 and not killed:
        killed.append(min(pids))
        os.kill(killed[0], signal.SIGKILL)
    elif len(pids) == 3:
        print(*pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

clients = [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))] * 3
task = tarry.Task("zeros", lambda: torch.nn.Linear(2, 2), cross_entropy, clients, clients[0])
tarry.run(task=task, delay=[1, 2, 3], updates=1000, workers=2, callbacks=[listen])
"""


def test_workers_end_when_their_parent_is_killed_and_so_do_those_that_took_anothers_place():
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(p) for p in done.stdout.split()]
    assert len(pids) == 3
    wait_until(lambda: all(process_ended(p) for p in pids))


def test_processes_end_when_a_callback_of_the_callers_fails():
    pids: set[int] = set()

    def listen(e: Event) -> None:
        if e.kind == "arrival":
            pids.update(p.pid for p in mp.active_children() if p.pid is not None)
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        tarry.run(task=noisy_task(), workers=2, callbacks=[listen], **SMALL)
    assert len(pids) == 2
    assert all(process_ended(p) for p in pids)


def made_pool() -> Pool:
    made = build_run(Spec.of({"task": noisy_task(), "workers": 2, **SMALL}))
    pool = Simulation(made).executor()
    assert isinstance(pool, Pool)
    sim = Simulation(made).simulator(pool, [])
    sim._submit_all(sim.engine.begin(sim._duration))  # three jobs for two workers
    return pool


def test_closing_ends_the_processes_also_with_work_under_way_and_again():
    pool = made_pool()
    pids = [p.pid for p in mp.active_children()]
    assert len(pids) == 2
    pool.close()
    assert all(process_ended(p) for p in pids if p is not None)
    assert mp.active_children() == []
    pool.close()


def test_a_job_may_be_asked_for_in_any_order():
    pool = made_pool()
    try:
        late, early = pool.collect(2), pool.collect(0)
    finally:
        pool.close()
    assert late.n_examples == early.n_examples == 10
    assert not torch.equal(late.delta, early.delta)


def test_workers_ignore_ctrl_c_and_leave_it_to_the_parent():
    pool = made_pool()
    try:
        assert pool.collect(0).finite
        assert pool.collect(1).finite  # the other worker's: both are up
        for p in mp.active_children():
            os.kill(p.pid or 0, signal.SIGINT)
        assert pool.collect(2).finite
        assert len(mp.active_children()) == 2
    finally:
        pool.close()
