"""Names and text in src/ follow the style rules of CONTRIBUTING.md: no private vocabulary, American identifiers."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "tarry"
FILES = sorted(SRC.rglob("*.py"))

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


#: first words of docstrings that continue the name instead of a sentence of their own
FRAGMENTS = ("As", "By", "From", "How", "In", "Of", "On", "So", "Those", "What", "When", "Whether", "Whose")


def _fragments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            line, doc = getattr(node, "lineno", 1), (ast.get_docstring(node) or "").split()
            if doc and doc[0].rstrip(",.:") in FRAGMENTS:
                yield line, " ".join(doc[:3])


def violations(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    tree, found = ast.parse(source), list[str]()
    for line, name in _names(tree):
        bare = name.lstrip("_")
        if bare in OLD_NAMES:
            found.append(f"{path.name}:{line}: {name} is an earlier private name")
        if words := {*BANNED, *VAGUE} & set(_parts(name)):
            found.append(f"{path.name}:{line}: the name {name} contains {', '.join(sorted(words))}")
        if BRITISH.search(name.lower()):
            found.append(f"{path.name}:{line}: {name} is not in American spelling")
    for line, text in _text(path, source, tree):
        if words := set(BANNED) & set(re.findall(r"[a-z]+", text.lower())):
            found.append(f"{path.name}:{line}: the text contains {', '.join(sorted(words))}")
        for pattern in (PHRASES, BRITISH):
            found += [f"{path.name}:{line}: the text contains {m!r}" for m in pattern.findall(text.lower())]
    found += [f"{path.name}:{line}: the docstring begins with {words!r}" for line, words in _fragments(tree)]
    return sorted(set(found))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_names_and_text_use_the_vocabulary_of_the_field(path: Path) -> None:
    assert violations(path) == []


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


def test_every_type_name_has_one_meaning() -> None:
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}
