"""`tarry federation status|down|keep|key|backup`: the state of a federation, and its processes on this machine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import BadInput, StorageError
from . import console

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["absence", "backup", "down", "keep", "key", "read_status", "status"]

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder (--out) of the federation")]
_PAUSED_AFTER = 5.0  # seconds since the last status, after which the disk may be the reason
_SILENT_AFTER = 30.0  # seconds since the last status of the server
_POLL = 2.0  # seconds between two looks at the processes
_PROCESSES = {"server": "the server", "link": "the SuperLink", "exec": "the SuperExec"}


def keep(
    app: Annotated[Path, typer.Argument(metavar="APP", help="Folder of the Flower app")],
    superlink: Annotated[
        str, typer.Argument(metavar="SUPERLINK", help="Name of the SuperLink in Flower's config.toml")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the server's record, `out` of the run config")],
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link", help="Drive the nodes of this SuperLink too; can be given several times", show_default="none"
        ),
    ] = None,
) -> None:
    """Submit an app to a SuperLink of this machine, and again when it is killed.

    While the folder cannot be written, the command waits, and says so once.
    """
    from ..deploy.local.submit import Submission, settings_of_links
    from ..record.result import Result

    override = {"out": str(out.resolve()), **settings_of_links(link or [])}
    given = [f"{key}={json.dumps(value)}" for key, value in override.items()]
    submission = Submission(out, app, superlink, given, further=link or [])
    attempt = console.PatientAttempts()

    def submit_where_needed() -> None:
        if not submission.serving():
            console.print_lines([f"run {submission.submit()}"])
        submission.submit_to_links_without_run()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with console.on_interrupt("the same command resumes"):
        try:
            while not submission.over:
                attempt(submit_where_needed)
                time.sleep(_POLL)
        except KeyboardInterrupt:
            submission.stop(70.0)
            raise
    console.print_result(Result.read(out))


def key(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="Folder in which the client keeps its key and memory")],
) -> None:
    """Print the public key of a client, for the server's list of clients.

    The key is made if the client has none.
    """
    from ..deploy.client.client_store import ClientStore

    console.print_lines([ClientStore(home).sign(b"")[0]])


def backup(
    folder: Folder,
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="New folder for the copy")],
) -> None:
    """Copy the record of a federation to a new folder, while its server works or not.

    A federation resumes from the copy. The keys and the memory of clients are on their machines.
    """
    from ..record.backup import back_up
    from ..report.formatting import pluralize

    console.print_lines([f"{pluralize(back_up(folder, copy), 'file')} copied; `tarry replay {copy}` checks the copy"])


def down(
    folder: Folder,
    within: Annotated[float, typer.Option("--within", help="Wait so many seconds for open visits to arrive")] = 70.0,
) -> None:
    """End the processes that `up` started, after a wait for open visits."""
    from ..deploy.local.local_federation import LocalFederation

    local = LocalFederation(folder, lambda line: console.print_lines([line]))
    assert local.setup
    ended = local.down(within=within)
    console.print_lines([f"ended: {', '.join(ended)}" if ended else "nothing of it was running"])
    if not (folder / "result.json").is_file():
        console.print_lines([f"`tarry federation up --out {folder}` resumes it"])


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON")] = False,
) -> None:
    """Show late, lost and rejected clients, staleness, bytes and overhead.

    Overhead is what an update costs beside the training.
    """
    s = read_status(folder)
    if s is None:
        raise BadInput(f"{folder}: no federation has been at work here (no status.json)")
    state, advice = _state(s, folder)
    if as_json:
        console.console().print_json(json.dumps({**s, "state": state, "advice": advice}))
        return
    live = state == "at work"
    console.print_lines([*_overview(s, state, live=live), *([f"  {advice}"] if advice else [])])
    console.console().print(_table(s, live=live))
    failures = {c["client"]: c["last_failure"] for c in s["clients"] if c.get("last_failure")}
    console.print_lines(f"  client {client} failed last: {why}" for client, why in failures.items())
    console.print_lines(_gate_lines(s))


def _overview(s: dict[str, Any], state: str, *, live: bool) -> list[str]:
    """Return two lines: how far the federation is, and what it has cost."""
    from ..report.formatting import duration, format_bytes, pluralize

    name, value = score_in(s)
    score = "" if value is None else f", {name} {value:.4f}"
    again = f", taken up {s['starts'] - 1} times" if s["starts"] > 1 else ""
    present = f"; {pluralize(s['nodes'], 'node')}, {pluralize(len(s['here']), 'client')} here" if live else ""
    return [
        f"{s['method']}: {state} after {duration(s['time'])}{again}; {pluralize(s['updates'], 'update')}, "
        f"{pluralize(s['rounds'], 'server step')}{score}",
        f"  staleness mean {s['staleness']:.1f}; {format_bytes(s['bytes_up'])} up, "
        f"{format_bytes(s['bytes_down'])} down; {s['lost']} lost, {s['rejected_updates']} rejected{present}",
    ]


def score_in(s: dict[str, Any]) -> tuple[str, float | None]:
    """Return name and value of the score in a status.json."""
    other = s.get("score")
    return ("accuracy", s["accuracy"]) if other is None else (other["name"], other["value"])


def _gate_lines(s: dict[str, Any]) -> list[str]:
    """Return what was rejected, who is quarantined, and whether the model was restored."""
    from ..report.formatting import duration, pluralize

    out = [f"  rejected {pluralize(count, 'time')}: {why}" for why, count in s["rejected"].items()]
    for client, seconds in s["quarantined"].items():
        out.append(f"  client {client} is quarantined for {duration(seconds)}")
    if s["alarms"]:
        now = f"; no work is handed out for {duration(s['paused'])}" if s["paused"] else ""
        out.append(
            f"  ALARM: the loss of the model exploded {pluralize(s['alarms'], 'time')}, and it was restored{now}"
        )
    return out


def _state(s: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Return what a federation does now, and advice on it."""
    from ..deploy.local.local_federation import LocalFederation
    from ..record.storage import check_writable
    from ..report.formatting import duration

    state, advice = absence(folder)
    if state:
        return state, advice
    age = time.time() - s["at"]
    if s["ended"]:
        return f"ended ({s['ended']})", advice
    try:
        if age > _PAUSED_AFTER:
            check_writable(folder)
    except StorageError as e:
        return "waiting for its disk", f"{e}; the federation continues then"
    if age < _SILENT_AFTER:
        return "at work", advice
    if LocalFederation(folder).is_set_up:
        return f"silent for {duration(age)}", advice or f"the logs are in {folder / 'flower' / 'logs'}"
    again = f"`tarry federation keep APP SUPERLINK --out {folder}` submits it again, if its process was killed"
    return f"silent for {duration(age)}", again


def absence(folder: Path) -> tuple[str, str]:
    """Return why no server of this machine works on a federation that is not over, or "", and advice on it."""
    from ..deploy.local.local_federation import LocalFederation

    local = LocalFederation(folder)
    if not local.is_set_up:
        return "", ""
    fate = local.submission().fate()
    ended = [*(["server"] if fate == "gone" else []), *local.ended_processes()]
    if (folder / "result.json").is_file():  # checked last: a server that has written it may have ended since
        return "", ""
    again = f"`tarry federation up --out {folder}` resumes it"
    if local.is_down:
        return "taken down", f"taken down: {again}"
    missing = ", ".join(f"{_PROCESSES.get(name, name)}'s process has ended" for name in ended)
    if fate == "gone":
        stopped = (read_status(folder) or {}).get("ended") == "stopped"
        return ("stopped", f"stopped: {again}") if stopped else ("cut off", f"{missing}: {again}")
    way_out = f"{missing}: `tarry federation up --out {folder}` starts it again" if missing else ""
    return "" if fate == "at work" else fate, way_out


def _table(s: dict[str, Any], *, live: bool) -> Table:
    """Return a table with a row for each client."""
    from rich.table import Table

    from ..report.formatting import duration, format_bytes

    table = Table(box=None, pad_edge=False)
    for name in ("client", "now", "updates", "visit", "overhead", "stale", "up", "lost"):
        table.add_column(name, justify="left" if name in ("client", "now", "lost") else "right", no_wrap=name != "lost")
    for c in s["clients"]:
        n = max(1, c["updates"])
        failed = ", ".join(f"{count} {why}" for why, count in [*c["failed"].items(), *c["rejected"].items()])
        late = f"; {c['late']} came late" if c["late"] else ""
        table.add_row(
            console.styled(f"{c['client']} {c['name'][:14]}"),
            _activity(s, c["client"]) if live else "–",
            str(c["updates"]),
            duration(c["seconds"] / n) if c["updates"] else "–",
            duration((c["seconds"] - c["train_seconds"]) / n) if c["updates"] and c["train_seconds"] > 0 else "–",
            f"{c['staleness'] / n:.1f}" if c["updates"] else "–",
            format_bytes(c["bytes_up"]),
            console.styled(failed + late or "0"),
        )
    return table


def _activity(s: dict[str, Any], client: int) -> str:
    """Return what a client does now."""
    from ..report.formatting import duration

    if not (out := s["working"].get(str(client))):
        return "idle" if client in s["here"] else "away"
    late = max(out) > s["deadlines"].get(str(client), float("inf"))
    return f"{'late' if late else 'at work'} {duration(max(out))}"


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the status that the server wrote last, or None."""
    path = folder / "status.json"
    if not path.is_file():
        return None
    from ..deploy.server.stats import STATUS
    from ..record.shapes import read_record

    found: dict[str, Any] = read_record(path, STATUS)
    return found
