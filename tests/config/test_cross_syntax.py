"""How a cross is said: compact, by settings, in TOML; what it is called; and what is wrong with one that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tarry
from tarry.config.spec import Choice, Spec
from tarry.core.errors import BadInput
from tarry.runs.build import build_run

QUICK: dict[str, Any] = {
    "task": {"name": "digits", "limit": 100, "hidden": 4},
    "unlabeled": "noise:samples=20",
    "clients": 4,
    "steps": 2,
    "delay": [[1.0], [1.5], [0.5, 2.0], [3.0]],
    "updates": 12,
}


def read(text: str, folder: Path) -> dict[str, Any]:
    (folder / "spec.toml").write_text(text)
    return Spec.read(folder / "spec.toml")


def rejected(given: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(BadInput) as e:
        build_run(Spec.of({**QUICK, **given}))
    return e.value.problems


# Four ways to say the same

EVERY = "asgd+local=asynccurve:lr=0.01+correct=orthodyn+aggregate=asgd+step=fedasync:alpha=0.5+reply=orthofl"
EVERY += "+distill=fedecho+manifold=bezier"
SAYINGS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "two parts": (
        "orthofl+local=fedsol:rho=1+distill=fedecho:lr=0.01",
        {"method": "orthofl", "local": {"name": "fedsol", "rho": 1}, "distill": "fedecho:lr=0.01"},
        'method = "orthofl"\n[local]\nname = "fedsol"\nrho = 1.0\n[distill]\nname = "fedecho"\nlr = 0.01\n',
        "orthofl+local=fedsol:rho=1.0+distill=fedecho:lr=0.01",
    ),
    "parameters of the server": (
        "fedbuff:buffer=2,a=1+correct=orthograd+reply=orthofl:projection=full",
        {
            "method": {"name": "fedbuff", "buffer": 2, "a": 1.0},
            "correct": Choice("orthograd"),
            "reply": {"name": "orthofl", "projection": "full"},
        },
        'correct = "orthograd"\n[method]\nname = "fedbuff"\nbuffer = 2\na = 1\n'
        '[reply]\nname = "orthofl"\nprojection = "full"\n',
        "fedbuff:buffer=2,a=1.0+correct=orthograd+reply=orthofl:projection=full",
    ),
    "every part": (
        EVERY,
        {
            "method": "asgd",
            "manifold": "bezier",
            "distill": "fedecho",
            "reply": "orthofl",
            "step": "fedasync:alpha=0.5",
            "aggregate": "asgd",
            "correct": "orthodyn",
            "local": "asynccurve:lr=0.01",
        },
        'manifold = "bezier"\nmethod = "asgd"\nlocal = "asynccurve:lr=0.01"\ncorrect = "orthodyn"\n'
        'aggregate = "asgd"\nreply = "orthofl"\ndistill = "fedecho"\n[step]\nname = "fedasync"\nalpha = 0.5\n',
        EVERY,
    ),
    "rounds": (
        "orthofl+aggregate=fedavg:weighting=uniform",
        {"method": "orthofl", "aggregate": "fedavg:weighting=uniform"},
        'method = "orthofl+aggregate=fedavg:weighting=uniform"\n',
        "orthofl+aggregate=fedavg:weighting=uniform",
    ),
}


@pytest.mark.parametrize("what", SAYINGS)
def test_the_compact_form_settings_and_toml_say_the_same_and_read_back_as_it(what: str, tmp_path: Path) -> None:
    compact, settings, toml, label = SAYINGS[what]
    ways = [{"method": compact}, settings, read(toml, tmp_path)]
    specs = [Spec.of({**QUICK, **given}) for given in ways]
    assert [s.label for s in specs] == [label] * 3
    assert all(s == specs[0] for s in specs)
    again = Spec.of(read(specs[0].to_toml(), tmp_path))
    assert (again, again.label, again.to_toml()) == (specs[0], label, specs[0].to_toml())


@pytest.mark.parametrize("what", SAYINGS)
def test_however_it_is_said_it_comes_to_the_same_weights(what: str, tmp_path: Path) -> None:
    compact, settings, _, label = SAYINGS[what]
    method = settings["method"]
    parts = {k: v for k, v in settings.items() if k != "method"}
    results = [tarry.run(compact, **QUICK), tarry.run(method, **parts, **QUICK)]
    written = tarry.run(compact, **QUICK, out=tmp_path / "r")
    results.append(tarry.run(**Spec.read(tmp_path / "r" / "spec.toml")))
    assert {r.weights_sha256 for r in results} == {written.weights_sha256}
    assert {(r.label, r.method) for r in results} == {(label, label)}
    assert tarry.run(method, **QUICK).weights_sha256 != written.weights_sha256


def test_a_label_read_back_is_the_same_cross() -> None:
    for compact, *_ in SAYINGS.values():
        spec = Spec.of({"method": compact})
        assert Spec.of({"method": spec.label}) == spec


def test_the_order_in_which_parts_are_given_does_not_matter() -> None:
    one = Spec.of({"method": "orthofl+distill=fedecho+local=fedprox:mu=2"})
    assert one == Spec.of({"method": "orthofl+local=fedprox:mu=2+distill=fedecho"})
    assert one.label == "orthofl+local=fedprox:mu=2.0+distill=fedecho"


def test_parameters_in_a_table_may_go_with_a_compact_name() -> None:
    spec = Spec.of({"method": {"name": "orthofl+local=fedprox:mu=2", "beta": 0.4}})
    assert spec.label == "orthofl:beta=0.4+local=fedprox:mu=2.0"


def test_a_part_that_is_none_is_not_there() -> None:
    spec = Spec.of({"method": "orthofl", **dict.fromkeys(("local", "distill", "manifold"))})
    assert spec == Spec.of({"method": "orthofl"})
    assert spec.label == "orthofl"


def test_a_method_of_ones_own_may_be_crossed_and_lend_its_parts(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from tarry import Method, stateless\n"
        "def timid(*, share: float = 0.5) -> Method:\n"
        "    '''Take a share of every update.'''\n"
        "    return Method('timid', step=stateless(lambda update, now: now.weights + share * update.delta))\n"
    )
    own = f"{tmp_path}/own.py:timid"
    lends = tarry.run(f"asgd+step={own}:share=0.25", **QUICK)
    assert lends.label == "asgd+step=timid:share=0.25"
    torch.testing.assert_close(lends.weights, tarry.run("asgd:eta=0.25", **QUICK).weights)
    served = tarry.run(f"{own}+correct=orthograd", **QUICK)
    assert served.label == "timid+correct=orthograd"
    torch.testing.assert_close(served.weights, tarry.run("orthograd:eta=0.5", **QUICK).weights)


def test_a_method_object_may_be_crossed_too() -> None:
    by_name = tarry.run("asgd", local="fedprox:mu=2", **QUICK)
    by_object = tarry.run(tarry.methods.build("asgd"), local="fedprox:mu=2", **QUICK)
    assert by_object.weights_sha256 == by_name.weights_sha256
    assert by_object.label == "asgd+local=fedprox:mu=2.0"


# The way the global travels


def test_a_straight_line_is_what_everybody_travels_along() -> None:
    for method in ("asgd", "fedasync", "fedbuff:buffer=2", "orthofl", "orthodyn", "fedogd"):
        named = tarry.run(method, manifold="line", **QUICK)
        assert named.weights_sha256 == tarry.run(method, **QUICK).weights_sha256, method


GEODESICS = """
def frozen():
    '''Stay where you are.'''
    return lambda start, end, t, update: start

def jump(*, times: float = 1.0):
    '''Go all the way, whatever t says.'''
    return lambda start, end, t, update: start + times * (end - start)

def spied():
    '''A straight line that looks at what it is given.'''
    def along(start, end, t, update):
        assert start.shape == end.shape == update.delta[: len(start)].shape
        assert t == 0.25
        return (1 - t) * start + t * end
    return along

def number():
    '''No geodesic.'''
    return 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(GEODESICS)
    return tmp_path


def first_weights() -> torch.Tensor:
    made = build_run(Spec.of({**QUICK, "method": "asgd"}))
    return made.layout.read(made.module, torch.float32)


@pytest.mark.parametrize("server", ["asgd", "fedasync", "fedbuff:buffer=2", "orthofl", "fedogd", "asynccurve"])
def test_a_geodesic_of_ones_own_is_really_travelled_along(mine: Path, server: str) -> None:
    result = tarry.run(server, manifold="./mine.py:frozen", **QUICK)
    assert result.updates == 12
    assert torch.equal(result.weights, first_weights())
    assert result.label == f"{server}+manifold=frozen"


def test_a_geodesic_may_have_parameters_and_sees_start_end_and_t(mine: Path) -> None:
    jump = tarry.run("asgd:eta=0.4+manifold=mine.py:jump:times=0.5", **QUICK)
    assert jump.label == "asgd:eta=0.4+manifold=jump:times=0.5"
    torch.testing.assert_close(jump.weights, tarry.run("asgd:eta=0.5", **QUICK).weights)
    spied = tarry.run("asgd:eta=0.25", manifold="mine.py:spied", **QUICK)
    torch.testing.assert_close(spied.weights, tarry.run("asgd:eta=0.25", **QUICK).weights)


def test_a_geodesic_sees_trained_weights_while_running_statistics_go_straight(mine: Path) -> None:
    g = torch.Generator().manual_seed(1)
    clients = [(torch.randn(8, 3, generator=g) + k, torch.randint(2, (8,), generator=g)) for k in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = tarry.Task("normed", model=model, loss=cross_entropy, clients=clients)
    settings: dict[str, Any] = {"delay": [1.0, 1.5, 2.0], "updates": 6, "steps": 2}
    made = build_run(Spec.of({"method": "asgd", "task": task, **settings}))
    first, n = made.layout.read(made.module, torch.float32), made.layout.n_params
    still = tarry.run("asgd", task, manifold="mine.py:frozen", **settings).weights
    assert torch.equal(still[:n], first[:n])
    assert not torch.allclose(still[n:], first[n:])


def test_a_spec_with_a_geodesic_of_ones_own_reads_back_from_any_folder(mine: Path, monkeypatch, tmp_path_factory):
    spec = Spec.of({**QUICK, "method": "asgd+manifold=./mine.py:jump:times=2"})
    assert spec.manifold == Choice(f"{mine}/mine.py:jump", {"times": 2.0})
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = Spec.of(read(spec.to_toml(), mine))
    assert again == spec
    assert build_run(again).method.name == "asgd+manifold=jump:times=2.0"


# Mistakes

MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown method": ({"method": "orthofl", "local": "fedprx"}, ["--local fedprx", "Did you mean 'fedprox'?"]),
    "unknown method, compact": ({"method": "orthofl+local=fedprx"}, ["--local fedprx", "Did you mean 'fedprox'?"]),
    "a setting that is none": ({"server": "orthofl"}, ["--server: no such setting"]),
    "unknown part": ({"method": "orthofl+lokal=fedprox"}, ["lokal", "'local'"]),
    "unknown part with parameters": ({"method": "orthofl+lokal=fedprox:mu=1"}, ["lokal", "'local'"]),
    "part without a method": ({"method": "orthofl+local="}, ["--local"]),
    "unknown parameter": (
        {"method": "orthofl", "local": {"name": "fedprox", "nu": 1}},
        ["--local.nu 1", "method 'fedprox' has no parameter 'nu'"],
    ),
    "unknown parameter, compact": ({"method": "orthofl+local=fedprox:nu=1"}, ["--local.nu 1", "'fedprox'"]),
    "parameter of the wrong type": ({"local": "fedprox:mu=lots"}, ["--local.mu lots", "wants float"]),
    "parameter out of range": ({"local": "fedprox:mu=-1"}, ["--local.mu -1", "must be 0 or more"]),
    "step out of range": ({"step": "asgd:eta=0"}, ["--step.eta 0", "must be above 0"]),
    "aggregate out of range": ({"aggregate": "fedbuff:buffer=0"}, ["--aggregate.buffer 0", "must be 1 or more"]),
    "two parameters of a distillation": (
        {"distill": "fedecho:alpha_min=0.9,alpha_max=0.1"},
        ["--distill.alpha_min 0.9 --distill.alpha_max 0.1"],
    ),
    "a part twice": (
        {"method": "orthofl+local=fedprox", "local": "fedsol"},
        ["orthofl+local=fedprox", "--local fedsol", "local is there twice"],
    ),
    "a part twice, compact": (
        {"method": "orthofl+local=fedprox+local=fedsol"},
        ["orthofl+local=fedprox+local=fedsol", "local is there twice"],
    ),
    "a number": ({"method": "orthofl", "local": 5}, ["--local 5", "wants a name"]),
    "a table without a name": ({"method": "orthofl", "local": {"mu": 1}}, ["--local", "a table needs name"]),
    "nothing to distill with": (
        {"method": "orthofl", "distill": "fedprox"},
        ["--distill fedprox", "nothing to put around a server", "fedecho"],
    ),
    "a curve without control points": (
        {"method": "asgd", "manifold": "bezier"},
        ["--manifold bezier", "no client learns a control point", "add --local asynccurve"],
    ),
    "a straight learner and a curve": (
        {"method": "asgd", "local": "asynccurve:curve=line", "manifold": "bezier"},
        ["--manifold bezier", "no client learns a control point"],
    ),
    "unknown manifold": ({"method": "asgd", "manifold": "bezir"}, ["--manifold bezir", "Did you mean 'bezier'?"]),
    "unknown parameter of a manifold": ({"method": "asgd", "manifold": "line:t=3"}, ["--manifold.t 3", "'line'"]),
    "a step that does not travel": (
        {"method": "fedavg", "manifold": "line"},
        ["--manifold line", "the step of 'fedavg'", "leave out --manifold"],
    ),
    "another's step that does not travel": (
        {"method": "asgd", "step": "fedavg", "manifold": "line"},
        ["--manifold line", "the step of 'fedavg'"],
    ),
    "clients that need what nobody sends": (
        {"method": "orthofl", "local": "fedogd"},
        ["--local fedogd", "need 'base'", "use --method fedogd"],
    ),
    "a reply to clients that do not listen": (
        {"method": "asgd", "reply": "orthofl:placement=client"},
        ["--reply orthofl", "'beta'", "those of 'asgd' do not", "leave out --reply"],
    ),
    "a server of differences": (
        {"method": "asgd", "aggregate": "fedogd:privacy=true"},
        ["--aggregate fedogd", "'difference'", "those of 'asgd'"],
    ),
    "differences for a server that wants none": (
        {"method": "fedogd", "local": "fedogd:privacy=true"},
        ["--local fedogd", "upload differences"],
    ),
    "a distillation of differences": (
        {"method": "fedogd:privacy=true", "distill": "fedecho"},
        ["--distill fedecho", "clients that upload differences", "leave out --distill"],
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_cross_that_cannot_be_is_told_by_the_flag_it_was_given_with(what: str) -> None:
    given, words = MISTAKES[what]
    problems = rejected(given)
    assert len(problems) == 1, problems
    for word in words:
        assert word in problems[0]


def test_all_mistakes_of_a_cross_come_in_one_error() -> None:
    with pytest.raises(BadInput) as e:
        Spec.of({"method": "orthofl:bet=1+local=fedprx+step=asgd:eta=x", "reply": "fedavg:mu=1", "manifold": "bow"})
    assert len(e.value.problems) == 5
    for start in ("--method.bet 1", "--local fedprx", "--step.eta x", "--reply.mu 1", "--manifold bow"):
        assert sum(p.startswith(start) for p in e.value.problems) == 1, start


def test_what_does_not_fit_and_what_cannot_be_travelled_is_told_together() -> None:
    problems = rejected({"method": "fedavg", "local": "fedogd", "manifold": "line", "distill": "fedprox"})
    assert [p.split(":")[0] for p in problems] == ["--local fedogd", "--manifold line", "--distill fedprox"]


@pytest.mark.parametrize("part", ["local", "correct", "aggregate", "step", "reply", "distill", "manifold"])
def test_a_function_in_a_parts_place_is_refused_by_name_or_understood(part: str) -> None:
    """A factory where its name belongs, or a geodesic itself."""
    from tarry.methods.fedprox import fedprox

    def straight(start: Any, end: Any, t: float, update: Any) -> Any:
        return start + t * (end - start)

    try:
        build_run(Spec.of({**QUICK, "method": "asgd", part: straight if part == "manifold" else fedprox}))
        problems: tuple[str, ...] = ()
    except BadInput as e:
        problems = e.problems
    assert all(p.startswith(f"--{part}") for p in problems)


def test_a_method_may_stand_in_a_parts_place() -> None:
    made = tarry.methods.build("fedprox", mu=2.0)
    by_name, by_object = (tarry.run("orthofl", local=local, **QUICK).weights_sha256 for local in ("fedprox:mu=2", made))
    assert by_name == by_object


FILES = {
    "missing file": ("no.py:mine", "there is no file"),
    "no such factory": ("mine.py:bow", "has no factory 'bow'"),
    "not a function": ("mine.py:number", "returned int"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_mistake_in_a_geodesic_of_ones_own(mine: Path, what: str) -> None:
    name, words = FILES[what]
    (problem,) = rejected({"method": "asgd", "manifold": name})
    assert problem.replace(f"{mine}/", "").startswith(f"--manifold {name}: ")
    assert words in problem


def test_what_a_local_rule_cannot_do_with_this_model_is_told_before_the_run_and_by_its_flag(tmp_path: Path) -> None:
    """The model is all head, and the body is to be perturbed."""
    x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    task = tarry.Task("flat", model=lambda: nn.Linear(4, 2), loss=cross_entropy, clients=[(x, y), (x, y)])
    with pytest.raises(BadInput, match=r"local\.part='body'"):
        tarry.run("orthofl", task, local="fedsol:part=body", delay=[1.0, 2.0], updates=4, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


# Beside other settings


def test_a_cross_can_be_diagnosed_without_changing_it() -> None:
    given = {"method": "orthofl+local=fedsol+distill=fedecho", **QUICK}
    noted = tarry.run(**given, diagnose=True)
    assert noted.diagnostics is not None
    assert noted.weights_sha256 == tarry.run(**given).weights_sha256


def test_unlabeled_inputs_are_noise_unless_asked_for_otherwise_and_matter_to_a_distilled_server_alone() -> None:
    def sha(method: str, **given: Any) -> str:
        return tarry.run(method, **{**QUICK, **given}).weights_sha256

    assert sha("asgd", unlabeled="noise:samples=5") == sha("asgd")
    distilled = "asgd+distill=fedecho:lr=0.01"
    assert sha(distilled, unlabeled="noise:samples=5") != sha(distilled)
    assert sha(distilled, unlabeled="noise:samples=2000") == sha(distilled, unlabeled=None)


def test_a_comparison_of_crosses_has_a_row_each(tmp_path: Path) -> None:
    crosses = ["orthofl+local=fedprox:mu=2", "orthofl+local=fedprox:mu=3", "orthofl"]
    settings = {k: v for k, v in QUICK.items() if k != "task"}
    c = tarry.compare(crosses, QUICK["task"], seeds=[0, 1], out=tmp_path, **settings)
    labels = ["orthofl+local=fedprox:mu=2.0", "orthofl+local=fedprox:mu=3.0", "orthofl"]
    assert [r.label for r in c.summary.rows] == labels
    assert len({r.weights_sha256 for r in c}) == 6
    assert len(list(tmp_path.glob("*/seed-1/result.json"))) == 3


def test_a_cross_and_the_same_cross_said_otherwise_are_there_twice() -> None:
    with pytest.raises(BadInput, match=r"orthofl\+local=fedprox:mu=1.0': it is there twice"):
        tarry.compare(["orthofl+local=fedprox:mu=1", "orthofl+local=fedprox:mu=1.0"], seeds=[0])
