from __future__ import annotations

import errno
import hashlib
import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.errors import BadInput, DamagedFile, StorageError
from tarry.core.metric import CurvePoint
from tarry.delays.measured import read_trace
from tarry.record.binding import seal
from tarry.record.result import Result, sha256, staleness_summary
from tarry.record.rows import read_rows
from tarry.record.storage import write_atomic
from tests.helpers.models import random_clients


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ({}, (0.0, 0, 0)),
        ({0: 10}, (0.0, 0, 0)),
        ({3: 1}, (3.0, 3, 3)),
        ({0: 19, 100: 1}, (5.0, 0, 100)),  # 19 of 20 are exactly 95%
        ({0: 18, 100: 2}, (10.0, 100, 100)),
        ({1: 50, 2: 44, 7: 1, 9: 5}, (1.9, 7, 9)),
        ({0: 1, 1: 1}, (0.5, 1, 1)),
    ],
)
def test_staleness_by_hand(counts, want):
    assert staleness_summary(Counter(counts)) == pytest.approx(want)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=300))
def test_the_95th_percentile_is_the_smallest_value_that_95_in_100_do_not_exceed(values):
    got = staleness_summary(Counter(values))
    ranked = sorted(values)
    assert got.p95 == ranked[-(-95 * len(values) // 100) - 1]
    assert got.max == ranked[-1]
    assert got.mean == pytest.approx(fmean(values))


def test_the_fingerprint_is_that_of_the_bytes():
    w = torch.tensor([1.0, -2.5], dtype=torch.float64)
    assert sha256(w) == hashlib.sha256(np.array([1.0, -2.5]).tobytes()).hexdigest()
    assert sha256(w) != sha256(w.float())
    assert sha256(torch.arange(6.0)[::2]) == sha256(torch.tensor([0.0, 2.0, 4.0]))


def test_an_atomic_write_leaves_the_whole_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "x.json"
    (tmp_path / "x.json.part").write_bytes(b"left by a kill, and longer than what comes now")
    for data in (b"first", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data
        assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_an_atomic_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"x.json: it cannot be written \(No space left on device\); free space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def task() -> tarry.Task:
    clients = random_clients([8] * 3, 3, 2, seed=1)
    return tarry.Task("tiny", model=lambda: nn.Linear(3, 2), loss=cross_entropy, clients=clients, test=clients[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    availability = {2: [[0.0, 3.5]]}
    tarry.run(
        {"name": "orthofl", "beta": 0.5},
        task(),
        delay=[1.0, 1.5, 2.0],
        time=6,
        seed=4,
        availability=availability,
        out=out,
    )
    return out


WANTED = {
    "method": str,
    "label": str,
    "task": str,
    "seed": int,
    "virtual_time": float,
    "updates": int,
    "final_accuracy": float,
    "curve": list,
    "staleness": dict,
    "weights_sha256": str,
    "wall_s": float,
    "bytes_up": int,
    "bytes_down": int,
    "peak_server_bytes": int,
}


def test_a_folder_holds_what_its_page_promises(folder):
    assert {p.name for p in folder.iterdir() if p.name != ".lock"} == {
        "spec.toml",
        "events.jsonl",
        "arrivals.csv",
        "meta.json",
        "proofs",
        "model.safetensors",
        "result.json",
    }


def test_result_json_has_what_others_rely_on(folder):
    raw = json.loads((folder / "result.json").read_text())
    assert {k: type(raw.get(k)) for k in WANTED} == WANTED
    assert (raw["method"], raw["label"], raw["task"], raw["seed"]) == ("orthofl", "orthofl:beta=0.5", "tiny", 4)
    # client 0 arrives 6 times in 6 s, client 1 4 times, client 2 once before it leaves in its second visit
    assert (raw["virtual_time"], raw["updates"], raw["lost"], raw["rejected"]) == (6.0, 11, 1, 0)
    assert set(raw["staleness"]) == {"mean", "p95", "max"}
    assert all(len(point) == 4 for point in raw["curve"])
    assert raw["curve"][0][:2] == [0.0, 0]
    assert raw["curve"][-1] == [6.0, 11, raw["final_accuracy"], raw["final_loss"]]
    assert raw["wall_s"] > 0
    assert raw["bytes_up"] == 11 * 8 * 4
    assert raw["bytes_down"] % (8 * 4) == 0
    assert raw["peak_server_bytes"] > 8 * 4


def test_the_numbers_of_the_result_are_those_of_the_rows(folder):
    raw = json.loads((folder / "result.json").read_text())
    rows = list(read_rows(folder / "events.jsonl"))
    arrivals = [r for r in rows if r["kind"] == "arrival"]
    assert len(arrivals) == raw["updates"]
    assert sum(r["kind"] == "lost" for r in rows) == raw["lost"]
    assert raw["staleness"] == pytest.approx(staleness_summary(Counter(r["staleness"] for r in arrivals))._asdict())
    scored = [[r["time"], r["updates"], r["accuracy"], r["loss"]] for r in rows if r["kind"] == "evaluate"]
    assert scored == raw["curve"]
    assert raw["bytes_down"] == sum(r["kind"] == "hand_out" for r in rows) * 8 * 4


def test_the_model_on_disk_is_the_one_whose_fingerprint_is_told(folder):
    raw = json.loads((folder / "result.json").read_text())
    named = load_file(folder / "model.safetensors")
    assert {k: v.shape for k, v in named.items()} == {"weight": (2, 3), "bias": (2,)}
    flat = np.concatenate([named["weight"].ravel(), named["bias"]])
    assert hashlib.sha256(flat.tobytes()).hexdigest() == raw["weights_sha256"]


def test_a_result_reads_back_as_it_was_written(folder):
    result = Result.read(folder)
    assert result.out == folder
    raw = json.loads((folder / "result.json").read_text())
    assert json.loads(result.to_json()) == {k: v for k, v in raw.items() if k not in ("bound_to", "sha256")}
    assert all(isinstance(p, tuple) for p in result.curve)
    assert Result.read(str(folder)) == result


def test_the_recorded_visits_replay_to_the_same_weights(folder):
    rows = read_trace(folder / "arrivals.csv")
    assert [r.fate for r in rows if r.client == 2] == ["came", "lost"]
    delay = {"name": "trace", "path": str(folder / "arrivals.csv")}
    again = tarry.run(
        {"name": "orthofl", "beta": 0.5}, task(), delay=delay, time=6, seed=4, availability={2: [[0, 3.5]]}
    )
    assert again.weights_sha256 == Result.read(folder).weights_sha256


def test_a_folder_without_a_result_is_told_how_to_get_one(tmp_path):
    with pytest.raises(BadInput, match=r"no finished run is here .*`tarry resume .*` finishes one"):
        Result.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"curve": 3}', '{"curve": [], "hello": 1}', "[" * 100_000])
def test_a_result_that_cannot_be_read_is_damaged(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"result.json cannot be read"):
        Result.read(tmp_path)


def test_what_is_not_finite_is_null_in_the_file(folder, tmp_path):
    values: dict[str, Any] = {**vars(Result.read(folder)), "final_loss": float("nan")}
    values["curve"] = [CurvePoint.of(0.0, 0, {"loss": float("inf")}, "loss")]
    text = Result(**values).to_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["final_loss"] is None
    assert json.loads(text)["curve"] == [[0.0, 0, None, None]]


def test_a_run_without_a_test_set_has_an_empty_curve_and_no_accuracy(tmp_path):
    bare = tarry.Task("bare", model=lambda: nn.Linear(3, 2), loss=cross_entropy, clients=task().clients)
    result = tarry.run("fedasync", bare, delay=[1, 1, 1], updates=3, out=tmp_path / "r")
    assert (result.final_accuracy, result.final_loss, result.curve) == (None, None, [])
    assert Result.read(tmp_path / "r").final_accuracy is None


def test_a_result_is_shown_in_one_short_line(folder):
    result = Result.read(folder)
    accuracy = result.final_accuracy
    assert repr(result) == f"Result(orthofl:beta=0.5 on tiny, seed 4: accuracy {accuracy:.3f} after 6 s, 11 updates)"
    assert repr(replace(result, final_accuracy=None, final_loss=0.51239, virtual_time=12345.6, updates=1)) == (
        "Result(orthofl:beta=0.5 on tiny, seed 4: loss 0.5124 after 12,346 s, 1 update)"
    )
    long = replace(result, label="l" * 200, task="t" * 200, seed=2**62, virtual_time=1e18, finished=False)
    assert len(repr(long)) < 120


def test_a_point_of_the_curve_has_names_and_equals_its_tuple(folder):
    last = Result.read(folder).curve[-1]
    assert (last.time, last.updates) == (6.0, 11)
    assert last == (6.0, 11, last.accuracy, last.loss, {"accuracy": last.accuracy, "loss": last.loss})


def test_the_model_of_a_run_computes_the_final_accuracy():
    small = task()
    result = tarry.run("orthofl", small, delay=[1, 2, 3], updates=5)
    model = result.model()
    assert small.test is not None
    x, y = small.test
    assert (model(x).argmax(-1) == y).float().mean().item() == pytest.approx(result.final_accuracy)
    assert sha256(torch.cat([t.flatten() for t in result.state_dict().values()])) == result.weights_sha256


def test_frozen_parameters_of_the_model_are_those_of_the_run():
    def net() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        module[0].requires_grad_(False)
        return module

    small = replace(task(), model=net)
    result = tarry.run("fedasync", small, delay=[1, 2, 3], updates=5, seed=3)
    x, y = small.clients[0]
    model = result.model().eval()
    assert set(result.state_dict()) == {"1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight", "2.bias"}
    assert (model(x).argmax(-1) == y).float().mean().item() == pytest.approx(result.final_accuracy)


def test_a_copy_of_the_weights_can_be_changed():
    result = tarry.run("fedasync", task(), delay=[1, 2, 3], updates=3)
    result.state_dict()["weight"].zero_()
    assert sha256(torch.cat([t.flatten() for t in result.state_dict().values()])) == result.weights_sha256


def test_a_saved_result_reads_back(folder, tmp_path):
    result = tarry.run("fedasync", task(), delay=[1, 2, 3], updates=3)
    result.save(tmp_path / "memory")
    Result.read(folder).save(str(tmp_path / "folder"))
    for before, after in ((result, tmp_path / "memory"), (Result.read(folder), tmp_path / "folder")):
        again = Result.read(after)
        assert again == before
        assert {k: v.tolist() for k, v in again.state_dict().items()} == {
            k: v.tolist() for k, v in before.state_dict().items()
        }
    assert list(Result.read(tmp_path / "folder").events()) == list(read_rows(folder / "events.jsonl"))
    with pytest.raises(BadInput, match="memory: it is not an empty folder; name another one"):
        result.save(tmp_path / "memory")


def test_events_of_a_run_without_a_folder_are_refused():
    with pytest.raises(BadInput, match=r"there is no event log .*tarry.run\(..., out=FOLDER\) writes one"):
        tarry.run("fedasync", task(), delay=[1, 2, 3], updates=3).events()


def test_a_result_travels_to_other_processes_without_what_builds_its_model():
    result = tarry.run("fedasync", task(), delay=[1, 2, 3], updates=3)  # the model is a lambda
    again = pickle.loads(pickle.dumps(result))  # noqa: S301 - made here
    assert again == result
    assert again.state_dict().keys() == result.state_dict().keys()
    with pytest.raises(BadInput, match="does not hold the settings that build its model"):
        again.model()
    several = tarry.compare(["fedasync", "fedavg"], task(), seeds=[0], delay=[1, 2, 3], updates=3, workers=2)
    assert [type(r.model()) for r in several] == [nn.Linear, nn.Linear]


FORGED = [
    ("curve", 3),
    ("curve", [[1.0, 2]]),
    ("curve", [[1.0, "two", None, None]]),
    ("staleness", {}),
    ("staleness", {"mean": "x", "p95": 0, "max": 0}),
    ("seed", "0"),
    ("updates", None),
    ("label", 7),
    ("final_accuracy", "high"),
    ("warnings", "one"),
    ("diagnostics", []),
    ("virtual_time", True),
]


@pytest.mark.parametrize(("name", "value"), FORGED)
def test_a_forged_field_with_a_fresh_digest_is_damaged_all_the_same(folder, tmp_path, name, value):
    raw = json.loads((folder / "result.json").read_text())
    del raw["sha256"]
    (tmp_path / "result.json").write_bytes(seal({**raw, name: value}))
    with pytest.raises(DamagedFile, match=r"result.json cannot be read"):
        Result.read(tmp_path)


def test_every_changed_byte_of_a_result_is_found(folder, tmp_path):
    whole = (folder / "result.json").read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (tmp_path / "result.json").write_bytes(damaged)
        try:
            same = Result.read(tmp_path).to_json() == Result.read(folder).to_json()
        except DamagedFile:
            continue
        assert same, "white space between two tokens does not count"
