"""ASGD against its twin."""

from __future__ import annotations

from hypothesis import given

from tests.methods.asgd.reference import asgd
from tests.methods.orthocorrect.reference import Corrected
from tests.reference.match import Case, cases, check, few


@few
@given(cases())
def test_asgd_is_its_twin(case: Case) -> None:
    check("asgd", case, Corrected(case.problem.w0, 0.4, asgd))
