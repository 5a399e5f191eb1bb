"""Server as a Flower app (`serverapp = "tarry.deploy.server_app:app"` in a pyproject.toml).

A federation that the folder holds is resumed. SIGTERM, Ctrl-C and a file `stop` in the folder end it when the visits
under way have ended. In Flower's simulation engine, where the server is a thread, signals go to the engine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.serverapp import ServerApp

from ..version import __version__

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from torch import Tensor

    from ..core.metric import Scores
    from ..core.tickets import Ticket
    from ..runs.build import BuiltRun
    from ..runs.tracking import Tracking
    from ..training.visit import LocalWork
    from .config import DeployConfig
    from .flower_app import StateDict
    from .protocol import Protocol
    from .server.driver import Driver
    from .server.monitor import ServerMonitor
    from .wire import MessageGrid

__all__ = ["app", "serve"]

app = ServerApp()
log = logging.getLogger("tarry")
NOT_REPLAYABLE = (
    "`tarry replay` will not repeat this federation: its clients train by their own code; keep-updates = true keeps"
    " every update in the folder, for a replay of the server"
)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Drive the method that the run config names."""
    from ..core.errors import TarryError
    from ..record.storage import make_folder
    from ..vector.process import return_freed_memory
    from .app_defaults import complete_config, default_folder
    from .chunks import join_chunks_once
    from .config import Options, read_config
    from .grid import FlowerGrid
    from .polling import shorten_polling
    from .server.log_format import logging_to
    from .transport.connect import connect

    shorten_polling()
    join_chunks_once()
    return_freed_memory()
    run = str(context.run_id)
    config = {"out": default_folder(run), **context.run_config}
    folder = Path(str(config["out"]))
    make_folder(folder)
    with logging_to(folder, str(config.get("log-format", Options.log_format))):
        try:
            setting = read_config(complete_config(config, FlowerGrid(grid, run)))
            further, trust = setting.options.link_addresses, setting.options.links_root_certificates
            serve(partial(connect, grid, run, further=further, root_certificates=trust), setting)
        except TarryError as e:
            for line in str(e).splitlines():
                log.error("error: %s", line)
            raise


def serve(connected: Callable[[int], MessageGrid], setting: DeployConfig) -> str:
    """Run a driver in the folder that the settings name; return why it ended.

    `connected` returns the grid, for replies of at most so many bytes.
    """
    import torch

    from ..core.errors import BadInput
    from ..record.run_folder import RunFolder
    from ..record.storage import make_folder, write_atomic
    from .local.processes import began
    from .server.monitor import monitoring
    from .server.result import write
    from .server.storage_pause import continue_when_writable
    from .server.traces import tracing

    torch.set_num_threads(1)
    folder = Path(setting.options.out)
    make_folder(folder)
    if (folder / "result.json").is_file():
        raise BadInput(f"out = {folder}: the federation in this folder is over; name another one")
    built = _build(setting)
    for notice in built.notices:
        log.warning("%s", notice)
    spec = folder / "spec.toml"
    if spec.is_file() and RunFolder(folder).spec_text() != built.spec.to_toml():
        raise BadInput(f"out = {folder}: it holds a federation with other settings; name another folder")
    if not spec.is_file():
        RunFolder(folder).write_settings(built.spec.to_toml(), files={})
    (folder / "stop").unlink(missing_ok=True)
    should_stop = _stop_condition(folder / "stop")

    unused = [built]  # a driver takes the model away: the next one, after a pause, needs another

    def drive() -> str:  # again after a pause, with the same connections
        ours = unused.pop() if unused else _build(setting)
        tracking = _tracking(ours, folder)
        driver = _driver(grid, setting, ours, folder, tracking)
        try:
            process = {"pid": os.getpid(), "began": began(os.getpid()), "run": grid.run}
            write_atomic(folder / "server.json", json.dumps(process).encode())
            why = _run_driver(driver, built, folder, should_stop, monitor)
            if why != "stopped":
                result = write(driver, built, folder)
                if tracking is not None:
                    tracking.end(result)
            return why
        finally:
            driver.close()

    options = setting.options
    with (
        tracing(),
        monitoring(options.metrics_host, options.metrics_port) as monitor,
        closing(connected(_reply_bytes(built))) as grid,
    ):
        return continue_when_writable(drive, folder, should_stop, on_pause=monitor.pause)


def _reply_bytes(built: BuiltRun) -> int:
    """Return the most bytes that a reply may have: all arrays as 8-byte numbers, their headers, and fields."""
    tensors = list(built.module.state_dict().values())
    extras = len(built.method.local.uploads)
    numbers = built.layout.size * (1 + extras) + sum(t.numel() for t in tensors)
    return int(8 * numbers + 4096 * (len(tensors) + extras) + (1 << 20))


def _run_driver(
    driver: Driver, built: BuiltRun, folder: Path, should_stop: Callable[[], bool], monitor: ServerMonitor
) -> str:
    from ..record.result import write_progress
    from .local.log_rotation import rotate_logs
    from .server.result import so_far

    shown = [-1, 0.0]

    def on_progress(d: Driver) -> None:
        d.stats.write(folder / "status.json", status(d))
        monitor.update(d)
        rotate_logs(folder / "flower" / "logs")  # of a federation on one machine
        if d.engine.updates != shown[0] and (time.time() - shown[1] > 5 or d.ended):
            shown[:] = [d.engine.updates, time.time()]
            write_progress(folder, so_far(d, built))
            score = d.engine.curve[-1].score if d.engine.curve else None
            text = "" if score is None else f", {d.engine.budget.metric.text(score)}"
            log.info("%.0f s: %d updates, %d out%s", d.now(), d.engine.updates, len(d.open_tickets), text)

    log.info("tarry %s, run %s: %d updates so far", __version__, driver.grid.run, driver.engine.updates)
    why = driver.run(should_stop, on_progress=on_progress)
    log.info("ended: %s after %d updates", why, driver.engine.updates)
    return why


def status(d: Driver) -> dict[str, Any]:
    """The state that `tarry federation status` shows, without the clients."""
    from ..core.metric import other_metrics

    engine, now = d.engine, d.now()
    last = engine.curve[-1] if engine.curve else None
    others = {} if last is None else other_metrics(last.metrics)
    out: dict[int, list[float]] = {}
    for ticket in d.open_tickets:
        out.setdefault(ticket.client, []).append(now - ticket.time)
    return {
        "at": time.time(),
        "time": now,
        "ended": d.ended,
        "pid": os.getpid(),
        "run": d.grid.run,
        "starts": d.state.starts,
        "method": engine.server.method.name,
        "updates": engine.updates,
        "rounds": engine.server.version,
        "lost": engine.lost,
        "rejected_updates": engine.rejected,
        "quarantined": {str(c): until - now for c, until in engine.quarantined(now).items()},
        "alarms": engine.alarms,
        "paused": engine.paused_seconds(now),
        "accuracy": None if last is None else last.accuracy,
        "loss": None if last is None else last.loss,
        **({"score": {"name": engine.budget.metric.name, "value": last.score}} if last is not None and others else {}),
        "staleness": sum(s * n for s, n in engine.staleness.items()) / max(1, engine.updates),
        "bytes_up": engine.bytes_up,
        "bytes_down": engine.bytes_down,
        "requests": d.grid.requests_sent(),
        "links_without_run": d.grid.links_without_run(),
        "nodes": len(d.registration.nodes),
        "here": sorted(c for n in d.registration.nodes if (c := d.clients.at(n)) is not None),
        "working": {str(c): seconds for c, seconds in sorted(out.items())},
        "deadlines": {str(c): d.deadlines.deadline(c) for c in out},
    }


def _stop_condition(file: Path) -> Callable[[], bool]:
    signals: list[int] = []

    if threading.current_thread() is not threading.main_thread():
        return file.exists

    def handler(number: int, _: Any) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    return lambda: bool(signals) or file.exists()


def _build(setting: DeployConfig) -> BuiltRun:
    from ..runs.build import build_run
    from .flower_app import check_flower_app
    from .private_data import plan_without_data

    built = plan_without_data(setting) if _has_remote_data(setting) else build_run(setting.spec)
    if setting.options.client == "tarry":
        return built
    check_flower_app(built.method, built.spec.label)
    return built if setting.options.keep_updates else replace(built, notices=(*built.notices, NOT_REPLAYABLE))


def _has_remote_data(setting: DeployConfig) -> bool:
    """Return whether the clients hold examples that the server does not have."""
    return setting.options.data == "own" or setting.options.client != "tarry"


def _tracking(built: BuiltRun, folder: Path) -> Tracking | None:
    """The trackers of the federation; the clock is the wall's."""
    from ..runs.tracking import Tracking, build_trackers

    trackers, layers = build_trackers(built.spec), [layer.name for layer in built.layout.layers]
    if not trackers:
        return None
    return Tracking(built.spec, trackers, task=built.task.name, folder=folder, layers=layers)


def _driver(grid: Any, setting: DeployConfig, built: BuiltRun, folder: Path, tracking: Tracking | None) -> Driver:
    from ..core.storage import read_toml
    from .server.driver import Driver, DriverConfig
    from .server.open_tickets import max_tickets_per_client

    s, o = setting.spec, setting.options
    known = read_toml(o.known, f"known = {o.known}") if o.known is not None else None
    most = max_tickets_per_client(built.method)
    config = DriverConfig(
        deadline=o.deadline,
        concurrency=s.concurrency,
        max_tickets_per_client=most if o.in_flight == "auto" else min(most, o.in_flight),
        stop_within=o.stop_within,
        eval_every=built.eval_every,
        client_eval_every=o.ask_every or float("inf"),
        release_after=o.release_after,
        client=o.client,
        keep_updates=o.keep_updates,
        checkpoint_every=s.checkpoint_every,
    )
    return Driver(
        grid,
        folder,
        built.server(folder / "cache", n_clients=s.clients if _has_remote_data(setting) else None),
        lambda federation: _protocol(setting, built, federation),
        config=config,
        budget=built.budget,
        evaluate=_evaluator(setting, built),
        gate=built.gate(),
        monitor=built.monitor(),
        measure=built.health_measure(),
        known=known,
        tracking=tracking,
    )


def _protocol(setting: DeployConfig, built: BuiltRun, federation: str) -> Protocol:
    from ..runs.build_task import dtype_of
    from .flower_app import FlowerAppProtocol, LegacyAppProtocol
    from .protocol import TarryProtocol

    dtype = dtype_of(built.spec)
    if setting.options.client == "tarry":
        clients, work = built.task.clients, built.work

        def expected_work(client: int) -> tuple[int, int]:
            n = len(clients[client][0])
            return n, work.n_steps(n)

        split = setting.options.data == "split"
        return TarryProtocol(
            built.layout,
            built.method.local,
            dtype=dtype,
            federation=federation,
            expected_work=expected_work if split else None,
            expected_steps=None if split else work.n_steps,
        )
    kind = LegacyAppProtocol if setting.options.client == "legacy" else FlowerAppProtocol
    by_name = setting.options.identity == "name"
    return kind(_state_dict(built), dtype=dtype, lr=_lr_of(built.work), has_identities=by_name)


def _lr_of(work: LocalWork) -> Callable[[Ticket], float]:
    """Return the learning rate that a ticket tells a client."""
    at = work.optimizer_at
    return lambda ticket: (work.optimizer if at is None else at(ticket.schedule_input)).lr


def _state_dict(built: BuiltRun) -> StateDict:
    from .flower_app import StateDict

    return StateDict(built.layout, built.module)


def _evaluator(setting: DeployConfig, built: BuiltRun) -> Callable[[Tensor], Scores] | None:
    """The evaluation that the app names, or that on the task's test set."""
    from .app_code import evaluator

    o = setting.options
    if o.evaluate is None:
        return built.take_evaluator()
    names = [m.name for m in built.metrics if m.name not in ("accuracy", "loss")]
    return evaluator(o.evaluate, _state_dict(built), legacy=o.client == "legacy", names=names)
