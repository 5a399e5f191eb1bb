"""Mutations of the files of run folders, drawn from a seed: damaged bytes, other values, and other kinds of file.

A document is also changed with new digests (`forge`), as by a program that writes the format: what reads it
must check every value by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tarry.record.binding import seal
from tarry.record.digests import settings_digest
from tarry.record.rows import Mark, encode_row

__all__ = ["MUTATIONS", "mutate"]

#: what takes the place of a value
VALUES: tuple[Any, ...] = (
    None, "", "x", "../../x", "\x1b[31m[/red]<script>\u202e", "\ud800", "a\0b", [], {}, True, 0, -1, 1, 7, -7.5, 1e-300,
    2**31, 2**62, 2**63, 2**64, 10**300, 1e15, 1e300, -1e300, 1.5, float("nan"), float("inf"), [[[]]],
    {"a": {"b": None}}, "9" * 5000, [1] * 100, "[" * 2000, "x" * 100_000,
)  # fmt: skip
#: text that takes the place of a whole document
TEXTS = ("[" * 100_000, "9" * 5000, "{}", "[]", "null", "0", '""', '{"a": 1}', "NaN", "\ufeff{}", "x = [" * 5000)
DTYPES = ("BF16", "F16", "F64", "F32", "I64", "U8", "BOOL", "F8_E5M2", "C64", "Q7", 3, None)


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 20))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _insert(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    more = rng.choice((b"\0", b"\xff\xfe", b"\n", b"\x1b[2J", b"9" * 5000, b"[" * 5000, rng.randbytes(40)))
    path.write_bytes(data[:at] + more + data[at:])


def _lines(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        at = rng.randrange(len(lines))
        lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [lines[at], rng.choice(lines)]))
    path.write_bytes(b"".join(lines))


def _replace(path: Path, rng: random.Random) -> None:
    """Put another kind of file in its place."""
    kind = rng.choice(("folder", "pipe", "empty", "device", "dangling", "foreign", "text", "loop"))
    others = [p for p in path.parents[1].rglob("*") if p.is_file() and p != path]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "dangling", "loop"):
        path.symlink_to({"device": "/dev/zero", "dangling": "nowhere", "loop": path.name}[kind])
    elif kind == "foreign" and others:
        path.write_bytes(rng.choice(others).read_bytes())
    else:
        path.write_text("" if kind == "empty" else rng.choice(TEXTS))


def _changed(document: Any, rng: random.Random) -> Any:
    """Return a document in which one value is another, or one entry is missing or doubled."""
    if isinstance(document, dict | list) and document and rng.random() < 0.9:
        key = rng.choice(list(document)) if isinstance(document, dict) else rng.randrange(len(document))
        document = document.copy()
        draw = rng.random()
        if draw < 0.15:
            del document[key]
        elif draw < 0.2 and isinstance(document, list):
            document.insert(key, document[key])
        elif draw < 0.25 and isinstance(document, dict):
            document[rng.choice(("x", "", "\x1b", "-1", "../x", "9" * 30))] = document.pop(key)
        else:
            document[key] = _changed(document[key], rng)
        return document
    return rng.choice(VALUES)


def _forge(path: Path, rng: random.Random) -> None:
    """Change a value, and write the digests that fit."""
    name = path.name
    if name.endswith(".jsonl"):
        return _forge_log(path, rng)
    if name.endswith(".safetensors"):
        return _forge_tensors(path, rng)
    if name.endswith(".toml"):
        return _forge_settings(path, rng)
    if not name.endswith(".json"):
        return _lines(path, rng)
    document = json.loads(path.read_text())
    sealed = isinstance(document, dict) and document.pop("sha256", None) is not None
    for _ in range(rng.choice((1, 1, 2))):
        document = _changed(document, rng)
    try:
        data = seal(document) if sealed and isinstance(document, dict) else json.dumps(document).encode()
    except (TypeError, ValueError):  # keys that are no text
        data = b"{}"
    path.write_bytes(data)
    return None


def _forge_log(path: Path, rng: random.Random) -> None:
    rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    if rows:
        at = rng.randrange(len(rows))
        rows[at : at + 1] = rng.choice(([], [rows[at]] * 2, *([[_changed(rows[at], rng)]] * 8)))
    mark, lines = Mark(), []
    for row in rows:
        if isinstance(row, dict):
            row.pop("crc", None)
            line, mark = encode_row(row or {"kind": 1}, mark)
            lines.append(line)
    path.write_bytes(b"".join(lines))


def _forge_settings(path: Path, rng: random.Random) -> None:
    settings = _changed(tomllib.loads(path.read_text()), rng)
    text = (
        "".join(f"{_toml_key(k)} = {_toml(v)}\n" for k, v in settings.items()) if isinstance(settings, dict) else "x ="
    )
    path.write_text(text, errors="surrogatepass")
    meta = path.with_name("meta.json")
    try:
        digest = settings_digest(tomllib.loads(text))
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "settings_sha256": digest}))
    except (ValueError, OSError, RecursionError):
        return


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _forge_tensors(path: Path, rng: random.Random) -> None:
    """Change the header of a safetensors file, or the record of a checkpoint."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    meta = header.get("__metadata__", {})
    names = [n for n in header if n != "__metadata__"]
    way = rng.choice(("length", "dtype", "shape", "offsets", "metadata", "values", *["record"] * 8))
    if way == "length":
        path.write_bytes(struct.pack("<Q", rng.choice((0, 1, 2**40, 2**63, length - 1, length + 8))) + data[8:])
        return
    if way == "record" and "record" in meta:
        meta["record"] = json.dumps(_changed(json.loads(meta["record"]), rng))
    elif way == "metadata" or not names:
        header["__metadata__"] = meta = rng.choice(({}, {"format": "pt"}, {**meta, "record": "["}, {**meta, "x": "y"}))
    elif way == "values":
        body = rng.choice((b"\xff", b"\0", b"\x7f")) * len(body)
    else:
        key = {"dtype": "dtype", "shape": "shape"}.get(way, "data_offsets")
        wrong: dict[str, tuple[Any, ...]] = {
            "dtype": DTYPES, "shape": ([], [-1], [2**40, 2**40], "x", [0]),
            "data_offsets": ([0, 2**50], [5, 3], [0, 0], [0], None),
        }  # fmt: skip
        header[rng.choice(names)][key] = rng.choice(wrong[key])
    if "sha256" in meta:
        meta["sha256"] = _checkpoint_digest(meta.get("record", ""), header, body) or meta["sha256"]
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def _checkpoint_digest(record: str, header: dict[str, Any], body: bytes) -> str:
    kinds, h = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "BOOL": "|b1", "U8": "|u1"}, hashlib.sha256(record.encode())
    try:
        for name in sorted(n for n in header if n != "__metadata__"):
            t = header[name]
            start, end = t["data_offsets"]
            h.update(f"{name} {kinds[t['dtype']]} {tuple(t['shape'])}".encode() + body[start:end])
    except (KeyError, TypeError, ValueError):
        return ""
    return h.hexdigest()


MUTATIONS: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": _flip, "truncate": _truncate, "insert": _insert, "lines": _lines, "replace": _replace, "forge": _forge
}  # fmt: skip
_WEIGHTS = {"flip": 1, "truncate": 1, "insert": 1, "lines": 1, "replace": 2, "forge": 6}


def mutate(path: Path, rng: random.Random) -> str:
    """Change a file in a random way; return its name."""
    name = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    MUTATIONS[name](path, rng)
    return name
