from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from tarry.core.errors import BadInput
from tarry.record.result import Result
from tarry.report import summarise, table

Make = Callable[..., Result]


def shown(results: list[Result], *, colour: bool = False) -> str:
    out = StringIO()
    system = "standard" if colour else None
    Console(file=out, width=120, force_terminal=colour, color_system=system).print(table(summarise(results)))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_terminal_shows_accuracy_times_and_what_the_target_is(two_methods: list[Result]) -> None:
    lines = [" ".join(line.split()) for line in shown(two_methods).splitlines()]
    assert "fedavg 60.0 ± 2.8 1× 25 s 1.0 / 4 300" in lines
    assert "orthofl 75.0 ± 4.2 0.30× 7.5 s 1.0 / 4 300" in lines
    assert "Target: 57.0 % accuracy" in shown(two_methods)


def test_the_best_accuracy_is_bold_and_no_other(two_methods: list[Result]) -> None:
    text = shown(two_methods, colour=True)
    assert "\x1b[1m75.0 ± 4.2\x1b[0m" in text
    assert "60.0 ± 2.8" in text
    assert "\x1b[1m60.0 ± 2.8" not in text


def test_a_label_in_square_brackets_is_no_markup(make: Make) -> None:
    assert "[bold]x[/nonsense]" in shown([make("[bold]x[/nonsense]", 0, {1: 0.5})])


def test_without_accuracy_there_is_a_loss_and_no_caption(make: Make) -> None:
    text = shown([make("a", 0, {1: None}, final_loss=0.5)])
    assert "0.5000" in text
    assert "arget" not in text


def test_a_missing_rich_is_said_with_the_way_out(two_methods: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.box", None)
    with pytest.raises(BadInput, match="pip install rich"):
        table(summarise(two_methods))
