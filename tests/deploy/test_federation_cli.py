"""Commands about federations, where nothing has to be started."""

from __future__ import annotations

import json

import pytest

from tarry.deploy.local import Local

from .fake import Clock, FakeGrid, driver, finished, nodes, small_plan


@pytest.fixture
def record(tmp_path):
    made = small_plan(method="fedasync")
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    return tmp_path / "out"


def test_a_record_is_replayed(cli, record):
    code, said = cli("replay", str(record))
    assert code == 0
    assert "12 updates" in said


def test_a_replay_that_comes_apart_says_where(cli, record):
    rows = [json.loads(line) for line in (record / "journal.jsonl").read_text().splitlines()]
    first = next(r for r in rows if r["op"] == "update")
    first["digest"] = "0" * 16
    (record / "journal.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    code, said = cli("replay", str(record))
    assert code == 1
    assert f"ticket {first['number']}, client" in said


def test_a_delay_model_is_made(cli, record):
    code, said = cli("delays", "fit", str(record))
    assert code == 0
    assert "client 3: mean" in said
    assert (record / "delays.csv").read_text().startswith("client,visit,start,seconds,fate")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["replay", "nowhere"], "no federation was recorded here"),
        (["delays", "fit"], "of which federation"),
        (["delays", "normal", "x"], "a folder is for"),
        (["federation", "status", "nowhere"], "no federation has been at work"),
        (["federation", "down", "nowhere"], "no federation was set up here"),
        (["federation", "up", "--out", "x", "--method", "fedasink"], "Did you mean 'fedasync'"),
        (["federation", "up", "--out", "x", "--deadline", "-4"], "must be above 0"),
        (["federation", "up", "--out", "x", "--in-flight", "7"], "must be auto, 1 or 2"),
        (["federation", "up", "--out", "x", "--app", "nowhere"], "there is no Flower app"),
        (["federation", "up", "--out", "x", "--wokers", "3"], "there is no such flag"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(cli, words, why, tmp_path):
    code, said = cli(*words)
    assert code == 2
    assert why in " ".join(said.split())
    assert not (tmp_path / "x" / "flower").exists()


def test_a_federation_goes_on_with_its_own_settings_alone(cli, tmp_path):
    Local(tmp_path / "fed").prepare(2, {"method": "fedasync", "clients": 2}, tls=False)
    code, said = cli("federation", "up", "--out", "fed", "--method", "orthofl")
    assert code == 2
    assert "goes on with its own settings" in said


def test_the_key_of_a_client_is_shown(cli, tmp_path):
    _, first = cli("federation", "key", "home")
    _, second = cli("federation", "key", "home")
    assert first == second
    assert len(first.strip()) == 64


def test_delay_models_are_still_listed(cli):
    code, said = cli("delays", "normal")
    assert code == 0
    assert "--delay.mean" in said
