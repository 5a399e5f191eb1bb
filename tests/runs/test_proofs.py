"""Digests and proofs of a run, and their verification by training again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tarry
from tarry.core.errors import BadInput, DamagedFile
from tarry.core.tickets import LocalResult, VisitJob
from tarry.record.digests import digest_of_vector
from tarry.record.rows import Log, read_rows
from tarry.record.run_folder import RunFolder
from tarry.runs import proofs
from tarry.runs.proofs import ProofSample, load_proof, write_proof
from tests.helpers.interrupted import interrupted_run

SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 200, "hidden": 8},
    "clients": 5,
    "updates": 30,
    "batch": 16,
    "epochs": 1,
    "failure_rate": 0.2,
    "checkpoint_every": 1e-9,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proofs") / "run"
    tarry.run("moon", out=folder, **SETTINGS)
    return folder


def job(number: int, size: int = 4) -> VisitJob:
    return VisitJob(number, number % 3, number // 3, torch.full((size,), float(number)))


def result(number: int, size: int = 4) -> LocalResult:
    return LocalResult(torch.full((size,), -float(number)), 1, 1, 0.5)


def settings_of(proof: Path) -> str:
    return RunFolder(proof.parent.parent).meta().settings_sha256


def stored_proof(path: Path) -> tuple[VisitJob, LocalResult]:
    return load_proof(path, settings_of(path))


def test_every_arrival_has_the_digests_of_what_was_sent_and_returned(finished):
    rows = list(read_rows(finished / "events.jsonl"))
    assert all(("delta" in r) == (r["kind"] == "arrival") for r in rows)
    by_ticket = {r["ticket"]: r for r in rows if r["kind"] == "arrival"}
    stored = [stored_proof(path) for path in sorted((finished / "proofs").iterdir())]
    assert len(stored) == 8
    for visit, outcome in stored:
        row = by_ticket[visit.number]
        assert (row["client"], row["visit"]) == (visit.client, visit.visit)
        assert (row["sent"], row["delta"]) == (digest_of_vector(visit.sent), digest_of_vector(outcome.delta))


def test_a_sample_is_the_same_in_any_order_and_after_a_restart(tmp_path):
    def sample(folder: Path, numbers: list[int], *, restart: bool = False) -> list[str]:
        made = ProofSample(folder, 5, seed=2, settings="s")
        for n in numbers:
            made.offer(job(n), result(n))
            if restart:
                made.write()
                made = ProofSample(folder, 5, seed=2, settings="s")
        made.write()
        return sorted(p.name for p in folder.iterdir())

    first = sample(tmp_path / "a", [*range(60)])
    assert len(first) == 5
    assert sample(tmp_path / "b", [*reversed(range(60))]) == first
    assert sample(tmp_path / "c", [*range(60)], restart=True) == first
    assert sample(tmp_path / "c", [*range(60)]) == first
    visit, outcome = load_proof(tmp_path / "a" / first[0], "s")
    assert torch.equal(visit.sent, job(visit.number).sent)
    assert torch.equal(outcome.delta, result(visit.number).delta)


def test_proofs_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(proofs, "_LIMIT", 3 * 2 * 400)
    made = ProofSample(tmp_path / "p", 8, seed=0, settings="s")
    for n in range(20):
        made.offer(job(n, 100), result(n, 100))
    made.write()
    assert len(list((tmp_path / "p").iterdir())) == 3
    made = ProofSample(tmp_path / "q", 8, seed=0, settings="s")
    made.offer(job(0, 10_000), result(0, 10_000))
    made.write()
    assert not (tmp_path / "q").exists()


def test_without_proofs_nothing_is_recorded_and_no_number_changes(finished, tmp_path):
    bare = tarry.run("moon", out=tmp_path / "r", **{**SETTINGS, "proofs": 0})
    assert bare.weights_sha256 == tarry.Result.read(finished).weights_sha256
    assert not (tmp_path / "r" / "proofs").exists()
    assert not any("delta" in r for r in read_rows(tmp_path / "r" / "events.jsonl"))
    assert tarry.verify(tmp_path / "r", rerun="proofs").ok
    with pytest.raises(BadInput, match="proofs=-1"):
        tarry.run("moon", out=tmp_path / "x", **{**SETTINGS, "proofs": -1})


def test_an_interrupted_run_has_the_log_and_the_proofs_of_the_whole_one(finished, tmp_path):
    interrupted_run(tmp_path / "r", lambda e: e.updates == 17, "moon", **SETTINGS)
    assert tarry.verify(tmp_path / "r", rerun="proofs").ok
    tarry.resume(tmp_path / "r")
    assert (tmp_path / "r" / "events.jsonl").read_bytes() == (finished / "events.jsonl").read_bytes()
    names = [sorted(p.name for p in (folder / "proofs").iterdir()) for folder in (tmp_path / "r", finished)]
    assert names[0] == names[1]
    assert tarry.verify(tmp_path / "r", rerun="all").ok


def test_a_damaged_or_foreign_proof_is_not_bound_to_the_result(tmp_path):
    folder, other = tmp_path / "r", tmp_path / "other"
    for out, seed in ((folder, 0), (other, 1)):
        interrupted_run(out, lambda e: e.updates == 17, "moon", **SETTINGS, seed=seed)
    path = min((folder / "proofs").iterdir())
    before = path.read_bytes()
    damaged = before[:-1] + bytes([before[-1] ^ 1])
    job, outcome = stored_proof(path)
    write_proof(path, settings_of(min((other / "proofs").iterdir())), job, outcome)
    for content, why in ((damaged, "not what was written"), (path.read_bytes(), "of a run with other settings")):
        path.write_bytes(content)
        assert any(path.name in check.text and why in check.text for _, check in tarry.verify(folder).checks)
        with pytest.raises(DamagedFile, match=f"{path.name}.* {why}.*delete it"):
            tarry.resume(folder)
    path.write_bytes(before)
    tarry.resume(folder)
    assert tarry.verify(folder, rerun="proofs").ok


@pytest.mark.parametrize("rerun", ["proofs", "all"])
@pytest.mark.parametrize(
    ("method", "executor"), [("orthofl", "inline"), ("scaffold", "pool"), ("fedasync", "batched"), ("fedsol", "auto")]
)
def test_a_run_of_any_executor_is_verified_by_training(tmp_path, method, executor, rerun):
    more = {"executor": executor, "workers": 2 if executor == "pool" else 1}
    tarry.run(method, out=tmp_path / "r", **{**SETTINGS, **more})
    found = tarry.verify(tmp_path / "r", rerun=rerun)
    assert found.ok, [check.text for _, check in found.checks if not check.ok]
    assert sum("same" in check.text for _, check in found.checks) >= (8 if rerun == "proofs" else 1)


def forged(folder: Path, out: Path, change: float) -> Path:
    """A copy of the folder in which an update was changed, with digests, checksums and bindings that fit."""
    from tarry.record.binding import bind, seal, unseal

    shutil.copytree(folder, out)
    path = max((out / "proofs").iterdir())
    visit, outcome = stored_proof(path)
    delta = outcome.delta.clone()
    delta[3] += change
    write_proof(path, settings_of(path), visit, outcome._replace(delta=delta))
    rows = list(read_rows(out / "events.jsonl"))
    log = Log(out / "events.jsonl")
    for row in rows:
        if row["ticket" if "ticket" in row else "kind"] == visit.number and "delta" in row:
            row["delta"] = digest_of_vector(delta)
        log.append(row)
    log.close()
    raw = unseal(out / "result.json", json.loads((out / "result.json").read_text()))
    (out / "result.json").write_bytes(seal({**raw, "bound_to": bind(out)}))
    return out


def test_a_forged_update_passes_the_checksums_but_not_the_training(finished, tmp_path):
    folder = forged(finished, tmp_path / "r", 1e-5)
    assert tarry.verify(folder).ok
    (bad,) = [check.text for _, check in tarry.verify(folder, rerun="proofs").checks if not check.ok]
    assert "gives another update" in bad
    assert not tarry.verify(folder, rerun="all").ok or tarry.verify(finished, rerun="all").ok


def test_a_proof_of_another_visit_is_found(finished, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()  # it has digests of the proofs
    a, b, *_ = sorted((folder / "proofs").iterdir())
    visit, _ = stored_proof(a)
    _, other = stored_proof(b)
    write_proof(a, settings_of(a), visit, other)
    (bad,) = [check.text for _, check in tarry.verify(folder, rerun="proofs").checks if not check.ok]
    assert f"it is not the visit of ticket {visit.number} in the log" in bad


def test_a_run_of_python_objects_is_verified_with_them(tmp_path):
    task = tarry.tasks["digits"](limit=100, hidden=4)
    tarry.run("fedasync", task, clients=3, updates=9, out=tmp_path / "r")
    assert tarry.verify(tmp_path / "r").ok
    with pytest.raises(BadInput, match=r"given a Python object as task; verify it from Python"):
        tarry.verify(tmp_path / "r", rerun="proofs")
    assert tarry.verify(tmp_path / "r", rerun="proofs", task=task).ok


def test_a_comparison_is_verified_run_by_run(tmp_path):
    tarry.compare(["fedavg", "fedasync"], seeds=[0, 1], out=tmp_path / "c", **{**SETTINGS, "updates": 6})
    found = tarry.verify(tmp_path / "c", rerun="proofs")
    assert found.ok
    assert {run.parent.name for run, check in found.checks if "visit" in check.text} == {"fedavg", "fedasync"}
