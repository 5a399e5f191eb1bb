"""Drills with one run at a time: kills, signals, dying workers, a full disk, clocks."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from .checks import check_message, finish, is_finished, require
from .commands import Child
from .drill import Drill, draw_moment, end_like_reference, start
from .settings import RunSetting, draw_setting

__all__ = ["clocks", "full_disk", "kill", "signals", "workers"]

#: what happens to a worker: one that is stopped does not respond, and is replaced after the timeout
_WORKER_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_WORKER_TIMEOUT = ("--worker-timeout", "5")
_DEATHS = 2  # of workers in one drill: the third in a row at one visit ends the run with an error


def kill(drill: Drill) -> None:
    """SIGKILL at several moments; the rest is resumed."""
    setting = draw_setting(drill.rng, drill.method)
    drill.describe(setting)
    out = drill.folder / "run"
    for _ in range(drill.rng.randint(2, 6)):
        if is_finished(out):
            break
        child = start(drill, setting, out)
        if child.wait(draw_moment(drill.rng, out)):
            child.send(signal.SIGKILL)
            child.wait()
            child.wait_for_workers()
            drill.counts["kills"] += 1
            drill.counts[f"kills ({setting.executor})"] += 1
        else:
            check_message(child, 0)
    end_like_reference(drill, setting, out)


def signals(drill: Drill) -> None:
    """SIGTERM, SIGHUP and SIGINT: the command writes a checkpoint, says how to go on, and ends with 128 + number."""
    setting = draw_setting(drill.rng, drill.method)
    drill.describe(setting)
    out = drill.folder / "run"
    for _ in range(drill.rng.randint(1, 4)):
        if is_finished(out):
            break
        _end_by_signal(drill, setting)
    end_like_reference(drill, setting, out)


def _end_by_signal(drill: Drill, setting: RunSetting) -> None:
    out, rng = drill.folder / "run", drill.rng
    number = rng.choice((signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    to_group = number != signal.SIGTERM and rng.random() < 0.5  # as a terminal does
    before = set((out / "checkpoints").glob("*.safetensors"))
    child = start(drill, setting, out)
    come = draw_moment(rng, out)
    began = (out / "events.jsonl").stat().st_mtime_ns if (out / "events.jsonl").exists() else 0

    def runs() -> bool:  # the handlers are there, and the log of this process
        log = out / "events.jsonl"
        return log.exists() and log.stat().st_mtime_ns != began and come()

    if not child.wait(runs):
        check_message(child, 0)
        return
    (child.send_to_group if to_group else child.send)(number)
    child.wait()
    if is_finished(out) and child.code in (0, 1, -number):  # it had finished, and handled signals no longer
        check_message(child, child.code)
        return
    drill.counts["signals"] += 1
    check_message(child, 128 + number)
    child.wait_for_workers()
    lines = [line for line in child.text.splitlines() if line.startswith("error: ")]
    require(len(lines) == 1 and "interrupted" in lines[0] and str(out) in lines[0], f"not one message: {child.text}")
    new = set((out / "checkpoints").glob("*.safetensors")) - before
    has_trained = "0%" in child.text  # else it may have been about to begin
    require(new or is_finished(out) or not has_trained, f"{child.title}: {number.name} left no checkpoint")
    drill.counts["checkpoints by signals"] += bool(new)


def workers(drill: Drill) -> None:
    """A process of the pool is killed or stopped; another takes its place."""
    setting = draw_setting(drill.rng, drill.method, ("pool",))
    setting = replace(setting, writing=(*setting.writing, *_WORKER_TIMEOUT))
    drill.describe(setting)
    out = drill.folder / "run"
    child = start(drill, setting, out)
    for _ in range(drill.rng.randint(1, _DEATHS)):
        moment, place, number = draw_moment(drill.rng, out), drill.rng.randrange(2), drill.rng.choice(_WORKER_SIGNALS)
        if child.wait(lambda moment=moment: moment() and len(child.workers()) == 2):  # type: ignore[misc]
            found = child.workers()  # they may have ended since
            if place < len(found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found[place], number)
                    drill.counts["dead workers" if number == signal.SIGKILL else "stopped workers"] += 1
            child.wait(_after(0.05))
    finish(child)
    end_like_reference(drill, setting, out)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def full_disk(drill: Drill) -> None:
    """Files cannot grow beyond a size (as with ulimit -f), or the folder is read-only; then they can again."""
    setting = draw_setting(drill.rng, drill.method)
    drill.describe(setting)
    out = drill.folder / "run"
    for _ in range(drill.rng.randint(1, 3)):
        if is_finished(out):
            break
        limited = os.geteuid() == 0 or drill.rng.random() < 0.7  # root may write everywhere
        child = (_with_a_limit if limited else _in_a_closed_folder)(drill, setting)
        child.wait()
        check_message(child, 0, 2)
        child.wait_for_workers()
        if child.code:
            drill.counts["full disks"] += 1
            require(str(drill.folder) in child.text, f"the message names no file: {child.text}")
    end_like_reference(drill, setting, out)


def _with_a_limit(drill: Drill, setting: RunSetting) -> Child:
    size = int(10 ** drill.rng.uniform(1.5, 5.5))
    return start(drill, setting, drill.folder / "run", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))


def _in_a_closed_folder(drill: Drill, setting: RunSetting) -> Child:
    out = drill.folder / "run"
    child = start(drill, setting, out)
    if child.wait(draw_moment(drill.rng, out)) and out.is_dir():
        out.chmod(0o500)
        child.wait()
        out.chmod(0o700)
    return child


def clocks(drill: Drill) -> None:
    """Clocks jump: the time of day forwards and backwards, the other clocks forwards, as after a suspend."""
    setting = draw_setting(drill.rng, drill.method)
    drill.describe(setting)
    out = drill.folder / "run"
    jumps = [drill.rng.choice((-1, 1)) * 10 ** drill.rng.uniform(0, 8.5) for _ in range(4)]
    suspended = [10 ** drill.rng.uniform(0, 6) for _ in range(4)]
    every = drill.rng.randint(1, 60)
    if drill.rng.random() < 0.5:
        child = start(drill, setting, out, lambda: _shift_clocks(jumps, suspended, every), may_exec=False)
        if child.wait(draw_moment(drill.rng, out)):
            child.kill()
            child.wait()
            drill.counts["kills"] += 1
    if not is_finished(out):
        drill.counts["clocks"] += 1
        finish(start(drill, setting, out, lambda: _shift_clocks(jumps[::-1], suspended, every), may_exec=False))
    end_like_reference(drill, setting, out)


def _shift_clocks(jumps: list[float], suspended: list[float], every: int) -> None:
    """Replace the clocks of this process: after every so many calls, the next jump is added."""
    calls = 0

    def shifted(clock: Callable[[], float], by: list[float]) -> Callable[[], float]:
        def read() -> float:
            nonlocal calls
            calls += 1
            return clock() + sum(by[: calls // every])

        return read

    time.time = shifted(time.time, jumps)
    time.monotonic = shifted(time.monotonic, suspended)
    time.perf_counter = shifted(time.perf_counter, suspended)
