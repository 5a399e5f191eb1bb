"""What the log of any run must show, recomputed from the log alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

import pytest

import tarry
from tests.laws.variants import EVERYTHING, VARIANTS, Choice, every_method, everything, has_starts_of_its_own

#: kinds of the events that end a visit
BACK = ("arrival", "lost", "rejected")

Log = list[dict[str, Any]]
Law = Callable[[Log, Choice], None]


def the_run_has_everything(log: Log, choice: Choice) -> None:
    """Else the laws below say little."""
    kinds = [e["kind"] for e in log]
    assert {"hand_out", "arrival", "lost", "join", "leave", "evaluate"} == set(kinds) - {"step"}
    assert kinds.count("arrival") >= 12
    assert log[-1]["version"] >= 2
    times = [e["time"] for e in log if e["kind"] == "arrival"]
    assert len(set(times)) < len(times), "several arrive at one instant"


def the_clock_never_goes_back(log: Log, choice: Choice) -> None:
    assert all(a["time"] <= b["time"] for a, b in pairwise(log))
    assert log[0]["time"] == 0
    assert log[-1]["time"] == EVERYTHING["time"]


def no_more_clients_train_than_the_concurrency(log: Log, choice: Choice) -> None:
    out: set[int] = set()
    fullest = 0
    for e in log:
        if e["kind"] == "hand_out":
            assert e["client"] not in out
            out.add(e["client"])
        elif e["kind"] in BACK:
            out.remove(e["client"])
        fullest = max(fullest, len(out))
    assert fullest == EVERYTHING["concurrency"]


def an_instant_is_arrivals_then_joins_and_leaves_then_hand_outs_then_evaluation(log: Log, choice: Choice) -> None:
    turn = {**dict.fromkeys(BACK, 0), "step": 1, "leave": 2, "join": 2, "hand_out": 3, "evaluate": 4}
    for time, events in groupby(log, key=lambda e: e["time"]):
        turns = [turn[e["kind"]] for e in events]
        assert turns == sorted(turns), f"at {time}"


def arrivals_of_an_instant_come_in_the_order_of_their_hand_outs(log: Log, choice: Choice) -> None:
    for _, events in groupby((e for e in log if e["kind"] in BACK), key=lambda e: e["time"]):
        numbers = [e["ticket"] for e in events]
        assert numbers == sorted(numbers)


def a_visit_ends_when_its_duration_is_over_or_its_client_leaves(log: Log, choice: Choice) -> None:
    due = {e["ticket"]: e["time"] + e["seconds"] for e in log if e["kind"] == "hand_out"}
    leaves = {(e["time"], e["client"]) for e in log if e["kind"] == "leave"}
    for e in log:
        if e["kind"] == "arrival":
            assert e["time"] == due[e["ticket"]]
        elif e["kind"] == "lost" and e["time"] != due[e["ticket"]]:
            assert (e["time"], e["client"]) in leaves


def no_client_is_handed_work_while_it_is_away(log: Log, choice: Choice) -> None:
    windows = {int(c): w for c, w in EVERYTHING["availability"].items()}
    for e in log:
        if e["kind"] == "hand_out" and e["client"] in windows:
            assert any(start <= e["time"] < end for start, end in windows[e["client"]])


def version_counts_steps_and_updates_counts_arrivals(log: Log, choice: Choice) -> None:
    version = updates = 0
    for e in log:
        version += e["stepped"]
        updates += e["kind"] == "arrival"
        assert (e["version"], e["updates"]) == (version, updates)


def visits_and_tickets_count_up(log: Log, choice: Choice) -> None:
    handed = [e for e in log if e["kind"] == "hand_out"]
    assert [e["ticket"] for e in handed] == list(range(len(handed)))
    for client in range(EVERYTHING["clients"]):
        visits = [e["visit"] for e in handed if e["client"] == client]
        assert visits == list(range(len(visits)))


def staleness_is_the_server_steps_since_the_client_last_knew_the_global(log: Log, choice: Choice) -> None:
    """Since its hand-out; for a method whose clients have starts of their own, since its last update was taken in."""
    own, known = has_starts_of_its_own(choice), dict[int, int]()
    answered: set[int] = set()
    for e in log:
        if e["kind"] == "hand_out" and not (own and e["client"] in answered):
            known[e["client"]] = e["version"]
        elif e["kind"] in BACK:
            assert e["staleness"] == e["version"] - e["stepped"] - known[e["client"]], e
            if e["kind"] == "arrival":
                answered.add(e["client"])
                if own:
                    known[e["client"]] = e["version"]


LAWS: tuple[Law, ...] = (
    the_run_has_everything,
    the_clock_never_goes_back,
    no_more_clients_train_than_the_concurrency,
    an_instant_is_arrivals_then_joins_and_leaves_then_hand_outs_then_evaluation,
    arrivals_of_an_instant_come_in_the_order_of_their_hand_outs,
    a_visit_ends_when_its_duration_is_over_or_its_client_leaves,
    no_client_is_handed_work_while_it_is_away,
    version_counts_steps_and_updates_counts_arrivals,
    visits_and_tickets_count_up,
    staleness_is_the_server_steps_since_the_client_last_knew_the_global,
)


def broken(log: Log, choice: Choice) -> list[str]:
    """Every law that the log breaks, by name, and the line that shows it."""
    found = []
    for law in LAWS:
        try:
            law(log, choice)
        except (AssertionError, LookupError) as e:
            found.append(
                f"{law.__name__.replace('_', ' ')}, line {traceback.extract_tb(e.__traceback__)[-1].lineno}: {e}"
            )
    return found


@every_method
def test_the_clock_keeps_its_laws(choice: Choice) -> None:
    log, _ = everything(choice)
    assert broken(log, choice) == []


def test_a_law_that_is_broken_is_named() -> None:
    log, _ = everything(VARIANTS[0])
    late = [{**e, "staleness": e["staleness"] + 1} if e["kind"] == "arrival" else e for e in log]
    (found,) = broken(late, VARIANTS[0])
    assert found.startswith("staleness is the server steps since the client last knew the global, line ")


@pytest.mark.parametrize("choice", [c for c in VARIANTS if c["name"] in ("fedavg", "fedprox")])
def test_rounds_are_never_stale(choice: Choice) -> None:
    log, _ = everything(choice)
    assert {e["staleness"] for e in log if e["kind"] == "arrival"} == {0}


def test_the_result_counts_what_the_log_shows() -> None:
    seen: list[tarry.Event] = []
    result = tarry.run("orthofl", callbacks=[seen.append], **EVERYTHING)
    kinds = [e.kind for e in seen]
    stale = [e.staleness for e in seen if e.kind == "arrival"]
    assert (result.updates, result.lost, result.rejected) == (kinds.count("arrival"), kinds.count("lost"), 0)
    assert result.rounds == seen[-1].version
    assert result.virtual_time == 20.0
    assert result.staleness.max == max(stale)
    assert result.staleness.mean == pytest.approx(sum(stale) / len(stale))
    assert [(p.time, p.updates, p.accuracy) for p in result.curve] == [
        (e.time, e.updates, e.accuracy) for e in seen if e.kind == "evaluate"
    ]
