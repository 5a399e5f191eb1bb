"""Statistics of a federation: late, lost and rejected replies, staleness, bytes, and time beside training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...core.rejections import Reason
from ...record.shapes import count, fields, list_of, number, optional, seconds, table_of, text
from ...record.storage import write_atomic

__all__ = ["STATUS", "ClientStats", "FederationStats"]

#: status.json
STATUS = fields(
    {
        **dict.fromkeys(("at", "time", "staleness", "paused"), seconds),
        **dict.fromkeys(("ended", "method"), text),
        **dict.fromkeys(
            ("starts", "updates", "rounds", "lost", "rejected_updates", "alarms", "bytes_up", "bytes_down", "nodes"),
            count,
        ),
        "accuracy": optional(number),
        "here": list_of(count),
        "working": table_of(list_of(number)),
        "deadlines": table_of(number),
        "quarantined": table_of(number),
        "rejected": table_of(count),
        "clients": list_of(
            fields(
                {
                    "name": text,
                    **dict.fromkeys(("client", "updates", "staleness", "bytes_up", "late"), count),
                    **dict.fromkeys(("seconds", "train_seconds"), number),
                    "failed": table_of(count),
                    "rejected": table_of(count),
                },
                {"last_failure": text},
            )
        ),
    },
    {"score": fields({"name": text, "value": optional(number)})},  # if it is another metric than accuracy
)
_MAX_REASONS = 50  # distinct reasons of losses that are counted apart


@dataclass
class ClientStats:
    """Counts of one client. The names of the fields are keys of status.json and of checkpoints."""

    name: str = ""
    node: int = 0
    handouts: int = 0  # tickets
    updates: int = 0
    seconds: float = 0.0  # of its updates, from hand-out to arrival
    train_seconds: float = 0.0  # of these, what it reports as training
    staleness: int = 0  # sum over its updates
    bytes_up: int = 0
    bytes_down: int = 0
    late: int = 0  # replies that came after their deadline
    memory_lost: int = 0  # visits whose memory was lost
    failed: Counter[str] = field(default_factory=Counter)  # lost, by reason
    rejected: Counter[str] = field(default_factory=Counter)  # by reason code
    last: float | None = None  # time of its last reply or failure
    last_failure: str = ""  # what its app said when it failed last, or why its last reply was rejected

    def count_failure(self, why: str, detail: str = "") -> None:
        """Count a lost visit by its reason. At most 50 distinct ones are kept, and `detail` of the last one alone."""
        known = why in self.failed or len(self.failed) < _MAX_REASONS
        self.failed[why[:200] if known else "others"] += 1
        self.last_failure = f"{why}: {detail}" if detail else why


class FederationStats:
    """Statistics by client, and rejections of all nodes."""

    def __init__(self) -> None:
        self.clients: dict[int, ClientStats] = {}
        self.rejected: Counter[str] = Counter()  # replies and registrations, by reason code

    def __getitem__(self, client: int) -> ClientStats:
        return self.clients.setdefault(client, ClientStats())

    def count_rejection(self, reason: Reason, client: int | None = None, detail: str = "") -> None:
        """Count a rejected reply or registration, of a client if it is known; `detail` is kept of the last one."""
        self.rejected[str(reason)] += 1
        if client is not None:
            stats = self[client]
            stats.rejected[str(reason)] += 1
            stats.last_failure = f"rejected, {reason}: {detail}" if detail else f"rejected, {reason}"

    def save(self) -> dict[str, Any]:
        counters = {c: {"failed": dict(s.failed), "rejected": dict(s.rejected)} for c, s in self.clients.items()}
        clients = {c: {**asdict(s), **counters[c]} for c, s in self.clients.items()}
        return {"clients": clients, "rejected": dict(self.rejected)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.clients = {
            c: ClientStats(**{**s, "failed": Counter(s["failed"]), "rejected": Counter(s.get("rejected", {}))})
            for c, s in saved["clients"].items()
        }
        self.rejected = Counter(saved["rejected"])

    def write(self, path: Path, more: Mapping[str, Any]) -> None:
        """Write the statistics and `more` as JSON, for `tarry federation status`."""
        saved = self.save()
        clients = [{"client": c, **s} for c, s in sorted(saved["clients"].items())]
        write_atomic(path, json.dumps({**more, "clients": clients, "rejected": saved["rejected"]}, indent=1).encode())
