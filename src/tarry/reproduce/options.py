"""Flags of `tarry reproduce`, declared once: the typer command and `python -m tarry.reproduce` are made from them."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..core.errors import BadInput

if TYPE_CHECKING:
    from .experiment import Experiment

__all__ = ["SIZES", "Flag", "ReproduceFlags", "ReproduceOptions", "argument_parser", "flags", "seed_numbers"]

#: from that of the paper to one that takes minutes on two cores; settings that a size does not change are the paper's
SIZES = ("full", "reduced", "quick")
_MOST_SEEDS = 10_000
_Names = list[str]  # the class below has a field `list`


@dataclass(frozen=True)
class ReproduceFlags:
    """The flags as they are given. A field is an option `--name`, or what its metadata says."""

    names: Annotated[_Names | None, "Experiments, as paper/table (orthofl/table2), a paper, or all"] = field(
        default=None, metadata={"argument": True, "metavar": "NAME...", "default": "list all"}
    )
    list: Annotated[bool, "List all experiments, with what each needs and whether it has results"] = False
    page: Annotated[bool, "Write docs/results.md and its plots; with --quick write results-quick.md"] = False
    show: Annotated[bool, "Print the tables of the results that exist, of all or of NAMEs, and run nothing"] = False
    quick: Annotated[bool, "Run the quick size with one seed, which takes minutes and has results of its own"] = False
    size: Annotated[
        Literal["full", "reduced", "quick"] | None,
        "Run the size of the paper, the reduced one where that takes too long, or the quick one",
    ] = field(default=None, metadata={"default": "full"})
    only: Annotated[str | None, "Run only these columns, as in mnist,cifar10"] = field(
        default=None, metadata={"metavar": "COLUMNS", "default": "all"}
    )
    rows: Annotated[str | None, "Run only these rows, as in fedavg,orthofl"] = field(
        default=None, metadata={"metavar": "ROWS", "default": "all"}
    )
    seeds: Annotated[str | None, "Run this many seeds (3), or these (5-7 or 0,4)"] = field(
        default=None, metadata={"metavar": "SEEDS", "default": "those of the experiment"}
    )
    workers: Annotated[int, "Run this many runs at a time, also on a GPU"] = 1
    within: Annotated[float | None, "Begin no run after so many minutes; the same command continues later"] = field(
        default=None, metadata={"metavar": "MINUTES", "default": "no limit"}
    )
    stop: Annotated[
        float | None, "Interrupt runs after so many minutes; they write a checkpoint, and the same command continues"
    ] = field(default=None, metadata={"metavar": "MINUTES", "default": "no limit"})
    queue: Annotated[bool, "Run what experiments/queue.toml lists, in its order; with --list show what is left"] = False
    device: Annotated[Literal["cpu", "cuda"] | None, "Train on this device"] = field(
        default=None, metadata={"default": "cuda where present"}
    )
    executor: Annotated[Literal["inline", "batched", "auto"] | None, "Train the clients by this executor"] = field(
        default=None, metadata={"default": "inline; auto on a GPU"}
    )
    precision: Annotated[Literal["float32", "tf32", "bf16"] | None, "Multiply matrices at this precision"] = field(
        default=None, metadata={"default": "float32"}
    )
    compile: Annotated[bool, "Compile the training steps by torch.compile, which pays in runs of minutes"] = False
    out: Annotated[Path, "Write the folders of runs here, and resume interrupted runs from here"] = Path("runs")
    results: Annotated[Path | None, "Read and write results in this folder"] = field(
        default=None, metadata={"default": "that of the experiment"}
    )
    keep: Annotated[bool, "Keep the folders of finished runs"] = False


@dataclass(frozen=True)
class Flag:
    """One field of `ReproduceFlags`, with its type in parts."""

    name: str
    annotation: Any  # as declared, without the help
    help: str
    default: Any
    shown_default: str | None  # text for a default of None
    metavar: str | None
    is_argument: bool

    @property
    def type(self) -> Any:
        """The type without None."""
        if isinstance(self.annotation, types.UnionType) or typing.get_origin(self.annotation) is typing.Union:
            return next(t for t in typing.get_args(self.annotation) if t is not type(None))
        return self.annotation

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The values of a Literal."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else None


def flags() -> Iterator[Flag]:
    """Yield all flags in the order of --help."""
    hints = typing.get_type_hints(ReproduceFlags, include_extras=True, localns={})
    for f in fields(ReproduceFlags):
        yield _flag(f, *typing.get_args(hints[f.name]))


def _flag(declared: Field[Any], annotation: Any, text: str) -> Flag:
    assert declared.default is not MISSING
    about = declared.metadata
    return Flag(
        name=declared.name,
        annotation=annotation,
        help=text,
        default=declared.default,
        shown_default=about.get("default"),
        metavar=about.get("metavar"),
        is_argument=about.get("argument", False),
    )


def argument_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser of the flags that needs the standard library only."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Run the tables and figures of the papers and compare our numbers with theirs."
    )
    for flag in flags():
        shown = flag.shown_default or (None if flag.type is bool else flag.default)
        text = flag.help.replace("%", "%%") + (f"  [default: {shown}]" if shown is not None else "")
        if flag.is_argument:
            parser.add_argument(
                flag.name, nargs="*", metavar=(flag.metavar or flag.name).removesuffix("..."), help=text
            )
        elif flag.type is bool:
            parser.add_argument(f"--{flag.name}", action="store_true", help=text)
        else:
            kind = str if flag.choices else flag.type
            options: dict[str, Any] = {"metavar": flag.metavar} if flag.metavar else {}
            parser.add_argument(
                f"--{flag.name}", type=kind, choices=flag.choices, default=flag.default, help=text, **options
            )
    return parser


@dataclass(frozen=True)
class ReproduceOptions:
    """The flags after they are checked against the experiments."""

    size: str = "full"
    columns: tuple[str, ...] = ()  # () stands for all
    rows: tuple[str, ...] = ()  # () stands for all
    seeds: tuple[int, ...] | None = None
    workers: int = 1
    within: float | None = None  # minutes in which runs may begin
    stop: float | None = None  # minutes after which runs are interrupted
    device: str = "cpu"
    executor: str | None = None
    precision: str | None = None
    compile: bool = False
    out: Path = Path("runs")
    results: Path | None = None  # folder of results instead of the experiments' own
    keep: bool = False
    command: str = ""

    def seeds_of(self, experiment: Experiment) -> tuple[int, ...]:
        """Return the seeds to run: those given, else one for the quick size, else as many as the experiment has."""
        return tuple(range(1 if self.size == "quick" else experiment.seeds)) if self.seeds is None else self.seeds


def seed_numbers(text: str) -> tuple[int, ...]:
    """Return the seeds that a flag names: '3' is 0, 1, 2; '5-7' is 5, 6, 7; '0,4' is 0, 4; '2,' is 2."""
    try:
        parts = [range(int(text))] if text.isdigit() else _parse_seeds(text)
    except BadInput:
        raise
    except ValueError:
        parts = []
    if any(part.stop - part.start > _MOST_SEEDS for part in parts):  # len() fails beyond 64 bits
        raise BadInput(f"--seeds {text[:80]}: more than {_MOST_SEEDS:,} seeds in a row; name fewer")
    if not any(parts):
        raise BadInput(f"--seeds {text[:80]}: wants how many (3), or which (5-7 or 0,4)")
    return tuple(dict.fromkeys(number for part in parts for number in part))


def _parse_seeds(text: str) -> list[range]:
    parts = list[range]()
    for part in text.removesuffix(",").split(","):
        first, dash, last = part.partition("-")
        if dash and int(last) < int(first):
            raise BadInput(f"--seeds {text}: {part} runs backwards; say {last}-{first}")
        parts.append(range(int(first), int(last if dash else first) + 1))
    return parts
