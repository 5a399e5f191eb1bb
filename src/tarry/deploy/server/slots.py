"""Slots of a federation: the clients that hold them, as the journal says, and requests to release one.

DIR/release/*.json    requests to release a slot; the server removes a request when it has journaled the release
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple

from ...core.errors import BadInput, DamagedFile
from ...core.storage import files_in
from ...record.journal import NAME
from ...record.rows import read_rows
from ...record.shapes import fields, read_record, text
from ...record.storage import make_folder, write_atomic

__all__ = ["Slot", "Slots", "read_slots", "request_release", "requested_releases"]

_REQUEST = fields({"name": text})
_LARGEST_REQUEST = 10_000  # bytes


class Slot(NamedTuple):
    """A slot, the client that it belongs to, and the node that this client was at last."""

    client: int
    name: str
    key: str  # empty: the client is known by its node
    node: int


class Slots(NamedTuple):
    """The slots of a federation: how many there are, and those that are taken."""

    places: int
    taken: list[Slot]


def read_slots(folder: Path) -> Slots:
    """Return the slots of the federation in a folder."""
    path = folder / NAME
    if not path.is_file():
        raise BadInput(f"{folder}: no federation was recorded here (no {NAME})")
    count, taken = 0, dict[str, Slot]()
    for row in read_rows(path):
        if row["op"] == "begin":
            count = row["clients"]
        elif row["op"] == "client":
            taken[row["name"]] = Slot(row["place"], row["name"], row["key"], row["node"])
        elif row["op"] == "release":
            taken.pop(row["name"], None)
    return Slots(count, sorted(taken.values()))


def request_release(folder: Path, name: str) -> Path:
    """Ask the server of a folder to release the slot of a client, now or when it runs again."""
    taken = [slot.name for slot in read_slots(folder).taken]
    if name not in taken:
        raise BadInput(f"{name!r}: no slot is its; taken are those of {', '.join(map(repr, taken)) or 'no client'}")
    make_folder(folder / "release")
    path = folder / "release" / f"{secrets.token_hex(8)}.json"
    write_atomic(path, json.dumps({"name": name}).encode())
    return path


def requested_releases(folder: Path) -> list[tuple[Path, str]]:
    """Return the requests in a folder, each with the name of a client; unreadable ones are removed."""
    found = []
    for path in files_in(folder / "release", "*.json"):
        try:
            found.append((path, str(read_record(path, _REQUEST, _LARGEST_REQUEST)["name"])))
        except DamagedFile:
            path.unlink(missing_ok=True)
    return found
