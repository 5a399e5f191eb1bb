"""Symbolic links and pipes in a run folder: nothing is written through them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tarry
from tarry.core.errors import DamagedFile, StorageError
from tarry.record.storage import write_atomic
from tests.helpers.commands import time_limit
from tests.helpers.interrupted import interrupted_run

SMALL = {"clients": 3, "epochs": 1, "delay": "constant", "updates": 9, "checkpoint_every": 1e-9}


@pytest.fixture
def run(tmp_path) -> Path:
    interrupted_run(tmp_path / "run", lambda e: e.updates == 6, "fedasync", "digits:limit=120,hidden=4", **SMALL)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["checkpoints", "proofs", "cache", "events.jsonl", "arrivals.csv", ".lock"])
def test_a_link_that_leads_out_of_the_folder_is_refused(run, tmp_path, name):
    outside, path = tmp_path / "outside", run / name
    if path.exists():
        path.rename(outside)
    elif "." in name:
        outside.write_bytes(b"mine")
    else:
        outside.mkdir()
    path.symlink_to(outside)
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    with pytest.raises(StorageError, match=rf"{name}: it .*symbolic link"):
        tarry.resume(run)
    assert before == {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}


def test_a_link_to_itself_is_refused(run):
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").symlink_to("events.jsonl")
    with pytest.raises((StorageError, DamagedFile), match=r"events\.jsonl"):
        tarry.resume(run)


def test_a_folder_may_itself_be_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert tarry.resume(tmp_path / "link").updates == 9


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_a_pipe(tmp_path, what):
    (tmp_path / "outside").write_bytes(b"mine")
    part = tmp_path / "x.json.part"
    part.symlink_to(tmp_path / "outside") if what == "link" else os.mkfifo(part)
    with pytest.raises(StorageError, match=f"x.json: it cannot be written .*remove the .*{what}"), time_limit(20):
        write_atomic(tmp_path / "x.json", b"{}")
    assert (tmp_path / "outside").read_bytes() == b"mine"
    write_atomic(tmp_path / "x.json", b"{}")
    assert (tmp_path / "x.json").read_bytes() == b"{}"


def test_a_link_in_place_of_a_file_is_replaced(tmp_path):
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "x.json").symlink_to(tmp_path / "outside")
    write_atomic(tmp_path / "x.json", b"{}")
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert not (tmp_path / "x.json").is_symlink()
