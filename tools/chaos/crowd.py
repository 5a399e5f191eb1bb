"""Drills with several processes or runs: commands that start at once in one folder, and comparisons that are killed."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from pathlib import Path

from .checks import check_message, check_same, check_verified, finish, is_finished, require, sha256_of
from .commands import Child, command
from .drill import Drill, draw_moment, end_like_reference, reference_of
from .settings import draw_setting, method_at

__all__ = ["compare", "concurrent"]

_BUSY = ("is at work on this run", "it holds another run", "it is not an empty folder")


def concurrent(drill: Drill) -> None:
    """Several commands start at once in one folder: one works, the others say that they do not."""
    setting = draw_setting(drill.rng, drill.method, ("inline",))
    drill.describe(setting)
    out = drill.folder / "run"
    count = drill.rng.randint(3, 6)
    if drill.rng.random() < 0.25:
        spec = reference_of(drill, setting, out) / "spec.toml"
        child = Child(lambda: _run_in_threads(spec, out, count), f"{count} threads of one process")
        finish(child)
        outcomes = child.text.split()
        drill.counts["concurrent threads"] += count
        require(sorted(outcomes) == ["ran", *["refused"] * (count - 1)], f"threads: {child.text}")
        end_like_reference(drill, setting, out)
        return
    children = [command("run", *setting.words(), "--out", out) for _ in range(count)]
    drill.counts["concurrent starts"] += count
    if drill.rng.random() < 0.6:  # all are killed, and several resume at once
        moment = draw_moment(drill.rng, out)
        if any(child.wait(moment) for child in children):
            for child in children:
                child.kill()
                child.wait()
            drill.counts["kills"] += count
            children = [command("resume", out) for _ in range(count)] if (out / "spec.toml").is_file() else []
            drill.counts["concurrent starts"] += len(children)
    _check_one_worked(children, out)
    end_like_reference(drill, setting, out)


def _check_one_worked(children: list[Child], out: Path) -> None:
    """Require that one command worked; one that came after it may show its result."""
    for child in children:
        child.wait()
    for child in children:
        if child.code is not None and child.code < 0:
            continue
        check_message(child, 0, 2)
        if child.code == 0:
            require(sha256_of(out) in child.text, f"{child.title} shows other weights than those there: {child.text}")
        else:
            require(any(text in child.text for text in _BUSY), f"another error than a busy folder: {child.text}")
            require(len(child.text.strip().splitlines()) == 1, f"more than one line: {child.text}")
    require(not children or is_finished(out), f"{out}: none of {len(children)} commands worked")
    worked = [c for c in children if c.code == 0 and "100%" in c.text]
    require(len(worked) <= 1, f"{len(worked)} commands trained in {out}")


def _run_in_threads(spec: Path, out: Path, count: int) -> None:
    """Run the same settings in several threads; print what became of each."""
    import tarry
    from tarry.config.spec import Spec

    at_once, outcomes = threading.Barrier(count), list[str]()

    def run() -> None:
        settings = Spec.read(spec)
        at_once.wait()
        try:
            tarry.run(**settings, out=out)
            outcomes.append("ran")
        except tarry.BadInput as e:
            outcomes.append("refused" if any(text in str(e) for text in _BUSY) else repr(e))

    warnings.simplefilter("ignore")  # notices of runs, also as they happen
    logging.getLogger("tarry").setLevel(logging.ERROR)
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(outcomes))


def compare(drill: Drill) -> None:
    """A comparison is killed, and the same command is given again: the table is that of the uninterrupted one."""
    rng = drill.rng
    setting = draw_setting(rng, drill.method, ("inline",))
    other = method_at(drill.seed + 1 + rng.randrange(20))
    drill.about = f"{drill.method} and {other}"
    flags = [*setting.words()[2:], "--method", drill.method, "--method", other, "--seeds", rng.choice(("0", "0-1"))]
    flags = [word for at, word in enumerate(flags) if "--seed" not in (word, flags[at - 1])]
    out, reference = drill.folder / "table", drill.folder / "reference"
    for _ in range(rng.randint(1, 4)):
        child = command("compare", *flags, "--workers", rng.choice("12"), "--out", out)
        drill.counts["starts"] += 1
        runs = rng.choice([out, out / drill.method / "seed-0", out / other / "seed-0"])
        if not child.wait(draw_moment(rng, runs)):
            check_message(child, 0)
            break
        child.send(signal.SIGKILL)
        child.wait()
        child.wait_for_workers()
        drill.counts["kills"] += 1
    finish(command("compare", *flags, "--out", out))
    finish(command("compare", *flags, "--workers", "1", "--out", reference))
    tables = [(folder / "compare.json").read_bytes() for folder in (out, reference)]
    require(tables[0] == tables[1], f"{out}/compare.json differs from {reference}/compare.json")
    runs_of_reference = sorted(path.parent for path in reference.glob("*/seed-*/result.json"))
    require(runs_of_reference, f"{reference} has no runs")
    for run in runs_of_reference:
        check_same(out / run.relative_to(reference), run)
    check_verified(out)
