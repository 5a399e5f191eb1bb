"""`tarry federation slots|release`: who holds the slots of a federation, and their release."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from . import console
from .federation_status import Folder, read_status

__all__ = ["release", "slots"]

_WAIT = 5.0  # seconds that a running server may take to release a slot


def slots(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print the slots as JSON")] = False,
) -> None:
    """List the slots of a federation and the clients that hold them."""
    from rich.table import Table

    from ..deploy.server.slots import read_slots

    found, here = read_slots(folder), set((read_status(folder) or {}).get("here", []))
    if as_json:
        taken = [{**slot._asdict(), "present": slot.client in here} for slot in found.taken]
        console.console().print_json(json.dumps({"slots": found.places, "taken": taken}))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("slot", "client", "known by", "now"):
        table.add_column(name, no_wrap=True)
    for slot in found.taken:
        known_by = f"key {slot.key[:16]}" if slot.key else f"node {slot.node}"
        state = "present" if slot.client in here else "absent"
        table.add_row(str(slot.client), console.styled(slot.name[:40]), known_by, state)
    console.print_lines([f"{len(found.taken)} of {found.places} slots are taken"])
    console.console().print(table)


def release(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client, as `slots` shows it")],
) -> None:
    """Release the slot of a client, so that another can take it.

    Its open tickets are lost. If its node is still present, it registers again and gets a free slot.
    """
    from ..deploy.server.slots import request_release

    request = request_release(folder, name)
    until = time.monotonic() + _WAIT
    while request.exists() and time.monotonic() < until:
        time.sleep(0.1)
    later = "; the server does it when it runs again" if request.exists() else ""
    console.print_lines([f"the slot of {name!r} is {'to be ' if later else ''}released{later}"])
