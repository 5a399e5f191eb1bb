"""A notebook about one question, cell by cell: what a cell shows is asserted below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tarry
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

DIGITS = {"name": "digits", "limit": 200}
SMALL = {"clients": 3, "epochs": 1, "time": 1000}


def test_methods_and_settings_are_looked_up_and_shown_in_lines():
    assert repr(tarry.methods).startswith("methods: asgd, asynccurve, ca2fl, ")
    assert repr(tarry.methods["orthofl"]).startswith("method orthofl(beta, ")
    assert tarry.methods["orthofl"].params[0].name == "beta"
    assert "fedasync" in tarry.methods
    assert tarry.methods.search("straggler")
    assert repr(tarry.settings()["lr"]) == "lr: float = 0.05  Learning rate of the clients"


def test_a_run_is_a_line_and_a_curve():
    r = tarry.run("orthofl", DIGITS, seed=1, **SMALL)
    assert repr(r).startswith("Result(orthofl on digits, seed 1: accuracy 0.")
    assert repr(r).endswith(f" after 1,000 s, {r.updates} updates)")
    assert r.curve[-1].accuracy == r.final_accuracy
    assert r.staleness.mean > 0
    model = r.model().eval()
    assert isinstance(model, nn.Module)
    assert r.state_dict().keys() <= model.state_dict().keys()


def test_a_comparison_is_a_table_and_a_sequence_and_is_there_tomorrow(tmp_path):
    methods = ["fedavg", "fedasync", "fedbuff:buffer=3", "orthofl"]
    c = tarry.compare(methods, DIGITS, seeds=range(2), workers=2, out=tmp_path / "table", **SMALL)
    assert len(c) == 8
    assert [r.seed for r in c["orthofl"]] == [0, 1]
    assert all(label in repr(c) for label in methods)
    assert next(c["orthofl"][0].events())["kind"] in ("evaluate", "hand_out")
    assert c.best in methods
    old = tarry.read(str(tmp_path / "table"))
    assert isinstance(old, tarry.Comparison)
    assert repr(old) == repr(c)
    assert list(old) == list(c)


def test_a_method_object_is_built_compared_and_crossed():
    built = tarry.methods["fedbuff"](buffer=3)
    assert [r.label for r in tarry.compare(["fedavg", built], DIGITS, seeds=[0], **SMALL)] == ["fedavg", "fedbuff"]
    mine = tarry.methods["orthofl"]().compose(local=tarry.methods["fedsol"](rho=1.0), name="orthosol")
    assert len(repr(mine).splitlines()) <= 6
    with pytest.raises(tarry.BadInput) as caught:
        tarry.run(mine, "digits", lr=-1, epoks=3)
    assert caught.value.problems == ("lr=-1: must be above 0", "epoks: no such setting; did you mean 'epochs'?")
    assert tarry.run(mine, DIGITS, **SMALL).label == "orthosol"


@dataclass(frozen=True)
class Clipped(tarry.LocalRule):
    """Clients clip the norm of every gradient."""

    limit: float = 1.0

    def transform_grad(self, g: Tensor, w: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        return g * (self.limit / g.norm().clamp_min(self.limit))


def test_a_task_and_a_client_rule_of_one_s_own_run_on_an_executor():
    g = torch.Generator().manual_seed(0)
    shards = [(torch.randn(20, 5, generator=g), torch.randint(0, 3, (20,), generator=g)) for _ in range(2)]
    task = tarry.Task(
        "mine", model=lambda: nn.Linear(5, 3), loss=nn.functional.cross_entropy, clients=shards, test=shards[0]
    )
    assert repr(task).startswith("Task(mine: 40 train, 20 test, 2 clients, model ")
    method = tarry.Method("clipped", local=Clipped(0.5))
    r = tarry.run(method, task, delay=[10, [30, 60]], updates=200, executor="batched")
    assert (r.label, r.task, r.updates) == ("clipped", "mine", 200)
    x, y = shards[0]
    assert (r.model().eval()(x).argmax(-1) == y).float().mean().item() == pytest.approx(r.final_accuracy)


def test_a_federation_is_replayed_to_the_bit(tmp_path: Path):
    plan = small_plan(method="orthofl", updates=8)
    grid = FakeGrid(Clock(), nodes(plan, tmp_path / "homes", lambda c, k: 2.0 + c))
    assert finished(driver(plan, grid, tmp_path / "fed"), grid) == "updates"
    assert tarry.replay(tmp_path / "fed").same
