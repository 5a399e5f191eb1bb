from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import BadInput
from tests.helpers.small_task import small_task

SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 80, "hidden": 4},
    "clients": 3,
    "delay": "lognormal",
    "updates": 4,
    "epochs": 1,
}


def broken(*, mu: float = 0.5) -> tarry.Method:
    """Fail for a large mu, and diverge for a middle one."""
    if mu > 0.8:
        raise RuntimeError(f"mu {mu} is too large")
    scale = float("inf") if mu > 0.4 else 1.0
    return tarry.Method("broken", step=tarry.stateless(lambda update, view: view.weights + scale * update.delta))


def own(*, beta: float = 0.5) -> tarry.Method:
    """Mix with a weight."""
    return tarry.Method("own", step=tarry.stateless(lambda update, view: view.weights + beta * update.delta))


own.space = {"beta": "0.1..1"}  # type: ignore[attr-defined]


def test_a_method_in_a_file_declares_its_space_as_an_attribute(tmp_path):
    tuning = tarry.tune([f"{Path(__file__)}:own"], trials=2, seeds=[9], **SETTINGS)
    assert [list(t.point) for t in tuning.methods[0].trials] == [["lr", "method.beta"]] * 2
    for space, message in (("{'bet': '1..2'}", "names 'bet'. Did you mean 'beta'"), ("{'beta': '2..1'}", "a range is")):
        file = tmp_path / f"{len(space)}.py"
        factory = "import tarry\n\n\ndef own(*, beta=0.5):\n    'Own.'\n    return tarry.Method('own')\n"
        file.write_text(f"{factory}\n\nown.space = {space}\n")
        with pytest.raises(BadInput, match=message):
            tarry.tune([f"{file}:own"], trials=1, **SETTINGS)


def test_every_method_has_the_same_number_of_trials_on_validation_data():
    tuning = tarry.tune(["fedavg", "fedprox"], trials=3, seeds=[1000, 1001], **SETTINGS)
    assert [(m.label, len(m.trials)) for m in tuning.methods] == [("fedavg", 3), ("fedprox", 3)]
    assert [list(m.space) for m in tuning.methods] == [["lr"], ["lr", "method.mu"]]
    assert tuning.settings["validation"] == 0.2
    fedprox = tuning.methods[1]
    best = fedprox.best
    assert best is not None
    assert best.score == max(t.score for t in fedprox.trials if t.score is not None)
    point = best.point
    run = tarry.run(
        {"name": "fedprox", "mu": point["method.mu"]}, seed=1001, validation=0.2, **SETTINGS | {"lr": point["lr"]}
    )
    assert run.validation_metrics is not None
    assert best.scores[1] == run.validation_metrics["accuracy"] != run.final_accuracy


@pytest.mark.parametrize("search", ["random", "grid", "optuna"])
def test_a_study_has_the_same_trials_for_any_number_of_workers_and_when_it_is_resumed(tmp_path, search):
    def made(name: str, workers: int) -> str:
        tarry.tune(
            ["fedavg", "fedprox"], trials=3, seeds=[9], search=search, out=tmp_path / name, workers=workers, **SETTINGS
        )
        return (tmp_path / name / "tuned.toml").read_text()

    whole = made("one", 1)
    assert made("two", 3) == whole
    (tmp_path / "one" / "tuned.toml").unlink()
    runs = sorted((tmp_path / "one").glob("*/seed-9"))
    shutil.rmtree(runs[0])
    (runs[-1] / "result.json").unlink()
    assert made("one", 2) == whole
    assert tarry.verify(tmp_path / "one").ok
    assert isinstance(tarry.read(tmp_path / "one"), tarry.Comparison)
    rows = csv.DictReader((tmp_path / "one" / "trials.csv").read_text().splitlines())
    assert [row["status"] for row in rows] == ["finished"] * 6


def test_more_trials_continue_a_study_and_another_study_is_rejected(tmp_path):
    def made(trials: int, **others: Any) -> tarry.Tuning:
        return tarry.tune(["fedprox"], trials=trials, seeds=[9], out=tmp_path / "s", **{**SETTINGS, **others})

    few, many = made(2), made(4)
    assert many.methods[0].trials[:2] == few.methods[0].trials
    for others, name in (({"lr_decay": 0.9}, "settings"), ({"space": {"lr": [0.1, 0.2]}}, "spaces")):
        with pytest.raises(BadInput, match=f"it holds a study with other {name}"):
            made(2, **others)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(BadInput, match="it is not empty and holds no study"):
        tarry.tune(["fedprox"], trials=1, out=tmp_path / "other", **SETTINGS)


def test_trials_that_fail_or_diverge_are_counted_and_do_not_end_the_study(tmp_path):
    method = f"{Path(__file__)}:broken"
    for _ in range(2):  # the second time they are read
        tuning = tarry.tune(
            [method], trials=3, seeds=[9], space={"lr": [0.1], "method.mu": [0.1, 0.5, 0.9]}, out=tmp_path / "s",
            workers=2, **SETTINGS,
        )  # fmt: skip
        (found,) = tuning.methods
        assert [t.status for t in found.trials] == ["finished", "diverged", "failed"]
        assert (found.count("failed"), found.count("diverged")) == (1, 1)
        assert found.best is not None
        assert found.best.point["method.mu"] == 0.1
        assert "RuntimeError: mu 0.9 is too large" in " ".join(tuning.sentences())
    assert len(list((tmp_path / "s").glob("*/failed-9.json"))) == 1


def test_a_method_without_a_finished_trial_has_no_tuned_settings(tmp_path):
    method = f"{Path(__file__)}:broken"
    tuning = tarry.tune([method, "fedavg"], trials=1, seeds=[9], space={"method.mu": [0.9]}, **SETTINGS)
    assert list(tuning.best) == ["fedavg"]
    assert "no trial finished" in " ".join(tuning.sentences())
    path = tuning.save(tmp_path / "tuned.toml")
    assert [row.method for row in tarry.compare(tuned=path, seeds=[0]).summary.rows] == ["fedavg"]
    with pytest.raises(BadInput, match="no trial of it finished"):
        tarry.compare([method], tuned=path, seeds=[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 0}, "trials=0: must be 1 or more"),
        ({"search": "best"}, "search='best': must be random, grid, optuna"),
        ({"seeds": []}, "one of `seeds`|one of seeds"),
        ({"lr": [0.1, 0.2]}, "a study has one value of it"),
        ({"space": {"lr": "1..0"}}, "needs a lower and a higher end"),
        ({"space": {"method.nu": "1,2"}}, "no method here has a parameter 'nu'"),
        ({"space": {"task": "digits,mnist"}}, "name a number or a choice"),
        ({"space": {"lr": "a,b"}}, "wants float"),
    ],
)
def test_wrong_arguments_are_rejected_before_the_first_trial(arguments, message):
    with pytest.raises(BadInput, match=message):
        tarry.tune(["fedprox"], **{**SETTINGS, **arguments})


def test_a_study_of_python_objects_needs_them_again():
    task = small_task()
    tuning = tarry.tune(["fedavg"], task, trials=2, seeds=[9], validation=0.4, delay="lognormal", updates=4, batch=2)
    assert tuning.objects == ("task",)
    with pytest.raises(BadInput, match="was tuned with a Python object; give the same one again"):
        tarry.compare(tuned=tuning, seeds=[0])
    assert len(tarry.compare(tuned=tuning, task=task, seeds=[0, 1])) == 2


def test_parameters_that_a_method_was_given_are_not_tuned():
    tuning = tarry.tune(["fedprox:mu=0.3", "fedavg+local=fedsol"], trials=1, seeds=[9], **SETTINGS)
    assert [list(m.space) for m in tuning.methods] == [["lr"], ["lr", "local.rho"]]
    c = tarry.compare(tuned=tuning, seeds=[0])
    assert c.summary.rows[0].label.partition("+lr")[0] == "fedprox:mu=0.3"
    assert "local=fedsol:rho=2.0" in c.summary.rows[1].label
