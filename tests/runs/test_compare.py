from __future__ import annotations

import json
import multiprocessing as mp
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.core.errors import BadInput, DamagedFile, TarryError, WorkerDied
from tarry.core.events import Event
from tarry.record.result import Result
from tarry.record.rows import read_rows
from tarry.runs.compare import compare_specs
from tarry.runs.run import run_spec
from tarry.runs.specs import specs_of
from tests.helpers.models import random_clients

HERE = os.getpid()
METHODS = ["fedavg", "fedasync", "fedbuff:buffer=2", "orthofl", "fedprox"]
SETTINGS: dict[str, Any] = {
    "task": {"name": "digits", "limit": 300, "hidden": 8},
    "clients": 5,
    "delay": "lognormal",
    "time": 400.0,
    "epochs": 1,
    "failure_rate": 0.2,
}


def listened(method: str, seed: int) -> list[Event]:
    events: list[Event] = []
    (spec,) = specs_of([method], [seed], SETTINGS)
    run_spec(spec, callbacks=[events.append])
    return events


@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_of_a_seed_meets_the_same_first_weights_durations_and_losses(seed):
    stories = {m: listened(m, seed) for m in METHODS}
    first = {m: tuple(s[0].weights.tolist()) for m, s in stories.items()}
    assert len(set(first.values())) == 1
    durations: dict[tuple[int, int], set[float | None]] = {}
    fates: dict[tuple[int, int], set[str]] = {}
    for events in stories.values():
        for e in events:
            if e.kind == "hand_out":
                durations.setdefault((e.client, e.visit), set()).add(e.seconds)
            elif e.kind in ("arrival", "lost"):
                fates.setdefault((e.client, e.visit), set()).add(e.kind)
    assert len(durations) > 15
    assert all(len(d) == 1 for d in durations.values())
    assert all(len(f) == 1 for f in fates.values())
    assert {"lost"} in fates.values()
    assert len({tuple(s[-1].weights.tolist()) for s in stories.values()}) == len(METHODS)


def test_every_method_of_a_seed_gets_the_same_partition_and_other_seeds_another():
    from tarry.runs.build import build_run

    def dealt(method: str, seed: int) -> tuple[Any, ...]:
        (spec,) = specs_of([method], [seed], SETTINGS)
        made = build_run(spec)
        return tuple((x.sum().item(), tuple(y.tolist())) for x, y in made.task.clients)

    seeds = [{dealt(m, seed) for m in METHODS} for seed in (0, 1)]
    assert [len(s) for s in seeds] == [1, 1]
    assert seeds[0] != seeds[1]


def facts(result: Result) -> Result:
    return replace(result, wall_s=0.0)


def test_several_at_a_time_come_to_what_one_after_the_other_comes_to():
    serial = tarry.compare(METHODS[:3], seeds=[0, 1], **SETTINGS)
    parallel = tarry.compare(METHODS[:3], seeds=[0, 1], workers=3, **SETTINGS)
    assert [facts(r) for r in parallel] == [facts(r) for r in serial]
    assert parallel.summary == serial.summary
    for a, b in zip(serial, parallel, strict=True):
        assert a.weights is not None
        assert b.weights is not None
        assert torch.equal(a.weights, b.weights)
    assert mp.active_children() == []


def test_results_come_method_by_method_seed_by_seed_and_are_those_of_single_runs():
    c = tarry.compare(["fedavg", "orthofl:beta=0.3"], seeds=[2, 0], **SETTINGS)
    assert [(r.label, r.seed) for r in c] == [
        ("fedavg", 2),
        ("fedavg", 0),
        ("orthofl:beta=0.3", 2),
        ("orthofl:beta=0.3", 0),
    ]
    assert c[3].weights_sha256 == tarry.run("orthofl:beta=0.3", seed=0, **SETTINGS).weights_sha256
    assert [row.label for row in c.summary.rows] == ["fedavg", "orthofl:beta=0.3"]
    assert c.summary.seeds == (0, 2)


def test_a_comparison_is_a_sequence_of_its_runs_and_has_them_by_label(tmp_path):
    c = tarry.compare(["fedavg", "fedasync"], seeds=[0, 1], **SETTINGS)
    assert isinstance(c, Sequence)
    assert (len(c), c[1].seed, c[-1].label, len(c[1:3])) == (4, 1, "fedasync", 2)
    assert c["fedasync"] == [r for r in c if r.label == "fedasync"] == [c[2], c[3]]
    with pytest.raises(KeyError) as e:
        c["fedasink"]
    assert str(e.value) == "fedasink: no run here has this label. Did you mean 'fedasync'?"
    with pytest.raises(IndexError):
        c[4]
    assert c.best == max(c.summary.rows, key=lambda row: row.accuracy).label
    lines = repr(c).splitlines()
    assert lines[0].split()[:2] == ["method", "accuracy"]
    assert [line.split()[0] for line in lines[2:4]] == ["fedavg", "fedasync"]
    assert c.to_markdown().startswith("| method | accuracy % |")
    page = c.report(tmp_path / "page.html").read_text()
    assert "fedasync" in page


def stamps(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in folder.rglob("*")
        if p.is_file() and p.name not in ("compare.json", "significance.json", ".lock")
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_comparison_taken_up_again_does_not_rerun_what_is_finished(tmp_path, workers):
    first = tarry.compare(METHODS[:2], seeds=[0, 1], out=tmp_path / "c", **SETTINGS)
    before = stamps(tmp_path / "c")
    shutil.rmtree(tmp_path / "c" / "fedasync" / "seed-1")
    seen: list[tuple[int, float]] = []
    again = tarry.compare(
        METHODS[:2],
        seeds=[0, 1],
        out=tmp_path / "c",
        workers=workers,
        progress=lambda i, spec, p: seen.append((i, p.fraction)),
        **SETTINGS,
    )
    after = stamps(tmp_path / "c")
    assert [facts(r) for r in again] == [facts(r) for r in first]
    kept = {k: v for k, v in before.items() if not k.startswith("fedasync/seed-1")}
    assert {k: v for k, v in after.items() if not k.startswith("fedasync/seed-1")} == kept
    assert after.keys() == before.keys()
    assert after["fedasync/seed-1/events.jsonl"][1] == before["fedasync/seed-1/events.jsonl"][1]
    assert {i for i, f in seen if f == 1.0} == {0, 1, 2, 3}
    assert again.out == tmp_path / "c"


def test_a_run_that_was_interrupted_in_a_comparison_is_finished_by_the_next(tmp_path):
    settings = {**SETTINGS, "checkpoint_every": 1e-9}
    whole = tarry.compare(["fedasync"], seeds=[0], out=tmp_path / "whole", **settings)
    (spec,) = specs_of(["fedasync"], [0], settings)

    def stop(e: Event) -> None:
        if e.updates == 8:
            raise LookupError("pulled the plug")

    folder = tmp_path / "c" / "fedasync" / "seed-0"
    with pytest.raises(LookupError):
        run_spec(spec, out=folder, callbacks=[stop])
    assert not (folder / "result.json").exists()
    again = tarry.compare(["fedasync"], seeds=[0], out=tmp_path / "c", **settings)
    assert again[0].weights_sha256 == whole[0].weights_sha256
    log = "fedasync/seed-0/events.jsonl"
    assert (tmp_path / "c" / log).read_text() == (tmp_path / "whole" / log).read_text()


def test_more_methods_and_seeds_may_be_added_to_a_comparison(tmp_path):
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)
    before = stamps(tmp_path)
    grown = tarry.compare(["fedavg", "orthofl"], seeds=[0, 1], out=tmp_path, **SETTINGS)
    assert len(grown) == 4
    assert {k: v for k, v in stamps(tmp_path).items() if k in before} == before
    assert len(json.loads((tmp_path / "compare.json").read_text())["rows"]) == 2


def test_other_settings_in_the_same_folder_are_refused_before_anything_runs(tmp_path):
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)
    before = stamps(tmp_path)
    with pytest.raises(BadInput, match=rf"out='{tmp_path}': it holds fedavg, seed 0, with other .*lr 0.05 there, 0.5"):
        tarry.compare(["orthofl", "fedavg"], seeds=[0], out=tmp_path, **{**SETTINGS, "lr": 0.5})
    assert stamps(tmp_path) == before
    assert not (tmp_path / "orthofl").exists()


TRACE = "client,visit,start,seconds,fate\n" + "".join(f"{c},{v},{9 * v},9,came\n" for c in range(5) for v in range(60))
OWN_METHOD = """
from tarry import Method, stateless
def timid():
    return Method("timid", step=stateless(lambda update, now: now.weights + 0.5 * update.delta))
"""


def named_file(what: str, folder: Path) -> tuple[Path, dict[str, Any], str, str]:
    """A file that the settings name, those settings, and a piece of it with what it is edited to."""
    settings: dict[str, Any] = {**SETTINGS, "method": "fedasync"}
    if what == "method":
        path = folder / "mine.py"
        path.write_text(OWN_METHOD)
        return path, {**settings, "method": f"{path}:timid"}, "0.5", "0.9"
    path = folder / f"{what}.csv"
    if what == "availability":
        path.write_text("client,start,end\n0,0,100\n0,200,400\n")
        return path, {**settings, "availability": str(path)}, "100", "150"
    path.write_text(TRACE)
    return path, {**settings, "delay": {"name": "trace", "path": str(path)}, "failure_rate": 0.0}, "9,came", "8,came"


@pytest.mark.parametrize("what", ["method", "availability", "delay"])
def test_an_edited_file_gives_no_old_result(tmp_path, what):
    path, settings, old, new = named_file(what, tmp_path)
    method, out = settings.pop("method"), tmp_path / "c"
    first = tarry.compare([method], seeds=[0], out=out, **settings)
    assert first.reused == ()
    again = tarry.compare([method], seeds=[0], out=out, **settings)
    (told,) = again.reused
    assert re.fullmatch(rf"1 of 1 run was there already \({out}\), made 20\d\d-\d\d-\d\d \d\d:\d\d", told)
    path.write_text(path.read_text().replace(old, new))
    before = stamps(out)
    with pytest.raises(BadInput, match=rf"out='{out}': \S+{path}' is not what it was .*another out, or remove"):
        tarry.compare([method], seeds=[0], out=out, **settings)
    assert stamps(out) == before


def test_an_edited_data_file_of_tarry_data_gives_no_old_result(tmp_path, monkeypatch):
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    for sign in (1, -1):
        x = sign * np.linspace(0, 1, 180, dtype=np.float32).reshape(60, 3)
        np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 2)
        args: dict[str, Any] = {"seeds": [0], "out": tmp_path / "c", "updates": 4, "clients": 3}
        if sign == 1:
            tarry.compare(["fedavg"], "mine", **args)
    with pytest.raises(BadInput, match=r"task='.*mine\.npz' is not what it was"):
        tarry.compare(["fedavg"], "mine", **args)


def test_a_run_whose_file_was_edited_half_way_is_not_resumed_and_one_with_the_file_back_is(tmp_path):
    path, settings, old, new = named_file("method", tmp_path)
    text, stopped = path.read_text(), []

    def stop(e: Event) -> None:
        if e.updates == 8 and not stopped.append(e):
            raise LookupError("pulled the plug")

    with pytest.raises(LookupError):
        tarry.run(out=tmp_path / "r", callbacks=[stop], checkpoint_every=1e-9, **settings)
    path.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=r"r: method='.*mine\.py' is not what it was when this run began; put that back"):
        tarry.resume(tmp_path / "r")
    path.write_text(text)
    assert tarry.resume(tmp_path / "r").weights_sha256 == tarry.run(**settings).weights_sha256


def test_a_folder_of_before_there_were_digests_is_taken_up_and_that_is_said(tmp_path):
    path, settings, old, new = named_file("method", tmp_path)
    method = settings.pop("method")
    tarry.compare([method], seeds=[0], out=tmp_path / "c", **settings)
    meta = tmp_path / "c" / "timid" / "seed-0" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "files": {}}))
    path.write_text(path.read_text().replace(old, new))
    count, unsure = tarry.compare([method], seeds=[0], out=tmp_path / "c", **settings).reused
    assert count.startswith("1 of 1 run was there already")
    assert unsure.startswith(f"whether {path} changed since then is not known")


def test_the_folder_of_a_run_is_not_used_for_a_comparison(tmp_path):
    tarry.run("fedavg", out=tmp_path / "r", **SETTINGS)
    before = stamps(tmp_path)
    with pytest.raises(BadInput, match=r"out='.*r': it holds a run; name another folder"):
        tarry.compare(["fedavg"], seeds=[0], out=tmp_path / "r", **SETTINGS)
    assert stamps(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"task": {"name": "digits", "limit": 200, "hidden": 8}}, r"\(task.limit 300 there, 200 here\)"),
        ({"task": "digits"}, r"\(task.limit 300 there, none here; task.hidden 8 there, none here\)"),
        ({"delay": "constant", "lr": 0.1}, r"\(delay lognormal there, constant here; lr 0.05 there, 0.1 here\)"),
        (
            {"delay": lambda client, visit: 1.0 + client},
            r"\(delay lognormal there, a Python object \(<lambda>\) here\)",
        ),
    ],
)
def test_the_settings_that_differ_from_those_in_the_folder_are_named(tmp_path, other, words):
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)
    with pytest.raises(BadInput, match=words):
        tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **{**SETTINGS, **other})


def test_a_record_of_settings_that_is_torn_is_told(tmp_path):
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)
    (tmp_path / "fedavg" / "seed-0" / "spec.toml").write_text("lr = ")
    with pytest.raises(DamagedFile, match=r"spec\.toml cannot be read: .*remove .*seed-0 to run it again"):
        tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)


def test_settings_that_change_no_result_do_not_make_a_comparison_another_one(tmp_path):
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS)
    before = stamps(tmp_path)
    tarry.compare(["fedavg"], seeds=[0], out=tmp_path, **SETTINGS, checkpoint_every=3.0, lookahead=2)
    assert stamps(tmp_path) == before


@pytest.mark.parametrize(
    ("methods", "seeds", "words"),
    [
        (["fedavg", "orthofl", "fedavg"], [0], "method='fedavg': it is there twice with seed 0; leave one out"),
        (["fedavg"], [3, 3], "method='fedavg': it is there twice with seed 3; name every seed once"),
        (["fedbuff:buffer=3", {"name": "fedbuff", "buffer": 3}], [0], "method='fedbuff:buffer=3': it is there twice"),
        (
            [tarry.Method("mine"), tarry.Method("mine")],
            [0],
            r"mine': it is there twice .*replace\(method, name=\.\.\.\)",
        ),
        ([], [0], "at least one method"),
        (["fedavg"], [], "one of seeds"),
    ],
)
def test_the_same_thing_twice_or_nothing_is_refused(methods, seeds, words):
    with pytest.raises(BadInput, match=words):
        tarry.compare(methods, seeds=seeds, **SETTINGS)


def test_the_ways_out_of_a_name_that_is_there_twice_are_ways_out(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from tarry import Method\ndef mine(*, share: float = 0.5) -> Method:\n    return Method('mine')\n"
    )
    named = [tarry.Method("mine"), replace(tarry.Method("mine"), name="other"), f"{tmp_path}/mine.py:mine:share=0.2"]
    assert [s.label for s in specs_of(named, [0], SETTINGS)] == ["mine", "other", "mine:share=0.2"]


def test_labels_that_would_share_a_folder_are_refused(tmp_path):
    named = [tarry.Method("mine one"), tarry.Method("mine/one")]
    folder = re.escape(f"{tmp_path}/mine-one/seed-0")
    with pytest.raises(BadInput, match=f"method='mine/one': another method .* would share the folder {folder}"):
        tarry.compare(named, seeds=[0], out=tmp_path, **{**SETTINGS, "time": 50.0})
    assert list(tmp_path.iterdir()) == []


def test_problems_of_all_runs_come_in_one_error_each_once():
    with pytest.raises(BadInput) as e:
        tarry.compare(["fedavgg", "fedasync:alpha=7", "fedbuff:bufer=1"], seeds=[0, 1, 2], **SETTINGS)
    starts = ("method='fedavgg'", "method.alpha=7", "method.bufer=1")
    assert len(e.value.problems) == 3
    assert all(sum(p.startswith(s) for p in e.value.problems) == 1 for s in starts)


def test_a_problem_of_some_methods_names_them_and_one_of_all_names_none():
    with pytest.raises(BadInput) as e:
        tarry.compare(["fednova", "fedavg", "scaffold"], seeds=[0], optimizer="adam", **SETTINGS)
    assert [p.rpartition(" (")[2] for p in e.value.problems] == ["method='fednova')", "method='scaffold')"]
    with pytest.raises(BadInput) as e:
        tarry.compare(["fedavg", "orthofl"], seeds=[0], **{**SETTINGS, "clients": 5000})
    assert len(e.value.problems) == 1
    assert "method" not in e.value.problems[0]


def test_all_leaves_out_what_does_not_fit_and_says_why(monkeypatch):
    monkeypatch.setattr(tarry.methods, "_entries", {name: tarry.methods[name] for name in ("asgd", "scaffold")})
    c = tarry.compare(["all"], seeds=[0], optimizer="adam", **SETTINGS)
    assert [row.label for row in c.summary.rows] == ["asgd"]
    (said,) = c.skipped
    assert said.startswith("scaffold is left out: optimizer='adam': ")


def test_no_workers_is_refused():
    with pytest.raises(BadInput, match="workers=0: must be 1 or more"):
        tarry.compare(["fedavg"], seeds=[0], workers=0, **SETTINGS)


def own_task(loss=cross_entropy) -> tarry.Task:
    clients = random_clients([8] * 2, 3, 2, seed=0)
    return tarry.Task("own", model=lambda: nn.Linear(3, 2), loss=loss, clients=clients, test=clients[0])


OWN: dict[str, Any] = {"time": 6.0, "epochs": 1}


def test_objects_of_ones_own_are_compared_and_taken_up_again(tmp_path):
    timid = tarry.Method("timid", step=tarry.stateless(lambda u, now: now.weights + 0.1 * u.delta))

    def delay(client: int, visit: int) -> float:
        return 1.0 + client

    args: dict[str, Any] = {"seeds": [0, 1], "out": tmp_path, "delay": delay, **OWN}
    first = tarry.compare([timid, "fedasync"], own_task(), workers=2, **args)
    before = stamps(tmp_path)
    with pytest.warns(UserWarning, match=r"4 of 4 runs were there already .* whether .*method timid .*is not known"):
        again = tarry.compare([timid, "fedasync"], own_task(), **args)
    assert [facts(r) for r in again] == [facts(r) for r in first]
    assert stamps(tmp_path) == before


def test_a_delay_function_made_anew_as_after_a_restart_goes_on_in_the_same_folder(tmp_path):
    def made() -> Any:
        return lambda client, visit: 1.0 + client

    keep = [made(), made()]
    first = tarry.compare(["fedasync"], own_task(), seeds=[0], out=tmp_path, delay=keep[0], **OWN)
    with pytest.warns(UserWarning, match="there already"):
        again = tarry.compare(["fedasync"], own_task(), seeds=[0], out=tmp_path, delay=keep[1], **OWN)
    assert [facts(r) for r in again] == [facts(r) for r in first]


def test_an_error_in_one_of_several_processes_reaches_the_caller_and_ends_the_others():
    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE:
            raise ZeroDivisionError("there is a worm in this apple")
        return cross_entropy(out, y)

    with pytest.raises(TarryError, match="there is a worm in this apple"):
        tarry.compare(["fedasync", "fedavg"], own_task(loss), seeds=[0, 1], workers=2, delay=[1, 2], **OWN)
    assert mp.active_children() == []


def test_divergence_in_one_of_several_processes_reaches_the_caller():
    task = own_task()
    task.clients[1][0][0, 0] = float("nan")
    with pytest.raises(tarry.Diverged, match=r"client 1 came back at 2 s with weights that are not finite"):
        tarry.compare(["fedasync", "fedavg"], task, seeds=[0], workers=2, delay=[1, 2], strict=True, **OWN)
    assert mp.active_children() == []


def test_a_process_that_is_killed_is_noticed_and_the_others_are_ended():
    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE:
            os.kill(os.getpid(), 9)
        return cross_entropy(out, y)

    with pytest.raises(WorkerDied, match=r"the run of \w+ was killed \(code -9\)"):
        tarry.compare(["fedasync", "fedavg"], own_task(loss), seeds=[0, 1], workers=2, delay=[1, 2], **OWN)
    assert mp.active_children() == []


def test_a_process_that_is_stopped_is_replaced_and_its_run_resumes(tmp_path, caplog):
    flag = tmp_path / "stopped"

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != HERE and list(tmp_path.glob("out/fedavg/*/checkpoints/*")) and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return cross_entropy(out, y)

    settings: dict[str, Any] = {**OWN, "delay": [1, 2], "checkpoint_every": 1e-9, "seeds": [0]}
    alone = tarry.compare(["fedasync", "fedavg"], own_task(), **settings)
    two: dict[str, Any] = {"workers": 2, "out": tmp_path / "out", "worker_timeout": 3.0}
    c = tarry.compare(["fedasync", "fedavg"], own_task(loss), **settings, **two)
    assert [r.weights_sha256 for r in c] == [r.weights_sha256 for r in alone]
    assert flag.exists()
    (line,) = caplog.messages
    end = "did not respond for 3 s; another takes its place, and the run resumes"
    assert re.fullmatch(rf"process \d+ \(the run of fed\w+, seed 0\) {end}", line)
    assert mp.active_children() == []


def test_the_record_of_a_comparison_holds_its_table_and_every_run(tmp_path):
    c = tarry.compare(["fedavg", "fedasync"], seeds=[0], out=tmp_path, **SETTINGS)
    table = json.loads((tmp_path / "compare.json").read_text())
    assert [row["label"] for row in table["rows"]] == ["fedavg", "fedasync"]
    for result in c:
        assert result.out == tmp_path / result.label / "seed-0"
        assert Result.read(result.out).weights_sha256 == result.weights_sha256
        assert sum(r["kind"] == "arrival" for r in read_rows(result.out / "events.jsonl")) == result.updates


def test_specs_may_be_compared_as_they_are(tmp_path):
    specs = specs_of(["fedavg", "fedasync"], [0], SETTINGS)
    assert [(s.label, s.seed) for s in specs] == [("fedavg", 0), ("fedasync", 0)]
    assert len(compare_specs(specs)) == 2
