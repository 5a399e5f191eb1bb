"""Other frameworks on tarry's workload, each in an environment of its own, beside the same bare PyTorch loop.

    python benchmarks/peers/run.py --out benchmarks/results/peers.json [--only flower,fluke] [--seconds 20]

What is run, and how it is timed: workload.py. Memory is that of a second, short run without the bare loop; start-up is
the shorter one of the two. Environments are made with venv and pip in --envs and kept there for the
next time (some 8 GB for all). A peer that does not install or does not run has its row too, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from family import Family

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SAMPLES = (60, 600)
SHORT = 5.0  # seconds


@dataclass(frozen=True)
class Peer:
    name: str
    script: str
    packages: tuple[str, ...] = ()  # none: tarry's own environment
    settings: tuple[str, ...] = ("",)


PEERS = {
    "tarry": Peer("tarry", "tarry_.py", settings=("inline", "pool of two", "auto, two workers")),
    "pfl": Peer("pfl-research", "pfl_.py", ("pfl==0.6.0",)),
    "fluke": Peer("fluke", "fluke_.py", ("fluke-fl==0.8.1",)),
    "appfl": Peer("APPFL", "appfl_.py", ("appfl==1.12.0",)),
    "flsim": Peer("FLSim", "flsim_.py", ("flsim==0.1.0",)),
    "flower": Peer("Flower", "flower.py", ("flwr[simulation]==1.41.0",)),
}


class Failed(Exception):
    """Raised for a peer that is not measured; the text says why."""


def torch_pin() -> str:
    """Return the torch version that tarry is tested with, so that ratios do not depend on the version of torch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.strip() for line in lines if line.startswith("torch=="))


def python_of(env: Path) -> str:
    return str(env / "bin" / "python")


def environment(key: str, envs: Path, limit: float) -> str:
    """Return the peer's Python; create its environment if it is missing or incomplete."""
    peer, env, pin = PEERS[key], envs / key, torch_pin()
    if not peer.packages:
        own = python_of(ROOT / ".venv")
        return own if Path(own).exists() else sys.executable
    stamp, wanted = env / "installed.txt", "\n".join([pin, *peer.packages])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python_of(env)
    shutil.rmtree(env, ignore_errors=True)
    envs.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + limit
    try:
        _install([sys.executable, "-m", "venv", str(env)], until)
        (env / "constraints.txt").write_text(pin + "\n")
        pip = [python_of(env), "-m", "pip", "install", "--quiet", "--constraint", str(env / "constraints.txt")]
        # torch comes first and alone, so that nothing after it pulls another build.
        _install([*pip, "torch"], until)
        _install([*pip, *peer.packages], until)
    except Failed:
        shutil.rmtree(env, ignore_errors=True)
        raise
    stamp.write_text(wanted)
    return python_of(env)


def _install(command: list[str], until: float) -> None:
    with tempfile.TemporaryFile("w+") as log:
        family = Family(command, stdout=log)
        code = family.wait(until - time.monotonic())
        if code != 0:
            why = "no time left for the installation" if code is None else "did not install"
            raise Failed(f"{why}: {last_words(_text(log))}")


def _text(log: Any) -> str:
    log.seek(0)
    return str(log.read())


def last_words(text: str, most: int = 3) -> str:
    """Return the last lines that are not empty, without colors, addresses or this machine's folders."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"\b\w+://\S+", "…", text)
    text = re.sub(r"(?<![\w.])/(?:[^\s/'\":,]+/)+", "", text)
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    lines = [line for line in lines if line.startswith("ERROR")] or lines
    return " / ".join(line[:300] for line in lines[-most:]) or "no output"


def measure(python: str, peer: Peer, samples: int, setting: str, seconds: float, limit: float) -> dict[str, Any]:
    """Return the row that the script prints, with start-up and memory from a run of its own."""
    row = _row(python, peer, samples, setting, seconds, limit, {})
    alone = _row(python, peer, samples, setting, min(seconds, SHORT), limit, {"PEER_ALONE": "1"})
    starts = [s for s in (row["start_up_s"], alone["start_up_s"]) if s is not None]
    return {**row, "start_up_s": min(starts, default=None), "peak_mb": alone["peak_mb"]}


def _row(
    python: str, peer: Peer, samples: int, setting: str, seconds: float, limit: float, more: dict[str, str]
) -> dict[str, Any]:
    """Return what a run prints, and the memory of the script and its children."""
    command = [python, str(HERE / peer.script), "--samples", str(samples), "--seconds", str(seconds)]
    command += ["--setting", setting] if setting else []
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as folder:
        variables["FLWR_HOME"] = folder  # otherwise Flower makes one in the home folder
        family = Family(
            command, stdout=log, cwd=folder, env={**os.environ, **variables, "PEER_STARTED": str(time.time())}
        )
        code = family.wait(limit)
        text = _text(log)
    if code is None:
        raise Failed(f"was not done after {limit:.0f} s: {last_words(text)}")
    rows = [line for line in text.splitlines() if line.startswith('{"peer"')]
    if code != 0 or not rows:
        raise Failed(f"did not run: {last_words(text)}")
    row: dict[str, Any] = json.loads(rows[-1])
    row["peak_mb"] = max(row["peak_mb"], family.peak_mb)
    return row


def as_line(row: dict[str, Any]) -> str:
    head = f"{row['peer']:13} {row.get('setting', ''):23} {row.get('samples', ''):>4}"
    if "error" in row:
        return f"{head}  left out: {row['error']}"
    speed = f"{row['updates_per_s']:8.1f} / {row['bare_updates_per_s']:.1f} updates/s = {row['ratio']:.2f}"
    return f"{head} {speed}  start-up {row['start_up_s']:.1f} s  {row['peak_mb']} MB"


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(as_line(row), flush=True)

    for key in options.only:
        peer = PEERS[key]
        try:
            python = environment(key, options.envs, options.install_limit)
        except Failed as e:
            add({"peer": peer.name, "error": str(e)})
            continue
        for samples in options.samples:
            for setting in peer.settings:
                try:
                    row = measure(python, peer, samples, setting, options.seconds, options.limit + 3 * options.seconds)
                except Failed as e:
                    row = {"peer": peer.name, "setting": setting, "samples": samples, "error": str(e)}
                add(row)
    return rows


def record(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sys.path.append(str(HERE.parent))
    from record import machine  # the same fields as in the other benchmarks

    return {
        "what": "Peers: updates per second as a fraction of a bare single-thread PyTorch loop in the same process",
        "command": last_words(shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]])),
        **machine(),
        "rows": rows,
    }


def parse_options() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--only", default=",".join(PEERS), help=f"some of {','.join(PEERS)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of the peer's work per row")
    parser.add_argument("--samples", default=",".join(map(str, SAMPLES)), help="examples per client, one row each")
    parser.add_argument("--envs", type=Path, default=cache / "tarry-bench", help="folder of the environments")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds a row may take besides 3 × --seconds")
    parser.add_argument("--install-limit", type=float, default=900.0, help="seconds an installation may take")
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.samples = [int(n) for n in options.samples.split(",")]
    if unknown := [k for k in options.only if k not in PEERS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PEERS)}")
    options.envs = options.envs.expanduser().resolve()
    return options


def main() -> None:
    options = parse_options()
    rows = compare(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record(rows), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
