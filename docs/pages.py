"""Generated pages: one for each method, from the registry and measured costs, and the list of settings.

    make docs                       writes docs/methods/*.md and docs/settings.md

Costs come from short runs on a small problem, all clients in flight, in sizes of the model; nothing in them depends on
the machine. Visits take from 1 s to nearly 2 s, a client always the same: what a server holds grows with that spread,
for the past globals that clients in flight began with are kept for them.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import tarry
from tarry.config import spec
from tarry.core.parameter import Param
from tarry.core.registry import Entry
from tarry.methods import methods

FOLDER = Path(__file__).parent / "methods"
SETTINGS = Path(__file__).parent / "settings.md"
CLIENTS = (8, 16)
SPEEDS = "the slowest client takes nearly twice as long as the fastest"


class Cost(NamedTuple):
    """Traffic and memory of a method, in model sizes."""

    up: float  # an update
    down: float  # a hand-out
    held: tuple[float, ...]  # at most on the server, for each number of clients


def small(n: int) -> tarry.Task:
    """n clients with eight examples of three classes each."""
    g = torch.Generator().manual_seed(n)

    def examples(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(k) % 3
        return torch.randn(k, 6, generator=g) + y[:, None], y

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return tarry.Task(
        "small",
        model=net,
        loss=nn.functional.cross_entropy,
        clients=[examples(8) for _ in range(n)],
        test=examples(30),
        unlabeled=torch.randn(4, 6, generator=g),
    )


def cost(name: str) -> Cost:
    """Seen in runs of every number of clients."""
    runs = []
    for n in CLIENTS:
        handed: list[int] = []

        def count(event: Any, handed: list[int] = handed) -> None:
            handed.append(event.kind == "hand_out")

        result = tarry.run(
            name,
            small(n),
            delay=[1.0 + k / n for k in range(n)],
            time=12.0,
            eval_every=1e9,
            epochs=2,
            batch=4,
            lr=0.05,
            callbacks=[count],
        )
        assert result.weights is not None
        size = result.weights.nbytes
        runs.append((result.bytes_up / result.updates, result.bytes_down / sum(handed), result.peak_server_bytes, size))
    up, down, _, size = runs[-1]
    return Cost(up / size, down / size, tuple(held / s for _, _, held, s in runs))


def page(entry: Entry[Any], seen: Cost) -> str:
    """The page of a method."""
    method, box = entry(), inspect.getmodule(entry.factory)
    assert box is not None
    rest = entry.doc.partition("\n")[2].strip()
    about = [entry.summary, *([rest] if rest else [])]
    if entry.use:
        about.append(f"**When to use it.** {entry.use}")
    held = ", ".join(f"{h:.1f} with {n} clients" for h, n in zip(seen.held, CLIENTS, strict=True))
    costs = [
        f"- Up: {_models(seen.up)} an update. Down: {_models(seen.down)} a hand-out.",
        f"- The server held at most, in models: {held} (all in flight; {SPEEDS}; past globals that tickets "
        "still hold count).",
        f"- Staleness: {method.staleness}.",
    ]
    if method.needs_unlabeled:
        costs.append("- It needs inputs without labels on the server: `--unlabeled`.")
    return (
        "\n\n".join(
            [
                f"# {entry.name}",
                f"*{entry.paper}*",
                *about,
                f"```\ntarry run --method {entry.name} --task digits\n```",
                f"## What it does\n\n```\n{inspect.cleandoc(box.__doc__ or '')}\n```",
                f"## Parameters\n\n{_parameters(entry.params)}\n\n{_space(entry)}",
                "## What it costs\n\n" + "\n".join(costs),
            ]
        )
        + "\n"
    )


def _models(size: float) -> str:
    return "one model" if abs(size - 1) < 0.005 else f"{size:.2f} models"


def _space(entry: Entry[Any]) -> str:
    """Say what `tarry tune` tries."""
    names = ["the learning rate of the clients", *(f"`--method.{name}` {d}" for name, d in entry.space.items())]
    return f"`tarry tune` tries {', '.join(names)}."


def _parameters(params: tuple[Param, ...]) -> str:
    if not params:
        return "None."
    rows = [f"| `--method.{p.name}` | {_cell(p.type_name)} | `{p.default}` | {_cell(p.help)} |" for p in params]
    return "\n".join(["| flag | type | default | |", "|---|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def index(entries: list[Entry[Any]], costs: dict[str, Cost]) -> str:
    """All of them in one table."""
    rows = [
        f"| [{e.name}]({e.name}.md) | {_cell(e.summary)} | {c.up:.2g} | {c.down:.2g} | "
        + " | ".join(f"{held:.1f}" for held in c.held)
        + " |"
        for e in entries
        for c in [costs[e.name]]
    ]
    return "\n".join(
        [
            "# Methods",
            "",
            "`make docs` writes this page from the registry. Up and down: models sent in an update and in a hand-out.",
            f"Held: the most models that the server holds at a time, with {CLIENTS[0]} and {CLIENTS[1]} clients, all",
            f"in flight, where {SPEEDS}. With a wider spread of speeds, a server holds",
            "more past global weights for the slow clients. The model here is small, so what does not grow with it",
            "(fedecho's logits, orthodyn's sample of 4,096 numbers for each client) weighs more than with a large one.",
            "",
            f"| method | | up | down | held, {CLIENTS[0]} | held, {CLIENTS[1]} |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def settings_page() -> str:
    """The settings of a run: flags of the command line and keyword arguments in Python."""
    rows = []
    for name, param in spec.settings().items():
        flag, kind = name.replace("_", "-"), param.type_name.replace("Choice", "name")
        default = "" if param.default is None else f"`{param.default}`"
        rows.append(f"| `--{flag}` | {_cell(kind)} | {default} | {_cell(param.help)} |")
    return "\n".join(
        [
            "# Settings",
            "",
            "These are the flags of `tarry run` and `tarry compare`, the keys of spec files, and, with `_` in place of",
            "`-`, the keyword arguments of `tarry.run` and `tarry.compare`. A component has parameters of its own:",
            "`--method.NAME`, `--task.NAME` and so on; `tarry methods NAME` lists them.",
            "",
            "| flag | type | default | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def pages() -> dict[str, str]:
    """Every file of the folder, by name."""
    entries = list(methods.values())
    costs = {e.name: cost(e.name) for e in entries}
    return {f"{e.name}.md": page(e, costs[e.name]) for e in entries} | {"README.md": index(entries, costs)}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    SETTINGS.write_text(settings_page())
    sys.stderr.write(f"{len(made)} pages in {FOLDER}\n")


if __name__ == "__main__":
    main()
