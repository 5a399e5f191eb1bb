"""The page of benchmarks says what the results files hold, and the peers' scripts are at least Python."""

from __future__ import annotations

import importlib.util
import json
import py_compile
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ABOUT = {
    "what": "Peers: how fast",
    "command": "python run.py --seconds 20",
    "cpu": "a cpu",
    "cores": 2,
    "torch": "2.13.0",
}


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def written(tmp_path: Path, **files: dict[str, Any]) -> str:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    out = tmp_path / "page.md"
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "page.py"), "--results", str(tmp_path), "--out", str(out)], check=True
    )
    return out.read_text()


def test_a_file_is_a_section_with_its_command_machine_and_a_table_of_its_rows(tmp_path: Path) -> None:
    rows = [
        {"peer": "one", "samples": 60, "ratio": 0.8765, "start_up_s": 3.9},
        {"peer": "two", "samples": 60, "ratio": 1.0, "start_up_s": None, "peak_mb": 1412},
    ]
    lines = written(tmp_path, peers={**ABOUT, "rows": rows}).splitlines()
    assert lines.count("## Peers: how fast") == 1
    assert "    python run.py --seconds 20" in lines
    assert "file: peers.json; cpu: a cpu; cores: 2; torch: 2.13.0." in lines
    start = lines.index("| peer | samples a client | of the bare loop | start-up, s | memory, MB |")
    assert lines[start + 1 : start + 4] == [
        "|---|---:|---:|---:|---:|",
        "| one | 60 | 0.876 | 3.9 | – |",
        "| two | 60 | 1 | – | 1412 |",
    ]


def test_a_row_that_failed_is_not_in_the_table_but_its_reason_is_on_the_page(tmp_path: Path) -> None:
    rows = [{"peer": "one", "ratio": 0.5}, {"peer": "two", "samples": 60, "error": "did not install: a | b"}]
    text = written(tmp_path, peers={**ABOUT, "rows": rows})
    assert "| two |" not in text
    assert "- Left out: two, samples a client 60: did not install: a \\| b" in text


def test_every_results_file_has_its_section_in_the_order_of_names(tmp_path: Path) -> None:
    plain = {"rows": [{"size": 3}]}
    text = written(tmp_path, b={**plain, "what": "second"}, a={**plain, "what": "first"}, c=plain)
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## first", "## second", "## c"]


def test_files_stand_in_the_order_of_what_they_measure(tmp_path: Path) -> None:
    plain = {"rows": [{"size": 3}]}
    text = written(tmp_path, **{"cache": plain, "gpu-b": plain, "gpu-a": plain, "overhead": plain})
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == ["overhead", "gpu-a", "gpu-b", "cache"]


def test_bars_come_first_each_with_the_best_that_was_reached(tmp_path: Path) -> None:
    cpu = [{"row": "mlp-10", "ratio": 7.5, "bar": 8}, {"row": "mlp-10", "ratio": 9.25, "bar": 8}, {"row": "mlp-50"}]
    one = [{"row": "cnn-25-tf32", "ratio": 14.0, "bar": 15}]
    server = [
        {"method": "orthofl", "threads": 2, "copies": 1.7, "at_most": 1.5},
        {"method": "fedbuff", "threads": 2, "copies": 9.0, "at_most": None},
    ]
    files = {"cpu-one": {**ABOUT, "rows": cpu}, "gpu-one": {**ABOUT, "gpu": "a gpu", "rows": one}}
    lines = written(tmp_path, **files, server={**ABOUT, "rows": server}).splitlines()
    start = lines.index("| what | on | reached | wanted | met |")
    assert lines[start + 2 : start + 6] == [
        "| digits' MLP, batch 32, 10 in flight | a cpu | 9.25 | ≥ 8 | yes |",
        "| McMahan's CNN, batch 50, 25 in flight, tf32 | a gpu | 14 | ≥ 15 | no |",
        "| server: orthofl, 2 threads | a cpu | 1.7 | ≤ 1.5 | no |",
        "",
    ]


def test_what_all_rows_answer_alike_is_told_once(tmp_path: Path) -> None:
    rows = [
        {"row": "cnn-25", "compiled": True, "own_conv": False},
        {"row": "cnn-5", "compiled": True, "own_conv": True},
    ]
    text = written(tmp_path, x={**ABOUT, "rows": rows})
    assert "## Peers: how fast: cnn on a processor, compiled" in text
    assert "compiled: yes." in text
    assert "| row | own conv |" in text


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("peers/*.py")), ids=lambda p: p.name)
def test_a_script_of_the_peers_compiles(script: Path, tmp_path: Path) -> None:
    py_compile.compile(str(script), cfile=str(tmp_path / "compiled"), doraise=True)


def test_every_peer_has_its_script_and_its_model_is_tarrys_lenet5(monkeypatch: pytest.MonkeyPatch) -> None:
    from tarry.tasks.models import LeNet5

    run = loaded(BENCHMARKS / "peers" / "run.py", monkeypatch)
    assert [p.script for p in run.PEERS.values() if not (BENCHMARKS / "peers" / p.script).is_file()] == []
    workload = loaded(BENCHMARKS / "peers" / "workload.py", monkeypatch)
    shapes = [[(k, v.shape) for k, v in m.state_dict().items()] for m in (LeNet5(), workload.LeNet5())]
    assert shapes[0] == shapes[1]


def test_the_last_words_of_a_failure_name_no_folder_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    run = loaded(BENCHMARKS / "peers" / "run.py", monkeypatch)
    said = "Looking in https://some.where/simple\n\x1b[31mERROR: no such file /home/me/env/lib/thing.py\x1b[0m\nbye\n"
    assert run.last_words(said) == "ERROR: no such file thing.py"
    assert run.last_words("one\ntwo at file:///a/b\n", most=1) == "two at …"


def test_a_peer_that_fails_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    run = loaded(BENCHMARKS / "peers" / "run.py", monkeypatch)
    broken = run.Peer("broken", "no_such_script.py")
    with pytest.raises(run.Failed, match=r"did not run: .*no_such_script\.py"):
        run.measure(sys.executable, broken, 60, "", 1.0, 60.0)
