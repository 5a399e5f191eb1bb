"""Files of runs, comparisons, federations and stored results that are damaged or forged: the commands that read them
work, or end with one error that names the file or its folder. Nothing hangs or fills the memory.

The suite runs a few hundred cases. `make test-fuzz` runs more; TARRY_FUZZ is the number of cases, TARRY_FUZZ_SEED the
first seed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import BadInput, DamagedFile, StorageError, TarryError
from tarry.deploy.server.result import write as write_result
from tarry.deploy.server_app import status
from tarry.reproduce import catalog
from tests.helpers.commands import call_command, time_limit
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan
from tests.helpers.interrupted import interrupted_run
from tests.helpers.mutations import mutate

SMALL: dict[str, Any] = {"clients": 3, "epochs": 1, "delay": "constant"}
TASK = "digits:limit=120,hidden=4"
METHODS = ("fedbuff:buffer=2", "scaffold", "orthofl", "fadas:buffer=2", "tifl:tiers=2", "fedecho")
#: bytes of memory that a reader may take beyond the size of a file; far below what a forged length claims
MEMORY = 1 << 30
EXPERIMENTS = ("orthofl/table3", "fedogd/fig6", "asyncmanifold/quality", "fedsol/table12")


def _finished(root: Path) -> None:
    settings: Any = {**SMALL, "updates": 9, "diagnose": True, "personalize": 1, "executor": "batched"}
    tarry.run(METHODS[0], TASK, out=root / "run", **settings)


def _unfinished(root: Path, method: str = METHODS[0]) -> None:
    settings: Any = {**SMALL, "updates": 12, "checkpoint_every": 1e-9, "diagnose": True}
    interrupted_run(root / "run", lambda e: e.updates == 8 and e.kind == "arrival", method, TASK, **settings)


def _comparison(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        code, said = call_command("compare", *_COMPARE)
    assert code == 0, said


_COMPARE = ["--method", "fedavg", "--method", "fedasync", "--seeds", "2", "--task", TASK, "--clients", "3",
            "--epochs", "1", "--delay", "constant", "--updates", "6", "--out", "run", "--workers", "1"]  # fmt: skip


def _federation(root: Path, *, updates: int = 10, until: Callable[[Any], bool] | None = None) -> None:
    plan = small_plan(method="orthofl", updates=updates)
    grid = FakeGrid(Clock(), nodes(plan, root / "homes"))
    d = driver(plan, grid, root / "run")
    if until is None:
        finished(d, grid)
        write_result(d, plan, root / "run")
    else:
        while not until(d):
            d.tick()
            grid.clock.sleep(0.1)
        d.close()
    d.stats.write(root / "run" / "status.json", status(d))
    (root / "run" / "server.json").write_text(json.dumps({"pid": 2**30, "began": "x", "run": "1"}))
    (root / "run" / "run.json").write_text(json.dumps({"run": "1", "at": 1e9}))
    (root / "run" / "flower").mkdir()
    setup = {"clients": 4, "tls": False, "ports": [9000] * 5, "config": {"clients": 4}, "app": None, "memory": False}
    (root / "run" / "flower" / "setup.json").write_text(json.dumps(setup))
    process = [{"name": "server", "pid": 2**30, "began": "x", "command": ["flower"]}]
    (root / "run" / "flower" / "processes.json").write_text(json.dumps(process))


def _table_of(root: Path, name: str) -> Path:
    paper, _, table = name.partition("/")
    return root / paper / "results" / f"{table}.json"


def _reproduced(root: Path) -> None:
    for name in EXPERIMENTS:
        stored = _table_of(root / "run", name)
        stored.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_table_of(catalog.root(), name), stored)


def _read(folder: Path) -> None:
    """Read a folder from Python, with all that a result offers."""
    found = tarry.read(folder)
    results = [found] if isinstance(found, tarry.Result) else list(found)
    repr(found)
    for result in results:
        repr(result)
        for use in (result.state_dict, result.model, lambda r=result: list(r.events())):
            said = str(folder)
            try:
                use()
            except TarryError as e:
                said = str(e)
            assert str(folder) in said


def _command(*args: str) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder.parent)
            code, said = call_command(*(a.replace("RUN", str(folder)) for a in args))
        assert code in (0, 1, 2), said
        assert "Traceback" not in said
        if code:
            named = any(name in said for name in (str(folder), "--out run: ", "error: run/"))
            assert named or (args[0] == "run" and "error: --" in said), said
            assert len(said) < 20_000

    return check


def _stored(folder: Path) -> None:
    for name in EXPERIMENTS:
        stored, shipped = _table_of(folder, name), _table_of(catalog.root(), name)
        if not stored.is_file() or stored.read_bytes() != shipped.read_bytes():
            _command("reproduce", name, "--show", "--results", "RUN")(folder)
    _command("reproduce", "--list", "--results", "RUN")(folder)


READ, VERIFY, WATCH = _read, _command("verify", "RUN"), _command("watch", "RUN", "--once")
REPORT, RESUME = _command("report", "RUN"), _command("resume", "RUN")
RERUN = _command("verify", "RUN", "--rerun", "proofs")
TRACE = _command("run", "--task", TASK, "--clients", "3", "--epochs", "1", "--updates", "3", "--delay", "trace",
                 "--delay.path", "RUN/arrivals.csv")  # fmt: skip
SPEC = _command("run", "--spec", "RUN/spec.toml", "--updates", "3", "--epochs", "1")
STATUS, JSON = _command("federation", "status", "RUN"), _command("federation", "status", "RUN", "--json")
#: how each folder is made, and what reads it: always, and in one of four cases
FOLDERS: dict[str, tuple[Callable[[Path], None], tuple[Callable[[Path], None], ...], tuple[Any, ...]]] = {
    "finished": (_finished, (READ, VERIFY, WATCH), (REPORT, RESUME, RERUN, TRACE, SPEC)),
    "unfinished": (_unfinished, (READ, VERIFY, WATCH, RESUME), (RERUN, SPEC)),
    "comparison": (_comparison, (READ, VERIFY), (_command("compare", *_COMPARE), REPORT, RESUME)),
    "federation": (_federation, (READ, VERIFY, WATCH, STATUS), (_command("replay", "RUN"), REPORT, JSON)),
    "open federation": (
        lambda root: _federation(root, updates=30, until=lambda d: d.engine.updates == 14),
        (READ, VERIFY, WATCH, STATUS),
        (_command("delays", "fit", "RUN"), JSON),
    ),
    "stored results": (_reproduced, (_stored,), ()),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def get(kind: str, method: str = METHODS[0]) -> Path:
        name = f"{kind} {method}"
        if name not in made:
            made[name] = tmp_path_factory.mktemp("template")
            (_unfinished(made[name], method) if kind == "unfinished" else FOLDERS[kind][0](made[name]))
        return made[name]

    return get


@pytest.fixture(autouse=True)
def little_memory():
    """A reader that allocates what a forged length claims fails, instead of filling the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def run_cases(template: Callable[..., Path], scratch: Path, kind: str, seeds: range) -> list[str]:
    """Mutate a file of a folder for each seed and read the folder; return what went wrong."""
    problems = []
    for seed in seeds:
        rng = random.Random(f"{kind} {seed}")
        base = template(kind, rng.choice(METHODS) if seed % 3 == 0 else METHODS[0]) if kind == "unfinished" else (
            template(kind))  # fmt: skip
        root = scratch / str(seed)
        shutil.copytree(base, root)
        folder = root / "run"
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (".lock", "report.html"))
        path = rng.choice(files)
        how = mutate(path, rng)
        _, always, sometimes = FOLDERS[kind]
        readers = [*always, *([rng.choice(sometimes)] if sometimes and rng.random() < 0.25 else [])]
        for reader in readers:
            try:
                with time_limit(60):
                    reader(folder)
            except (BadInput, DamagedFile, StorageError) as e:
                if str(folder) not in str(e):
                    problems.append(f"{kind} {seed}: {how} {path.relative_to(folder)}: names no file: {e}"[:1000])
            except Exception as e:
                problems.append(f"{kind} {seed}: {how} {path.relative_to(folder)}: {_where(e)}"[:1000])
        shutil.rmtree(root)
    return problems


def _where(e: BaseException) -> str:
    trace, places = e.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(e).__name__}: {str(e)[:300]} at {' '.join(places[-5:])}"


@pytest.mark.parametrize("kind", FOLDERS)
def test_mutated_files(template, tmp_path, kind):
    assert run_cases(template, tmp_path, kind, range(8 if kind == "stored results" else 50)) == []


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", FOLDERS)
def test_many_mutated_files(template, tmp_path, kind):
    first, n = int(os.environ.get("TARRY_FUZZ_SEED", "1000")), int(os.environ.get("TARRY_FUZZ", "3000"))
    assert run_cases(template, tmp_path, kind, range(first, first + n // len(FOLDERS))) == []
