"""What the log of any run must show, recomputed from the log alone."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

import tarry
from tests.laws.variants import EVERYTHING, VARIANTS, Choice, every_method, everything, has_starts_of_its_own

BACK = ("arrival", "lost", "rejected")


@every_method
def test_the_run_that_has_everything_has_everything(choice: Choice) -> None:
    """Else the laws below say little."""
    log, _ = everything(choice)
    kinds = [e["kind"] for e in log]
    assert {"hand_out", "arrival", "lost", "join", "leave", "evaluate"} == set(kinds) - {"step"}
    assert kinds.count("arrival") >= 12
    assert log[-1]["version"] >= 2
    times = [e["time"] for e in log if e["kind"] == "arrival"]
    assert len(set(times)) < len(times), "several arrive at one instant"


@every_method
def test_the_clock_never_goes_back(choice: Choice) -> None:
    log, _ = everything(choice)
    assert all(a["time"] <= b["time"] for a, b in pairwise(log))
    assert log[0]["time"] == 0
    assert log[-1]["time"] == EVERYTHING["time"]


@every_method
def test_no_more_are_in_flight_than_the_concurrency(choice: Choice) -> None:
    log, _ = everything(choice)
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


@every_method
def test_an_instant_is_arrivals_then_comings_and_goings_then_hand_outs_then_evaluation(choice: Choice) -> None:
    log, _ = everything(choice)
    turn = {**dict.fromkeys(BACK, 0), "step": 1, "leave": 2, "join": 2, "hand_out": 3, "evaluate": 4}
    for time, events in groupby(log, key=lambda e: e["time"]):
        turns = [turn[e["kind"]] for e in events]
        assert turns == sorted(turns), f"at {time}"


@every_method
def test_arrivals_of_an_instant_come_in_the_order_they_were_handed_out(choice: Choice) -> None:
    log, _ = everything(choice)
    for _, events in groupby((e for e in log if e["kind"] in BACK), key=lambda e: e["time"]):
        numbers = [e["ticket"] for e in events]
        assert numbers == sorted(numbers)


@every_method
def test_a_visit_ends_when_its_duration_is_over_or_its_client_leaves(choice: Choice) -> None:
    log, _ = everything(choice)
    due = {e["ticket"]: e["time"] + e["seconds"] for e in log if e["kind"] == "hand_out"}
    leaves = {(e["time"], e["client"]) for e in log if e["kind"] == "leave"}
    for e in log:
        if e["kind"] == "arrival":
            assert e["time"] == due[e["ticket"]]
        elif e["kind"] == "lost" and e["time"] != due[e["ticket"]]:
            assert (e["time"], e["client"]) in leaves


@every_method
def test_nobody_is_handed_work_while_away(choice: Choice) -> None:
    log, _ = everything(choice)
    windows = {int(c): w for c, w in EVERYTHING["availability"].items()}
    for e in log:
        if e["kind"] == "hand_out" and e["client"] in windows:
            assert any(start <= e["time"] < end for start, end in windows[e["client"]])


@every_method
def test_version_counts_steps_and_updates_counts_arrivals(choice: Choice) -> None:
    log, _ = everything(choice)
    version = updates = 0
    for e in log:
        version += e["stepped"]
        updates += e["kind"] == "arrival"
        assert (e["version"], e["updates"]) == (version, updates)


@every_method
def test_visits_and_tickets_count_up(choice: Choice) -> None:
    log, _ = everything(choice)
    handed = [e for e in log if e["kind"] == "hand_out"]
    assert [e["ticket"] for e in handed] == list(range(len(handed)))
    for client in range(EVERYTHING["clients"]):
        visits = [e["visit"] for e in handed if e["client"] == client]
        assert visits == list(range(len(visits)))


@every_method
def test_staleness_is_the_server_steps_since_the_client_last_knew_the_global(choice: Choice) -> None:
    """Since its hand-out; for a method whose clients have starts of their own, since its last update was taken in."""
    log, _ = everything(choice)
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
    assert result.staleness["max"] == max(stale)
    assert result.staleness["mean"] == pytest.approx(sum(stale) / len(stale))
    assert [(t, u, a) for t, u, a, _ in result.curve] == [
        (e.time, e.updates, e.accuracy) for e in seen if e.kind == "evaluate"
    ]
