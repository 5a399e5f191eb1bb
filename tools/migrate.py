"""Rename settings and keys in folders of an earlier version: experiments, runs, comparisons and federations.

    python tools/migrate.py experiments runs/first runs/table fed

The restructure renamed settings (optimiser to optimizer, ...), the event kind `refused`, and keys of result.json, of
compare.json and of the journal of a federation. The journal and the checkpoints of a federation now hold digests of
ticket tokens, not the tokens. This script rewrites every file below the given folders, in place; it changes no number
and no weight. It can be run again: a file that is up to date stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tarry.deploy.server.open_tickets import stored_digest
from tarry.record.binding import bind, seal
from tarry.record.digests import settings_digest
from tarry.record.rows import Mark, encode_row
from tarry.record.run_folder import RunMeta, object_comments
from tarry.version import __version__

SETTINGS = {
    "optimiser": "optimizer",
    "personalise": "personalize",
    "distil": "distill",
    "unlabelled": "unlabeled",
    "presence": "availability",
}
RESULT = {
    "chance": "majority_accuracy",
    "trained": "executor_info",
    "remarks": "warnings",
    "tarry": "version",
    "refused": "rejected",
    "personal": "personalization",
}
STORED = {"chance": "majority_accuracy", "remarks": "warnings", "trained": "executor_info", "tarry": "version"}
ROW = {
    "handed": "handouts",
    "letters": "requests",
    "keeps": "keeps_memory",
    "forgot": "memory_lost",
    "took": "train_seconds",
}
TABLE = {"unlearnt": "trivial_accuracy", "asked": "has_given_target", "refused": "rejected"}
KINDS = {"refused": "rejected", "heard": "client_eval"}
STATS = {"refused": "rejected", "forgot": "memory_lost", "handed": "handouts", "worked": "train_seconds"}
#: in the record of the server: its tickets (FedNova's payload), and the states of the parts (SAFA's cache)
SERVER = {
    "tickets": {"own": "from_reply", "normalisation": "normalization"},
    "state": {"heard": "lag_start", "rest_heard": "rest_lag_start"},
}
COUNTERS = {"refused": "rejected", "refusals": "rejections"}
#: logs by name, and the field of a row that says what happened
LOGS = {"events.jsonl": "kind", "journal.jsonl": "op"}
#: where a checkpoint says how many bytes of a log it has read: the log, and the key of the checksum there
POSITIONS = {
    "rows": ("events.jsonl", "crc"),
    "events": ("events.jsonl", "events_crc"),
    "place": ("journal.jsonl", "crc"),
}

Write = Callable[[Path, bytes], None]


def renamed(tree: Any, names: dict[str, str]) -> Any:
    """Return the tree with its keys renamed, at every depth."""
    if isinstance(tree, dict):
        return {names.get(k, k): renamed(v, names) for k, v in tree.items()}
    return [renamed(v, names) for v in tree] if isinstance(tree, list) else tree


def toml(text: str) -> str:
    """Return TOML with its setting names replaced: keys, headings of tables, and `# NAME:` comments of objects."""
    words = "|".join(SETTINGS)
    text = re.sub(rf"(?m)^(\s*(?:\w+\.)?)({words})(?=(?:\.[\w.-]+)?\s*=)", lambda m: m[1] + SETTINGS[m[2]], text)
    text = re.sub(rf"(?<=[{{,] )({words})(?=\s*=)", lambda m: SETTINGS[m[1]], text)
    text = re.sub(rf"(?m)^(\[(?:\w+[\w.\"-]*\.)?)({words})(?=[\].])", lambda m: m[1] + SETTINGS[m[2]], text)
    return re.sub(rf"(?m)^(# )({words})(?=:| )", lambda m: m[1] + SETTINGS[m[2]], text)


def row(line: bytes, field: str) -> dict[str, Any]:
    """Return a row of a log with its kind and its keys renamed, without a checksum."""
    found = json.loads(line)
    found = {ROW.get(k, k) if field == "op" else k: v for k, v in found.items() if k != "crc"}
    found[field] = KINDS.get(found.get(field), found.get(field))
    if found[field] == "close":
        found["handouts"] = [[*handout[:3], stored_digest(handout[3])] for handout in found["handouts"]]
    return found


def log(path: Path, write: Write) -> Callable[[int], Mark]:
    """Rewrite a log, with checksums; return the function from a position in it to the mark of the same row afterwards.

    A last row that a kill has torn is left out.
    """
    before = path.read_bytes() if path.is_file() else b""
    mark = Mark()
    places, old, out = {0: mark}, 0, bytearray()
    for line in before.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        new, mark = encode_row(row(line, LOGS[path.name]), mark)
        out += new
        old += len(line)
        places[old] = mark
    if before:
        write(path, bytes(out))
    return places.__getitem__


def checkpoint(path: Path, moved: dict[str, Callable[[int], Mark]], settings: str, write: Write) -> None:
    """Rewrite the record of a checkpoint: positions in the logs, counters, and statistics of clients."""
    from safetensors import safe_open
    from safetensors.numpy import save

    from tarry.record.checkpoint import digest_of_record

    with safe_open(path, framework="np") as f:
        metadata, arrays = dict(f.metadata() or {}), {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    if "record" not in metadata:
        return
    record = json.loads(metadata["record"])
    if not isinstance(record, dict) or "dict" not in record:
        return
    pairs = []
    for key, value in record["dict"]:
        if key in POSITIONS and isinstance(value, int):
            name, crc = POSITIONS[key]
            mark = moved[name](value)
            pairs += [[key, mark.nbytes], [crc, mark.crc]]
        elif key in ("simulator", "course"):
            pairs.append([key, {"dict": [[COUNTERS.get(k, k), server(k, v)] for k, v in value["dict"]]}])
        elif key == "book":
            pairs.append([key, [{"dict": [hashed(pair) for pair in ticket["dict"]]} for ticket in value]])
        elif key == "health":
            pairs.append([key, packed(value, STATS)])
        elif key not in ("crc", "events_crc", "settings"):
            pairs.append([key, value])
    if any(key in POSITIONS for key, _ in pairs):  # else it is a client's memory
        pairs.append(["settings", settings])
    keys = [key for key, _ in pairs]
    if "simulator" in keys and "executor" not in keys:
        pairs.append(["executor", None])
    skeleton = json.dumps({**record, "dict": pairs})
    if skeleton != metadata["record"]:
        metadata["record"] = skeleton
        write(path, save(arrays, metadata={**metadata, "sha256": digest_of_record(metadata, arrays)}))


def hashed(pair: list[Any]) -> list[Any]:
    """Return an entry of an open ticket, with the digest of its token in place of the token."""
    return ["digest", stored_digest(pair[1])] if pair[0] == "token" else pair


def server(key: str, value: Any) -> Any:
    """Return an entry of a run's record, with the keys of tickets and states renamed if it is the server's."""
    if key != "server":
        return value
    return {"dict": [[k, packed(v, SERVER[k]) if k in SERVER else v] for k, v in value["dict"]]}


def packed(x: Any, names: dict[str, str]) -> Any:
    """Return a packed record with its keys renamed, at every depth."""
    if isinstance(x, list):
        return [packed(v, names) for v in x]
    if isinstance(x, dict) and "dict" in x:
        return {"dict": [[names.get(k, k) if isinstance(k, str) else k, packed(v, names)] for k, v in x["dict"]]}
    return {k: packed(v, names) for k, v in x.items()} if isinstance(x, dict) else x


def stored(path: Path, write: Write) -> None:
    """Rewrite the results of a table, with the fingerprints of the renamed settings."""
    from tarry.reproduce.experiment import fingerprint
    from tarry.reproduce.parser import read
    from tarry.reproduce.store import _digest

    text = path.read_text(encoding="utf-8")
    before = json.loads(text)
    for names in (SETTINGS, STORED):
        for old, new in names.items():
            text = text.replace(f'"{old}":', f'"{new}":')
    for old, new in SETTINGS.items():
        text = text.replace(f"--{old} ", f"--{new} ")
    for sizes in json.loads(text).get("cells", {}).values():
        for entry in sizes.values():
            text = text.replace(entry["fingerprint"], fingerprint(entry["settings"]))
            changed = entry["changed"]
            for old, new in SETTINGS.items():
                changed = re.sub(rf"\b{old}\b", new, changed)
            text = text.replace(json.dumps(entry["changed"]), json.dumps(changed))
    declared = path.parent.parent / f"{path.stem}.toml"
    for size, entry in json.loads(text).get("study", {}).items() if declared.is_file() else ():
        options = read(declared, path.stem).study_options(size)
        if entry["fingerprint"] == fingerprint(renamed(options, {new: old for old, new in SETTINGS.items()})):
            text = text.replace(entry["fingerprint"], fingerprint(options))
    if before.get("sha256") == _digest(before):  # else it was damaged, or is of a version without digests
        text = text.replace(before["sha256"], _digest(json.loads(text)))
    write(path, text.encode())


def result(path: Path, write: Write) -> None:
    """Rewrite a result with its keys renamed, bound to the files of its folder."""
    found = {RESULT.get(k, k): v for k, v in json.loads(path.read_text(encoding="utf-8")).items()}
    found = {k: v for k, v in found.items() if k not in ("bound_to", "sha256")}
    if path.name == "result.json":
        found["bound_to"] = bind(path.parent)
    write(path, seal(found))


def meta(folder: Path, write: Write) -> str:
    """Write meta.json for a folder that has a spec.toml, in place of files.json; return the digest of the settings."""
    spec, path, old = folder / "spec.toml", folder / "meta.json", folder / "files.json"
    if not spec.is_file():
        return ""
    text = spec.read_text(encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    files = json.loads(old.read_text(encoding="utf-8")) if old.is_file() else before.get("files", {})
    new = RunMeta(
        settings_digest(tomllib.loads(text)),
        list(before.get("objects", object_comments(text))),
        {SETTINGS.get(k, k): v for k, v in files.items()},
        before.get("version", __version__),
    )
    write(path, (json.dumps(asdict(new), indent=1) + "\n").encode())
    old.unlink(missing_ok=True)
    return new.settings_sha256


def migrate(folder: Path) -> int:
    """Rewrite the files below a folder; return how many changed."""
    changed = 0

    def write(path: Path, data: bytes) -> None:
        nonlocal changed
        if not path.is_file() or data != path.read_bytes():
            changed += 1
            path.write_bytes(data)

    for path in sorted(folder.rglob("*.toml")):
        write(path, toml(path.read_text(encoding="utf-8")).encode())
    for path in sorted(folder.rglob("results/*.json")):
        stored(path, write)
    for path in sorted(folder.rglob("spec.toml")):
        meta(path.parent, write)
    for path in sorted(folder.rglob("status.json")):
        write(path, json.dumps(renamed(json.loads(path.read_text(encoding="utf-8")), STATS), indent=1).encode())
    for home in sorted({p.parent for name in LOGS for p in folder.rglob(name)}):
        moved = {name: log(home / name, write) for name in LOGS}
        for path in sorted((home / "checkpoints").glob("*.safetensors")):
            checkpoint(path, moved, meta(home, write), write)
    for path in sorted(folder.rglob("compare.json")):
        record = renamed(json.loads(path.read_text(encoding="utf-8")), TABLE)
        write(path, (json.dumps(record, indent=1) + "\n").encode())
    for name in ("result.json", "progress.json"):
        for path in sorted(folder.rglob(name)):
            result(path, write)
    return changed


def main(arguments: list[str]) -> int:
    if not arguments or any(a.startswith("-") for a in arguments):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for argument in arguments:
        if not Path(argument).is_dir():
            sys.stderr.write(f"{argument}: there is no such folder\n")
            return 2
        sys.stdout.write(f"{argument}: {migrate(Path(argument))} files changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
