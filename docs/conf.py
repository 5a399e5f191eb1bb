"""Settings of Sphinx: `make site` builds the pages of this folder, the notebooks and the API reference."""

from __future__ import annotations

import re
from typing import Any

import tarry

project = "tarry"
author = "The tarry authors"
project_copyright = "The tarry authors, Apache-2.0"
release = version = tarry.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "results/*.md"]
html_theme = "furo"
html_title = f"tarry {release}"
html_static_path: list[str] = []
html_copy_source = False
templates_path: list[str] = []

# Markdown: links to headings of other pages, $mathematics$, and the tables and HTML of README.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Notebooks are executed when the site is built; a cell that fails makes the build fail.
nb_execution_mode = "auto"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings: `name` is code, signatures show the annotations, and the examples are copied without prompts.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
nitpicky = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}


def mark_code(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Make indented paragraphs of docstrings literal blocks, which reStructuredText marks with `::`."""
    out: list[str] = []
    for i, line in enumerate(lines):
        begins = re.match(r" {4}\S", line) and (not out or not out[-1].strip()) and not _in_block(lines, i)
        if begins:
            out += ["::", ""]
        out.append(line)
    lines[:] = out


def _in_block(lines: list[str], i: int) -> bool:
    """Return whether the last line before `i` that is not empty belongs to an indented block."""
    before = next((line for line in reversed(lines[:i]) if line.strip()), "")
    return before.startswith("    ") or before.rstrip().endswith("::")


def add_method_pages(_app: Any, page: str, source: list[str]) -> None:
    """Put the page of each method under the list of methods, which is also read on its own."""
    if page == "methods/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("source-read", add_method_pages)
