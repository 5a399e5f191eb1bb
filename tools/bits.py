"""No number changes: short runs of this tree compared to the bit with those of a reference commit.

    make bits                                     everything; about a minute of one core, twice that the first time
    .venv/bin/python tools/bits.py --quick        one seed, one executor, resumed runs
    .venv/bin/python tools/bits.py --only 'fedecho/*'

The probes are in bits_probe.py, renamed words in bits_names.py. They run in the reference tree, whose results are kept
in .bits/, and with the files of this checkout, committed or not. Hashes depend on the kind of processor and on torch,
so that none are stored in the repository. Differences that are meant are listed, with the reason, in
tests/golden/bits-changed.toml. The exit code is 1 for a difference that is not listed, and for a listed one that is
not found.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import bits_probe

REFERENCE = "6bb0e11e1adeef16faa4e5209d71ef45a23a6085"
ROOT = Path(__file__).resolve().parent.parent
PROBE = ROOT / "tools" / "bits_probe.py"
SETTINGS = ROOT / "tools" / "bits_settings.py"
CHANGED = ROOT / "tests" / "golden" / "bits-changed.toml"
ProbeResult = dict[str, Any]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare this tree's numbers with the reference commit's.")
    parser.add_argument("--only", metavar="PATTERN", help="the probes whose names match, as 'fedecho/*'")
    parser.add_argument("--quick", action="store_true", help="one seed, one executor, resumed runs")
    parser.add_argument("--no-federation", action="store_true", help="leave out the replays of federations")
    parser.add_argument("--list", action="store_true", help="print the names of the probes")
    default = Path(os.environ.get("TARRY_BITS", ROOT / ".bits"))
    parser.add_argument(
        "--cache", type=Path, default=default, help="the reference's results [.bits, or $TARRY_BITS: to share it]"
    )
    return parser.parse_args()


def select_probes(options: argparse.Namespace) -> list[str]:
    names = list(bits_probe.names())
    if options.only:
        names = [n for n in names if fnmatchcase(n, options.only)]
    if options.quick:
        names = [n for n in names if "/resume/" in n or n.endswith("/inline/seed-0")]
    if options.no_federation:
        names = [n for n in names if "/federation/" not in n]
    return names


# The reference


def machine() -> str:
    """Return what bits depend on besides the code: the processor, torch and numpy."""
    cpu = Path("/proc/cpuinfo")
    keys = ("vendor_id", "cpu family", "model", "model name", "flags")
    lines = cpu.read_text().splitlines() if cpu.is_file() else [platform.processor(), platform.machine()]
    about = sorted({line for line in lines if line.partition(":")[0].strip() in keys or not cpu.is_file()})
    return "\n".join([*about, platform.python_version(), *(f"{p} {version(p)}" for p in ("torch", "numpy", "scipy"))])


def folder_of(cache: Path) -> Path:
    """Where the reference's results are kept on this kind of machine."""
    about = [REFERENCE, machine(), SETTINGS.read_text(), PROBE.read_text()]
    folder = cache.resolve() / f"{REFERENCE[:7]}-{hashlib.sha256(chr(0).join(about).encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def commit() -> str:
    """The reference's full hash; ends the program where the clone does not hold it."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--quiet", "--verify", f"{REFERENCE}^{{commit}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"make bits needs commit {REFERENCE[:12]}, which is not in this clone; `git fetch --unshallow` gets it,"
            " and a full clone holds it"
        )
    return done.stdout.strip()


def check_out(scratch: Path) -> Path:
    """The reference's files, in the scratch folder."""
    tree = scratch / "reference"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit(), "src", "tests"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        tar.extractall(tree, filter="data")
    return tree


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time adds to the results."""
    with open(folder / ".lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def reference(names: Sequence[str], folder: Path, scratch: Path) -> dict[str, ProbeResult]:
    """The reference's results; those that are not there yet are made."""
    with locked(folder):
        path = folder / "results.jsonl"
        known = read(path) if path.is_file() else {}
        missing = [n for n in names if n not in known]
        if not missing:
            return known
        tree, began = check_out(scratch), time.monotonic()
        for left in [folder / where for n in missing if (where := bits_probe.folder_of(n))]:
            shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
        found = probe("reference", tree, missing, folder)
        with open(path, "a") as f:
            f.writelines(json.dumps({"name": n, "found": v}) + "\n" for n, v in found.items() if "error" not in v)
        if errors := [f"{n}: {f['error']}" for n, f in found.items() if "error" in f]:
            sys.exit("probes fail at the reference commit:\n" + "\n".join(errors))
        print(f"{len(missing)} probes of the reference in {time.monotonic() - began:.0f} s, kept in {folder}")
        return known | found


def read(path: Path) -> dict[str, ProbeResult]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {r["name"]: r["found"] for r in rows}


# Runs


def probe(role: str, tree: Path, names: Sequence[str], folders: Path) -> dict[str, ProbeResult]:
    """Run probes in a process with the tree's modules."""
    paths = [tree / "src", *([tree / "tests"] if role == "reference" else [])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROBE), role, str(folders)]
    with tempfile.TemporaryFile("w+") as err:
        done = subprocess.run(
            command, env=env, input=json.dumps(names), stdout=subprocess.PIPE, stderr=err, text=True, check=False
        )
        err.seek(0)
        errors = err.read()[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines or done.returncode:
        at = f" after {lines[-1].get('name', 'its start')}" if lines else ""
        sys.exit(f"the probes of the {role} tree ended with code {done.returncode}{at}:\n{errors}")
    used = Path(lines[0]["tarry"])
    if not used.is_relative_to(tree.resolve()):
        sys.exit(f"the probes of the {role} tree imported {used}, which is not of {tree}")
    return {row["name"]: row["found"] for row in lines[1:]}


def copy_folders(names: Sequence[str], folder: Path, scratch: Path) -> Path:
    """The reference's folders of the selected probes, migrated to this tree's names if it has a script for that."""
    copies = scratch / "folders"
    copies.mkdir()
    made = [where for n in names if (where := bits_probe.folder_of(n)) is not None]
    for where in made:
        shutil.copytree(folder / where, copies / where)
    script = ROOT / "tools" / "migrate.py"
    if made and script.is_file():
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, str(script), *(str(copies / where) for where in made)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"tools/migrate.py ended with code {done.returncode}:\n{done.stdout}{done.stderr}"[-4000:])
    return copies


# Comparison


def difference(old: ProbeResult, new: ProbeResult) -> str:
    """The first difference, in words; empty if nothing does."""
    if "error" in new:
        return str(new["error"])
    words = []
    for key in old:
        if key not in ("events", "hint") and old[key] != new.get(key):
            words.append(f"{key} {_short(old[key])} -> {_short(new.get(key))}")
    if old.get("events", []) != new.get("events", []):
        words.insert(0, _first_event(old["events"], new["events"]))
    if words and old.get("hint", "") != new.get("hint", ""):
        words.append(f"trained in another way: {old['hint']!r} -> {new['hint']!r}")
    return "; ".join(words)


def _first_event(old: list[Any], new: list[Any]) -> str:
    for number, (a, b) in enumerate(zip(old, new, strict=False), 1):
        if a != b:
            names = [*bits_probe.FIELDS, "notes", "weights"]
            apart = [f"{n} {_short(x)} -> {_short(y)}" for n, x, y in zip(names, a, b, strict=True) if x != y]
            return f"event {number} ({a[0]}): " + ", ".join(apart)
    return f"{len(old)} events -> {len(new)}"


def _short(value: Any) -> str:
    if isinstance(value, str) and value.lstrip("-").startswith("0x"):
        return f"{float.fromhex(value):.9g}"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def intended_changes() -> list[tuple[str, str]]:
    """The differences that are meant: pattern and reason."""
    entries = tomllib.loads(CHANGED.read_text()).get("changed", []) if CHANGED.is_file() else []
    for e in entries:
        if set(e) != {"what", "reason"} or not all(isinstance(v, str) and v for v in e.values()):
            sys.exit(f"{CHANGED.relative_to(ROOT)}: an entry needs what and reason, got {e}")
    return [(e["what"], e["reason"]) for e in entries]


def report_differences(differences: dict[str, str], *, whole: bool) -> bool:
    """Print the differences; return whether all of them are listed, and all that is listed is there."""
    entries = intended_changes()
    fine = True
    for name, words in differences.items():
        reason = next((r for what, r in entries if fnmatchcase(name, what)), None)
        print(f"  {'changed' if reason else 'DIFFERS'}  {name}: {words}" + (f" (listed: {reason})" if reason else ""))
        fine &= reason is not None
    for what, _ in entries if whole else []:
        if not any(fnmatchcase(name, what) for name in differences):
            print(
                f"  {CHANGED.relative_to(ROOT)} lists {what!r}, but nothing that matches it differs: delete the entry"
            )
            fine = False
    return fine


def summary(names: Sequence[str], old: dict[str, ProbeResult], new: dict[str, ProbeResult]) -> None:
    kinds = {n: bits_probe.KINDS[n.split("/")[1]] for n in names}
    equal = Counter(kinds[n] for n in names if old[n]["weights_sha256"] == new.get(n, {}).get("weights_sha256"))
    for kind, count in Counter(kinds.values()).items():
        print(f"{kind}: {equal[kind]} of {count} hashes equal")


def main() -> int:
    options = parse_options()
    names = select_probes(options)
    if options.list:
        print("\n".join(names))
        return 0
    if not names:
        sys.exit(f"--only {options.only}: no probe has such a name; --list shows all")
    with tempfile.TemporaryDirectory(prefix="tarry-bits-") as made:
        scratch, folder = Path(made), folder_of(options.cache)
        old, began = reference(names, folder, scratch), time.monotonic()
        new = probe("head", ROOT, names, copy_folders(names, folder, scratch))
        print(f"{len(names)} probes of this tree in {time.monotonic() - began:.0f} s")
    differences = {n: words for n in names if (words := difference(old[n], new.get(n, {"error": "no result"})))}
    summary(names, old, new)
    fine = report_differences(differences, whole=len(names) == len(list(bits_probe.names())))
    print("no number differs" if not differences else f"{len(differences)} of {len(names)} probes differ")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
