"""Every study at a size of a second or two: what comes back, what is kept, what is rejected."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tarry.core.errors import BadInput
from tarry.reproduce.studies import STUDIES
from tarry.reproduce.studies.calibration import PAPER as CALIBRATION
from tarry.reproduce.studies.study import begin

MODELS: dict[str, Any] = CALIBRATION["models"]
_DIGITS = {"name": "digits", "limit": 120}
_LATE: dict[str, Any] = {"task": _DIGITS, "clients": 4, "updates": 12, "epochs": 1, "batch": 16}
_ROUNDS: dict[str, Any] = {"task": _DIGITS, "clients": 6, "concurrency": 2, "rounds": 4, "epochs": 1, "batch": 8}
#: small options, and the rows, columns and measures that come of them
TINY: dict[str, tuple[dict[str, Any], set[str], set[str], set[str]]] = {
    "adaptive_strength": (
        {"settings": _ROUNDS},
        {"1.weight", "1.bias", "3.weight", "3.bias"},
        {"clients"},
        {"lambda", "scaled", "moved"},
    ),
    "calibration": (
        {"repeats": 1, "models": {k: v for k, v in MODELS.items() if k not in ("vgg11", "mobilenetv2")}},
        {"lenet5", "resnet18-1d", "distilbert-lora"},
        {"server"},
        {"seconds", "params"},
    ),
    "client_curves": (
        {"settings": _LATE},
        {"fedasync", "orthofl", "orthofl-reference"},
        {"clients"},
        {"accuracy", "loss", "drop", "spike"},
    ),
    "control_corrections": (
        {"settings": _LATE, "every": 2},
        {f"gradient-{c}" for c in ("linear", "kept", "midpoint")}
        | {f"position-{c}" for c in ("linear", "kept", "moved", "midpoint", "rotated")},
        {"early", "late"},
        {"relative", "test_loss"},
    ),
    "endpoint_corrections": (
        {"settings": _LATE},
        {"asgd", "fedasync", "dc-asgd", "orthograd", "orthopos", "orthostrict"},
        {"early", "late"},
        {"relative", "test_loss"},
    ),
    "hessian": (
        {"settings": _ROUNDS, "iterations": 10, "examples": 50, "points": 3},
        {"fedavg", "fedasam", "fedsol"},
        {"global"},
        {"lambda1", "ratio", "lambda5", "residual", "accuracy"},
    ),
    "landscape": (
        {"settings": _LATE, "epochs": [1, 3], "examples": 50, "points": 3, "places": 4},
        {"1", "3"},
        {"train", "test"},
        {"line", "curve", "Q", "lower"},
    ),
    "latency": (
        {"model": {"name": "mlp"}, "shape": [1, 8, 8], "batch": 4, "steps": 2, "repeats": 1},
        {"fedavg", "fedprox", "fedntd", "fedsam", "fedsol"},
        {"step"},
        {"seconds", "relative"},
    ),
    "local_effects": (
        {"settings": _ROUNDS, "every": 1, "measures": ["distance", "local", "classes"]},
        {"fedavg", "fedsol"},
        {"early", "late"},
        {"distance", "local", "spread", "swing"},
    ),
    "manifold_quality": (
        {"settings": _LATE, "every": 3},
        {"own", "gradient", "position"},
        {"asynccurve"},
        {"Q", "interval"},
    ),
    "toy": (
        {"steps": 20, "rho": [0.5], "mu": [0.5]},
        {"fedsol", "fedprox"},
        {"0.5"},
        {"radius", "angle", "gap"},
    ),
    "two_clients": (
        {"settings": {"task": _DIGITS, "time": 150.0, "epochs": 1}, "slow": [30.0, 50.0]},
        {"fast-fast", "slow-fast", "fast-slow"},
        {"30", "50"},
        {"cosine"},
    ),
}
_NAME = re.compile(r"[A-Za-z0-9._+-]+")


def _run(name: str, folder: Path, seeds: tuple[int, ...] = (0,), **more: Any) -> Any:
    module = importlib.import_module(STUDIES[name])
    options = {**TINY[name][0], **more}
    found = module.run(options, quick=True, seeds=seeds, device="cpu", folder=folder, tell=lambda _: None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found  # plain JSON, nothing infinite
    return found


def test_every_study_is_tried_here() -> None:
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    elsewhere = {"manifold_assumptions"}  # in test_corrections.py
    assert {*TINY} | elsewhere | (files & set(STUDIES)) == set(STUDIES)


@pytest.mark.parametrize("name", list(TINY))
def test_a_study_gives_the_rows_columns_and_measures_it_promises(name: str, tmp_path: Path) -> None:
    found, (_, rows, columns, measures) = _run(name, tmp_path), TINY[name]
    numbers = found["numbers"]
    assert set(numbers) == rows
    assert all(set(row) == columns for row in numbers.values())
    assert all(set(seeds) == {"0"} for row in numbers.values() for seeds in row.values())
    assert all(set(seeds["0"]) == measures for row in numbers.values() for seeds in row.values())
    assert all(_NAME.fullmatch(n) for n in {*rows, *columns, *measures})
    for lines in found.get("curves", {}).values():
        assert all(len(at["x"]) == len(at["y"]) <= 400 for at in lines.values())
    assert all(isinstance(note, str) for note in found["notes"])


@pytest.mark.parametrize(
    ("name", "scale"),
    [("hessian", "loss"), ("landscape", "log loss"), ("toy", "v"), ("two_clients", "change of the weights")],
)
def test_pictures_are_drawn_with_their_scale_and_the_same_every_time(name: str, scale: str, tmp_path: Path) -> None:
    found, module = _run(name, tmp_path), importlib.import_module(STUDIES[name])
    for path in (tmp_path / "a.svg", tmp_path / "b.svg"):
        module.draw(found, path)
    assert (tmp_path / "a.svg").read_text().count("<svg") == 1
    assert f">{scale}</text>" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("name", ["endpoint_corrections", "two_clients", "latency"])
def test_a_second_call_takes_finished_pieces_and_adds_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, module, began = _run(name, tmp_path), importlib.import_module(STUDIES[name]), list[str]()
    worker = "seconds" if name == "latency" else "run_observed"
    real = getattr(module, worker)

    def counted(*args: Any, **more: Any) -> Any:
        began.append(name)
        return real(*args, **more)

    monkeypatch.setattr(module, worker, counted)
    assert _run(name, tmp_path) == first
    assert not began
    both = _run(name, tmp_path, seeds=(0, 1))
    assert began
    row = next(iter(both["numbers"]))
    for column, seeds in both["numbers"][row].items():
        assert set(seeds) == {"0", "1"}
        assert seeds["0"] == first["numbers"][row][column]["0"]


def test_a_piece_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    a = _run("client_curves", tmp_path)
    b = _run("client_curves", tmp_path, settings={**_LATE, "lr": 0.2})
    assert a["numbers"] != b["numbers"]


def test_unknown_options_are_refused_with_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\[study_options\] sigmma: there is no such option. Did you mean 'sigma'"):
        _run("endpoint_corrections", tmp_path, sigmma=3)


_PAPER: dict[str, Any] = {"settings": {"task": "no-such-data", "clients": 3}, "stand_ins": []}


def test_a_stand_in_is_taken_and_named_where_data_are_missing(tmp_path: Path) -> None:
    told: list[str] = []
    begun: Any = {"quick": True, "seeds": [0], "device": "cpu", "folder": tmp_path, "tell": told.append}
    study = begin(_PAPER, {"stand_ins": [{"name": "neither"}, {"name": "digits"}]}, {}, **begun)
    assert study.plan(0).task.name == "digits"
    assert study.notes == ["digits stood in for no-such-data."]
    assert "there is no such task" in told[0]


def test_without_a_stand_in_the_first_refusal_is_told(tmp_path: Path) -> None:
    begun: Any = {"quick": False, "seeds": [0], "device": "cpu", "folder": tmp_path, "tell": lambda _: None}
    with pytest.raises(BadInput, match="--task no-such-data"):
        begin(_PAPER, {}, {"stand_ins": ["neither"]}, **begun)


def test_rows_that_are_unset_are_left_out(tmp_path: Path) -> None:
    found = _run("latency", tmp_path, methods={"fedavg": "fedavg", "fedntd": "fedntd", "fedsol": "none"})
    assert set(found["numbers"]) == {"fedavg", "fedntd"}


def test_settings_are_changed_one_by_one_and_a_choice_by_its_parameters(tmp_path: Path) -> None:
    begun: Any = {"quick": False, "seeds": [0], "device": "cpu", "folder": tmp_path, "tell": lambda _: None}
    paper = {"settings": {"task": {"name": "digits", "limit": 90}, "clients": 3, "lr": 0.2}, "stand_ins": []}
    study = begin(paper, {}, {"settings": {"task": {"limit": 60}, "clients": 2}}, **begun)
    assert study.settings() == {"task": {"name": "digits", "limit": 60}, "clients": 2, "lr": 0.2}
    assert not study.notes


def test_a_plane_may_lie_along_random_directions(tmp_path: Path) -> None:
    planes = [_run("hessian", tmp_path, directions=d)["surfaces"]["fedavg"] for d in ("eigenvectors", "random")]
    middle = [s["z"][1][1] for s in planes]
    assert middle[0] == middle[1]  # the global model itself
    assert planes[0]["z"] != planes[1]["z"]
    with pytest.raises(BadInput, match="directions sideways: must be eigenvectors or random"):
        _run("hessian", tmp_path, directions="sideways")


def test_measures_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"measures: there is no 'distanse'\. Did you mean 'distance'"):
        _run("local_effects", tmp_path, measures=["distanse"])


def test_a_curve_of_a_method_that_learns_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="curve fedasync: its clients learn no control point"):
        _run("landscape", tmp_path, curve="fedasync")
    with pytest.raises(BadInput, match="client 9: there are clients 0 to 3"):
        _run("landscape", tmp_path, client=9)
