from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tarry
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

SMALL = {"clients": 3, "epochs": 1, "delay": [1, 2, 3]}
DIGITS = {"name": "digits", "limit": 100}


def task() -> tarry.Task:
    g = torch.Generator().manual_seed(1)
    clients = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(3)]
    return tarry.Task("tiny", model=lambda: nn.Linear(3, 2), loss=cross_entropy, clients=clients, test=clients[0])


class Stopped(Exception):
    pass


def interrupt(out: Path, at: int, *given: object, **settings: object) -> None:
    def stop(event: tarry.Event) -> None:
        if event.updates >= at:
            raise Stopped

    with pytest.raises(Stopped):
        tarry.run(*given, out=out, callbacks=[stop], **settings)


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_finished_run_reads_back_with_its_model(tmp_path, kind):
    result = tarry.run("orthofl", DIGITS, updates=5, out=tmp_path / "r", **SMALL)
    again = tarry.read(kind(tmp_path / "r"))
    assert isinstance(again, tarry.Result)
    assert again == result
    assert again.finished
    there, here = weights_of(again.model()), weights_of(result.model())
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))
    assert sum(row["kind"] == "arrival" for row in again.events()) == 5


def test_an_unfinished_run_has_the_curve_and_the_counters_of_its_log(tmp_path):
    interrupt(tmp_path / "r", 4, {"name": "orthofl", "beta": 0.5}, DIGITS, updates=9, seed=3, eval_every=1, **SMALL)
    partial = tarry.read(tmp_path / "r")
    with pytest.raises(tarry.BadInput, match=r"no final weights \(model.safetensors\); the run is not finished"):
        partial.state_dict()
    whole = tarry.resume(tmp_path / "r")
    assert not partial.finished
    assert repr(partial).startswith("Result(orthofl:beta=0.5 on digits, seed 3, unfinished: accuracy ")
    assert (partial.label, partial.method, partial.task) == (whole.label, whole.method, whole.task)
    assert (partial.seed, partial.n_clients, partial.target) == (3, 3, None)
    assert 0 < partial.updates < whole.updates
    assert partial.curve == whole.curve[: len(partial.curve)]
    assert partial.final_accuracy == partial.curve[-1].accuracy
    assert tarry.read(tmp_path / "r") == whole


def test_an_unfinished_run_of_python_objects_has_their_names(tmp_path):
    interrupt(tmp_path / "r", 2, tarry.Method("mine"), task(), updates=5, delay=[1, 2, 3])
    partial = tarry.read(tmp_path / "r")
    assert (partial.label, partial.task) == ("mine", "tiny")


def test_a_run_that_has_begun_nothing_yet_is_read(tmp_path):
    (tmp_path / "spec.toml").write_text('method = "fedbuff"\nclients = 4\n')
    empty = tarry.read(tmp_path)
    assert (empty.label, empty.n_clients, empty.updates, empty.curve) == ("fedbuff", 4, 0, [])
    assert repr(empty) == "Result(fedbuff on digits, seed 0, unfinished: after 0 s, 0 updates)"


def test_the_model_of_a_task_object_needs_the_object(tmp_path):
    result = tarry.run("fedasync", task(), updates=3, delay=[1, 2, 3], out=tmp_path / "r")
    assert weights_of(result.model())[0].shape == (2, 3)
    again = tarry.read(tmp_path / "r")
    with pytest.raises(tarry.BadInput, match=r"given a Python object as task, .*state_dict\(\)"):
        again.model()
    module = nn.Linear(3, 2)
    module.load_state_dict(again.state_dict())
    assert torch.equal(module.weight, result.model().weight)


def test_a_comparison_reads_back_in_the_order_of_its_table(tmp_path):
    made = tarry.compare(["fedbuff:buffer=2", "fedasync"], DIGITS, seeds=[1, 0], updates=4, out=tmp_path / "c", **SMALL)
    again = tarry.read(str(tmp_path / "c"))
    assert isinstance(again, tarry.Comparison)
    assert [r.label for r in again] == [r.label for r in made]
    assert {(r.label, r.seed): r for r in again} == {(r.label, r.seed): r for r in made}
    assert repr(again) == repr(made)
    assert [type(r.model()) for r in again] == [type(r.model()) for r in made]


def test_a_comparison_without_some_of_its_runs_warns(tmp_path):
    out = tmp_path / "c"
    tarry.compare(["fedavg", "fedasync"], DIGITS, seeds=[0], updates=4, out=out, **SMALL)
    (out / "fedavg" / "seed-0" / "result.json").unlink()
    with pytest.warns(tarry.TarryWarning, match="1 of 2 runs in .*c are not finished and are left out") as caught:
        assert [r.label for r in tarry.read(out)] == ["fedasync"]
    assert caught[0].filename == __file__
    (out / "fedasync" / "seed-0" / "result.json").unlink()
    with pytest.raises(tarry.BadInput, match=r"2 of 2 runs in .*c are not finished; the same comparison with out='"):
        tarry.read(out)


def test_a_federation_reads_back_and_replays(tmp_path):
    plan = small_plan(method="fedasync", updates=8)
    grid = FakeGrid(Clock(), nodes(plan, tmp_path / "homes", lambda c, k: 2.0 + c))
    made = driver(plan, grid, tmp_path / "fed")
    assert finished(made, grid) == "updates"
    replayed = tarry.replay(str(tmp_path / "fed"))
    assert replayed.same
    assert repr(replayed).startswith("Replay(same as recorded: 8 updates")
    running = tarry.read(tmp_path / "fed")
    assert (running.clock, running.updates, running.finished) == ("wall", 8, False)


@pytest.mark.parametrize("name", ["empty", "none"])
def test_a_folder_of_something_else_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(tarry.BadInput, match=r"there is no such folder|there is no run, comparison or federation here"):
        tarry.read(tmp_path / name)


def test_a_torn_result_is_a_damaged_file(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"hello": 1}))
    with pytest.raises(tarry.DamagedFile, match=r"result.json cannot be read"):
        tarry.read(tmp_path)
