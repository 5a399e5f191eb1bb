from __future__ import annotations

import pickle
import tomllib
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.config.spec import Choice, Spec, settings
from tarry.core.errors import BadInput
from tarry.core.registry import Entry
from tarry.methods import methods
from tarry.runs.build import build_run


def rejected(given: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(BadInput) as e:
        Spec.of(given)
    return e.value.problems


def tiny(**kw: Any) -> tarry.Task:
    x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    given = {"clients": [(x, y), (x, y)], "test": (x, y), **kw}
    return tarry.Task("tiny", model=lambda: nn.Linear(4, 2), loss=cross_entropy, **given)


def test_nothing_given_is_a_whole_run():
    spec = Spec.of({})
    assert (spec.method, spec.task, spec.partition, spec.delay) == (
        Choice("fedasync"),
        Choice("digits"),
        Choice("dirichlet"),
        Choice("orthofl-rpi"),
    )
    assert (spec.time, spec.updates, spec.rounds, spec.target) == (10000.0, None, None, None)
    assert (spec.epochs, spec.steps, spec.batch, spec.lr, spec.seed) == (5, None, 32, 0.05, 0)


def test_a_budget_or_steps_of_the_users_take_the_place_of_the_defaults():
    assert Spec.of({"updates": 5}).time is None
    assert Spec.of({"rounds": 5}).time is None
    assert Spec.of({"steps": 3}).epochs is None


def test_every_setting_has_a_type_and_help_and_its_default_is_of_that_type():
    for name, param in settings().items():
        assert param.help, name
        if name not in ("method", "task", "partition", "delay"):
            assert param.parse(param.default) == param.default, name


def test_text_from_flags_is_read_as_the_settings_types():
    spec = Spec.of(
        {
            "lr": "0.1",
            "clients": "7",
            "batch": "ALL",
            "strict": "yes",
            "time": "5e3",
            "target": "none",
            "dtype": "Float64",
        }
    )
    assert (spec.lr, spec.clients, spec.batch, spec.strict, spec.time, spec.target, spec.dtype) == (
        0.1,
        7,
        "all",
        True,
        5000.0,
        None,
        "float64",
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"epoch": 3}, "--epoch: no such setting; did you mean 'epochs'?"),
        ({"failure-rat": 3}, "--failure-rat: no such setting; did you mean 'failure_rate'?"),
        ({"learning_rate": 0.1}, "--learning-rate: no such setting; did you mean 'lr'?"),
        ({"num_clients": 3}, "--num-clients: no such setting; did you mean 'clients'?"),
        ({"local_epochs": 3}, "--local-epochs: no such setting; did you mean 'epochs'?"),
        (
            {"dirichlet": 0.1},
            "--dirichlet: no such setting; did you mean 'partition.alpha', as in partition = \"dirichlet:alpha=0.1\"?",
        ),
        (
            {"alpha": 0.3},
            "--alpha: no such setting; did you mean 'method.alpha' or 'partition.alpha', as in partition ="
            ' "dirichlet:alpha=0.3"?',
        ),
        (
            {"method": "orthofl", "beta": 0.3},
            "--beta: no such setting; did you mean 'method.beta', as in method = \"orthofl:beta=0.3\"?",
        ),
        ({"server_lr": 1}, "--server-lr: no such setting; did you mean 'method.eta', as in method = \"asgd:eta=1\"?"),
        ({"max_grad_norm": 1}, "--max-grad-norm: no such setting; did you mean 'clip_norm'?"),
        ({"lr": "fast"}, "--lr fast: wants float, got 'fast'"),
        ({"lr": True}, "--lr True: wants float, got True"),
        ({"seed": 1.5}, "--seed 1.5: wants int, got 1.5"),
        ({"batch": "some"}, "--batch some: wants int | all, got 'some'"),
        ({"optimizer": "adan"}, "--optimizer adan: wants sgd | adam | adamw, got 'adan'"),
        ({"dtype": "float16"}, "--dtype float16: wants float32 | float64, got 'float16'"),
        ({"method": 3}, "--method 3: wants a name, a table or a Method, got int"),
        ({"method": "orthofk"}, "--method orthofk: there is no such method. Did you mean 'orthofl'?"),
        ({"partition": "dirichlett"}, "--partition dirichlett: there is no such partition. Did you mean 'dirichlet'?"),
        ({"delay": "paretto"}, "--delay paretto: there is no such delay. Did you mean 'pareto'?"),
        ({"method": {"beta": 1}}, "--method {'beta': 1}: a table needs name = \"...\", got {'beta': 1}"),
        (
            {"method": "orthofl:bet=1"},
            "--method.bet 1: method 'orthofl' has no parameter 'bet'. Did you mean 'beta'?",
        ),
        ({"method": "orthofl:beta=x"}, "--method.beta x: wants float, got 'x'"),
        ({"delay": "lognormal:mu=1"}, "--delay.mu 1: delay 'lognormal' has no parameter 'mu'. Known: mean, per, sd."),
        ({"clients": 0}, "--clients 0: must be above 0"),
        ({"concurrency": -2}, "--concurrency -2: must be above 0"),
        ({"eval_every": 0}, "--eval-every 0.0: must be above 0"),
        ({"eval_every": "nan"}, "--eval-every nan: wants float | none, got 'nan'"),
        ({"time": "inf"}, "--time inf: wants float | none, got 'inf'"),
        (
            {"time": 5, "target": 1.5, "metric": "accuracy"},
            "--target 1.5: accuracy is at most 1; 0.9 stands for 90 %",
        ),
        ({"epochs": 0}, "--epochs 0: must be above 0"),
        ({"workers": 0}, "--workers 0: must be above 0"),
        ({"checkpoint_every": 0}, "--checkpoint-every 0.0: must be above 0"),
        ({"min_samples": -1}, "--min-samples -1: must be 0 or more"),
        ({"failure_rate": 1}, "--failure-rate 1.0: must be in [0, 1)"),
        ({"failure_rate": "nan"}, "--failure-rate nan: wants float, got 'nan'"),
        ({"epochs": 1, "steps": 2}, "--epochs 1 --steps 2: local work is one of the two"),
        ({"clients": 3, "concurrency": 4}, "--concurrency 4: there are only 3 clients; ask for at most that many"),
        ({"time": -5}, "--time -5.0: must be above 0"),
        ({"updates": 0}, "--updates 0: must be above 0"),
        (
            {"executor": "inline", "workers": 2},
            "--executor inline --workers 2: inline trains in one process; use --executor pool",
        ),
        ({"device": "abacus"}, "--device abacus: there is no such device here; cpu always is"),
        ({"batch": 0}, "--batch 0: must be 1 or more, or `all`"),
        ({"lr": -1}, "--lr -1: must be above 0"),
        ({"optimizer": "adam", "momentum": 0.5}, "--momentum 0.5: only --optimizer sgd has it"),
    ],
)
def test_what_cannot_be_is_said_with_flag_value_and_way_out(given, problem):
    assert rejected(given) == (problem,)


def test_worker_processes_and_a_gpu_do_not_go_together(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    problem = "--device cuda --workers 2: worker processes train on the cpu only; use --executor batched, or auto"
    assert rejected({"device": "cuda", "workers": 2}) == (problem,)


def test_all_problems_come_in_one_error():
    problems = rejected(
        {
            "method": "orthofl:beta=x",
            "task": "digitz",
            "lr": "abc",
            "hidden": 3,
            "clients": 2,
            "concurrency": 5,
            "time": -1,
        }
    )
    assert len(problems) == 6
    for start in ("--method.beta x", "--task digitz", "--lr abc", "--hidden", "--concurrency 5", "--time -1.0"):
        assert sum(p.startswith(start) for p in problems) == 1, start


@pytest.mark.parametrize(
    ("value", "name", "params", "label"),
    [
        ("orthofl", "orthofl", {}, "orthofl"),
        ("fedbuff:buffer=3,a=0.25", "fedbuff", {"buffer": 3, "a": 0.25}, "fedbuff:buffer=3,a=0.25"),
        ("fedbuff: buffer = 3 , a = 0.5", "fedbuff", {"buffer": 3, "a": 0.5}, "fedbuff:buffer=3,a=0.5"),
        ({"name": "fedbuff", "buffer": 3}, "fedbuff", {"buffer": 3}, "fedbuff:buffer=3"),
        (Choice("fedavg"), "fedavg", {}, "fedavg"),
    ],
)
def test_a_choice_is_a_name_with_parameters_in_text_or_in_a_table(value, name, params, label):
    spec = Spec.of({"method": value})
    assert isinstance(spec.method, Choice)
    assert spec.method.name == name
    assert methods[name].check(spec.method.params) == params
    assert spec.label == label


def test_text_and_values_make_the_same_spec():
    by_text = Spec.of({"method": "orthofl:beta=0.4", "partition": "dirichlet:alpha=1", "lr": "0.1", "clients": "5"})
    by_value = Spec.of(
        {
            "method": {"name": "orthofl", "beta": 0.4},
            "partition": {"name": "dirichlet", "alpha": 1},
            "lr": 0.1,
            "clients": 5,
        }
    )
    assert by_text == by_value
    assert by_text.to_toml() == by_value.to_toml()


SPECS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "plain": {"method": "fedavg", "seed": 3, "lr": 0.1, "strict": True, "batch": "all", "time": 1e6, "updates": 10},
    "choices": {"method": {"name": "orthofl", "beta": 0.4, "projection": "full"}, "partition": "dirichlet:alpha=0.3"},
    "no value": {"method": {"name": "fedasync", "a": None}, "partition": {"name": "dirichlet", "size": None}},
    "numpy": {"method": {"name": "orthofl", "beta": np.float64(0.4)}, "delay": [np.float64(1.5), 2.0]},
    "numbers": {"time": 1e38, "lr": 1e-30, "weight_decay": 5e-324},
    "delays": {"delay": [1, [2.0, 3.5], 4]},
    "availability": {"availability": {0: [(0, 5.5), (7, inf)], "1": []}, "clients": 2},
    "words": {"delay": {"name": "empirical", "path": '/data/a "quoted" \\ ü\n.csv'}},
    "signs": {"delay": {"name": "empirical", "path": "/data/😀.csv"}},
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_written_as_toml_reads_back_as_itself(name, tmp_path):
    spec = Spec.of(SPECS[name])
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml())
    assert Spec.of(Spec.read(path)) == spec
    assert Spec.of(Spec.read(path)).to_toml() == spec.to_toml()


class Slow:
    """A delay whose representation has several lines, as that of anything that holds an array."""

    def __call__(self, client: int, visit: int) -> float:
        return 1.0

    def __repr__(self) -> str:
        return f"Slow(\n{np.eye(2)}\n)"


def test_python_objects_are_named_in_the_toml_and_the_rest_can_be_read():
    method = tarry.Method("mine")
    for delay in (lambda c, v: 1.0, Slow()):
        spec = Spec.of({"method": method, "task": tiny(), "delay": delay, "lr": 0.25})
        assert spec.objects() == ["method", "task", "delay"]
        text = spec.to_toml()
        assert "# method: a Python object (mine)" in text
        assert "# task: a Python object (tiny)" in text
        assert tomllib.loads(text)["lr"] == 0.25
        assert not {"method", "task", "delay"} & tomllib.loads(text).keys()


def test_the_same_delay_function_made_anew_writes_the_same_toml():
    def made() -> Any:
        return lambda client, visit: 1.0

    keep = [made(), made()]
    assert Spec.of({"delay": keep[0]}).to_toml() == Spec.of({"delay": keep[1]}).to_toml()


def test_paths_become_whole_so_that_a_spec_means_the_same_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "mine.py").write_text(
        "from tarry import Method\ndef mine(*, path: str = ''):\n    return Method('mine')\n"
    )
    spec = Spec.of(
        {
            "method": "mine.py:mine",
            "delay": {"name": "empirical", "path": "~/d.csv"},
            "availability": "here.csv",
            "task": "npz:path=data/x.npz",
        }
    )
    assert spec.method == Choice(f"{tmp_path}/mine.py:mine")
    assert spec.delay == Choice("empirical", {"path": f"{tmp_path}/home/d.csv"})
    assert spec.availability == f"{tmp_path}/here.csv"
    assert spec.task == Choice("npz", {"path": f"{tmp_path}/data/x.npz"})
    assert spec.label == "mine"


def test_the_file_of_measured_speeds_becomes_a_whole_path_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = Spec.of({"delay": {"name": "bandwidth", "speeds": "speeds.csv"}})
    assert isinstance(spec.delay, Choice)
    assert spec.delay.params["speeds"] == f"{tmp_path}/speeds.csv"


def test_a_toml_file_that_is_not_there_or_not_toml_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"--spec .*none.toml: there is no such file"):
        Spec.read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    for content in (b"lr = = 3", b"\xff\xfe\x00", b"lr"):
        bad.write_bytes(content)
        with pytest.raises(BadInput, match=r"--spec .*bad.toml: not TOML"):
            Spec.read(bad)
    with pytest.raises(BadInput, match=r"--spec "):
        Spec.read(tmp_path)


# From a spec to a plan


def test_a_plan_refuses_what_only_the_task_can_tell():
    for given, words in [
        ({"task": tiny(), "clients": 3}, "--clients 3: task 'tiny' comes with 2 clients"),
        ({"task": tiny(), "concurrency": 3}, "--concurrency 3: there are only 2 clients"),
        ({"task": tiny(clients=())}, "--task tiny: it has neither clients nor training examples"),
        ({"task": tiny(clients=[(torch.zeros(0, 4), torch.zeros(0))])}, "client 0 has 0 examples and 0 targets"),
        ({"task": tiny(clients=[(torch.eye(4), torch.zeros(3))])}, "client 0 has 4 examples and 3 targets"),
        (
            {"task": tiny(), "availability": {5: [[0, 1]]}},
            "--availability: there is no client 5; clients are numbered 0 to 1",
        ),
        ({"task": tiny(), "delay": [1.0]}, "scripted delay: 1 entries for 2 clients"),
        ({"clients": 2000}, "--clients 2000: the task has 1437 training examples"),
        ({"concurrency": 11}, "--concurrency 11: there are only 10 clients"),
        ({"lr": -1}, "--lr -1: must be above 0"),
    ]:
        with pytest.raises(BadInput) as e:
            build_run(Spec.of(given))
        assert words in str(e.value)


MISSHAPEN: dict[str, dict[str, Any]] = {
    "a client that is no number": {"availability": {"abc": [[0, 1]]}},
    "a window of three": {"availability": {0: [[0, 1, 2]]}},
    "a window of words": {"availability": {0: [["soon", "late"]]}},
    "no windows": {"availability": {0: 5}},
    "a window of one": {"availability": {0: [5]}},
    "availability as a number": {"availability": 5},
    "a duration in words": {"delay": [1.0, "slow"]},
    "no duration": {"delay": [1.0, None]},
    "durations as text": {"delay": {"name": "scripted", "durations": "1,2"}},
    "durations as a number": {"delay": {"name": "scripted", "durations": 3}},
    "an unknown device": {"device": "abacus"},
    "a factory as method": {"method": lambda: tarry.Method("mine")},
    "a task as method": {"method": tiny()},
    "a method as task": {"task": tarry.Method("mine")},
    "a factory as task": {"task": tiny},
}


@pytest.mark.parametrize("what", MISSHAPEN)
def test_objects_and_tables_of_the_wrong_shape_are_refused_by_name_not_by_a_crash(what):
    given = MISSHAPEN[what]
    (name,) = given
    with pytest.raises(BadInput, match=name):
        build_run(Spec.of({"task": tiny(), **given}))


def test_a_partition_may_be_a_function_as_the_docs_of_run_say():
    def halves(labels, groups, n_clients, rng):
        return np.array_split(np.arange(len(labels)), n_clients)

    task = tiny(clients=(), train=(torch.eye(4), torch.tensor([0, 1, 0, 1])))
    made = build_run(Spec.of({"task": task, "partition": halves, "clients": 2, "delay": [1, 1]}))
    assert [len(x) for x, _ in made.task.clients] == [2, 2]


def test_evaluations_come_every_fiftieth_of_the_time_or_about_once_a_round():
    task = {"task": tiny(), "delay": [3.0, 8.0]}
    assert build_run(Spec.of({**task, "time": 100})).eval_every == 2.0
    assert build_run(Spec.of({**task, "updates": 10})).eval_every == 5.5
    assert build_run(Spec.of({**task, "updates": 10, "eval_every": 0.25})).eval_every == 0.25


def test_the_partition_is_drawn_from_the_seed():
    def labels(seed: int) -> list[list[int]]:
        made = build_run(Spec.of({"seed": seed, "clients": 4, "task": {"name": "digits", "limit": 200}}))
        return [y.tolist() for _, y in made.task.clients]

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)


def test_planning_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_run(Spec.of({"task": {"name": "digits", "limit": 100}}))
    assert list(Path().iterdir()) == []


def test_every_component_of_a_run_is_checked_and_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, built = list[str](), list[str]()
    check, make = Entry.check, Entry.make

    def counted_check(self: Any, params: Any) -> Any:
        if self.kind != "model":  # it belongs to the task
            checked.append(self.name)
        return check(self, params)

    def counted_make(self: Any, values: Any) -> Any:
        built.append(self.name)
        return make(self, values)

    monkeypatch.setattr(Entry, "check", counted_check)
    monkeypatch.setattr(Entry, "make", counted_make)
    build_run(Spec.of({"method": "orthofl", "partition": "iid", "delay": "constant", "time": 100}))
    assert sorted(checked) == sorted(built) == ["constant", "digits", "iid", "orthofl"]


def test_a_choice_travels_without_the_factory_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import tarry\ndef mine():\n    return tarry.Method('mine')\n")
    spec = Spec.of({"method": f"{tmp_path}/mine.py:mine"})
    assert isinstance(spec.method, Choice)
    assert spec.method.entry is not None
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own
    assert again == spec
    assert again.method.entry is None
    assert again.method.build("method").name == "mine"
