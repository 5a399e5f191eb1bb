"""OrthoDyn against its twin, and what its statistics promise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

import tarry
from tarry.core.errors import BadInput
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import RunLimits, ServerView
from tarry.core.tickets import Ticket, Update
from tarry.parts.endpoint import StaleUpdate, statistics
from tests.helpers.by_flags import build_by_flags
from tests.helpers.tensors import vec
from tests.methods.fedavg.reference import descend
from tests.methods.orthocorrect.reference_orthodyn import CorrectedBy, OrthoDyn
from tests.reference.loop import play
from tests.reference.match import Case, cases, check, few

OWN_SWITCH = {"agreement": 0.5, "ratio": 0.8, "progress": 0.5}


def twin(case: Case, statistic: str, **asked: Any) -> OrthoDyn:
    """What is not asked for is the default."""
    return OrthoDyn(
        statistic,
        clients=len(case.sizes),
        updates=case.updates,
        switch=asked.get("switch", OWN_SWITCH[statistic]),
        middle=asked.get("middle", 0.0),
        smooth=asked.get("smooth", 0.95),
    )


@pytest.mark.parametrize("statistic", list(OWN_SWITCH))
@few
@given(case=cases())
def test_orthodyn_is_its_twin(statistic: str, case: Case) -> None:
    method = {"name": "orthodyn"} if statistic == "agreement" else {"name": "orthodyn", "statistic": statistic}
    dyn = twin(case, statistic)
    check(method, case, CorrectedBy(case.problem.w0, 0.4, dyn), well_posed=dyn.well_posed)


#: settings at which every phase occurs
VARIED: dict[str, dict[str, float]] = {
    "agreement": {"switch": 0.45, "middle": 0.1, "smooth": 0.6},
    "ratio": {"switch": 0.2, "middle": 0.1, "smooth": 0.6},
    "progress": {"switch": 0.6, "middle": 0.15, "smooth": 0.6},
}


@pytest.mark.parametrize("statistic", list(VARIED))
@few
@given(case=cases())
def test_orthodyn_is_its_twin_at_other_settings(statistic: str, case: Case) -> None:
    asked, dyn = VARIED[statistic], twin(case, statistic, **VARIED[statistic])
    method = {"name": "orthodyn", "statistic": statistic, "eta": 0.7, **asked}
    check(method, case, CorrectedBy(case.problem.w0, 0.7, dyn), well_posed=dyn.well_posed)


@pytest.mark.parametrize("statistic", list(VARIED))
def test_the_twins_cases_reach_every_phase(statistic: str) -> None:
    """Else the comparisons above would say little."""
    seen: set[int] = set()
    for seed in range(10):
        case = Case(seed, 3, 3, [3, 4, 5], [[1.0], [1.5], [2.0, 0.5]], 3, 0.05, 20, False)
        problem, dyn = case.problem, twin(case, statistic, **VARIED[statistic])
        train = partial(descend, problem, steps=case.steps, lr=case.lr)
        play(CorrectedBy(problem.w0, 0.7, dyn), train, case.durations, updates=case.updates)
        seen |= set(dyn.phases)
    assert seen == {0, 1, 2}


def arrival(number: int, *, of: int = 20) -> tuple[Update, ServerView]:
    """The number-th update of a budget: δ = (−1, 2, 0) after a drift of (2, 0, 0), which it conflicts with."""
    d, g = torch.tensor([-1.0, 2.0, 0.0]), torch.tensor([2.0, 0.0, 0.0])
    layout, old = Layout((Block("w", 0, 3, (3,), Kind.PARAM),)), torch.ones(3)
    now = ServerView(old + g, layout, number, 1.0, 0, 2, 0, 0, number, RunLimits(updates=of), notes={})
    return Update(Ticket(0, 0, 0, 0, 0.0, old, old), d, 1, 1, 3), now


def test_a_rising_statistic_goes_from_orthograd_over_asgd_to_orthopos() -> None:
    """Progress 0, 0.05, ... with the switch at 0.5 and asgd from 0.3 on; what each phase does to a conflict shows."""
    method = tarry.methods.build("orthodyn", statistic="progress", middle=0.2)
    state, phases, deltas = method.correct.init(torch.ones(3)), list[int](), dict[int, Tensor]()
    for number in range(1, 21):
        update, now = arrival(number)
        corrected, state = method.correct(update, state, now)
        assert now.notes is not None
        assert now.notes["statistic"] == (number - 1) / 20
        phases.append(now.notes["phase"])
        deltas[phases[-1]] = corrected.delta
    assert phases == [0] * 7 + [1] * 4 + [2] * 9
    assert deltas[0].tolist() == [0.0, 2.0, 0.0]
    assert deltas[1].tolist() == [-1.0, 2.0, 0.0]
    assert deltas[2].tolist() == [0.0, 2.0, 0.0]


def test_without_a_conflict_the_last_phase_trusts_position() -> None:
    method = tarry.methods.build("orthodyn", statistic="progress")
    for number, left in ((1, [1.0, 2.0, 0.0]), (20, [-1.0, 2.0, 0.0])):
        update, now = arrival(number)
        corrected, _ = method.correct(update.replace(delta=-update.delta + torch.tensor([0.0, 4.0, 0.0])), None, now)
        assert corrected.delta.tolist() == left


def late(client: int, delta: Tensor, sent: Tensor, *, n_clients: int = 1) -> StaleUpdate:
    layout = Layout((Block("w", 0, len(delta), (len(delta),), Kind.PARAM),))
    now = ServerView(sent, layout, 0, 0.0, 0, n_clients, 0, 0)
    return StaleUpdate(
        delta, torch.zeros_like(delta), Update(Ticket(0, client, 0, 0, 0.0, sent, sent), delta, 1, 1, 0), now
    )


def values(name: str, visits: list[StaleUpdate], **params: float) -> list[float]:
    statistic, out = statistics.build(name, **params), list[float]()
    state = statistic.init()
    for visit in visits:
        value, state = statistic.measure(visit, state)
        out.append(value)
    return out


def test_agreement_believes_in_position_when_clients_go_back_to_where_they_ended() -> None:
    """A client that always trains to (1, 0): pushed to (1, 3), it comes back down, which its last displacement did not
    foretell. cos = 1 against 0, then 1 against −1: e = 1, then 1.5 with s = 0.5; the value is cut at 1."""
    home = vec(1.0, 0.0)
    starts = [vec(0.0, 0.0), vec(1.0, 3.0), vec(1.0, -2.0)]
    assert values("agreement", [late(0, home - s, s) for s in starts], smooth=0.5) == [0.0, 0.0, 1.0]


def test_agreement_believes_in_displacement_when_clients_keep_their_direction() -> None:
    """Always (1, 0) from wherever it starts, and it starts beyond where it ended: cos −1 against 1, so e = −2."""
    starts = [vec(0.0, 0.0), vec(5.0, 0.0), vec(10.0, 0.0)]
    assert values("agreement", [late(0, vec(1.0, 0.0), s) for s in starts]) == [0.0, 0.0, 0.0]
    sideways = [vec(0.0, 0.0), vec(0.0, 1.0), vec(0.0, 2.0)]  # position says (1, −1)/√2: cos √½ against 1
    expected = (1 + (0.5**0.5 - 1)) / 2
    assert values("agreement", [late(0, vec(1.0, 0.0), s) for s in sideways])[-1] == pytest.approx(expected, abs=1e-15)


def test_agreement_waits_for_two_comparisons_a_client() -> None:
    home, starts = vec(1.0, 0.0), [vec(0.0, 0.0), vec(1.0, 3.0), vec(1.0, -2.0), vec(1.0, 3.0), vec(1.0, -2.0)]
    visits = [late(client, home - s, s, n_clients=2) for s in starts for client in (0, 1)]
    assert [v > 0 for v in values("agreement", visits)] == [False] * 5 + [True] * 5


def test_agreement_reads_every_third_of_ten_thousand_coordinates() -> None:
    """At most 4096 are kept: 10,000 in strides of ceil(10,000 / 4096) = 3; the others may be anything."""
    g = torch.Generator().manual_seed(0)
    starts = [torch.randn(10_000, generator=g) for _ in range(4)]
    visits = [late(0, torch.randn(10_000, generator=g), s) for s in starts]
    noisy = torch.randn(10_000, generator=g)
    noisy[::3] = 0.0
    changed = [late(0, v.delta + noisy, s - noisy) for v, s in zip(visits, starts, strict=True)]
    assert values("agreement", visits) == values("agreement", changed)
    statistic = statistics.build("agreement")
    _, state = statistic.measure(visits[0], statistic.init())
    row = state.clients[0]
    assert row.shape == (2, 3334)
    assert row.untyped_storage().nbytes() == row.nbytes, "nothing else is kept alive"


def test_ratio_tells_how_far_displacements_have_shrunk() -> None:
    """Norms 4, 8, 2 with s = 0.5: means 4, 6, 4; the most is 4, 6, 6."""
    visits = [late(0, vec(0.0, n), vec(0.0, 0.0)) for n in (4.0, 8.0, 2.0)]
    assert values("ratio", visits, smooth=0.5) == pytest.approx([0.0, 0.0, 1 / 3])
    assert values("ratio", [late(0, vec(0.0, 0.0), vec(0.0, 0.0))]) == [0.0]


def test_a_statistic_of_ones_own_is_a_file(tmp_path: Path) -> None:
    """One that says 1 from the third update on."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from tarry.parts.endpoint import Statistic\n\n\n"
        "def third():\n"
        "    '''Counts.'''\n"
        "    return Statistic(lambda: 0, lambda late, n: (float(n >= 2), n + 1), 0.5)\n"
    )
    method = tarry.methods.build("orthodyn", statistic=f"{path}:third")
    state, phases = method.correct.init(torch.ones(3)), []
    for number in range(1, 5):
        update, now = arrival(number)
        _, state = method.correct(update, state, now)
        assert now.notes is not None
        phases.append(now.notes["phase"])
    assert phases == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"statistic": "agreemnt"}, "--method.statistic agreemnt: .* Did you mean 'agreement'"),
        ({"switch": 1.5}, "--method.switch 1.5"),
        ({"middle": -0.1}, "--method.middle -0.1"),
        ({"smooth": 1.0}, "--method.smooth 1.0"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "orthodyn", **params)
