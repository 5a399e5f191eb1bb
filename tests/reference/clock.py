"""The naive clock of a server that works in epochs, and how its steps and hand-outs are held against the library's.

An epoch begins with a step, or with work handed out when nobody was at work, and is over an epoch's length later, or
when nobody is left at work; one that nobody came back in (with or without anything) goes on until somebody does, and so
does one after which the server has nothing to go by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

import tarry
from tests.reference.problem import Vec

Pick = Callable[[float, list[int]], list[int]]  # now, who may be handed work → who is


class Step(NamedTuple):
    time: float
    w: Vec


class HandOut(NamedTuple):
    time: float
    client: int
    steps: int  # made by then


class Twin(Protocol):
    w: Vec
    epoch: float | None  # its length; None: not known yet

    def receive(self, k: int, work: Any, seconds: float, *, late: bool) -> None:
        """`late`: not within the epoch it was handed out in."""

    def end_of_epoch(self) -> bool:
        """Whether it has stepped."""


def play(
    server: Twin,
    train: Callable[[int], Any],
    durations: Sequence[Sequence[float]],
    *,
    updates: int,
    pick: Pick = lambda _, idle: idle,
    lost: Collection[tuple[int, int]] = (),
) -> tuple[list[Step], list[HandOut]]:
    """Until so many updates have arrived; all who are back start again at the end of an epoch, or when all are back.

    `train` is what a client brings back of work that it is handed now.
    """
    now, began, back, stepped, came = 0.0, 0.0, False, True, 0
    steps: list[Step] = []
    handed: list[HandOut] = []
    out: list[tuple[float, int, int, float, int, Any]] = []  # due, number, client, when and in which epoch, work
    idle, visits = set(range(len(durations))), [0] * len(durations)
    while True:
        if stepped or not out:
            began = began if out else now
            for k in pick(now, sorted(idle)):
                idle.remove(k)
                due = now + durations[k][visits[k] % len(durations[k])]
                out.append((due, len(handed), k, now, len(steps), None if (k, visits[k]) in lost else train(k)))
                handed.append(HandOut(now, k, len(steps)))
                visits[k] += 1
        bell = began + server.epoch if back and server.epoch is not None else inf
        now = min(bell, *(due for due, *_ in out))
        for _, _, k, since, epoch, work in sorted((o for o in out if o[0] == now), key=lambda o: o[1]):
            idle.add(k)
            back = True
            if work is not None:
                server.receive(k, work, now - since, late=len(steps) > epoch)
                came += 1
                if came == updates:
                    return steps, handed
        out = [o for o in out if o[0] > now]
        over = not out or (server.epoch is not None and now >= began + server.epoch)
        stepped = over and back and server.end_of_epoch()
        if over:
            back = False
        if stepped:
            began = now
            steps.append(Step(now, server.w.copy()))


def following(seen: Sequence[tarry.Event]) -> Pick:
    """Whom the library handed work to: whom to draw when not all may train at once is its own business."""

    def pick(now: float, candidates: list[int]) -> list[int]:
        chosen = [e.client for e in seen if e.kind == "hand_out" and e.time == now]
        assert set(chosen) <= set(candidates)
        return chosen

    return pick


def agree(seen: Sequence[tarry.Event], steps: list[Step], handed: list[HandOut], *, rtol: float = 1e-10) -> None:
    """On every step and hand-out: when, who, and the global weights."""
    ours = [e for e in seen if e.kind == "step"]
    assert [HandOut(e.time, e.client, e.version) for e in seen if e.kind == "hand_out"] == handed
    assert [(e.time, e.version) for e in ours] == [(s.time, i) for i, s in enumerate(steps, 1)]
    for e, s in zip(ours, steps, strict=True):
        np.testing.assert_allclose(e.weights.numpy(), s.w, rtol=rtol, atol=rtol / 100, err_msg=f"at {e.time}")
