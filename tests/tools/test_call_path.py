"""tools/call_path.py: the calls of a command, and the changes of file among them."""

from __future__ import annotations

import sys

import pytest
from tools.call_path import changes, trace


def test_a_change_is_a_call_in_another_file_than_the_call_before() -> None:
    calls = [("a.py", "f"), ("a.py", "g"), ("b.py", "h"), ("a.py", "g")]
    assert changes(calls) == 2
    assert changes(calls[:2]) == 0


def test_a_command_is_traced_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    calls = trace(["methods", "fedbuff"])
    assert calls[0] == ("cli/app.py", "main")
    assert ("cli/catalog.py", "methods") in calls
    assert changes(calls) > 5
