"""Names and text follow the style rules of CONTRIBUTING.md: no private vocabulary, American identifiers.

All rules hold for src/. Programs beside it and helpers of tests may use the words of OLD_NAMES, which are ordinary
words of English. In other tests the names of helpers and parameters are checked; names of tests are sentences.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tarry"
FILES = sorted(SRC.rglob("*.py"))
#: programs beside src/, and what tests share
PROGRAMS = sorted(
    path
    for folder in ("benchmarks", "docs", "examples", "tools", "tests/helpers")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ("bits_names.py", "bits_settings.py", "migrate.py")  # they hold earlier names
)
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path not in PROGRAMS and path != Path(__file__))
#: README, CONTRIBUTING, docs/, descriptions of experiments; CHANGELOG.md names what was renamed
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.toml")])
PAGES.remove(ROOT / "CHANGELOG.md")

#: words that no name, docstring, comment or message contains
BANNED = ("told", "whoever", "somebody", "nobody", "everybody", "anew", "aside")
#: parts of names that say how a value came about, and not what it is: messages, retained rows, requested clients ...
VAGUE = ("said", "asked", "heard", "kept", "gone", "learnt", "whose", "whom")
#: earlier private names: neither a definition, a parameter nor an attribute is called so
OLD_NAMES = frozenset(
    [
        "Brief",
        "Functions",
        "Now",
        "Horizon",
        "Lab",
        "ModelLab",
        "Personal",
        "Offer",
        "Bound",
        "Trained",
        "Roster",
        "Marks",
        "Ledger",
        "Together",
        "Pure",
        "Norms",
        "Cut",
        "Drops",
        "Desk",
        "Few",
        "Diary",
        "Fleet",
        "Went",
        "Comings",
        "Presence",
        "Course",
        "Keeper",
        "Door",
        "Home",
        "Speech",
        "Pace",
        "Patient",
        "Health",
        "Book",
        "Held",
        "Letter",
        "Blob",
        "Exam",
        "Tally",
        "Late",
        "Varied",
        "Lesson",
        "Mindful",
        "Remembering",
        "Rated",
        "Asked",
        "Refused",
        "Inner",
        "PlainLane",
        "calm",
        "haste",
        "hasten",
        "diary",
        "keeper",
        "lab",
        "speech",
        "bend",
        "laps",
        "lap",
        "deep_grad",
        "known_features",
        "steady",
        "around",
        "wakes",
        "hear",
        "demands",
        "weighs",
        "but",
        "looked_at",
        "move_in",
        "left_out",
        "orders",
        "draws",
        "keep_memory",
        "elsewhere",
        "swept",
        "form_of",
        "no_loops",
        "tidied",
        "forced",
        "otherwise",
        "hurry",
        "shortened",
        "quicker",
        "often",
        "stays",
        "proven",
        "shaken",
        "apart",
        "outside",
        "hopeless",
        "in_vain",
        "most_in_flight",
        "greet",
        "introduced",
        "forgot",
        "shaped",
        "uncrossed",
        "under_flag",
        "misfits",
        "shut_out",
        "alike",
        "summed_up",
        "shifted_beside",
        "positioned",
        "nothing_yet",
        "passed_on",
        "by_epochs",
        "rests",
        "echoing",
        "onward",
        "bare",
        "settled",
        "unlearnt",
        "number_of",
        "shelf",
        "complaint",
        "stoppable",
        "remarked",
    ]
)
#: British spellings, in names and in text
BRITISH = re.compile(
    r"(?:normal|optim|personal|initial|serial|summar|quant|general|regular)is(?:e|ing|ation)"
    r"|(?:minim|maxim|vector|synchron|random)is(?:e|ing|ation)"
    r"|labelled|labelling|modelling|colour|behaviour|favour|neighbour|centred?\b|\bgrey\b"
)
#: phrases that no docstring, comment or message contains; an error may say "name: no such setting"
PHRASES = re.compile(
    r"(?<![-\w])learnt\b|\bof one's own\b|(?<!there is )(?<!: )\bno such\b|\ball the same\b|\bcomes to\b|\bin vain\b"
    r"|\bgoes on\b|\bas they come\b|\bby and by\b|\bthings?\b|\bsummed up\b|\btak(?:es?|en) (?:it )?up again\b"
)


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def _text(path: Path, source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _parts(name: str) -> list[str]:
    """The words of an identifier: told_by, toldBy and Told all have the part `told`."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _problems(text: str) -> list[str]:
    words = sorted(set(BANNED) & set(re.findall(r"[a-z]+", text.lower())))
    words += [m for pattern in (PHRASES, BRITISH) for m in pattern.findall(text.lower())]
    return [f"the text contains {word!r}" for word in words]


#: first words of docstrings that continue the name instead of a sentence of their own
FRAGMENTS = ("As", "By", "From", "How", "In", "Of", "On", "So", "Those", "What", "When", "Whether", "Whose")


def _fragments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            line, doc = getattr(node, "lineno", 1), (ast.get_docstring(node) or "").split()
            if doc and doc[0].rstrip(",.:") in FRAGMENTS:
                yield line, " ".join(doc[:3])


def violations(path: Path, *, old_names: bool = True) -> list[str]:
    source = path.read_text(encoding="utf-8")
    tree, found = ast.parse(source), list[str]()
    for line, name in _names(tree):
        bare = name.lstrip("_")
        if old_names and bare in OLD_NAMES:
            found.append(f"{path.name}:{line}: {name} is an earlier private name")
        if words := {*BANNED, *VAGUE} & set(_parts(name)):
            found.append(f"{path.name}:{line}: the name {name} contains {', '.join(sorted(words))}")
        if BRITISH.search(name.lower()):
            found.append(f"{path.name}:{line}: {name} is not in American spelling")
    for line, text in _text(path, source, tree):
        found += [f"{path.name}:{line}: {problem}" for problem in _problems(text)]
    found += [f"{path.name}:{line}: the docstring begins with {words!r}" for line, words in _fragments(tree)]
    return sorted(set(found))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_names_and_text_use_the_vocabulary_of_the_field(path: Path) -> None:
    assert violations(path) == []


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_programs_and_helpers_of_tests_use_the_vocabulary_of_the_field(path: Path) -> None:
    assert violations(path, old_names=False) == []


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_definitions_in_tests_use_the_vocabulary_of_the_field(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith(("test_", "Test")):
            arguments = [] if isinstance(node, ast.ClassDef) else [*node.args.args, *node.args.kwonlyargs]
            for name in (node.name, *(a.arg for a in arguments)):
                if {*BANNED, *VAGUE} & set(_parts(name)) or BRITISH.search(name.lower()):
                    found.append(f"{path.name}:{node.lineno}: {name}")
    assert found == []


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_use_the_vocabulary_of_the_field(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{path.name}:{n}: {problem}" for n, line in lines for problem in _problems(line)] == []


def test_the_check_finds_names_comments_docstrings_and_messages(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        'def _told(optimiser, kept):  # whoever calls\n    """Whether it was learnt aside."""\n'
        '    raise ValueError("begin anew")\n'
    )
    assert len(violations(bad)) == 8


def test_src_holds_packages_only() -> None:
    loose = {p.name for p in SRC.iterdir() if p.is_file()}
    assert loose == {"__init__.py", "__main__.py", "version.py", "py.typed"}
