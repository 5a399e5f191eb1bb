"""Events per second and memory of the event engine, without training, as the number of clients grows.

    python benchmarks/engine.py [--visits 150000]

Each visit is two events: an arrival (received by the server, counted) and a hand-out (client drawn, ticket written,
duration drawn). Rates are medians of three runs, each in a process of its own, whose memory is measured. Clients in
flight share one global vector, so memory must not grow with clients × model size. Two rows write the event log of a run
folder, as runs do and without its checksums.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import log
from pathlib import Path
from random import random
from statistics import median
from typing import Any

import torch

from record import measure_in_process, write
from tarry.core.idle_clients import IdleClients
from tarry.core.layout import Block, Kind, Layout
from tarry.core.method import Method
from tarry.core.parts import stateless
from tarry.core.server import Server
from tarry.core.tickets import LocalResult, Ticket
from tarry.delays.base import ClientPopulation, delays
from tarry.engine.budget import Budget
from tarry.methods import methods
from tarry.record.rows import Recorder
from tarry.sim.simulator import Simulator

LENET5, MILLION = 44_190, 1_000_000
ROWS = [  # whether FedBuff, clients, in flight, weights, event log
    ("engine alone, 1,000 in flight of 1,000", False, 1_000, 1_000, 1, ""),
    ("the same with an event log", False, 1_000, 1_000, 1, "checksums"),
    ("the same with an event log without checksums", False, 1_000, 1_000, 1, "plain"),
    ("engine alone, 1,000 in flight of 1,000,000", False, MILLION, 1_000, 1, ""),
    ("engine alone, 1,000,000 in flight of 1,000,000", False, MILLION, MILLION, 1, ""),
    ("engine alone, LeNet5-sized, 1,000 in flight of 1,000,000", False, MILLION, 1_000, LENET5, ""),
    ("FedBuff, LeNet5-sized, 1,000 in flight of 1,000,000", True, MILLION, 1_000, LENET5, ""),
]


class PlainRecorder(Recorder):
    """A recorder that writes rows without checksums."""

    def append(self, row: Mapping[str, Any]) -> None:
        self._buffer += json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if len(self._buffer) > self._limit:
            self.flush()


class Nothing:
    """An executor that trains nothing: every visit returns the same zero delta."""

    def __init__(self, size: int):
        self._answer = LocalResult(torch.zeros(size), 1, 1, 0.0)

    def submit(self, ticket: Ticket, memory: object, due: float) -> None:
        pass

    def collect(self, number: int) -> LocalResult:  # noqa: ARG002
        return self._answer

    def close(self) -> None:
        pass


def simulate(
    method: Method, clients: int, in_flight: int, size: int, visits: int, recorder: Recorder | None
) -> tuple[float, float, float]:
    """Return events per second, seconds to hand out the first tickets, and growth of memory in MB."""
    layout = Layout((Block("w", 0, size, (size,), Kind.PARAM),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server = Server(method, torch.zeros(size), layout=layout, n_clients=clients, seed=0)
    delay = delays.build("exponential", mean=100.0)(ClientPopulation(clients, range(1, clients + 1), 4 * size, 0))
    sim = Simulator(
        server, Nothing(size), delay, roster=IdleClients(clients, in_flight), budget=Budget(updates=visits),
        listeners=[] if recorder is None else [recorder],
    )  # fmt: skip
    moments = [time.perf_counter()]

    def first_instant_over() -> None:
        if len(moments) == 1:
            moments.append(time.perf_counter())

    sim.run(on_instant=first_instant_over)
    began, filled = moments
    if recorder is not None:
        recorder.close()
    ended = time.perf_counter()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return 2 * visits / (ended - filled), filled - began, grown / 1024


def three(
    fedbuff: bool, clients: int, in_flight: int, size: int, logs: str, visits: int
) -> list[tuple[float, float, float]]:
    torch.set_num_threads(1)
    waiting = Method("engine alone", aggregate=stateless(lambda _, __: None))
    method, n = (methods.build("fedbuff"), visits // 10) if fedbuff else (waiting, visits)
    recorders = {"checksums": Recorder, "plain": PlainRecorder}
    with tempfile.TemporaryDirectory() as scratch:
        logged = [recorders[logs](Path(scratch, f"{k}.jsonl")) if logs else None for k in range(3)]
        return [simulate(method, clients, in_flight, size, n, recorder) for recorder in logged]


def bare_heap(visits: int) -> float:
    """Return events per second of a loop that only keeps a heap of 1,000 due times."""
    heap = [(random(), n) for n in range(1000)]
    heapify(heap)
    began = time.perf_counter()
    for n in range(visits):
        due, _ = heappop(heap)
        heappush(heap, (due - 100 * log(random()), n))
    return 2 * visits / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=150_000)
    visits = parser.parse_args().visits
    measured = []
    print(f"{'':58}{'events/s':>10}{'first fill s':>14}{'MB grown':>10}")
    for name, *row in ROWS:
        runs = measure_in_process(three, *row, visits)
        rate, fill = (median(column) for column in list(zip(*runs, strict=True))[:2])
        print(f"{name:58}{rate:10,.0f}{fill:14.2f}{runs[0][2]:10.0f}")
        measured.append({"what": name, "events_per_s": rate, "first_fill_s": fill, "MB grown": runs[0][2]})
    heap = bare_heap(visits)
    print(f"{'for comparison: a bare heap of 1,000, one pop and one push':58}{heap:10,.0f}")
    measured.append({"what": "for comparison: a bare heap of 1,000, one pop and one push", "events_per_s": heap})
    write("engine", "The event engine without training: a visit is two events", measured)


if __name__ == "__main__":
    main()
