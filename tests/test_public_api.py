from __future__ import annotations

import doctest
import inspect
import io
import os
import subprocess
import sys
import textwrap
import warnings
from functools import cached_property
from pathlib import Path

import pytest

import tarry
from tarry.core.registry import Entry
from tests.helpers.doctest_names import doctest_names

PUBLIC = [
    "Aggregate",
    "BadInput",
    "ClientModel",
    "Comparison",
    "Correct",
    "CurvePoint",
    "DamagedFile",
    "Dispatch",
    "Diverged",
    "Event",
    "Layout",
    "LocalRule",
    "Method",
    "Metric",
    "NextStart",
    "Part",
    "Progress",
    "Replay",
    "Reply",
    "Result",
    "ScheduleInput",
    "ServerView",
    "Setting",
    "SolverFailed",
    "StorageError",
    "Step",
    "TarryError",
    "TarryWarning",
    "Task",
    "Ticket",
    "TicketExtras",
    "TrackedGroup",
    "TrackedPoint",
    "TrackedRun",
    "Tracker",
    "Tuning",
    "Update",
    "Verification",
    "VisitInput",
    "VisitOutput",
    "WorkerDied",
    "compare",
    "delays",
    "manifolds",
    "methods",
    "metrics",
    "partitions",
    "read",
    "replay",
    "resume",
    "run",
    "schedules",
    "settings",
    "stateless",
    "tasks",
    "trackers",
    "tune",
    "unlabeled_sets",
    "verify",
]


def test_the_public_names_are_these_and_change_on_purpose_only():
    assert tarry.__all__ == PUBLIC
    assert all(hasattr(tarry, name) for name in PUBLIC)


def test_every_public_name_is_documented_and_does_not_borrow_its_words():
    for name in PUBLIC:
        value = getattr(tarry, name)
        documented = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
        own = documented.__doc__
        assert own, name
        assert not own.startswith(f"{name}("), f"{name} has the signature a dataclass writes, no words of its own"
    assert tarry.__doc__


def test_the_version_is_told_once():
    from tarry.version import __version__

    assert tarry.__version__ == __version__
    assert all(part.isdigit() for part in __version__.split(".")[:2])


def test_the_registries_hold_what_the_readme_speaks_of():
    assert {"fedavg", "fedprox", "fedasync", "fedbuff", "orthofl"} <= set(tarry.methods)
    assert "digits" in tarry.tasks
    assert {"iid", "dirichlet"} <= set(tarry.partitions)
    assert {"constant", "orthofl-rpi", "trace", "scripted"} <= set(tarry.delays)


def public_objects() -> dict[str, object]:
    """Every public name, and the public methods and properties of its class, by dotted name."""
    found: dict[str, object] = {"Entry": Entry}
    for name in PUBLIC:
        value = getattr(tarry, name)
        found[name] = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
    members = {
        f"{cls.__name__}.{name}": member
        for value in found.values()
        for cls in (inspect.getmro(value) if inspect.isclass(value) else ())
        for name, member in vars(cls).items()
        if cls.__module__.startswith("tarry.") and not name.startswith("_") and is_documented_member(member)
        if name not in getattr(cls, "__dataclass_fields__", {})
    }
    return found | members


def is_documented_member(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | cached_property | classmethod | staticmethod)


OBJECTS = public_objects()


def doctest_of(name: str) -> doctest.DocTest | None:
    """The examples in the docstring of a public object; None if there are none."""
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    (found,) = finder.find(OBJECTS[name], name, module=False, globs=doctest_names()) or (None,)
    return found if found and found.examples else None


def test_every_public_name_method_and_property_has_an_example():
    assert {name for name in OBJECTS if doctest_of(name) is None} == set()


@pytest.mark.parametrize("name", OBJECTS)
def test_the_examples_of_a_docstring_run(name):
    examples, output = doctest_of(name), io.StringIO()
    assert examples is not None
    with warnings.catch_warnings():
        warnings.simplefilter("always", tarry.TarryWarning)  # as outside of pytest
        failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=output.write)
    assert failed == 0, output.getvalue()


BLOCKED = ("typer", "rich", "matplotlib", "safetensors", "click")

ALONE = f"""
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Wall())

import tarry

result = tarry.run("orthofl", {{"name": "digits", "limit": 100}}, clients=3, epochs=1, delay=[1, 2, 3], updates=4)
assert result.updates == 4
c = tarry.compare(["fedavg", "fedasync"], {{"name": "digits", "limit": 100}}, seeds=[0], clients=3, epochs=1,
                  delay=[1, 2, 3], updates=4)
assert [row.label for row in c.summary.rows] == ["fedavg", "fedasync"]
"""


def python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-W", "error", *args], cwd=cwd, env=env, capture_output=True, text=True)


def test_torch_and_numpy_are_enough_to_simulate_and_to_compare(tmp_path):
    done = python("-c", ALONE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_importing_tarry_reads_no_terminal_or_plotting_library(tmp_path):
    code = f"import sys, tarry; print(sorted({set(BLOCKED)!r} & set(sys.modules)))"
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


ORDERS = [
    "import tarry",
    "import tarry.methods.registry; import tarry",
    "import tarry.methods.fedbuff, tarry.tasks.images, tarry.delays.papers; import tarry",
    "import tarry; tarry.methods; import tarry.methods.fedbuff, tarry.delays.base, tarry.tasks.text",
    "from tarry import run; import tarry.tasks, tarry.delays, tarry.methods",
    "import tarry.cli.run; import tarry",
    "import importlib, tarry; importlib.import_module('tarry.delays'); importlib.import_module('tarry.tasks')",
]


@pytest.mark.parametrize("imports", ORDERS)
def test_the_registries_are_never_hidden_by_the_subpackages_of_their_names(tmp_path, imports):
    code = f"""
{imports}
assert "fedbuff" in tarry.methods
assert "digits" in tarry.tasks
assert "constant" in tarry.delays
from tarry import delays, methods, tasks
assert (methods, tasks, delays) == (tarry.methods, tarry.tasks, tarry.delays)
from tarry.methods import fedbuff, registry
assert registry.methods is methods
assert fedbuff.__name__ == "tarry.methods.fedbuff"
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_public_names_are_imported_on_first_use_and_listed_before(tmp_path):
    code = f"""
import sys, tarry
assert not {{"torch", "numpy"}} & set(sys.modules)
assert set({PUBLIC!r}) | {{"__version__", "__doc__"}} <= set(dir(tarry))
for name in {PUBLIC!r}:
    exec(f"from tarry import {{name}}; assert {{name}} is tarry.{{name}}")
assert tarry.runs.run.run is tarry.run
assert not hasattr(tarry, "nothing") and not hasattr(tarry, "__wrapped__")
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_name_that_tarry_does_not_have_is_an_ordinary_error():
    with pytest.raises(AttributeError, match=r"^module 'tarry' has no attribute 'orthofl'$"):
        _ = tarry.orthofl
    with pytest.raises(ImportError, match="cannot import name 'orthofl' from 'tarry'"):
        from tarry import orthofl  # noqa: F401


def test_python_m_tarry_is_the_command(tmp_path):
    done = python("-m", "tarry", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"tarry {tarry.__version__}\n"), done.stderr


def test_a_wrong_flag_in_a_process_of_its_own_ends_with_2_and_one_line(tmp_path):
    done = python("-m", "tarry", "run", "--method", "orthofk", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: --method orthofk: there is no such method. Did you mean 'orthofl'?\n"


def test_the_package_is_typed():
    assert (Path(tarry.__file__).parent / "py.typed").is_file()


def test_the_sentence_at_the_top_of_the_package_is_code_that_runs():
    code = [line for line in (tarry.__doc__ or "").splitlines() if line.startswith("    ")]
    compile(textwrap.dedent("\n".join(code)), "tarry.__doc__", "exec")
