from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TARRY_DATA; the hub is not wanted."""
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    monkeypatch.delenv("TARRY_HUB", raising=False)
    return tmp_path
