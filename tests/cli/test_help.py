"""--help of every command, shell completion, and what the command line imports."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

from tarry.cli import federation
from tarry.cli.app import COMMANDS
from tarry.cli.setting_list import setting_list
from tarry.config.spec import REGISTRIES, settings

DEFAULT = r" +\[default: "
EVERY = [(name,) for name in COMMANDS] + [("federation", name) for name in federation.COMMANDS]
ENTRIES = {**COMMANDS, **{f"federation {name}": entry for name, entry in federation.COMMANDS.items()}}


def command(words):
    return ENTRIES[" ".join(words)].load(words[-1])


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_has_no_escaped_brackets_and_every_line_of_the_list_begins_the_help_of_its_command(cli, words):
    said = cli(*words, "--help")
    assert said.code == 0
    assert "\\[" not in said.out
    assert " ".join(said.out.split("\n\n")[1].split()) == ENTRIES[" ".join(words)].summary


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_describes_every_flag_in_one_sentence(words):
    for param in command(words).params:
        text, *default = re.split(DEFAULT, param.help)
        assert text, param.name
        assert text[0].isupper(), text
        assert not text.endswith("."), text
        assert ". " not in text, text
        assert "default" not in text, text
        assert all(rest.endswith("]") for rest in default), param.help


@pytest.mark.parametrize("words", [w for w in EVERY if w != ("federation",)], ids=" ".join)
def test_help_shows_the_default_of_every_flag_but_switches(cli, words):
    shown = " ".join(cli(*words, "--help").out.split())
    params = [p for p in command(words).params if not p.required]
    for param in params:
        text = " ".join(re.split(DEFAULT, param.help)[0].split())
        after = shown[shown.index(text) + len(text) :]
        is_switch = getattr(param, "is_flag", False) and not param.secondary_opts
        assert is_switch or after.startswith(" [default: "), param.name
        assert param.default in (None, False) or after.startswith(f" [default: {param.default}]")


def test_the_settings_that_are_read_from_the_source_are_those_of_spec():
    listed = {s.name: s for s in setting_list()}
    assert list(listed) == list(settings())
    for name, param in settings().items():
        shown = listed[name]
        assert (shown.help, str(shown.default)) == (param.help, str(param.default))
        assert shown.is_component is (name in REGISTRIES)
        if not shown.is_component and name not in ("availability", "metric", "track"):
            assert " | ".join(shown.types) == param.type_name.replace(" | none", "")


def test_every_command_is_documented_by_its_own_words():
    for name, entry in ENTRIES.items():
        made = entry.load(name.split()[-1])
        assert made.help
        assert inspect.cleandoc(made.help).partition("\n")[0] == entry.summary


def python(*args, **env):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=True, env={**os.environ, **env}
    ).stdout


HEAVY = {"torch", "numpy", "rich", "matplotlib"}


@pytest.mark.parametrize("module", ["tarry", "tarry.cli.app", "tarry.cli.federation", "tarry.cli.reproduce"])
def test_the_command_line_imports_neither_torch_nor_numpy_nor_rich(module):
    assert python("-c", f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))") == "[]\n"


RUN = "import sys; from tarry.cli.app import main\ntry: main()\nfinally: print(sorted({heavy} & set(sys.modules)))"


@pytest.mark.parametrize("words", [[], *([*words] for words in EVERY)], ids=" ".join)
def test_help_imports_neither_torch_nor_numpy_nor_rich(words):
    assert python("-c", RUN.format(heavy=HEAVY), *words, "--help").endswith("\n[]\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("tarry re", ["resume", "replay", "report", "reproduce"]), ("tarry watch --on", ["--once"]),
     ("tarry run --lr", ["--lr", "--lr-decay", "--lr-schedule"]), ("tarry federation st", ["status"])],
)  # fmt: skip
def test_the_shell_completes_commands_and_flags_without_torch(words, expected):
    env = {"_TARRY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "import sys; sys.argv[0] = 'tarry'; " + RUN.format(heavy=HEAVY)
    *found, imported = python("-c", code, **env).splitlines()
    assert (found, imported) == (expected, "[]")


def test_install_completion_makes_bash_complete(tmp_path):
    """The script that --install-completion writes, in a bash of its own, with a `tarry` on its PATH."""
    program = tmp_path / "tarry"
    program.write_text(f"#!{sys.executable}\nfrom tarry.cli.app import main\nmain()\n")
    program.chmod(0o755)
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shell = {**env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else it is the shell that runs the tests
    subprocess.run([program, "--install-completion", "bash"], env=shell, capture_output=True, check=True)
    script = next((tmp_path / ".bash_completions").iterdir())
    assert str(script) in (tmp_path / ".bashrc").read_text()
    typed = 'COMP_WORDS=(tarry rep); COMP_CWORD=1; _tarry_completion tarry; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f". {script}; {typed}"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["replay", "report", "reproduce"]


def test_a_command_that_is_almost_one_is_suggested_once(cli):
    said = cli("wach")
    assert said.code == 2
    assert re.findall("Did you mean [^?]*", said.err) == ["Did you mean 'watch'"]
