from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.core.errors import BadInput

SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 80, "hidden": 4},
    "clients": 3,
    "delay": "lognormal",
    "updates": 4,
    "epochs": 1,
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tuning = tarry.tune(["fedavg", "fedprox"], trials=2, seeds=[5, 1000], **SETTINGS)
    return tuning.save(tmp_path_factory.mktemp("tuned") / "tuned.toml")


def test_every_method_has_its_tuned_settings_and_the_table_says_which(tuned, tmp_path):
    c = tarry.compare(tuned=tuned, seeds=[0, 1], out=tmp_path / "c")
    assert [row.method for row in c.summary.rows] == ["fedavg", "fedprox"]
    assert c.summary.axes == ("lr",)
    assert ":mu=" in c.summary.rows[1].label
    assert c.notes[0] == (
        "Tuned on validation data: lr of fedavg; lr, mu of fedprox (random search, 2 trials each, seeds 5, 1000)."
    )
    assert c.notes[0] in c.to_markdown()
    assert tarry.read(tmp_path / "c").notes == c.notes
    assert (tmp_path / "c" / "tuned.toml").read_text() == tuned.read_text()
    lr = c.summary.rows[0].axes["lr"]
    alone = tarry.run("fedavg", seed=1, **{**SETTINGS, "lr": lr})
    assert c[1].weights_sha256 == alone.weights_sha256  # trained on all examples
    assert tarry.verify(tmp_path / "c").ok


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": [0, 5]}, "seeds=5: .* was tuned with the seeds 5, 1000; give `?seeds"),
        ({"updates": 9}, "updates=9: .* was tuned with updates=4; leave it out, or tune again"),
        ({"task": "digits"}, "task='?digits'?: .* was tuned with"),
        ({"lr": 0.3}, "lr=0.3: .* has a tuned value of it for each method; leave it out"),
        ({"epochs": [1, 2]}, "a setting has several values, and it was tuned with one"),
        ({"methods": ["moon"]}, "method='moon': .* has no tuned settings of it"),
    ],
)
def test_other_seeds_settings_and_methods_than_those_of_the_tuning_are_rejected(tuned, arguments, message):
    with pytest.raises(BadInput, match=message):
        tarry.compare(**{"seeds": [0], "tuned": tuned, **arguments})


def test_the_same_settings_and_those_that_change_nothing_are_accepted(tuned):
    c = tarry.compare(["fedprox"], tuned=tuned, seeds=[0], updates=4, proofs=0, workers=1)
    assert [row.method for row in c.summary.rows] == ["fedprox"]


@pytest.mark.parametrize("text", ["", "a = 1", "methods = 3", "nonsense", 'version = "1"\nsearch = "x"\ntrials = -1'])
def test_a_file_that_is_no_record_of_a_tuning_is_one_error(tmp_path, text):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(BadInput, match=r"bad\.toml"):
        tarry.compare(tuned=tmp_path / "bad.toml")
