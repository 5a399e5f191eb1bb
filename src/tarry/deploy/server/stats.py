"""How a federation does: who is late, lost, refused; staleness, bytes, and what an update costs beside training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...record.result import write_atomic

__all__ = ["Health", "Patient"]

_REASONS = 50


@dataclass
class Patient:
    """One client so far."""

    name: str = ""
    node: int = 0
    handed: int = 0
    updates: int = 0
    seconds: float = 0.0  # of its updates, from hand-out to arrival
    worked: float = 0.0  # of these, what it says it trained
    staleness: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    late: int = 0  # answers that came after their deadline
    forgot: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # lost and refused, by reason
    last: float | None = None  # when it was heard of


class Health:
    """By client, and what nobody could be blamed for."""

    def __init__(self) -> None:
        self.clients: dict[int, Patient] = {}
        self.refused: Counter[str] = Counter()  # answers and greetings that were refused, by reason

    def __getitem__(self, client: int) -> Patient:
        return self.clients.setdefault(client, Patient())

    def refuse(self, why: str) -> None:
        """Count it; whoever makes reasons up as they go fills no memory."""
        known = why in self.refused or len(self.refused) < _REASONS
        self.refused[why[:200] if known else "others"] += 1

    def save(self) -> dict[str, Any]:
        plain = {c: {**asdict(p), "failed": dict(p.failed)} for c, p in self.clients.items()}
        return {"clients": plain, "refused": dict(self.refused)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.clients = {c: Patient(**{**p, "failed": Counter(p["failed"])}) for c, p in saved["clients"].items()}
        self.refused = Counter(saved["refused"])

    def write(self, path: Path, more: Mapping[str, Any]) -> None:
        """For whoever looks at a federation at work."""
        plain = self.save()
        clients = [{"client": c, **p} for c, p in sorted(plain["clients"].items())]
        write_atomic(path, json.dumps({**more, "clients": clients, "refused": plain["refused"]}, indent=1).encode())
