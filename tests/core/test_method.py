"""Methods as Python objects: their repr, and Method.compose, which equals the crosses of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

import tarry
from tarry.core.parts import REFILL

SMALL: dict[str, Any] = {
    "task": {"name": "digits", "limit": 100, "hidden": 4},
    "unlabeled": "noise:samples=20",
    "clients": 4,
    "steps": 2,
    "delay": [[1.0], [1.5], [0.5, 2.0], [3.0]],
    "updates": 12,
}


@dataclass(frozen=True)
class Clipped(tarry.LocalRule):
    limit: float = 1.0

    def transform_grad(self, g: Tensor, w: Tensor, context: Any) -> Tensor:
        return g * (self.limit / g.norm().clamp_min(self.limit))


def made(name: str, **params: Any) -> tarry.Method:
    return tarry.methods[name](**params)


COMPOSED: dict[str, tuple[tarry.Method, dict[str, Any]]] = {
    "local": (
        made("orthofl").compose(local=made("fedsol", rho=1.0)),
        {"method": "orthofl", "local": "fedsol:rho=1"},
    ),
    "aggregate, with the dispatch of its method": (
        made("orthofl").compose(aggregate=made("fedavg", weighting="uniform")),
        {"method": "orthofl", "aggregate": "fedavg:weighting=uniform"},
    ),
    "correct and reply": (
        made("fedbuff", buffer=2).compose(correct=made("orthograd"), reply=made("orthofl")),
        {"method": "fedbuff:buffer=2", "correct": "orthograd", "reply": "orthofl"},
    ),
    "step, manifold and distillation": (
        made("asgd").compose(
            local=made("asynccurve"),
            step=made("fedasync"),
            distill=made("fedecho"),
            manifold=tarry.manifolds["bezier"](),
        ),
        {"method": "asgd", "local": "asynccurve", "step": "fedasync", "distill": "fedecho", "manifold": "bezier"},
    ),
}


@pytest.mark.parametrize("what", COMPOSED)
def test_composing_equals_the_cross_of_the_command_line(what: str) -> None:
    method, settings = COMPOSED[what]
    by_compose, by_settings = tarry.run(method, **SMALL), tarry.run(**SMALL, **settings)
    assert by_compose.weights_sha256 == by_settings.weights_sha256
    plain = tarry.run(settings["method"], **SMALL)
    assert by_compose.weights_sha256 != plain.weights_sha256


def test_a_composed_method_has_the_name_of_the_cross_or_its_own() -> None:
    base, other = made("orthofl"), made("fedsol")
    assert base.compose(local=other).name == "orthofl+local=fedsol"
    assert base.compose(local=other, name="orthosol").name == "orthosol"
    assert base.compose(reply=other, distill=made("fedecho")).name == "orthofl+reply=fedsol+distill=fedecho"
    assert base.compose() == base


def test_a_part_is_composed_as_it_is() -> None:
    base, rule = made("fedavg"), Clipped(0.5)
    method = base.compose(local=rule, name="clipped")
    assert (method.name, method.local) == ("clipped", rule)
    assert (method.aggregate, method.dispatch) == (base.aggregate, base.dispatch)
    correct = tarry.stateless(lambda update, view: update.replace(weight=0.5))
    assert made("fedasync").compose(correct=correct).correct.apply is correct.apply


def test_a_dispatch_is_composed_alone_and_the_one_of_an_aggregate_comes_with_it() -> None:
    plain, rounds, tiers = made("asgd"), made("fedavg"), made("tifl")
    assert plain.compose(aggregate=rounds).dispatch is rounds.dispatch
    assert rounds.compose(dispatch=plain).dispatch is REFILL
    assert rounds.compose(aggregate=plain.aggregate).dispatch is rounds.dispatch, "a part alone replaces only itself"
    assert plain.compose(aggregate=rounds, dispatch=tiers).dispatch is tiers.dispatch


def test_parts_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(
        tarry.BadInput, match=r"^local='scaffold': clients of 'scaffold' need 'c' .*; use method='scaffold'$"
    ):
        made("fedasync").compose(local=made("scaffold"))
    with pytest.raises(tarry.BadInput, match=r"local=Entry: wants a tarry.Method or a tarry.LocalRule; call it first"):
        made("fedasync").compose(local=tarry.methods["fedsol"])  # type: ignore[arg-type]
    with pytest.raises(tarry.BadInput, match=r"reply=str: wants a tarry.Method or a tarry.Part; tarry.methods\[NAME\]"):
        made("fedasync").compose(reply="orthofl")  # type: ignore[arg-type]
    with pytest.raises(tarry.BadInput, match=r"step=Aggregate: wants a tarry.Step"):
        made("fedasync").compose(step=made("fedavg").aggregate)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(tarry.methods))
def test_the_repr_of_a_method_has_at_most_six_lines_and_no_address(name: str) -> None:
    shown = repr(made(name))
    assert shown.startswith("Method(")
    assert len(shown.splitlines()) <= 6
    assert max(map(len, shown.splitlines())) <= 100
    assert "0x" not in shown
    assert "lambda" not in shown


def test_the_repr_of_a_method_shows_the_parts_that_are_not_the_default() -> None:
    assert repr(tarry.Method("plain")) == "Method('plain')"
    assert repr(made("fedbuff")) == "Method('fedbuff', correct=discount, aggregate=buffer, step=add)"
    assert repr(made("fedprox", mu=0.5).compose(local=Clipped(0.5), name="mine")) == (
        "Method('mine', local=Clipped(limit=0.5), aggregate=round_mean, dispatch=barrier)"
    )
