from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput, TarryError, WorkerDied
from tarry.core.events import Event
from tarry.core.tickets import NOTHING, Ticket
from tarry.executors import ray as ray_executor
from tarry.executors import ray_cluster
from tarry.executors.base import Executor
from tarry.executors.ray import Ray, _ObjectStore, _setup, _Trainer
from tarry.runs.build import build_run
from tarry.runs.jobs import run_or_resume
from tarry.runs.parallel_ray import _run, run_on_ray
from tarry.runs.run import Progress
from tarry.runs.simulation import Simulation
from tarry.runs.specs import specs_of
from tarry.training.determinism import deterministic
from tests.helpers.elsewhere import EXACT, SETTINGS, begun_run
from tests.helpers.models import random_clients
from tests.helpers.processes import descendants, process_status, wait_until

HERE = os.getpid()


@pytest.fixture(autouse=True, scope="module")
def cluster() -> Iterator[str]:
    """Ray on this machine, with a GPU as far as it is told, and nothing of it left when the tests are over."""
    term, before = signal.getsignal(signal.SIGTERM), descendants(HERE)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(ray, "init", partial(ray.init, num_gpus=1, object_store_memory=200_000_000))
        leave = ray_cluster.connect(None, cpus=2)
        yield ray.get_runtime_context().gcs_address
        of_ray = descendants(HERE) - before  # other tests leave multiprocessing's own tracker
        leave()
    assert len(of_ray) >= 3
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is term
    wait_until(lambda: not any(process_status(p) for p in of_ray))


def task(loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> tarry.Task:
    clients = random_clients([9] * 6, 3, 3, seed=7)
    return tarry.Task(
        "small",
        model=lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3)),
        loss=loss,
        clients=clients,
        test=clients[0],
    )


SMALL: dict[str, Any] = {
    "delay": [1.0, 1.3, 2.1, 2.9, 0.8, 4.0],
    "time": 6.0,
    "batch": 5,
    "epochs": 1,
    "eval_every": 3.0,
    "failure_rate": 0.1,
}


def on_ray(made: Any, workers: int = 2, **kw: Any) -> Ray:
    return Ray(
        made.module,
        made.layout,
        made.task,
        rule=made.method.local,
        work=made.work,
        seed=made.spec.seed,
        workers=workers,
        **kw,
    )


def story(executor: Callable[[Any], Executor] = lambda made: Simulation(made).executor(), **settings: Any) -> list[Any]:
    """Every event, weights as bytes, and what there was to go by at the end."""
    events: list[Any] = []

    def listen(e: Event) -> None:
        events.append(e._replace(weights=e.weights.numpy().tobytes()))  # type: ignore[arg-type]

    made = build_run(Spec.of({"task": task(), **SMALL, **settings}))
    used = executor(made)
    try:
        sim = Simulation(made).simulator(used, [listen])
        sim.run()
    finally:
        used.close()
    return [*events, sim.engine.curve, sim.engine.bytes_up, sim.engine.bytes_down]


MINE = """
import torch
import tarry

class Small(torch.nn.Linear):
    pass

def mine():
    g = torch.Generator().manual_seed(7)
    x, y = torch.randn(54, 3, generator=g), torch.randint(3, (54,), generator=g)
    clients = list(zip(x.split(9), y.split(9)))
    return tarry.Task("mine", lambda: Small(3, 3), torch.nn.functional.cross_entropy, clients, clients[0])
"""


@pytest.mark.parametrize("method", ["fedogd", "scaffold"])
def test_what_clients_keep_what_travels_along_and_a_file_of_ones_own_are_the_same_on_a_cluster(method, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    precision = "bf16" if method == "scaffold" else "float32"
    settings = {"method": method, "task": f"{tmp_path}/mine.py:mine", "batch": "all", "precision": precision}
    assert story(partial(on_ray, workers=1, precision=precision), **settings) == story(**settings)


def test_a_cluster_comes_to_the_same_bits_as_one_by_one_and_gets_weights_once_a_version(monkeypatch):
    settings: dict[str, Any] = {
        "method": "fedavg",
        "task": {"name": "digits", "limit": 300, "hidden": 8},
        "clients": 6,
        "dtype": "float64",
        "batch": "all",
        "lr_schedule": "exponential:by=time,factor=0.9",
        "time": 14.0,
    }
    inline, puts, put = story(**settings), list[Any](), ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    assert story(partial(on_ray, lookahead=3), **settings) == inline
    versions = {e.version for e in inline[:-3] if e.kind == "hand_out"}
    assert len(versions) == 4
    assert len(puts) == 1 + len(versions)  # what a worker needs once, and the weights


def ticket(number: int, version: int, sent: Tensor, *, anchor: Tensor | None = None, **payload: Tensor) -> Ticket:
    return Ticket(number, number, 0, version, 0.0, sent, sent if anchor is None else anchor, payload or NOTHING)


def test_what_tickets_share_is_put_once_and_let_go_with_the_last_of_them():
    puts: list[list[float]] = []
    store = _ObjectStore(SimpleNamespace(put=lambda array: puts.append(array.tolist()) or len(puts)))
    first, along, own = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0])
    tickets = [ticket(0, 0, first, c=along), ticket(1, 0, first, c=along), ticket(2, 0, own, anchor=first)]
    for t in tickets:
        store.hold(t)
    assert puts == []  # nobody trains yet
    assert [store.ref(t) for t in (first, along, first, own, along)] == [1, 2, 1, 3, 2]
    assert puts == [[1.0], [2.0], [3.0]]
    store.release(tickets[0])
    assert len(store._held) == 3
    store.release(tickets[2])
    assert len(store._held) == 2
    store.release(tickets[1])
    assert [h.tensor for h in store._held.values()] == [first]  # still the global
    store.hold(ticket(3, 0, first))
    assert store.ref(first) == 1
    store.release(ticket(3, 0, first))
    second = torch.tensor([4.0])
    store.hold(ticket(4, 1, second))
    assert [h.tensor for h in store._held.values()] == [second]


def test_clients_of_a_worker_that_was_killed_at_work_are_trained_again_to_the_same_bits(tmp_path, caplog):
    flag = tmp_path / "killed"

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(out, y)

    assert story(on_ray, method="orthofl", task=task(loss)) == story(method="orthofl")
    assert flag.exists()
    (line,) = [r.getMessage() for r in caplog.records if r.name == "tarry"]
    assert line == "a Ray worker was lost; another takes its place, and what it had is trained again"


@pytest.mark.parametrize("other", ["by default", "pool", "batched", "auto"])
def test_a_run_resumes_under_ray_and_one_of_ray_resumes_elsewhere(other, tmp_path):
    whole = tarry.run(**SETTINGS)
    begun_run(tmp_path / "to ray", other)
    begun_run(tmp_path / "from ray", "ray", executor="ray", workers=2, address="auto")
    there = tarry.resume(tmp_path / "to ray", executor="ray", workers=2)
    back = tarry.resume(tmp_path / "from ray", executor="inline" if other == "by default" else other)
    for result in (there, back):
        assert result.updates == whole.updates
        assert torch.allclose(result.weights, whole.weights, rtol=1e-3, atol=1e-4)
        if other in EXACT:
            assert result.weights_sha256 == whole.weights_sha256


def test_a_cluster_that_has_ended_ends_the_run_with_an_error(tmp_path, monkeypatch):
    class Watch(ray_cluster.ClusterWatch):
        def __init__(self) -> None:
            super().__init__()
            self._raylet.close()
            self._raylet_address = str(tmp_path / "not there")

    monkeypatch.setattr(ray_executor, "ClusterWatch", Watch)
    with pytest.raises(WorkerDied, match=r"^the Ray cluster at .* has ended: there is no raylet on this machine any"):
        story(on_ray)


def test_a_raylet_that_closes_a_connection_but_lives_is_no_error(tmp_path):
    watch = ray_cluster.ClusterWatch()
    watch.check()
    watch._raylet.close()
    watch.check()
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(tmp_path / "raylet"))
        raylet.listen()
        watch._raylet.close()
        watch._raylet_address = str(tmp_path / "raylet")
        watch.check()
        there, _ = raylet.accept()
        there.close()  # it hangs up
        watch.check()
    with pytest.raises(WorkerDied, match="no raylet"):
        watch.check()
    watch.close()


def test_a_head_that_is_silent_for_long_ends_the_run_and_time_without_a_look_does_not_count(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    watch, answers = ray_cluster.ClusterWatch(), [True]
    monkeypatch.setattr(watch, "_head_answers", lambda: answers[0])

    def pass_by(seconds: float, step: float) -> None:
        for _ in range(int(seconds / step)):
            now[0] += step
            watch.check()

    pass_by(100, 1.0)
    answers[0] = False
    pass_by(18, 1.0)
    answers[0] = True
    pass_by(10, 1.0)
    answers[0] = False
    pass_by(10_000, 1000.0)
    with pytest.raises(WorkerDied, match=r"has ended: its head does not answer for 20 s"):
        pass_by(30, 1.0)
    watch.close()


def test_a_client_that_kills_its_workers_again_and_again_is_named(monkeypatch):
    monkeypatch.setattr(Ray, "lives", 2)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and y.shape[0] == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(out, y)

    poisoned = task(loss)
    x, y = poisoned.clients[4]
    clients = [*poisoned.clients]
    clients[4] = (x[:7], y[:7])
    with pytest.raises(WorkerDied, match=r"2 Ray workers were lost in a row while they trained client 4 \(visit 0\)"):
        story(partial(on_ray, workers=1), task=replace(poisoned, clients=clients), batch="all")


def worm(out: Tensor, y: Tensor) -> Tensor:
    if out.requires_grad:  # not before training begins
        raise ZeroDivisionError("there is a worm in this apple")
    return cross_entropy(out, y)


def test_an_exception_in_a_worker_reaches_the_caller_with_its_text():
    made = build_run(Spec.of({"task": task(worm), **SMALL}))
    setup = _setup(made.module, made.layout, made.task, made.method.local, made.work, 0)
    weights = made.layout.read(made.module, torch.float32).numpy()
    with deterministic():  # a worker's habits are its own process's
        said = _Trainer(setup).train((0, 1, 0), None, {}, (), weights)
    with pytest.raises(TarryError, match=r"(?s)in a Ray worker: ZeroDivisionError: there is a worm.*in worm"):
        Ray.__new__(Ray)._on_answer(0, said)


def test_workers_that_never_come_up_are_given_up_with_the_reason(monkeypatch):
    monkeypatch.setattr(Ray, "lives", 1)

    class Unlucky(nn.Linear):
        def __setstate__(self, state: dict[str, Any]) -> None:
            if os.getpid() != HERE:
                raise ArithmeticError("no such luck")
            self.__dict__.update(state)

    unlucky = replace(task(), model=lambda: nn.Sequential(Unlucky(3, 3)))
    with pytest.raises(WorkerDied, match=r"(?s)end before they begin, 1 in a row.*no such luck"):
        story(partial(on_ray, workers=1), task=unlucky)


def test_a_missing_ray_is_named_with_the_way_to_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"--executor ray: Ray is not installed; pip install 'tarry\[ray\]'"):
        story(on_ray)


def test_an_address_without_a_cluster_is_refused_by_its_flag(monkeypatch, cluster):
    with pytest.raises(BadInput, match=r"--address 192.0.2.1:6379: this process is on the Ray cluster at .* already"):
        ray_cluster.connect("192.0.2.1:6379", cpus=1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(ray_cluster, "_PATIENCE", 1)
        with pytest.raises(BadInput, match=f"--address 127.0.0.1:{port}: there is no Ray cluster .*no answer in 1 s"):
            ray_cluster.connect(f"127.0.0.1:{port}", cpus=1)
    with pytest.raises(BadInput, match=f"--address 127.0.0.1:{port}: there is no Ray cluster .*refused"):
        ray_cluster.connect(f"127.0.0.1:{port}", cpus=1)
    for address in ("nonsense", "ray://there:10001", ":6379"):
        with pytest.raises(BadInput, match=f"--address {address}: run on a machine of the cluster, and give"):
            ray_cluster.check(address)


def test_workers_hold_their_share_of_a_gpu_and_no_more_of_them_come_up_than_there_is_room_for(tmp_path):
    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE:
            (tmp_path / f"{os.getpid()} sees {os.environ['CUDA_VISIBLE_DEVICES']}").touch()
        return cross_entropy(out, y)

    story(partial(on_ray, gpus=0.6), task=task(loss), time=3.0)
    (seen,) = os.listdir(tmp_path)
    assert seen.endswith(" sees 0")
    with pytest.raises(BadInput, match=r"a worker takes 1 CPU and 2 GPU \(--gpus\), and the whole cluster has 2 and 1"):
        story(partial(on_ray, gpus=2.0))


def test_a_process_on_a_cluster_is_ended_by_a_signal_as_any_other(cluster):
    script = f"""
import os, signal, time
from tarry.executors.ray_cluster import connect
leave = connect({cluster!r}, cpus=1)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == ""


def test_leaving_a_cluster_that_was_there_leaves_it_there(cluster):
    script = f"""
import ray
from tarry.executors.ray_cluster import connect
leave = connect({cluster!r}, cpus=1)
assert ray.cluster_resources()["CPU"] == 2
leave()
assert not ray.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ray.cluster_resources()["CPU"] == 2


RUNS: dict[str, Any] = {"task": {"name": "digits", "limit": 200, "hidden": 8}, "clients": 4, "time": 300.0, "epochs": 1}


def test_runs_spread_over_the_cluster_come_to_what_they_come_to_here(tmp_path):
    specs = specs_of(["fedavg", "orthofl"], [0], RUNS)
    heard: list[tuple[int, float]] = []

    def show(index: int, spec: Spec, progress: Progress) -> None:
        assert spec is specs[index]
        heard.append((index, progress.fraction))

    folders = [tmp_path / "out" / s.label / "seed-0" for s in specs]
    results = run_on_ray(list(zip(specs, folders, strict=True)), one=run_or_resume, workers=2, show=show)
    for result, spec, folder in zip(results, specs, folders, strict=True):
        alone = run_or_resume(spec, None, lambda _: None)
        assert result.label == spec.label
        assert result.weights_sha256 == alone.weights_sha256
        assert torch.equal(result.weights, alone.weights)
        assert result.out == folder
        assert (folder / "result.json").is_file()
    assert {(0, 1.0), (1, 1.0)} <= set(heard)


def test_a_run_that_fails_in_a_task_says_which_and_why(tmp_path):
    (spec,) = specs_of(["fedavg"], [3], {**SMALL, "task": task(worm)})
    said = str(_run([(spec, None)], 0, run_or_resume, None, {}))
    assert said.startswith("the run of fedavg, seed 3, failed: there is a worm in this apple")
    assert "in worm" in said
    said = str(_run([(spec, tmp_path / "nobody" / "seed-3")], 0, run_or_resume, None, {}))
    assert said.startswith(f"--out {tmp_path}/nobody/seed-3: not all machines of the Ray cluster share it")
