"""`tarry federation up`: a whole federation on this machine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import BadInput
from . import console
from .federation_status import read_status, score_in
from .flags import gather, with_settings

if TYPE_CHECKING:
    from ..deploy.local.local_federation import LocalFederation

__all__ = ["up"]

#: settings that a federation does not have
_SIMULATION_ONLY = (
    "executor", "workers", "address", "gpus", "precision", "compile", "lookahead", "worker_timeout", "strict",
    "personalize", "diagnose", "failure_rate", "availability", "device",
)  # fmt: skip
_POLL = 2.0  # seconds between two looks at the processes


@with_settings(leave_out=_SIMULATION_ONLY)
def up(
    context: typer.Context,
    given: dict[str, Any],
    out: Annotated[
        Path, typer.Option("--out", help="Write the federation to this folder, or resume the federation in it")
    ],
    spec: Annotated[
        Path | None,
        typer.Option("--spec", help="Read settings from this TOML file; flags take precedence", show_default="none"),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Let the SuperLink listen at this address; 0.0.0.0 is all of this machine", metavar="ADDRESS"
        ),
    ] = "127.0.0.1",
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--insecure",
            help="Encrypt the connections and require nodes to prove their identity, or neither",
            show_default="--insecure on the loopback interface, else --tls",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help="Start so many nodes on this machine", show_default="one for each client"),
    ] = None,
    deadline: Annotated[
        float, typer.Option("--deadline", help="Give up a visit that takes more than so many seconds")
    ] = 3600.0,
    in_flight: Annotated[
        str, typer.Option("--in-flight", help="Let a client hold so many tickets: auto, 1 or 2")
    ] = "auto",
    ask_every: Annotated[
        float | None,
        typer.Option(
            "--ask-every", help="Evaluate the model on the clients every so many seconds", show_default="never"
        ),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option("--app", help="Run this Flower app of your own on the nodes", show_default="the app of tarry"),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep the state of the SuperLink in memory; faster, but lost if it is killed"),
    ] = False,
    links: Annotated[
        int,
        typer.Option("--links", help="Start so many SuperLinks, and divide the nodes between them"),
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", help="Serve metrics and health at this port of 127.0.0.1", show_default="not served"
        ),
    ] = None,
    log_format: Annotated[str, typer.Option("--log-format", help="Format of the server's log: text or json")] = "text",
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay, restart processes that are killed, and stop all of them at the end")
    ] = False,
) -> None:
    """Start a federation on this machine, or restart the processes that it lacks.

    --delay makes clients sleep, so that you can try slow ones.
    """
    from ..deploy.config import read_config
    from ..deploy.local.local_federation import LocalFederation, is_loopback
    from ..runs.tracking import build_trackers

    if not 1 <= links <= 64:
        raise BadInput(f"--links {links}: there may be 1 to 64 SuperLinks; name another number")
    local = LocalFederation(out, lambda line: console.print_lines([line]))
    encrypted = not is_loopback(host) if tls is None else tls
    if nodes is not None and nodes < 0:
        raise BadInput(f"--nodes {nodes}: must be 0 or more")
    if (out / "result.json").is_file():
        raise BadInput(f"--out {out}: the federation there is over; `tarry report {out}` shows it")
    if local.is_set_up:
        if given or spec is not None or context.args:
            raise BadInput(
                f"--out {out}: it holds a federation, which resumes with its own settings; remove the others"
            )
    elif app is not None:
        if metrics_port is not None or log_format != "text":
            flag = "--log-format" if metrics_port is None else "--metrics-port"
            raise BadInput(f"{flag}: with --app, settings are those of {app / 'pyproject.toml'}")
        count = _clients_of(app, given, context)
        _check_app_takes_links(app, links, encrypted=encrypted)
        _make_folder(out)
        local.prepare(count, {}, tls=encrypted, app=app, memory=memory, host=host, links=links)
    else:
        merged = {"clients": 4, **{k: v for k, v in gather(given, context, spec).items() if v is not None}}
        options = {"deadline": deadline, "in-flight": in_flight, "ask-every": ask_every,
                   "metrics-port": metrics_port, "log-format": log_format}  # fmt: skip
        config = {**_flat(merged), **{k: v for k, v in options.items() if v is not None}}
        checked = read_config(config).spec  # raises errors here rather than in the log of the server
        build_trackers(checked)  # likewise if a library is missing
        config["clients"] = checked.clients
        _make_folder(out)
        count = config["clients"] if nodes is None else nodes
        local.prepare(count, config, tls=encrypted, memory=memory, host=host, links=links)
    local.up()
    if not is_loopback(local.setup.host):
        console.print_lines(_how_to_join(local))
    if wait:
        _stay(local, out)
        return
    console.print_lines([f"`tarry federation status {out}` shows how it does, `tarry federation down {out}` ends it"])


def _how_to_join(local: LocalFederation) -> list[str]:
    """Return what the operator of another machine needs."""
    setup, folder = local.setup, local.flower_dir
    if not setup.tls:
        return ["it is neither encrypted nor authenticated: anyone who reaches the port can join and read the weights"]
    return [
        f"a node on another machine needs {folder / 'tls' / 'ca.crt'} and a key that is registered here:",
        f"  FLWR_HOME={quote(str(folder / 'home'))} flwr supernode register NODE.pub here",
    ]


def _clients_of(app: Path, given: dict[str, Any], context: typer.Context) -> int:
    """Return how many nodes to start for an app of the user: --clients, or `clients` of its run config."""
    from ..deploy.app_code import table_of_app

    path = app / "pyproject.toml"
    if not path.is_file():
        raise BadInput(f"--app {app}: there is no Flower app (no pyproject.toml)")
    if others := [f"--{k.replace('_', '-')}" for k in given if k != "clients"] + context.args[:1]:
        raise BadInput(f"{others[0]}: with --app, settings are those of {path}")
    config = table_of_app(app, "config") or {}
    n = given.get("clients") or config.get("clients")
    if n is None or not str(n).isdigit() or int(n) < 1:
        raise BadInput(f"--clients {n}: how many nodes should there be? {path} does not say")
    return int(n)


def _check_app_takes_links(app: Path, links: int, *, encrypted: bool) -> None:
    """Raise BadInput if the run config of an app has no place for the addresses of further SuperLinks."""
    from ..deploy.app_code import table_of_app

    config = table_of_app(app, "config") or {}
    needed = ("links", "links-root-certificates") if encrypted else ("links",)
    if links > 1 and (missing := [key for key in needed if key not in config]):
        raise BadInput(
            f"--links {links}: {app / 'pyproject.toml'} has no {missing[0]} under [tool.flwr.app.config], so the "
            f'server app would not know the further SuperLinks; add {missing[0]} = ""'
        )


def _stay(local: LocalFederation, out: Path) -> None:
    """Restart processes that are killed until the federation is over; print a line when something changes."""
    from ..record.result import Result

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with console.on_interrupt(f"`tarry federation up --out {out}` resumes it"):
        try:
            printed, attempt = None, console.PatientAttempts()
            while not (out / "result.json").is_file():
                time.sleep(_POLL)
                attempt(local.up)
                s = read_status(out)
                news = None if s is None else (s["updates"], score_in(s), s["time"] // 10)
                if s is not None and news != printed:
                    printed = news
                    console.print_lines([_line(s)])
        except KeyboardInterrupt:
            local.down()
            raise
    local.down()
    console.print_result(Result.read(out))


def _line(s: dict[str, Any]) -> str:
    from ..report.formatting import duration, pluralize

    name, value = score_in(s)
    score = "" if value is None else f", {name} {value:.3f}"
    return f"{pluralize(s['updates'], 'update')}{score} after {duration(s['time'])}"


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as a run config of Flower: flat, with texts and numbers only."""
    from ..config.components import Choice
    from ..config.track_syntax import checked_trackers, parse_track, track_texts

    out: dict[str, Any] = {}
    for name, value in settings.items():
        key = name.replace("_", "-")
        if name == "track":
            out[key] = ",".join(track_texts(checked_trackers(parse_track(value)) or ()))
        elif isinstance(value, Choice) or (isinstance(value, dict) and "name" in value):
            choice = Choice.of(value).with_absolute_paths()
            out[f"{key}.name"] = choice.name
            out.update({f"{key}.{k}": json.dumps(v) if isinstance(v, list) else v for k, v in choice.params.items()})
        else:
            out[key] = ",".join(value) if isinstance(value, list | tuple) else value
    return out


def _make_folder(out: Path) -> None:
    """Make the folder; raise BadInput if it is not empty or cannot be made."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"--out {out}: it is not an empty folder; name another one")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadInput(f"--out {out}: it cannot be made ({e}); name another folder") from e
