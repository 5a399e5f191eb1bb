"""Laws of crosses: any part of any method under any other's server does what it says, or is rejected with a way out."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import tarry
from tarry.core.compose import PARTS, compose
from tarry.core.errors import BadInput
from tarry.record import checkpoint
from tarry.runs.simulation import Simulation
from tests.helpers.interrupted import interrupted_run
from tests.laws.crosses import NAMES, PAIRS, SHORT, Ran, alike_in, built, kinds, own, planned, ran
from tests.laws.variants import Row, row

Crosses = dict[str, Any]


def label(value: Any) -> str:
    return "+".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def outcome(server: str, **crosses: Any) -> Ran:
    return ran(planned(server, **crosses))


WAY_OUT = re.compile(r"\b(use|add|leave out|without) --(\w+)(?: ([\w:=,.-]+))?")


def assert_refusal(e: BadInput, flag: str, name: str) -> None:
    """The message names the flag and its value, and has a remedy."""
    assert re.search(rf"--{flag} {re.escape(name)}\b", str(e)), e
    assert WAY_OUT.search(str(e)), f"no way out: {e}"


def differ(one: Ran, other: Ran) -> bool:
    """By more than rounding."""
    return len(one.events) != len(other.events) or not torch.allclose(one.weights, other.weights, rtol=1e-4, atol=1e-6)


def is_refused(server: str, **parts: str) -> bool:
    try:
        compose(built(server), {part: built(other) for part, other in parts.items()})
    except BadInput:
        return True
    return False


# One part from another method

#: the others are among REFUSED below
RUNNING = [(server, part, other) for server, part, other in PAIRS if not is_refused(server, **{part: other})]


def corrects_nothing(server: str, part: str, other: str) -> bool:
    """In rounds nothing is late, so nothing is corrected; fedbuff trusts displacement anyway, as asgd does."""
    late = any(e.staleness > 0 for e in own(server).events)
    return part == "correct" and (not late or (server, other) == ("fedbuff", "asgd"))


@pytest.mark.parametrize(("server", "part", "other"), RUNNING)
def test_a_cross_that_is_not_refused_makes_another_run(server: str, part: str, other: str) -> None:
    """It runs: finite, the same again with the same seed, on the schedule of the method that says when to step."""
    got = outcome(server, **{part: other})
    assert torch.isfinite(got.weights).all()
    assert not torch.equal(got.weights[-1], got.weights[0]), "something was learnt"
    assert got.schedule == own(other if part == "aggregate" else server).schedule
    assert got.fullest == SHORT["concurrency"]
    assert outcome(server, **{part: other}).same_as(got)
    if corrects_nothing(server, part, other):
        assert got.same_as(own(server))
    else:
        assert differ(got, own(server))


#: clients and servers that need each other, and differences that only one server understands
TIED = ["orthofl:placement=client", "fedogd:privacy=true"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", [*NAMES, *TIED])
def test_a_method_with_a_part_of_its_own_is_itself(name: str, part: str) -> None:
    assert ran(planned(name, **{part: name})).same_as(own(name))


AROUND = [name for name in NAMES if built(name).wrapper is not None]


@pytest.mark.parametrize("name", AROUND)
def test_a_method_with_its_own_distillation_is_itself(name: str) -> None:
    assert outcome(name, distill=name).same_as(own(name))


# What rejections say

SOME = ["fedavg", "fedogd", "orthofl"]


REFUSED = [
    (server, part, other)
    for part in PARTS
    for server, other in [*product(NAMES, kinds(part)), *product(TIED, kinds(part)), *product(SOME, TIED)]
    if is_refused(server, **{part: other})
]


def test_there_are_refusals() -> None:
    assert ("asgd", "local", "fedogd") in REFUSED
    assert ("fedavg", "reply", "orthofl:placement=client") in REFUSED
    assert {*PAIRS} == {*RUNNING} | ({*PAIRS} & {*REFUSED}), "a pair runs or is refused"


@pytest.mark.parametrize(("server", "part", "other"), REFUSED)
def test_a_refusal_names_what_was_given_and_its_way_out_leads_out(server: str, part: str, other: str) -> None:
    """Taken at its word: `use --method X` in the server's place, `use --local X too` beside what was given,
    `leave out --local` instead of it.
    """
    with pytest.raises(BadInput) as e:
        planned(server, **{part: other})
    assert_refusal(e.value, part, other.partition(":")[0])
    advised: Crosses = {"server": server, part: other}
    for problem in e.value.problems:
        found = WAY_OUT.search(problem)
        assert found is not None, f"no way out: {problem}"
        part_advised = "server" if found[2] == "method" else found[2]
        advised[part_advised] = found[3] if found[1] in ("use", "add") else None
    planned(**{k: v for k, v in advised.items() if v is not None})


# Methods that are made of others' parts


def unlike(name: str, other: str) -> list[str]:
    return [part for part in PARTS if not alike_in(part, name, other)]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in AROUND])
def test_a_server_with_all_that_another_has_otherwise_is_the_other(name: str) -> None:
    """From the method that is nearest to it, and from all of whose parts none is left."""
    nearest = min((n for n in NAMES if n not in (name, *AROUND)), key=lambda n: len(unlike(name, n)))
    assert ran(planned(nearest, **dict.fromkeys(unlike(name, nearest), name))).same_as(own(name))
    assert ran(planned(nearest, **dict.fromkeys(PARTS, name))).same_as(own(name))


MADE_OF: list[tuple[str, str, Crosses]] = [
    ("fedprox", "fedavg", {"local": "fedprox"}),
    ("fedsol", "fedavg", {"local": "fedsol"}),
    ("fedasync:mu=0.5", "fedasync", {"local": "fedprox:mu=0.5"}),
    ("orthograd", "asgd", {"correct": "orthograd"}),
    ("orthopos", "asgd:eta=0.4", {"correct": "orthopos"}),
    ("orthograd:eta=0.7", "asgd:eta=0.7", {"correct": "orthocorrect:alpha=0,theta=0"}),
    ("dc-asgd", "orthograd", {"correct": "dc-asgd"}),
    ("orthofl:beta=0.3,a=1", "fedasync:alpha=0.3,a=1", {"reply": "orthofl"}),
    ("fedasync:alpha=0.3", "orthofl:beta=0.3", {"reply": "fedasync"}),
    ("fedbuff:buffer=4", "asgd:eta=1", {"correct": "fedbuff", "aggregate": "fedbuff:buffer=4"}),
    ("fedogd", "asgd:eta=0.5", {"local": "fedogd", "aggregate": "fedogd"}),
    ("fedogd:projection=never", "asgd:eta=0.5", {"aggregate": "fedogd:projection=never"}),
    ("fedecho:buffer=3,eta=0.5", "fedbuff:buffer=3,a=0,eta=0.5", {"distill": "fedecho"}),
    ("fedecho:buffer=3,q=2,batch=4", "fedbuff:buffer=3,a=0", {"distill": "fedecho:q=2,batch=4"}),
    ("fedbuff", "fedbuff", {"distill": "fedecho:q=0"}),
    ("asynccurve", "asgd", {"local": "asynccurve", "correct": "asynccurve", "step": "asynccurve"}),
    (
        "asynccurve:lr=0.1,curve=printed",
        "asynccurve:lr=0.1,curve=line",
        {"local": "asynccurve:lr=0.1,curve=printed", "manifold": "printed"},
    ),
]


@pytest.mark.parametrize(("whole", "server", "parts"), MADE_OF, ids=label)
def test_a_method_is_the_server_and_the_parts_it_is_made_of(whole: str, server: str, parts: Crosses) -> None:
    assert ran(planned(server, **parts)).same_as(own(whole))


# Distillation around any server


@pytest.mark.parametrize("server", [n for n in NAMES if n not in AROUND])
def test_any_server_may_be_distilled(server: str) -> None:
    got = ran(planned(server, distill="fedecho"))
    assert torch.isfinite(got.weights).all()
    assert got.schedule == own(server).schedule
    assert differ(got, own(server))
    assert ran(planned(server, distill="fedecho")).same_as(got)


DISTILLED = [(p, o) for p in PARTS for o in kinds(p) if not alike_in(p, "fedecho", o)]


@pytest.mark.parametrize(("part", "other"), [(p, o) for p, o in DISTILLED if not is_refused("fedecho", **{p: o})])
def test_fedecho_with_another_part_still_distils(part: str, other: str) -> None:
    """Without its distillation it would be a FedBuff that goes by its name."""
    plain = outcome("fedecho:buffer=3,q=0", **{part: other})
    assert differ(outcome("fedecho", **{part: other}), plain)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_fedecho_is_one_of_its_plain_server(part: str) -> None:
    """What it puts around a server is asked for by --distill alone."""
    assert outcome("orthofl", **{part: "fedecho"}).same_as(outcome("orthofl", **{part: "fedecho:buffer=3,eta=0.8,q=0"}))


# Curves


@pytest.mark.parametrize("server", [n for n in NAMES if not is_refused(n, local="asynccurve")])
def test_a_curve_that_is_asked_for_is_never_quietly_a_line(server: str) -> None:
    """Clients learn control points; where the step goes the whole way, the cross is rejected."""
    try:
        curved = planned(server, local="asynccurve", manifold="bezier")
    except BadInput as e:
        assert_refusal(e, "manifold", "bezier")
    else:
        assert differ(ran(curved), outcome(server, local="asynccurve", manifold="line"))


@pytest.mark.parametrize(
    "other",
    [o for o in kinds("aggregate") if not alike_in("aggregate", "asynccurve", o)
     and not is_refused("asynccurve", aggregate=o)],
)  # fmt: skip
def test_asynccurve_that_waits_still_follows_curves(other: str) -> None:
    straight = "asynccurve:lr=0.1,cycle=3,statistic=progress,curve=line"
    assert differ(outcome("asynccurve", aggregate=other), outcome(straight, aggregate=other))


# What parts hand on to each other

#: a discount by staleness is a weight that a correct part gives an update
DISCOUNTED: list[Crosses] = [{"step": s} for s in kinds("step")]
DISCOUNTED += [{"aggregate": a, "reply": "orthofl"} for a in kinds("aggregate") if not is_refused("asgd", aggregate=a)]


@pytest.mark.parametrize("rest", DISCOUNTED, ids=label)
def test_a_discount_of_late_updates_counts_whatever_aggregates_and_steps(rest: Crosses) -> None:
    """Clients with starts of their own are late in rounds too."""
    got = outcome("asgd", correct="fedbuff", **rest)
    assert any(e.staleness > 0 for e in got.events)
    assert differ(got, outcome("asgd", **rest))


@pytest.mark.parametrize("parts", [{}, {"manifold": "line"}], ids=label)
def test_orthofl_gives_the_same_wherever_it_calibrates(parts: Crosses) -> None:
    on_client, on_server = (outcome(m, dtype="float64", **parts) for m in ("orthofl:placement=client", "orthofl"))
    torch.testing.assert_close(on_client.weights, on_server.weights, rtol=1e-9, atol=1e-10)


#: parts with which the global does not move by Eq. 3 with one client's update
UNFORESEEN: list[Crosses] = [
    {"correct": "orthograd"},
    {"aggregate": "fedbuff"},
    {"aggregate": "fedavg"},
    {"step": "asgd"},
    {"step": "fedasync:alpha=0.3"},
    {"distill": "fedecho"},
]


@pytest.mark.parametrize("parts", UNFORESEEN, ids=label)
def test_a_client_calibrates_itself_only_where_the_global_moves_by_eq_3(parts: Crosses) -> None:
    with pytest.raises(BadInput, match=r"by Eq\. 3,") as e:
        planned("orthofl:placement=client", **parts)
    for part, other in parts.items():
        assert_refusal(e.value, part, other.partition(":")[0])
    outcome("orthofl", dtype="float64", **parts)  # the server calibrates with any of them


# Coming back, and who trains

#: client memory, payloads, distillation, curves, epochs
RICH: list[tuple[str, Crosses]] = [
    ("orthofl", {"local": "fedprox"}),
    ("orthofl", {"local": "fedsol", "distill": "fedecho"}),
    ("fedasync", {"local": "orthofl:placement=client", "reply": "orthofl:placement=client"}),
    ("asgd", {"local": "fedogd:privacy=true", "aggregate": "fedogd:privacy=true"}),
    ("fedogd", {"correct": "orthodyn", "reply": "orthofl", "distill": "fedecho"}),
    ("orthofl", {"local": "asynccurve", "correct": "orthodyn", "step": "asynccurve", "manifold": "printed"}),
]
LOSSES: dict[str, Any] = {"failure_rate": 0.2, "availability": {"1": [[0.0, 2.25]], "4": [[1.0, 3.0], [4.0, 6.0]]}}
rich = pytest.mark.parametrize(("server", "parts"), RICH, ids=label)


@rich
def test_a_cross_saved_at_any_instant_and_taken_up_afresh_ends_the_same(
    server: str, parts: Crosses, tmp_path: Path
) -> None:
    made = planned(server, time=8.0, **LOSSES, **parts)
    whole = ran(made)
    executor, seen, saved = Simulation(made).executor(), list[Row](), dict[Path, int]()
    sim = Simulation(made).simulator(executor, [lambda e: seen.append(row(e))])

    def between() -> None:
        saved[checkpoint.Checkpoints(tmp_path / f"{len(saved)}").save(1, sim.save())] = len(seen)

    sim.run(between)
    executor.close()
    assert seen == whole.log, "saving disturbs nothing"
    assert {e.kind for e in whole.events} >= {"lost", "join", "leave"}
    assert len(saved) >= 8
    for path, rows in [*saved.items()][::3]:
        executor, rest = Simulation(made).executor(), list[Row]()
        fresh = Simulation(made).simulator(executor, [lambda e, rest=rest: rest.append(row(e))])  # type: ignore[misc]
        fresh.load(checkpoint.load(path))
        fresh.run()
        executor.close()
        assert rest == whole.log[rows:]
        assert torch.equal(fresh.server.output_weights, whole.output_weights)


@rich
@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 2, "lookahead": 3}], ids=["2-workers", "ahead"])
def test_the_number_of_workers_changes_nothing(server: str, parts: Crosses, how: dict[str, Any]) -> None:
    assert ran(planned(server, **LOSSES, **parts, **how)).same_as(ran(planned(server, **LOSSES, **parts)))


def test_a_cross_that_is_killed_goes_on_from_what_it_wrote_down(tmp_path: Path) -> None:
    """With no more than the folder: the spec it left there says what it is crossed with."""
    settings: dict[str, Any] = {
        "method": "orthofl:beta=0.4+local=fedsol:rho=1+distill=fedecho:q=2,lr=0.01",
        "task": {"name": "digits", "limit": 100, "hidden": 4},
        "unlabeled": "noise:samples=20",
        "clients": 4,
        "steps": 2,
        "delay": [[1.0], [1.5], [0.5, 2.0], [3.0]],
        "updates": 20,
        "checkpoint_every": 1e-9,
    }
    whole = tarry.run(out=tmp_path / "whole", **settings)
    interrupted_run(tmp_path / "r", lambda e: e.updates > 11, **settings)
    resumed = tarry.resume(tmp_path / "r")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.label == "orthofl:beta=0.4+local=fedsol:rho=1.0+distill=fedecho:q=2,lr=0.01"
    for name in ("events.jsonl", "model.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# Trust in displacement and in position, as corrections


def test_position_is_trusted_under_a_server_that_adds() -> None:
    """λ = 1: asgd with fedasync's trust is the correction without conflicts."""
    got = ran(planned("asgd", correct="fedasync", dtype="float64"))
    assert differ(got, ran(planned("asgd", dtype="float64")))
    same = ran(planned("orthocorrect:alpha=1,theta=-1", dtype="float64"))
    torch.testing.assert_close(got.weights, same.weights, rtol=1e-10, atol=1e-12)


def test_displacement_is_trusted_under_a_server_that_mixes() -> None:
    """λ = 0: fedasync with asgd's trust walks β s(τ) of the displacement."""
    got = ran(planned("fedasync:staleness=constant,alpha=0.4", correct="asgd", dtype="float64"))
    torch.testing.assert_close(got.weights, ran(planned("asgd", dtype="float64")).weights, rtol=1e-10, atol=1e-12)


def test_a_correction_does_not_take_a_servers_weight_for_staleness_away() -> None:
    slow, fast = (ran(planned(f"fedbuff:buffer=3,a={a}", correct="orthograd")) for a in (0.5, 3))
    assert differ(slow, fast)
    assert differ(slow, ran(planned("fedbuff:buffer=3,a=0.5")))
