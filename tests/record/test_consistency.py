from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tarry
from tarry.core.errors import DamagedFile
from tarry.record.consistency import check_run
from tests.helpers.interrupted import interrupted_run

FILES = ("spec.toml", "meta.json", "result.json", "events.jsonl", "arrivals.csv", "model.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    tarry.run("orthofl", "digits", clients=3, updates=12, out=folder)
    return folder


def failed(folder: Path) -> list[str]:
    return [check.text for check in check_run(folder) if not check.ok]


def test_a_finished_run_is_consistent(finished):
    assert failed(finished) == []
    proofs = {path.name for path in (finished / "proofs").iterdir()}
    assert len(proofs) == 8
    assert {c.name for c in check_run(finished)} == {"settings", "result", *FILES, *proofs} - {"result.json"}


@pytest.mark.parametrize("damage", ["flip", "delete", "replace"])
def test_a_proof_that_is_not_what_was_written_is_found(finished, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    first, second = sorted((folder / "proofs").iterdir())[:2]
    if damage == "flip":
        data = bytearray(first.read_bytes())
        data[-1] ^= 1
        first.write_bytes(data)
    elif damage == "delete":
        first.unlink()
    else:
        shutil.copy(second, first)
    (text,) = failed(folder)
    assert str(first) in text


def test_a_damaged_checkpoint_that_a_finished_run_has_left_is_found(tmp_path):
    folder = tmp_path / "r"
    tarry.run("fedasync", "digits", clients=3, updates=6, out=folder, checkpoint_every=1e-9)
    newest = max((folder / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    (text,) = failed(folder)
    assert str(newest) in text


def test_the_result_of_another_run_is_not_read_as_that_of_this_one(finished, tmp_path):
    tarry.run("orthofl", "digits", clients=3, updates=12, seed=1, out=tmp_path / "other")
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.copy(tmp_path / "other" / "result.json", folder / "result.json")
    for use in (tarry.read, tarry.resume, tarry.Result.read):
        with pytest.raises(DamagedFile, match=r"result\.json: it is of a run with other settings"):
            use(folder)


def test_a_damaged_proof_of_an_unfinished_run_is_found(tmp_path):
    folder = tmp_path / "r"
    interrupted_run(folder, lambda e: e.updates == 9, "orthofl", "digits", clients=3, updates=12, checkpoint_every=1e-9)
    proof = min((folder / "proofs").iterdir())
    proof.write_bytes(proof.read_bytes()[:-9])
    (text,) = failed(folder)
    assert str(proof) in text


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_a_file_is_found_and_the_file_is_named(finished, tmp_path, name, place):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    data = bytearray((folder / name).read_bytes())
    at = int(place * len(data))
    at += next(i for i, c in enumerate(data[at:]) if chr(c).isalnum())  # white space and quotes may mean the same
    data[at] ^= 1
    (folder / name).write_bytes(data)
    try:
        same = name in ("spec.toml", "meta.json") and json.loads((folder / "meta.json").read_text())
    except ValueError:
        same = None
    texts = failed(folder)
    assert same == json.loads((finished / "meta.json").read_text()) or texts
    assert all(name in text or "setting" in text for text in texts)


@pytest.mark.parametrize("name", FILES[3:])
def test_a_file_that_is_missing_cut_or_longer_is_found(finished, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    whole = (folder / name).read_bytes()
    for data in (whole[:-3], whole + b"x"):
        (folder / name).write_bytes(data)
        assert any(name in text for text in failed(folder))
    (folder / name).unlink()
    assert failed(folder) == [f"{folder / name} is missing"]


def test_files_of_another_run_are_found(finished, tmp_path):
    tarry.run("orthofl", "digits", clients=3, updates=12, seed=1, out=tmp_path / "other")
    for name in FILES:
        folder = tmp_path / f"with-{name}"
        shutil.copytree(finished, folder)
        shutil.copy(tmp_path / "other" / name, folder / name)
        assert failed(folder), name


def test_an_unfinished_run_is_bound_by_its_checkpoint(tmp_path):
    folder = tmp_path / "r"
    interrupted_run(folder, lambda e: e.updates == 9, "orthofl", "digits", clients=3, updates=12, checkpoint_every=1e-9)
    assert failed(folder) == []
    found = tarry.verify(folder)
    assert (found.ok, found.finished) == (True, False)
    log = folder / "events.jsonl"
    damaged = bytearray(log.read_bytes())
    damaged[80] ^= 2
    log.write_bytes(damaged)
    (text,) = failed(folder)
    assert "events.jsonl, row 1: it is not what was written" in text
    newest = max((folder / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    assert len(failed(folder)) == 2


def test_a_folder_in_place_of_the_result_is_found(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()
    (text,) = failed(folder)
    assert text == f"{folder / 'result.json'}: it is not a regular file; remove it"
    assert not tarry.verify(folder).ok
    with pytest.raises(DamagedFile, match=r"result\.json: it is not a regular file"):
        tarry.resume(folder)
