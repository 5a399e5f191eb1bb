"""tools/migrate.py on folders with the names of an earlier version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tarry

SCRIPT = Path(__file__).parents[2] / "tools" / "migrate.py"
SETTINGS = {"clients": 3, "steps": 1, "delay": [1, 2, 3], "updates": 4}


def test_a_comparison_with_the_earlier_keys_has_those_of_today_and_verifies(tmp_path: Path) -> None:
    task = {"name": "digits", "limit": 100}
    tarry.compare(["fedavg", "fedasync"], task, seeds=[0], workers=1, out=tmp_path / "c", **SETTINGS)
    table = tmp_path / "c" / "compare.json"
    today = table.read_text()
    earlier = today
    for new, old in {"trivial_accuracy": "unlearnt", "has_given_target": "asked", "rejected": "refused"}.items():
        assert f'"{new}":' in earlier
        earlier = earlier.replace(f'"{new}":', f'"{old}":')
    table.write_text(earlier)
    assert not tarry.verify(tmp_path / "c").ok
    for changed in (1, 0):
        done = subprocess.run([sys.executable, SCRIPT, tmp_path / "c"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{tmp_path / 'c'}: {changed} files changed\n"
    assert table.read_text() == today
    assert json.loads(today)["has_given_target"] is False
    assert tarry.verify(tmp_path / "c").ok
