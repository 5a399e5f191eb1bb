"""`tarry new` and `tarry doctor`: the first minutes with the library."""

from __future__ import annotations

import runpy

import pytest

from tarry.cli import doctor

SHORT = ["--clients", "3", "--epochs", "1", "--updates", "6"]


@pytest.mark.parametrize(
    ("kind", "more", "label"),
    [
        ("method", ["--task.limit", "200", "--method.beta", "0.3"], "mine:beta=0.3 on digits"),
        ("task", ["--method", "fedasync", "--task.classes", "4"], "fedasync on mine"),
    ],
)
def test_a_new_file_runs_with_its_parameters_as_flags(cli, here, kind, more, label):
    written = cli("new", kind, "mine")
    assert (written.code, written.err) == (0, "")
    assert f"tarry run --{kind} mine.py:mine --time 3000" in written.out
    ran = cli("run", f"--{kind}", "mine.py:mine", *more, *SHORT)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(label)


@pytest.mark.parametrize("kind", ["method", "task"])
def test_a_new_file_is_a_program_with_a_comment_on_each_part(cli, here, kind, capsys):
    cli("new", kind, "mine")
    text = (here / "mine.py").read_text()
    assert "NAME" not in text
    assert text.count("\n# ") >= 2
    runpy.run_path(str(here / "mine.py"), run_name="__main__")
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["method", "task"])
def test_the_list_shows_what_a_new_file_says_of_itself(cli, here, kind):
    cli("new", kind, "mine")
    shown = cli(f"{kind}s", "mine.py:mine")
    assert shown.code == 0
    assert f"--{kind}." in shown.out


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["dataset", "mine"], "tarry new dataset: there is no such kind; it is method or task"),
        (
            ["task", "my-task"],
            "tarry new task my-task: it must be a name of Python: letters, digits and _, no digit first",
        ),
        (["task", "class"], "tarry new task class: it must be a name of Python: letters, digits and _, no digit first"),
        (["method", "there"], "there.py: it is there already; choose another name, or remove it"),
    ],
)
def test_a_wrong_name_writes_nothing(cli, here, args, problem):
    (here / "there.py").write_text("mine")
    said = cli("new", *args)
    assert (said.code, said.complaints) == (2, [problem])
    assert [path.name for path in here.iterdir()] == ["there.py"]
    assert (here / "there.py").read_text() == "mine"


REQUIREMENTS = [
    "torch>=2.6",
    'numba>=0.60; extra == "fast"',
    'ray[default]<3,>=2.40; extra == "ray"',
    'no-such-package>=1; extra == "tracker"',
    "numpy>=1; extra == 'tracker'",
    'ruff; extra == "dev"',
]


def test_the_doctor_names_extras_with_versions_and_what_installs_the_missing_ones(cli, monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(doctor, "version", lambda name: _raise() if name == "no-such-package" else "1.2.3")
    said = cli("doctor")
    assert said.code == 0
    lines = [line.strip() for line in said.out.splitlines()]
    assert "fast: numba 1.2.3" in lines
    assert "ray: ray 1.2.3" in lines
    assert 'tracker: no-such-package missing; pip install "tarry[tracker]"' in lines
    assert not any(line.startswith("dev:") for line in lines)
    assert any(line.startswith("cpu: ") for line in lines)
    assert any(line.startswith("cuda") for line in lines)


def _raise() -> str:
    raise doctor.PackageNotFoundError


def test_the_doctor_names_the_data_sets_that_are_there(cli, here, monkeypatch):
    assert "TARRY_DATA is unset" in cli("doctor").out
    (here / "data" / "mnist.npz").mkdir(parents=True)
    (here / "data" / "own.npz").write_bytes(b"")
    monkeypatch.setenv("TARRY_DATA", str(here / "data"))
    said = cli("doctor").out
    assert f"--task own: {here / 'data' / 'own.npz'}" in said.replace("\n", "")
    assert "`tarry tasks NAME` says how to get one" in said
