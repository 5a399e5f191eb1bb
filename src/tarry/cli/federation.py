"""`tarry federation up|down|status|keep|key`: a whole federation on this machine, and how one does, wherever it is."""

from __future__ import annotations

import json
import signal
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..config.spec import Choice
from ..core.errors import BadInput
from ..deploy.client.client_store import ClientStore
from ..deploy.config import read
from ..deploy.local.local_federation import LocalFederation
from ..deploy.local.submit import Submission
from ..record.result import Result
from ..report.formatting import duration, number_of, size
from . import console as show
from .flags import HELP, PASS_ON, gather, with_settings

__all__ = ["absence", "federation"]

federation = typer.Typer(
    name="federation",
    help="A real federation by Flower: on this machine (up, down), or anywhere (status).",
    context_settings=HELP,
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the --out of the federation")]
_NOT_HERE = (
    "executor", "workers", "address", "gpus", "precision", "compile", "lookahead", "strict", "personalise",
    "diagnose", "failure_rate", "presence", "device",
)  # fmt: skip
_LATE = 30.0  # seconds without a word from the server
_WHOSE = {"server": "the server", "link": "the SuperLink", "exec": "the SuperExec"}


@federation.command(context_settings=PASS_ON)
@with_settings(leave_out=_NOT_HERE)
def up(
    context: typer.Context,
    given: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="folder of the federation; one that is there is taken up again")],
    spec: Annotated[Path | None, typer.Option("--spec", help="TOML file with settings; flags win")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="encrypt, and have nodes prove who they are")] = False,
    deadline: Annotated[float, typer.Option("--deadline", help="the most seconds that a visit may take")] = 3600.0,
    in_flight: Annotated[
        str, typer.Option("--in-flight", help="tickets that a client may hold: auto, 1 or 2")
    ] = "auto",
    ask_every: Annotated[
        float | None, typer.Option("--ask-every", help="seconds between evaluations on clients")
    ] = None,
    app: Annotated[Path | None, typer.Option("--app", help="a Flower app of your own, to run with these nodes")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="a SuperLink without a database: faster; killed, it forgets what is out")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="stay, start what is killed, and take it down at the end")
    ] = False,
) -> None:
    """Start a federation on this machine, or what is missing of one. --delay makes clients sleep, to try slow ones."""
    local = LocalFederation(out, lambda line: show.lines([line]))
    if (out / "result.json").is_file():
        raise BadInput(f"--out {out}: the federation there is over; `tarry report {out}` shows it")
    if local.is_set_up:
        if given or spec is not None or context.args:
            raise BadInput(f"--out {out}: it holds a federation, which goes on with its own settings; leave out others")
    elif app is not None:
        _claim(out)
        local.prepare(_clients_of(app, given, context), {}, tls=tls, app=app, memory=memory)
    else:
        merged = {"clients": 4, **{k: v for k, v in gather(given, context, spec).items() if v is not None}}
        options = {"deadline": deadline, "in-flight": in_flight, "ask-every": ask_every}
        config = {**_flat(merged), **{k: v for k, v in options.items() if v is not None}}
        config["clients"] = read(config).spec.clients  # what is wrong is told here, not in a log
        _claim(out)
        local.prepare(config["clients"], config, tls=tls, memory=memory)
    local.up()
    if not wait:
        show.lines([f"`tarry federation status {out}` shows how it does, `tarry federation down {out}` ends it"])
        return
    _stay(local, out)


def _clients_of(app: Path, given: dict[str, Any], context: typer.Context) -> int:
    """How many nodes an app of the user's own is started with: as many as it says, or the flag."""
    path = app / "pyproject.toml"
    if not path.is_file():
        raise BadInput(f"--app {app}: there is no Flower app (no pyproject.toml)")
    if others := [f"--{k.replace('_', '-')}" for k in given if k != "clients"] + context.args[:1]:
        raise BadInput(f"{others[0]}: with --app, settings are those of {path}")
    config = tomllib.loads(path.read_text()).get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})
    n = given.get("clients") or config.get("clients")
    if n is None or not str(n).isdigit() or int(n) < 1:
        raise BadInput(f"--clients {n}: how many nodes should there be? {path} does not say")
    if "out" not in config:
        raise BadInput(f"--app {app}: its run config needs out = ..., the folder of the server's record")
    return int(n)


def _stay(local: LocalFederation, out: Path) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with show.stoppable(f"`tarry federation up --out {out}` takes it up again"):
        try:
            said = None
            while not (out / "result.json").is_file():
                time.sleep(2.0)
                local.up()
                s = _status(out)
                news = None if s is None else (s["updates"], s["accuracy"], s["time"] // 10)
                if s is not None and news != said:
                    said = news
                    show.lines([_line(s)])
        except KeyboardInterrupt:
            local.down()
            raise
    local.down()
    show.result_lines(Result.read(out))


def _line(s: dict[str, Any]) -> str:
    accuracy = "" if s["accuracy"] is None else f", accuracy {s['accuracy']:.3f}"
    return f"{number_of(s['updates'], 'update')}{accuracy} after {duration(s['time'])}"


@federation.command(context_settings=HELP)
def keep(
    app: Annotated[Path, typer.Argument(metavar="APP", help="folder of a Flower app")],
    superlink: Annotated[str, typer.Argument(metavar="SUPERLINK", help="its name in Flower's config.toml")],
    out: Annotated[Path, typer.Option("--out", help="folder of the server's record: `out` of the run config")],
) -> None:
    """Submit an app to a SuperLink of this machine, and again whenever it was killed, until it is over."""
    submission = Submission(out, app, superlink, [f"out={json.dumps(str(out.resolve()))}"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with show.stoppable("the same command goes on"):
        try:
            while not submission.over:
                if not submission.serving():
                    show.lines([f"run {submission.submit()}"])
                time.sleep(2.0)
        except KeyboardInterrupt:
            submission.stop(70.0)
            raise
    show.result_lines(Result.read(out))


@federation.command(context_settings=HELP)
def key(home: Annotated[Path, typer.Argument(metavar="HOME", help="the folder that a client keeps")]) -> None:
    """Print the public key of a client, for the server's list of known ones; it is made when there is none."""
    show.lines([ClientStore(home).sign(b"")[0]])


@federation.command(context_settings=HELP)
def down(
    folder: Folder,
    within: Annotated[float, typer.Option("--within", help="seconds for what is under way to come in")] = 70.0,
) -> None:
    """End the processes that `up` started, and nothing else; what is under way may come in first."""
    local = LocalFederation(folder, lambda line: show.lines([line]))
    assert local.setup
    ended = local.down(within=within)
    show.lines([f"ended: {', '.join(ended)}" if ended else "nothing of it was running"])
    if not (folder / "result.json").is_file():
        show.lines([f"`tarry federation up --out {folder}` takes it up again"])


@federation.command(context_settings=HELP)
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="print everything there is to know")] = False,
) -> None:
    """Who is late, lost or refused; staleness, bytes, and what an update costs beside training."""
    s = _status(folder)
    if s is None:
        raise BadInput(f"{folder}: no federation has been at work here (no status.json)")
    state, told = _state(s, folder)
    if as_json:
        show.console.print_json(json.dumps({**s, "state": state, "told": told}))
        return
    live = state == "at work"
    accuracy = "" if s["accuracy"] is None else f", accuracy {s['accuracy']:.4f}"
    again = f", taken up {s['starts'] - 1} times" if s["starts"] > 1 else ""
    show.lines(
        [
            f"{s['method']}: {state} after {duration(s['time'])}{again}; {number_of(s['updates'], 'update')}, "
            f"{number_of(s['rounds'], 'server step')}{accuracy}",
            f"  staleness mean {s['staleness']:.1f}; {size(s['bytes_up'])} up, {size(s['bytes_down'])} down; "
            f"{s['lost']} lost, {s['not_finite']} not finite"
            + (f"; {number_of(s['nodes'], 'node')}, {number_of(len(s['here']), 'client')} here" if live else ""),
            *([f"  {told}"] if told else []),
        ]
    )
    show.console.print(_table(s, live=live))
    for why, count in s["refused"].items():
        show.lines([f"  refused {count} times: {why}"])


def _state(s: dict[str, Any], folder: Path) -> tuple[str, str]:
    """What a federation does now, and what to know or do about it."""
    state, told = absence(folder)
    if state:
        return state, told
    old = time.time() - s["at"]
    if s["ended"]:
        return f"ended ({s['ended']})", told
    if old < _LATE:
        return "at work", told
    if LocalFederation(folder).is_set_up:
        return f"silent for {duration(old)}", told or f"the logs are in {folder / 'flower' / 'logs'}"
    again = f"`tarry federation keep APP SUPERLINK --out {folder}` submits it again, if its process was killed"
    return f"silent for {duration(old)}", again


def absence(folder: Path) -> tuple[str, str]:
    """Why no server of this machine is at work on a federation that is not over, or "", and what to do about it."""
    local = LocalFederation(folder)
    if not local.is_set_up:
        return "", ""
    fate = local.submission().fate()
    gone = [*(["server"] if fate == "gone" else []), *local.gone()]
    if (folder / "result.json").is_file():  # asked last: a server that has written it may go
        return "", ""
    again = f"`tarry federation up --out {folder}` takes it up again"
    if local.is_down:
        return "taken down", f"taken down: {again}"
    told = ", ".join(f"{_WHOSE.get(name, name)}'s process is gone" for name in gone)
    if fate == "gone":
        stopped = (_status(folder) or {}).get("ended") == "stopped"
        return ("stopped", f"stopped: {again}") if stopped else ("cut off", f"{told}: {again}")
    way = f"{told}: `tarry federation up --out {folder}` starts it again" if told else ""
    return "" if fate == "at work" else fate, way


def _table(s: dict[str, Any], *, live: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("client", "now", "updates", "visit", "overhead", "stale", "up", "lost"):
        table.add_column(name, justify="left" if name in ("client", "now", "lost") else "right", no_wrap=name != "lost")
    for c in s["clients"]:
        n = max(1, c["updates"])
        out = s["working"].get(str(c["client"]))
        here = c["client"] in s["here"]
        now = f"at work {duration(max(out))}" if out else "idle" if here else "away"
        if out and max(out) > s["deadlines"].get(str(c["client"]), float("inf")):
            now = f"late {duration(max(out))}"
        now = now if live else "–"
        failed = ", ".join(f"{count} {why}" for why, count in c["failed"].items())
        late = f"; {c['late']} came late" if c["late"] else ""
        worked = c["worked"] > 0
        table.add_row(
            f"{c['client']} {show.plain(c['name'][:14])}",
            now,
            str(c["updates"]),
            duration(c["seconds"] / n) if c["updates"] else "–",
            duration((c["seconds"] - c["worked"]) / n) if c["updates"] and worked else "–",
            f"{c['staleness'] / n:.1f}" if c["updates"] else "–",
            size(c["bytes_up"]),
            show.plain(failed + late) or "0",
        )
    return table


def _status(folder: Path) -> dict[str, Any] | None:
    path = folder / "status.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a run config: flat, with text and numbers alone."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        key = name.replace("_", "-")
        if isinstance(value, Choice) or (isinstance(value, dict) and "name" in value):
            choice = Choice.of(value).resolved()
            out[f"{key}.name"] = choice.name
            out.update({f"{key}.{k}": json.dumps(v) if isinstance(v, list) else v for k, v in choice.params.items()})
        else:
            out[key] = value
    return out


def _claim(out: Path) -> None:
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"--out {out}: it is not an empty folder; name another one")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadInput(f"--out {out}: it cannot be made ({e}); name another folder") from e
