"""DC-ASGD against its twin, and what it rejects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarry
from tarry.core.errors import BadInput
from tests.methods.dcasgd.reference import dc_asgd, dc_asgd_adaptive
from tests.methods.orthocorrect.reference import Corrected
from tests.reference.match import Case, cases, check, few


@pytest.mark.parametrize(("params", "lam"), [({}, 0.04), ({"lam": 1.5}, 1.5)])
@few
@given(case=cases())
def test_dc_asgd_is_its_twin(params: dict[str, Any], lam: float, case: Case) -> None:
    check({"name": "dc-asgd", **params}, case, Corrected(case.problem.w0, 0.4, dc_asgd(lam)))


@few
@given(cases(), st.sampled_from([0.0, 0.9]))
def test_adaptive_dc_asgd_is_its_twin(case: Case, m: float) -> None:
    method = {"name": "dc-asgd", "form": "adaptive", "m": m, "eta": 0.2}
    check(method, case, Corrected(case.problem.w0, 0.2, dc_asgd_adaptive(2.0, m)))


@pytest.mark.parametrize(("params", "said"), [({"lam": -1.0}, "lam=-1.0"), ({"m": 1.0}, "m=1.0")])
def test_what_cannot_be_is_refused(params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tarry.methods.build("dc-asgd", **params)
