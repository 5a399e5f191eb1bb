"""Every notebook of examples/notebooks runs in a kernel from its first cell to its last, and shows tables and plots."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST = 600  # seconds for a cell, under load; alone a notebook takes less than 30 s

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's packages


def outputs_of(cell: Any) -> str:
    """All that a cell shows, as text and HTML."""
    shown = [o.get("text", "") + str(o.get("data", "")) for o in cell.get("outputs", [])]
    return "\n".join(shown)


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request, tmp_path_factory) -> Any:
    """A notebook after its execution in an empty folder."""
    folder = tmp_path_factory.mktemp(request.param.stem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "HF_HOME"):
            patch.setenv(name, str(folder / name.lower()))
        notebook = nbformat.read(request.param, as_version=4)
        client = NotebookClient(
            notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    left = {path.name for path in folder.iterdir()} - {"ipython", "hf_home"}
    assert not {name for name in left if not name.startswith("jupyter")}, "a notebook writes nothing to its folder"
    return notebook


def test_there_are_notebooks_without_outputs():
    assert {path.stem for path in NOTEBOOKS} == {"first_comparison", "own_data", "own_method"}
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert all(cell.get("outputs", []) == [] for cell in notebook.cells), f"{path.name}: clear its outputs"
        assert os.fspath(Path.home()) not in path.read_text()


def test_a_notebook_shows_a_table_of_a_comparison_and_of_a_result(executed):
    shown = [outputs_of(cell) for cell in executed.cells if cell.cell_type == "code"]
    assert sum("<table" in text for text in shown) >= 3
    assert any("accuracy %" in text and "fedasync" in text for text in shown)
    assert any("final accuracy" in text and "<svg" in text for text in shown)


def test_a_notebook_draws_progress_and_has_no_warnings(executed):
    shown = "\n".join(outputs_of(cell) for cell in executed.cells)
    assert "widget-view" in shown or "100%" in shown
    assert not re.search(r"\w*Warning: ", shown)


def test_a_notebook_prints_what_its_text_promises(executed):
    shown = "\n".join(outputs_of(cell) for cell in executed.cells)
    source = "\n".join(cell.source for cell in executed.cells)
    if "test points are right" in source:
        right = re.search(r"(0\.\d+) of the test points are right", shown)
        assert right
        assert float(right[1]) > 0.6
    if ".plot(" in source:
        assert "image/png" in shown
