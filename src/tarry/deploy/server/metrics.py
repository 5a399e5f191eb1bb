"""Metrics of a federation for Prometheus, made from a snapshot that the server's thread takes about once a second.

The names are `tarry_...`; docs/operate.md lists them. Reasons are labels. Only the first ones that occur get a label of
their own and the rest counts as "other", so that no client can make the number of time series grow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import BadInput
from ...core.printable import printable
from ...core.storage import files_in
from ...record.journal import NAME
from ...version import __version__

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["COUNTERS", "GAUGES", "Snapshot", "exposition", "families", "take_snapshot"]

_MAX_REASONS = 24  # label values of a metric, besides "other"
_MAX_LABEL = 80  # characters
_STALENESS_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Snapshot:
    """The numbers of one moment. Threads that answer requests read it; nothing changes it."""

    method: str
    counters: Mapping[str, float]  # by the name of the metric, without _total
    gauges: Mapping[str, float]
    lost: Mapping[str, int]  # tickets by reason
    rejected: Mapping[str, int]  # replies and registrations by reason
    queues: Mapping[str, int]
    staleness: Mapping[int, int]  # staleness → number of updates
    checkpoint_at: float | None  # when the newest checkpoint was written
    at: float


def take_snapshot(driver: Driver) -> Snapshot:
    """Return the numbers of a driver, from its own thread."""
    engine, stats, now = driver.engine, driver.stats, driver.now()
    last = engine.curve[-1] if engine.curve else None
    nodes, journal = driver.registration.nodes, driver.folder / NAME
    open_tickets = list(driver.open_tickets)
    lost: Counter[str] = Counter()
    for client in stats.clients.values():
        lost.update(client.failed)
    gauges = {
        "tickets_open": len(open_tickets),
        "oldest_ticket_seconds": max((now - t.time for t in open_tickets), default=0.0),
        "nodes_present": len(nodes),
        "clients_present": sum(driver.clients.at(node) is not None for node in nodes),
        "clients_quarantined": len(engine.quarantined(driver.now())),
        "model_version": engine.server.version,
        "journal_bytes": journal.stat().st_size if journal.is_file() else 0,
        **({} if last is None or last.accuracy is None else {"accuracy": last.accuracy}),
        **({} if last is None or last.loss is None else {"loss": last.loss}),
    }
    return Snapshot(
        method=engine.server.method.name,
        counters={
            "updates": engine.updates,
            "received_bytes": engine.bytes_up,
            "sent_bytes": engine.bytes_down,
            "server_starts": driver.state.starts,
            "alarms": engine.alarms,
        },
        gauges=gauges,
        lost=lost,
        rejected=dict(stats.rejected),
        queues=driver.queue_lengths(),
        staleness=dict(engine.staleness),
        checkpoint_at=_checkpoint_time(driver.folder / "checkpoints"),
        at=time.time(),
    )


def _checkpoint_time(folder: Path) -> float | None:
    times = [path.stat().st_mtime for path in files_in(folder, "*.safetensors")]
    return max(times, default=None)


#: name -> what is counted
COUNTERS = {
    "updates": "Updates that were accepted",
    "received_bytes": "Bytes of arrays in accepted updates",
    "sent_bytes": "Bytes of arrays that were sent with tickets",
    "server_starts": "Starts of the server app in this folder, and continuations after a pause",
    "alarms": "Explosions of the loss of the global model, after which it was restored",
}
#: name -> what is measured
GAUGES = {
    "tickets_open": "Tickets that clients hold",
    "oldest_ticket_seconds": "Age of the oldest open ticket",
    "nodes_present": "Nodes that are connected",
    "clients_present": "Clients at connected nodes",
    "clients_quarantined": "Clients that get no work because their updates were rejected again and again",
    "model_version": "Steps of the server",
    "accuracy": "Accuracy at the last evaluation",
    "loss": "Loss at the last evaluation",
    "journal_bytes": "Size of journal.jsonl",
}


def exposition(read: Any) -> Any:
    """Return a function that returns the metrics as Prometheus reads them.

    `read` returns the newest snapshot and the reason why the server waits, "" if it does not. Raise BadInput if
    prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    except ImportError as e:
        raise BadInput("metrics-port: it needs prometheus_client; pip install 'tarry[prometheus]'") from e
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    class Collector:
        """A collector that prometheus_client calls for the metrics."""

        def describe(self) -> list[Any]:
            return []

        def collect(self) -> Iterator[Any]:
            yield from families(*read())

    registry.register(Collector())
    return lambda: generate_latest(registry)


def families(found: Snapshot | None, waits_for: str) -> Iterator[Any]:
    """Yield the metrics of a snapshot, with their labels."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    yield GaugeMetricFamily("tarry_paused", "1 while the server waits until files can be written", bool(waits_for))
    if found is None:
        return
    yield InfoMetricFamily("tarry", "Version and method", {"version": __version__, "method": _label(found.method)})
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(f"tarry_{name}", text, found.counters[name])
    for name, text in GAUGES.items():
        if name in found.gauges:
            yield GaugeMetricFamily(f"tarry_{name}", text, found.gauges[name])
    now = time.time()
    yield GaugeMetricFamily("tarry_snapshot_age_seconds", "Age of these numbers", max(0.0, now - found.at))
    if found.checkpoint_at is not None:
        age = max(0.0, now - found.checkpoint_at)
        yield GaugeMetricFamily("tarry_checkpoint_age_seconds", "Age of the newest checkpoint", age)
    yield _by_label(CounterMetricFamily("tarry_lost", "Tickets that brought no update", labels=["reason"]), found.lost)
    rejected = CounterMetricFamily("tarry_rejected", "Replies and registrations that were rejected", labels=["reason"])
    yield _by_label(rejected, found.rejected)
    yield _by_label(GaugeMetricFamily("tarry_queue_length", "Waiting work", labels=["queue"]), found.queues)
    yield _histogram(found.staleness)


def _by_label(family: Any, values: Mapping[str, int]) -> Any:
    for name, value in _bounded(values).items():
        family.add_metric([name], value)
    return family


def _bounded(values: Mapping[str, int]) -> dict[str, int]:
    """Return the first values by label, and the sum of the rest as "other"."""
    found: Counter[str] = Counter()
    for name, value in islice(values.items(), _MAX_REASONS):
        found[_label(name)] += value
    if rest := sum(islice(values.values(), _MAX_REASONS, None)):
        found["other"] += rest
    return dict(found)


def _label(text: str) -> str:
    return printable(text)[:_MAX_LABEL]


def _histogram(staleness: Mapping[int, int]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    counts = [(str(bound), sum(n for s, n in staleness.items() if s <= bound)) for bound in _STALENESS_BUCKETS]
    buckets = [*counts, ("+Inf", sum(staleness.values()))]
    total = sum(s * n for s, n in staleness.items())
    return HistogramMetricFamily("tarry_staleness", "Server steps between hand-out and arrival", buckets, total)
