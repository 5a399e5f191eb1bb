"""Every example runs and prints what it promises."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "torch_dataset.py": r"6 clients, stopped by patience\nvalidation 0\.9\d+, test 0\.9\d+",
    "hugging_face_dataset.py": r"12 authors, accuracy 0\.\d+|12 authors, accuracy 1\.000",
    "cross.py": r"orthofl\+local=fedsol\+distill=fedecho +0\.\d+\nfedasync\+manifold=geodesic +0\.\d+",
    "own_clients.py": r"inline +(0\.\d+)\nbatched +\1",
    "own_task.py": r"accuracy 0\.\d+ after \d+ virtual seconds",
    "own_method.py": r"agreeing +0\.\d+\nfedasync +0\.\d+\northofl +0\.\d+",
    "own_tracker.py": r"fedasync, seed 0.csv: 51 rows, final accuracy 0\.\d+\northofl, seed 0.csv: 51 rows, final",
    "unlabeled_folder.py": r"fedbuff +0\.\d+\nfedecho +0\.\d+",
    "replay.py": r"\d+ arrivals and \d+ losses, as in the recorded run",
}


def test_every_example_is_tried():
    assert {p.name for p in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(SAYS[name], capsys.readouterr().out)
