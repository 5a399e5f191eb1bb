"""Attacks of a client on the driver: each is rejected with its reason code, harms nobody else, and is replayed."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.core.rejections import Reason
from tarry.deploy.server.driver import Driver
from tarry.deploy.wire import EncodedArray, ReplyMessage, Request
from tarry.record.result import sha256
from tarry.record.rows import read_rows
from tarry.runs.replay import replay
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, npy, small_plan

Attack = Callable[[Request, ReplyMessage], ReplyMessage]
HOSTILE = 3  # the client


def fields(**changed: Any) -> Attack:
    given = {k.replace("_", "-"): v for k, v in changed.items()}
    return lambda _, back: back._replace(fields={**back.fields, **given})


def without(name: str) -> Attack:
    return lambda _, back: back._replace(fields={k: v for k, v in back.fields.items() if k != name})


def arrays(**changed: Any) -> Attack:
    """Other arrays in place of those of the reply; functions get the number of weights."""

    def attack(_: Request, back: ReplyMessage) -> ReplyMessage:
        size = back.arrays["delta"].shape[0]
        made = {k: v(size) if callable(v) else v for k, v in changed.items()}
        return back._replace(arrays={**back.arrays, **made})

    return attack


def filled(number: float, dtype: Any = np.float32) -> Callable[[int], EncodedArray]:
    return lambda size: npy(np.full(size, number, dtype))


def honest_claim(data: Callable[[int], bytes]) -> Callable[[int], EncodedArray]:
    """An array that claims to be the displacement, and whose bytes are something else."""
    return lambda size: EncodedArray("float32", (size,), "numpy.ndarray", data(size))


def zipped(size: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("delta.npy", bytes(50_000_000))
    return out.getvalue()


def padded(data: bytes, size: int) -> bytes:
    """Bytes of the length that the displacement has."""
    return (data + bytes(4 * size + 128))[: 4 * size + 128]


def header(text: str) -> Callable[[int], bytes]:
    """The bytes of an .npy file with this text as its header."""
    return lambda size: padded(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode(), size)


def replayed() -> Attack:
    """The first reply again and again."""
    seen: list[ReplyMessage] = []

    def attack(_: Request, back: ReplyMessage) -> ReplyMessage:
        seen.append(back)
        return seen[0]._replace(request=back.request)

    return attack


def nested(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


#: attack → what becomes of the reply, and the reason code
ATTACKS: dict[str, tuple[Attack, Reason]] = {
    "a token that was guessed": (fields(token="0" * 32), Reason.FOREIGN_TICKET),
    "a token that is no ASCII": (fields(token="é" * 32), Reason.FOREIGN_TICKET),
    "the number of another ticket": (fields(number=0), Reason.FOREIGN_TICKET),
    "another node's name on it": (lambda _, back: back._replace(node=back.node + 1), Reason.FOREIGN_TICKET),
    "a reply of an earlier ticket": (replayed(), Reason.FOREIGN_TICKET),
    "no token": (without("token"), Reason.FIELDS),
    "a token that is a number": (fields(token=7), Reason.FIELDS),
    "a loss in words": (fields(loss="low"), Reason.FIELDS),
    "no number of examples": (without("num-examples"), Reason.FIELDS),
    "a number of examples that is true": (fields(num_examples=True), Reason.FIELDS),
    "a list of two million numbers": (fields(more=[0.0] * 2_000_000), Reason.RECORD),
    "a list in a list in a list": (fields(more=nested(2000)), Reason.RECORD),
    "a dict of records": (fields(more={"a": {"b": 1}}), Reason.RECORD),
    "ten thousand fields": (fields(**{f"f{k}": 1 for k in range(10_000)}), Reason.RECORD),
    "a very long text": (fields(more="x" * 10_000_000), Reason.RECORD),
    "a list of long texts": (fields(more=["x" * 100_000]), Reason.RECORD),
    "a very long name of a field": (fields(**{"x" * 100_000: 1}), Reason.RECORD),
    "records that cannot be read": (lambda _, b: b._replace(malformed="'a' occurs in two records"), Reason.RECORD),
    "more examples than it has": (fields(num_examples=10**6), Reason.EXAMPLES),
    "examples below nothing": (fields(num_examples=-5), Reason.EXAMPLES),
    "examples beyond all bounds": (fields(num_examples=2**62), Reason.EXAMPLES),
    "a number of a thousand digits": (fields(num_examples=10**1000), Reason.EXAMPLES),
    "steps beyond all bounds": (fields(num_steps=2**62), Reason.EXAMPLES),
    "a training time longer than the visit": (fields(train_seconds=1e6), Reason.METADATA),
    "a training time below nothing": (fields(train_seconds=-1.0), Reason.METADATA),
    "a training time that is no number": (fields(train_seconds=float("nan")), Reason.METADATA),
    "a loss beyond all bounds": (fields(loss=1e200), Reason.METADATA),
    "a loss that is no number": (fields(loss=float("nan")), Reason.NOT_FINITE),
    "weights that are no numbers": (arrays(delta=filled(np.nan)), Reason.NOT_FINITE),
    "infinite weights": (arrays(delta=filled(np.inf)), Reason.NOT_FINITE),
    "a displacement of 1e30": (arrays(delta=filled(1e30)), Reason.NORM),
    "numbers whose sum overflows": (arrays(delta=filled(3.4e38)), Reason.NOT_FINITE),
    "a displacement of 1e4": (arrays(delta=filled(1e4)), Reason.NORM),
    "a model of another shape": (arrays(delta=lambda _: npy(np.zeros(3, np.float32))), Reason.ARRAYS),
    "a model in two dimensions": (arrays(delta=lambda n: npy(np.zeros((1, n), np.float32))), Reason.ARRAYS),
    "a model of another type": (arrays(delta=filled(0.0, np.float64)), Reason.ARRAYS),
    "a model of whole numbers": (arrays(delta=filled(0, np.int32)), Reason.ARRAYS),
    "a model of the other byte order": (arrays(delta=filled(0.0, np.dtype(">f4"))), Reason.ARRAYS),
    "far too many numbers": (arrays(delta=lambda _: npy(np.zeros(10**6, np.float32))), Reason.ARRAYS),
    "no arrays at all": (lambda _, back: back._replace(arrays={}), Reason.ARRAYS),
    "arrays nobody asked for": (arrays(**{"extra.x": lambda _: npy(np.zeros(3))}), Reason.ARRAYS),
    "ten thousand arrays": (arrays(**{f"a{k}": npy(np.zeros(1)) for k in range(10_000)}), Reason.ARRAYS),
    "a very long name of an array": (arrays(**{"x" * 1_000_000: npy(np.zeros(1))}), Reason.ARRAYS),
    "a pickle": (arrays(delta=lambda n: npy(np.zeros(n, np.float32))._replace(kind="pickle")), Reason.ARRAYS),
    "a compression bomb": (arrays(delta=honest_claim(lambda n: padded(zipped(n), n))), Reason.ARRAYS),
    "gzipped bytes": (arrays(delta=honest_claim(lambda n: padded(gzip.compress(bytes(10**7)), n))), Reason.ARRAYS),
    "a truncated array": (arrays(delta=honest_claim(lambda _: b"\x93NUMPY")), Reason.ARRAYS),
    "a header that is no literal": (arrays(delta=honest_claim(header("{'a': (\n"))), Reason.ARRAYS),
    "a header that is deeply nested": (arrays(delta=honest_claim(header("(" * 900))), Reason.ARRAYS),
    "a header with a call": (arrays(delta=honest_claim(header("__import__('os').abort()\n"))), Reason.ARRAYS),
    "a header of objects": (
        arrays(delta=honest_claim(header("{'descr': '|O', 'fortran_order': False, 'shape': (8,)}\n"))),
        Reason.ARRAYS,
    ),
    "a shape that is below nothing": (
        arrays(delta=lambda n: npy(np.zeros(n, np.float32))._replace(shape=(-n, -1))),
        Reason.ARRAYS,
    ),
}


def attacked(tmp_path: Path, attack: Attack, **settings: Any) -> tuple[Driver, FakeGrid]:
    made = small_plan(method="fedasync", **settings)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    grid.there[100 + HOSTILE].seconds = lambda _: 1.0
    grid.there[100 + HOSTILE].spoil = lambda request, back: attack(request, back) if request.kind == "train" else back
    return driver(made, grid, tmp_path / "out", max_tickets_per_client=1), grid


@pytest.mark.parametrize("how", ATTACKS)
def test_an_attack_is_rejected_and_recorded_and_harms_nobody(how, tmp_path):
    attack, reason = ATTACKS[how]
    d, grid = attacked(tmp_path, attack)
    assert finished(d, grid) == "updates"
    honest = {0, 1, 2}
    rows = list(read_rows(tmp_path / "out" / "events.jsonl"))
    repeated = attack is ATTACKS["a reply of an earlier ticket"][0]  # whose first reply is honest
    assert {r["client"] for r in rows if r["kind"] == "arrival"} == (honest | {HOSTILE} if repeated else honest)
    assert {(r["client"], r["reason"]) for r in rows if r["kind"] == "rejected"} == {(HOSTILE, reason)}
    assert d.stats[HOSTILE].rejected.keys() == {reason}
    assert d.engine.rejections.keys() == {HOSTILE}
    assert d.stats.rejected == d.engine.rejections[HOSTILE]
    assert np.isfinite(d.engine.server.weights.numpy()).all()
    said = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert max(map(len, said)) < 2000, "what a client sends does not fill the log"
    problems = [json.loads(line) for line in said]
    assert any(
        p["what"] == "an answer was rejected" and p["client"] == HOSTILE and p["why"] == reason for p in problems
    )
    assert (tmp_path / "out" / "journal.jsonl").stat().st_size < 200_000
    told = replay(tmp_path / "out")
    assert told.first_difference is None
    assert told.weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_client_over_its_quota_is_quarantined_ever_longer_and_readmitted(tmp_path):
    d, grid = attacked(tmp_path, ATTACKS["a displacement of 1e30"][0], updates=400, quarantine=20.0)
    finished(d, grid)
    rejected = [r["time"] for r in read_rows(tmp_path / "out" / "events.jsonl") if r["kind"] == "rejected"]
    gaps = np.diff(rejected)
    assert len(gaps) >= 4
    assert 20.0 < gaps[2] < 60.0
    assert (gaps[3:] > 1.5 * gaps[2:-1]).all(), "each period is longer than the one before"
    assert "a client is quarantined" in (tmp_path / "out" / "log.jsonl").read_text()
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_client_that_lies_every_second_time_is_quarantined_though_its_other_answers_are_good(tmp_path):
    count = iter(range(10_000))

    def attack(request: Request, back: ReplyMessage) -> ReplyMessage:
        return ATTACKS["a displacement of 1e30"][0](request, back) if next(count) % 2 else back

    d, grid = attacked(tmp_path, attack, updates=300, quarantine=30.0)
    finished(d, grid)
    assert d.stats[HOSTILE].updates > 0
    assert d.engine.gate is not None
    assert d.engine.gate.quarantine.until(HOSTILE) > 0.0
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_replies_to_no_request_and_second_replies_are_told_apart_and_taken_for_nothing(tmp_path):
    d, grid = attacked(tmp_path, lambda _, back: back)
    pulled = grid.pull
    sent: list[ReplyMessage] = []

    def pull(ids: Any) -> list[ReplyMessage]:
        replies = pulled(ids)
        sent.extend(replies)
        again = [sent[4]] if len(sent) > 8 else []
        return [*replies, *again, ReplyMessage("forged", 103, {}, {})]

    grid.pull = pull  # type: ignore[method-assign]
    assert finished(d, grid) == "updates"
    assert d.stats.rejected[Reason.UNKNOWN_TICKET] > 10
    assert d.stats.rejected[Reason.USED_TICKET] > 1
    assert d.engine.rejected == 0, "no ticket ends by them"
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)


def test_a_late_answer_is_recorded_as_expired(tmp_path):
    made = small_plan(method="orthofl", updates=40)
    slow = lambda c, k: 120.0 if (c, k) == (1, 3) else 4.0  # noqa: E731
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes", slow))
    d = driver(made, grid, tmp_path / "out", deadline=500.0)
    for _ in range(3000):
        d.tick()
        grid.clock.sleep(0.1)
        if d.stats[1].late:
            break
    assert d.stats[1].rejected == {Reason.EXPIRED_TICKET: 1}
    assert d.engine.quarantined(d.now()) == {}, "slow clients are not hostile"
    d.close()


def test_thousands_of_nodes_that_ask_to_register_take_bounded_work_and_memory(tmp_path):
    """Each claims a place with a key of its own; honest clients train on."""
    made = small_plan(method="fedasync", updates=40)
    everybody = nodes(made, tmp_path / "homes")
    grid = FakeGrid(Clock(), dict(everybody))
    d = driver(made, grid, tmp_path / "out")
    for _ in range(60):
        d.tick()
        grid.clock.sleep(0.1)
    assert len(d.clients.save()["clients"]) == 4
    forged = everybody[100]

    class Forger:
        worked, free, seconds = 0, 0.0, staticmethod(lambda _: 1.0)
        spoil = staticmethod(lambda _, back: back)

        def answer(self, request: Request, id_: str) -> ReplyMessage:
            return ReplyMessage(id_, request.node, {"name": "x", "key": "00", "signature": "00", "place": 0}, {})

    assert forged.name == "client 0"
    before = len(grid.log)
    grid.there.update({n: Forger() for n in range(10_000, 13_000)})  # type: ignore[misc]
    most = 0
    for _ in range(100):
        sent = len(grid.log)
        d.tick()
        most = max(most, len(grid.log) - sent)
        grid.clock.sleep(0.1)
    assert len(grid.log) - before > 100, "they are asked"
    assert most <= 100, "a few at a time"
    assert d.stats.rejected[Reason.IDENTITY] > 50
    for n in range(10_000, 13_000):
        del grid.there[n]
    assert finished(d, grid) == "updates"
    assert len(d.registration._retries) == 0, "nodes that have left are forgotten"
    assert replay(tmp_path / "out").weights_sha256 == sha256(d.engine.server.output_weights)
