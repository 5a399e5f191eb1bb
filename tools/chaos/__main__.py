"""Chaos testing: runs that are killed, lose workers, disk and clocks, and whose files are damaged, all from one seed.

    make chaos SECONDS=120 SEED=7
    .venv/bin/python -m tools.chaos --rounds 1                              each kind of drill once
    .venv/bin/python -m tools.chaos --only-drill kill --drill-seed 12       one drill again

A drill starts `tarry run`, `resume`, `verify`, `report` and `compare` in temporary folders, makes trouble of one kind,
and requires that the weights and the log are those of the run without trouble, or that one line names the file at
fault. Draws are functions of the kind and the seed of the drill; the moments of kills also depend on the machine. The
folder of a drill that fails is left. Consecutive seeds go through all registered methods.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # a fork has one
os.environ["PYTHONPATH"] = str(ROOT / "src")
os.environ["COLUMNS"] = "200"
sys.path.insert(0, str(ROOT / "src"))

from . import crowd, damage, drills  # noqa: E402 - after the number of threads
from .commands import Failure, end_all, preload  # noqa: E402
from .drill import Drill  # noqa: E402
from .settings import method_at  # noqa: E402

KINDS = {
    "kill": drills.kill,
    "damage": damage.damage,
    "signal": drills.signals,
    "worker": drills.workers,
    "concurrent": crowd.concurrent,
    "disk": drills.full_disk,
    "clock": drills.clocks,
    "compare": crowd.compare,
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.chaos", description="Make trouble for runs and check their results.")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin drills for so long [120]")
    parser.add_argument("--rounds", type=int, help="play each kind so many times, instead of --seconds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first drill of each kind [0]")
    parser.add_argument("--only-drill", choices=KINDS, help="play drills of this kind alone")
    parser.add_argument("--drill-seed", type=int, help="play one drill, with this seed")
    parser.add_argument("--folder", type=Path, help="make the drills' folders here [a temporary folder]")
    given = parser.parse_args()
    if given.drill_seed is not None and given.only_drill is None:
        parser.error("--drill-seed needs --only-drill")
    return given


def planned(given: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield kinds and seeds of drills: without an end unless the number of rounds is given."""
    kinds = [given.only_drill] if given.only_drill else list(KINDS)
    if given.drill_seed is not None:
        yield given.only_drill, given.drill_seed
        return
    turn = 0
    while given.rounds is None or turn < given.rounds:
        yield from ((kind, given.seed + turn) for kind in kinds)
        turn += 1


def play(kind: str, seed: int, folder: Path) -> tuple[Drill, str]:
    """Play a drill in a new folder, which is deleted unless the drill fails; return why it failed, or nothing."""
    drill = Drill(kind, seed, folder / f"{kind}-{seed}", method_at(seed))
    shutil.rmtree(drill.folder, ignore_errors=True)
    drill.folder.mkdir(parents=True)
    try:
        KINDS[kind](drill)
    except Failure as e:
        end_all()
        return drill, str(e)
    shutil.rmtree(drill.folder)
    return drill, ""


class Progress:
    """Prints a line for every drill, with the time that is left."""

    def __init__(self, given: argparse.Namespace):
        self._began, self._seconds = time.monotonic(), given.seconds
        kinds = 1 if given.only_drill else len(KINDS)
        self._total = 1 if given.drill_seed is not None else None if given.rounds is None else kinds * given.rounds
        self.done = 0

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def is_over(self) -> bool:
        """Return whether no drill is to begin any more."""
        return self._total is None and self.elapsed() >= self._seconds

    def print(self, drill: Drill, failure: str, seconds: float) -> None:
        self.done += 1
        left = self._seconds - self.elapsed()
        of = ""
        if self._total is not None:
            left, of = self.elapsed() / self.done * (self._total - self.done), f"/{self._total}"
        counts = ", ".join(f"{n} {what}" for what, n in drill.counts.items() if n and "(" not in what)
        outcome = "FAILED" if failure else "ok"
        print(
            f"[{self.done}{of}, {max(0.0, left):.0f} s left] {outcome} {drill.kind} {drill.seed}: {drill.about};"
            f" {counts or 'nothing'} ({seconds:.1f} s)",
            flush=True,
        )
        if failure:
            print(
                f"{failure}\nagain: --only-drill {drill.kind} --drill-seed {drill.seed}; left: {drill.folder}",
                flush=True,
            )


def main() -> int:
    given = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    preload()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="tarry-chaos-"))
    progress, counts, kinds, failed = Progress(given), Counter[str](), Counter[str](), list[str]()
    try:
        for kind, seed in planned(given):
            if progress.is_over():
                break
            began = time.monotonic()
            drill, failure = play(kind, seed, folder)
            progress.print(drill, failure, time.monotonic() - began)
            counts += drill.counts
            kinds[kind] += 1
            failed += [f"--only-drill {kind} --drill-seed {seed}"] if failure else []
    finally:
        end_all()
        if not failed and given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{progress.done} drills in {progress.elapsed():.0f} s: "
        + ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    )
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print(f"{len(failed)} failed" + "".join(f"\n  {line}" for line in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
