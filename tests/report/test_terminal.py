from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from tarry.core.errors import BadInput
from tarry.record.result import Result
from tarry.report import summarize, table

Make = Callable[..., Result]


def shown(results: list[Result], *, color: bool = False, width: int = 120) -> str:
    out = StringIO()
    system = "standard" if color else None
    Console(file=out, width=width, force_terminal=color, color_system=system).print(table(summarize(results)))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_terminal_shows_accuracy_times_and_what_the_target_is(two_methods: list[Result]) -> None:
    lines = [" ".join(line.split()) for line in shown(two_methods).splitlines()]
    assert "fedavg 60.0 ± 2.8 1× 25 s 1.0 / 4 300" in lines
    assert "orthofl 75.0 ± 4.2 0.30× 7.5 s 1.0 / 4 300" in lines
    assert "Target: 57.0 % accuracy" in shown(two_methods)


def test_the_best_accuracy_is_bold_and_no_other(two_methods: list[Result]) -> None:
    text = shown(two_methods, color=True)
    assert "\x1b[1m75.0 ± 4.2\x1b[0m" in text
    assert "60.0 ± 2.8" in text
    assert "\x1b[1m60.0 ± 2.8" not in text


def test_long_labels_are_folded_so_that_no_column_is_lost_on_a_narrow_terminal(make: Make) -> None:
    long = "orthofl:beta=0.4+local=fedsol:rho=1.0,proximal=ntd+distill=fedecho:alpha=0.5"
    personal = {"epochs": 1, "after": {"mean": 0.8, "sd": 0.1}, "before": {"mean": 0.6, "sd": 0.1}}
    runs = [
        make(m, s, {0: 0.1, 750: 0.6 + 0.1 * s}, personalization=personal) for m in (long, "fedavg") for s in (0, 1)
    ]
    text = shown(runs, width=80)
    rows = text.partition("Target")[0].splitlines()
    assert all(len(line) <= 80 for line in rows)
    for column in ("accuracy", "time to", "personal", "staleness", "updates", "65.0 ± 7.1", "12.5 min", "60.0 before"):
        assert column in text, column
    assert sum("1.0 / 4" in line and "7,500" in line for line in rows) == 2
    end = next(line.index("accuracy") for line in rows if "accuracy" in line)
    assert long in "".join(line[:end].strip() for line in rows)


def test_a_label_in_square_brackets_is_no_markup(make: Make) -> None:
    assert "[bold]x[/nonsense]" in shown([make("[bold]x[/nonsense]", 0, {1: 0.5})])


def test_without_accuracy_there_is_a_loss_and_no_caption(make: Make) -> None:
    text = shown([make("a", 0, {1: None}, final_loss=0.5)])
    assert "0.5000" in text
    assert "arget" not in text


def test_a_missing_rich_is_said_with_the_way_out(two_methods: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.box", None)
    with pytest.raises(BadInput, match="pip install rich"):
        table(summarize(two_methods))
