"""Every call on a file may fail: a command then ends with one line that names the file, and loses nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from .harness import KILL, Call, Scenario, Server, every_way, kinds, one_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="calls are intercepted by LD_PRELOAD of Linux")

_SMALL = "--clients 3 --task.hidden 4 --task.limit 60 --checkpoint-every 1e-9"
#: client state in a file, and a sample of visits that changes
_RUN = f"run --method ca2fl --method.buffer 2 --cache-limit 1e-6 --proofs 1 {_SMALL} --updates 5 --out ROOT/run"
_COMPARE = f"compare --method fedasync --method fedavg --seeds 0 --workers 1 {_SMALL} --updates 3 --out ROOT/runs"
#: in two processes at a time
_PARALLEL = f"compare --method fedasync --method fedavg --seeds 0 --workers 2 {_SMALL} --updates 3 --out ROOT/runs"
_TOGETHER = f"run --method fedavg --executor batched {_SMALL} --updates 5 --out ROOT/run"
#: with settings and durations from files
_INPUTS = "run --spec ROOT/in/spec.toml --delay trace --delay.path ROOT/in/arrivals.csv --out ROOT/run"
_REPORT = "report ROOT/runs --html ROOT/pages/report.html"

Scenarios = dict[str, Callable[[], Scenario]]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    server = Server(tmp_path_factory.mktemp("faults"))

    def words(command: str) -> list[str]:
        return command.replace("ROOT", str(server.root)).split()

    def keep(name: str) -> Path:
        return Path(shutil.copytree(server.root, server.work / name))

    @cache
    def run() -> Scenario:
        return Scenario(server, words(_RUN))

    @cache
    def resume() -> Scenario:
        shutil.rmtree(server.root, ignore_errors=True)
        server.root.mkdir()
        server.run(words(_RUN), Call("rename", "run/checkpoints/00000003.safetensors"), KILL)
        made = Scenario(server, words("resume ROOT/run"), keep("interrupted"))
        for name in ("run/events.jsonl", "run/model.safetensors"):
            assert made.expected[name] == run().expected[name]
        return made

    @cache
    def compare() -> Scenario:
        return Scenario(server, words(_COMPARE))

    @cache
    def compare_again() -> Scenario:
        shutil.rmtree(server.root, ignore_errors=True)
        server.root.mkdir()
        server.run(words(_COMPARE), Call("rename", "runs/fedavg/seed-0/checkpoints/00000002.safetensors"), KILL)
        return Scenario(server, words(_COMPARE), keep("begun"))

    @cache
    def parallel() -> Scenario:
        return Scenario(server, words(_PARALLEL))

    @cache
    def together() -> Scenario:
        return Scenario(server, words(_TOGETHER), same_bits=False)

    @cache
    def inputs() -> Scenario:
        run()._from_start(None, 0)
        folder = server.work / "inputs"
        (folder / "in").mkdir(parents=True)
        for name in ("spec.toml", "arrivals.csv"):
            shutil.copy(server.root / "run" / name, folder / "in")
        return Scenario(server, words(_INPUTS), folder)

    @cache
    def report() -> Scenario:
        compare()._from_start(None, 0)
        return Scenario(server, words(_REPORT), keep("compared"))

    makers = [run, resume, compare, compare_again, parallel, together, inputs, report]
    yield {maker.__name__: maker for maker in makers}
    server.close()


def visit(made: Scenario, points: list[tuple[Call, int]], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Visit fault points, print their number, and fail with the list of those that went wrong."""
    wrong = [text for point, how in points if (text := made.visit(point, how))]
    with capsys.disabled():
        print(f"\n{name}: {len(points)} faults at {len({p for p, _ in points})} of {len(made.calls)} calls")  # noqa: T201
    assert not wrong, f"{len(wrong)} of {len(points)}\n" + "\n".join(wrong)


NAMES = ("run", "resume", "compare", "compare_again", "parallel", "together", "inputs", "report")


def test_calls_of_native_code_are_seen(scenarios):
    """safetensors opens the checkpoint after tarry has looked at it, and again for its list of tensors."""
    opened = [call.op for call in scenarios["resume"]().calls if call.path == "run/checkpoints/00000002.safetensors"]
    assert opened.count("open-read") == 3


@pytest.mark.parametrize("name", NAMES)
def test_one_call_of_each_kind_fails(name, scenarios, capsys):
    made, known = scenarios[name](), set[tuple[str, str]]()
    for other in NAMES[: NAMES.index(name)] if name not in ("resume", "parallel", "report") else ():
        kinds(scenarios[other]().calls, known)
    points = kinds(made.calls, known)
    if name == "parallel":  # nothing is new but that there are two processes
        points = list({p.op: p for p in points if p.op in ("open-write", "write", "rename", "opendir")}.values())
    visit(made, [(point, how) for point in points for how in one_way(point)], name, capsys)


@pytest.mark.faults
@pytest.mark.parametrize("name", NAMES)
def test_every_call_fails_in_every_way(name, scenarios, capsys):
    made = scenarios[name]()
    variant = name not in ("run", "resume", "compare", "report")  # one call of each kind will do
    points = kinds(made.calls, set()) if variant else made.calls
    visit(made, [(point, how) for point in points for how in every_way(point)], name, capsys)
