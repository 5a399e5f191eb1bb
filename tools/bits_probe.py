"""The probes of `make bits`: short runs whose every number is written down.

bits.py starts this file once for each source tree, with PYTHONPATH=<tree>/src. It uses the public surface of tarry
only, and finds renamed settings, events and fields by the table of bits_names.py.

    python tools/bits_probe.py ROLE FOLDERS < names.json > results.jsonl

ROLE is `reference` (writes folders that were interrupted, under FOLDERS) or `head` (resumes and replays them).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import re
import runpy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bits_settings as made
from bits_names import NAMES
from bits_settings import EVERYTHING, METHODS, Settings

_OLD = {new: old for old, new in NAMES.items()}

Item = Callable[[], dict[str, Any]]

FIELDS = (
    "kind",
    "time",
    "version",
    "updates",
    "client",
    "ticket",
    "visit",
    "staleness",
    "stepped",
    "seconds",
    "loss",
    "accuracy",
)
NUMBERS = (
    "virtual_time",
    "updates",
    "rounds",
    "final_accuracy",
    "final_loss",
    "curve",
    "staleness",
    "lost",
    "refused",
    "bytes_up",
    "bytes_down",
    "personal",
    "diagnostics",
)


# Names


def _words(value: Any) -> set[str]:
    """The renamed words in settings: keys, values, and inside `name:key=value`."""
    if isinstance(value, dict):
        return set().union(*(_words(k) | _words(v) for k, v in value.items()))
    return {w for w in re.split(r"[:,=+]", value) if w in NAMES} if isinstance(value, str) else set()


def _spelled(value: Any, words: set[str]) -> Any:
    if isinstance(value, dict):
        return {_spelled(k, words): _spelled(v, words) for k, v in value.items()}
    if not isinstance(value, str):
        return value
    return "".join(NAMES[w] if w in words else w for w in re.split(r"([:,=+])", value))


def called(function: Callable[..., Any], settings: Settings, **others: Any) -> Any:
    """Call with the settings' old names; where the tree rejects them, with new ones, one word after the other."""
    from tarry import BadInput

    words, errors = sorted(_words(settings)), list[Exception]()
    for count in range(len(words) + 1):
        for some in itertools.combinations(words, count):
            try:
                return function(**_spelled(settings, set(some)), **others)
            except (BadInput, TypeError) as e:
                errors.append(e)
    raise min(errors, key=lambda e: len(str(e)))  # the one with the fewest unknown names in it


def field(record: Any, name: str) -> Any:
    """An attribute under its old or its new name."""
    return getattr(record, name) if hasattr(record, name) else getattr(record, NAMES.get(name, name))


# What is compared


def plain(x: Any) -> Any:
    """The numbers and words of a record in order, without its keys, as JSON repeats them."""
    if isinstance(x, dict):
        return [plain(v) for v in x.values()]
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    return x.hex() if isinstance(x, float) else _OLD.get(x, x) if isinstance(x, str) else x


def numbers(result: Any) -> dict[str, Any]:
    """Return what must be equal, and how clients were trained: a hint where something is not."""
    hint = field(result, "trained").partition(": a step is")[0]
    return {"weights_sha256": result.weights_sha256, **{n: plain(field(result, n)) for n in NUMBERS}, "hint": hint}


def simple(settings: Settings) -> Item:
    """A run: its final numbers."""
    import tarry

    return lambda: numbers(called(tarry.run, settings))


def logged(settings: Settings) -> Item:
    """A run: its final numbers, and every event with the weights after it."""
    import tarry

    def go() -> dict[str, Any]:
        events: list[list[Any]] = []

        def listen(e: Any) -> None:
            digest = hashlib.sha256(e.weights.detach().numpy().tobytes()).hexdigest()[:12]
            events.append([*(plain(field(e, f)) for f in FIELDS), plain(e.notes), digest])

        return {**numbers(called(tarry.run, settings, callbacks=[listen])), "events": events}

    return go


class _Interrupted(Exception):
    pass


def interrupted(settings: Settings, folder: Path) -> Item:
    """The reference's part of `resumed`: an uninterrupted run, and the folder of one that stops in the middle."""
    import tarry

    def go() -> dict[str, Any]:
        seen: list[None] = []
        whole = numbers(called(tarry.run, settings, callbacks=[lambda _: seen.append(None)]))
        left = len(seen) // 2

        def stop(_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Interrupted

        with contextlib.suppress(_Interrupted):
            called(tarry.run, {**settings, "checkpoint_every": 1e-9}, callbacks=[stop], out=folder)
        assert list((folder / "checkpoints").iterdir()), "the run ended before its first checkpoint"
        assert not (folder / "result.json").exists()
        return whole

    return go


def resumed(folder: Path) -> Item:
    import tarry

    return lambda: numbers(tarry.resume(folder))


def federated(method: str, folder: Path) -> Item:
    """The reference's part of `replayed`: a federation's server and workers, on a network in memory."""

    def go() -> dict[str, Any]:
        from deploy.fake import Clock, FakeGrid, driver, finished, nodes, small_plan  # type: ignore[import-not-found]

        folder.parent.mkdir(parents=True, exist_ok=True)
        plan = small_plan(method=method, updates=16)
        homes = folder.with_name(folder.name + ".homes")
        grid = FakeGrid(Clock(), nodes(plan, homes, lambda c, k: 2.0 + 3 * c + 0.7 * (k % 3)))
        d = driver(plan, grid, folder)
        assert finished(d, grid) == "updates"
        return {"weights_sha256": hashlib.sha256(d.course.server.answer.numpy().tobytes()).hexdigest(), "code": 0}

    return go


def replayed(folder: Path) -> Item:
    """`tarry replay FOLDER`: its exit code and the weights."""

    def go() -> dict[str, Any]:
        printed, code = io.StringIO(), 0
        sys.argv = ["tarry", "replay", str(folder)]
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_module("tarry", run_name="__main__")
        except SystemExit as e:
            code = int(e.code or 0)
        found = re.findall(r"\b[0-9a-f]{64}\b", printed.getvalue())
        return {"weights_sha256": found[0] if found else printed.getvalue(), "code": code}

    return go


# All of them

#: the second part of a probe's name, and what it is called in the summary
KINDS = {
    "inline": "runs",
    "pool": "runs",
    "batched": "runs",
    "events": "event logs",
    "more": "crosses and settings",
    "large": "large vectors",
    "model": "other models",
    "resume": "resumed runs",
    "federation": "replayed federations",
}


def _split(method: str) -> tuple[str, str]:
    name, _, rest = method.partition(":")
    return name, rest or "default"


def probes() -> Iterator[tuple[str, Settings]]:
    """Every probe: its name, METHOD/KIND/DETAIL, and its settings."""
    for seed, (how, executor), name in itertools.product((0, 1), made.EXECUTORS.items(), METHODS.split()):
        yield f"{name}/{how}/seed-{seed}", {**made.SMALL, "method": name, "seed": seed, **executor}
    for kind, methods in (("events", METHODS + made.VARIANTS), ("resume", made.RESUMED), ("federation", made.REPLAYED)):
        for method in methods.split():
            name, rest = _split(method)
            yield f"{name}/{kind}/{rest}", {**EVERYTHING, "method": method}
    for name, cross in made.CROSSES.items():
        yield f"{_split(cross['method'])[0]}/more/{name}", {**EVERYTHING, **cross}
    for name in METHODS.split():
        yield f"{name}/large/default", {**made.LARGE, "method": name}
    for name, model in made.MODELS.items():
        yield f"{_split(model['method'])[0]}/model/{name}", {**made.LARGE, **model}


def names() -> Iterator[str]:
    return (name for name, _ in probes())


def folder_of(name: str) -> str | None:
    """Where the reference leaves a folder for a probe, if it does."""
    method, kind, rest = name.split("/")
    return f"{kind}-{method}-{rest}" if kind in ("resume", "federation") else None


def item(name: str, settings: Settings, role: str, folders: Path) -> Item:
    """Return the function of a probe for this tree."""
    if settings["task"] == "own":
        settings = {k: v for k, v in settings.items() if k != "clients"} | {"task": own_task()}
    kind, folder = name.split("/")[1], folders / (folder_of(name) or "")
    if kind == "resume":
        return interrupted(settings, folder) if role == "reference" else resumed(folder)
    if kind == "federation":
        return federated(settings["method"], folder) if role == "reference" else replayed(folder)
    return simple(settings) if kind in ("inline", "pool", "batched") else logged(settings)


class Clock:
    """A clock in place of time.perf_counter, so that the number of clients trained at once repeats.

    Every measurement takes equally long, and the first way wins; or each takes less than the one before, and the last
    one wins.
    """

    def __init__(self) -> None:
        self.ticks, self.last_wins = 0, False

    def __call__(self) -> float:
        self.ticks += 1
        return math.log1p(self.ticks) if self.last_wins else self.ticks * 2.0**-10


def own_task() -> Any:
    """Unequal clients; a model with running statistics and dropout."""
    import torch
    from torch import nn

    import tarry

    g = torch.Generator().manual_seed(7)
    clients = [(torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)) for n in (4, 10, 11, 12, 19, 8)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    return tarry.Task("own", model=model, loss=nn.functional.cross_entropy, clients=clients, test=clients[4])


def main() -> None:
    role, folders = sys.argv[1], Path(sys.argv[2])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tree prints is no result
    warnings.simplefilter("ignore")
    clock = time.perf_counter = Clock()
    import torch

    import tarry

    print(json.dumps({"tarry": str(Path(tarry.__file__).resolve())}), file=out, flush=True)
    torch.set_num_threads(1)
    wanted = set(json.load(sys.stdin))
    for name, settings in probes():
        if name not in wanted:
            continue
        clock.ticks, clock.last_wins = 0, name.endswith("last-way")
        try:
            found = item(name, settings, role, folders)()
        except Exception as e:  # the tree's, whatever it is: it is a difference
            found = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps({"name": name, "found": found}), file=out, flush=True)


if __name__ == "__main__":
    main()
