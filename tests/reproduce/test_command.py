"""`python -m tarry.reproduce` and `tarry reproduce` take the same flags and do the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry.cli.app import COMMANDS, app
from tarry.core.errors import BadInput
from tarry.reproduce import catalog, command
from tarry.reproduce.command import main
from tarry.reproduce.options import ReproduceFlags, argument_parser, seed_numbers

FLAGS = ["toy/table1", "--only", "a", "--rows", "fedavg", "--seeds", "1", "--device", "cpu"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("3", (0, 1, 2)), ("5-7", (5, 6, 7)), ("0,4", (0, 4)), ("1,3-4,3", (1, 3, 4)), ("2,", (2,))]
)
def test_seeds_are_how_many_or_which(text: str, wanted: tuple[int, ...]) -> None:
    assert seed_numbers(text) == wanted


@pytest.mark.parametrize("text", ["0", "x", "", ",", "1-"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="wants how many"):
        seed_numbers(text)


@pytest.mark.parametrize("text", ["99999999999", "0-99999999999", f"1,0-{10**30}", "10001"])
def test_too_many_seeds_are_refused_at_once(text: str) -> None:
    with pytest.raises(BadInput, match="more than 10,000 seeds in a row; name fewer"):
        seed_numbers(text)


def test_seeds_that_run_backwards_are_refused_by_that_name() -> None:
    with pytest.raises(BadInput, match="--seeds 5,3-1: 3-1 runs backwards; say 1-3"):
        seed_numbers("5,3-1")


def test_the_plain_command_runs_and_prints_ours_and_the_papers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLAGS[:3], *FLAGS[5:]]) == 0
    out = capsys.readouterr()
    assert "[2/2] toy/table1: orthofl, a, seed 0: accuracy (%)" in out.err
    assert re.search(r"OrthoFL +\d\d\.\d \(98\.2, −\d+\.\d\)", out.out)
    main(["toy/table1", "--show"])
    said = capsys.readouterr().out
    assert said == out.out[out.out.index("Toy, Table 1: Toy") :]
    assert "OrthoFL above fedavg: signed-rank test over 1 pairs, p " in said
    assert re.search(
        r"the paper: OrthoFL is best: (shows so far|does not show here|not settled).* Not run: b\.\n", said
    )
    (picture,) = re.findall(r"^picture: (.*)$", said, re.M)
    assert Path(picture).read_text().startswith("<svg")


def test_a_page_of_other_results_is_written_beside_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = catalog.page_folder()
    (docs / "results").mkdir(parents=True)
    (docs / "results" / "own.svg").touch()
    (docs / "results.md").write_text("mine")
    assert main([*FLAGS, "--results", "other", "--page"]) == 0
    assert "page: other/results.md" in capsys.readouterr().out
    assert "toy/table1" in Path("other/results.md").read_text()
    assert (docs / "results.md").read_text() == "mine"
    assert (docs / "results" / "own.svg").exists()


@pytest.mark.parametrize("plain", [True, False])
def test_quick_results_are_named_and_shown(folder: Path, capsys: pytest.CaptureFixture[str], plain: bool) -> None:
    def printed(*words: str) -> str:
        if plain:
            assert main(words) == 0
            return capsys.readouterr().out
        done = CliRunner().invoke(app, ["reproduce", *words])
        assert done.exit_code == 0, done.output
        return done.output

    other = ("--results", "other")
    assert printed("--show", *other) == "no results yet; `--list` shows what can be run\n"
    printed(*FLAGS, *other, "--quick")
    assert "; no results yet; quick ones: --show --quick\n" in printed("--list", *other)
    assert printed("--show", *other) == "toy/table1: no results yet; quick ones: --show --quick\n"
    for words in (["--quick"], ["--size", "quick"], ["toy/table1", "--quick"]):
        assert re.search(r"α = 0\.1 \(quick, 1 seed\).*\nfedavg +\d", printed("--show", *words, *other))
    assert "page: other/results.md" in printed("--page", *other)
    assert " Toy | not run |" in Path("other/results.md").read_text()
    assert "page: other/results-quick.md" in printed("--page", "--quick", *other)
    page = Path("other/results-quick.md").read_text()
    assert " Toy | quick, 1 of 4 cells, 1 seed |" in page
    assert "Run at a quick size:" in page
    assert "](results-quick/toy-table1.svg)" in page
    assert Path("other/results-quick/toy-table1.svg").exists()


def test_mistakes_are_said_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["toy/table1", "--only", "c", "--rows", "fedavgg", "--seeds", "x", "--workers", "0", "--within", "0"]
    assert main(words) == 2
    said = capsys.readouterr().err
    parts = ("--only c: there is no such column", "Did you mean 'fedavg'?", "--seeds x", "--workers 0", "--within 0")
    for part in parts:
        assert part in said
    assert main(["toi/table1"]) == 2
    assert main(["toy/table1", "--quick", "--size", "full"]) == 2


def test_a_papers_name_stands_for_all_of_its_tables(folder: Path) -> None:
    assert [e.name for e in command.select_experiments(["toy"])] == ["toy/table1"]
    assert [e.name for e in command.select_experiments(["all", "toy/table1"])] == ["toy/table1"]


def test_tarry_reproduce_does_the_same(folder: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", *FLAGS])
    assert done.exit_code == 0, done.output
    first = json.loads(catalog.results("toy/table1").path.read_text())["cells"]
    assert main([*FLAGS, "--results", "other"]) == 0
    second = json.loads(Path("other/toy/results/table1.json").read_text())["cells"]
    digest = [cells["fedavg/a"]["full"]["seeds"]["0"]["weights"] for cells in (first, second)]
    assert digest[0] == digest[1]
    assert "toy/table1" in CliRunner().invoke(app, ["reproduce", "--list"]).output


def test_both_commands_have_the_same_flags() -> None:
    plain = {a.dest: a for a in argument_parser("x")._actions if a.dest != "help"}
    typed = {p.name: p for p in COMMANDS["reproduce"].load("reproduce").params if p.name != "help"}
    assert list(plain) == list(typed) == [f.name for f in fields(ReproduceFlags)]
    for name, action in plain.items():
        assert typed[name].help in action.help
        assert typed[name].default == action.default or not (typed[name].default or action.default)
        assert tuple(getattr(typed[name].type, "choices", ())) == tuple(action.choices or ())


def test_nothing_but_torch_numpy_and_safetensors_is_needed_to_run(folder: Path) -> None:
    names = ("typer", "rich", "matplotlib", "scipy", "transformers", "PIL", "sklearn")
    hidden = f"import sys\nfor n in {names}:\n    sys.modules[n] = None\n"
    code = (
        f"{hidden}from tarry.reproduce.command import main\nsys.exit(main({[*FLAGS, '--quick']!r}) or main(['--list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert catalog.results("toy/table1", quick=True).path.is_file()
