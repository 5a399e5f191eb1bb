"""Texts in the formats they are distributed in: JSON lines, tables with a header, newsgroup folders.

<name>.jsonl                          one object a line with its split; every set; packed as .gz or .xz, or .parquet
20news-bydate-train/GROUP/NUMBER      a post a file (Latin-1); 20news-bydate.tar.gz holds the same
ag_news_csv/train.csv                 class from 1, title, description; no header, or Kaggle's
msr_paraphrase_train.txt              Quality, #1 ID, #2 ID, #1 String, #2 String by tabs; nothing is quoted
MRPC/train.tsv, SST-2/train.tsv       GLUE; dev.tsv is tested on, test.tsv has no labels
banking77/train.csv                   text, category
gsm8k/train.jsonl                     question, answer
MathInstruct.json                     a list of instruction, output, source
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os.path import isfile
from pathlib import Path
from typing import Any

from ...core.errors import BadInput
from ...core.parquet import parquet_rows
from ...core.storage import read_input
from .archives import parent_folder, read_files
from .newsgroup_posts import strip_headers
from .texts import Text, TextDataset, TextExample, gather_texts

__all__ = ["ag_csv", "banking_csv", "glue_tsv", "jsonl", "loose_jsonl", "math_json", "msr_txt", "newsgroups"]
__all__ += [
    "answer_of",
    "news_of",
    "pair_of",
    "post_of",
    "question_jsonl",
    "row_errors",
    "text_field",
    "text_of",
    "text_pair",
]

RawRow = dict[str, Any]
TextReader = Callable[[Path, str], TextDataset]
_MOST = 1 << 30  # bytes a file
_CSV_LIMIT = 10_000_000  # characters a field; the module's own is 131,072


def text_field(row: RawRow, field: str) -> str:
    """Return a field that must be a text. Raise TypeError for another type."""
    value = row[field]
    if not isinstance(value, str):
        raise TypeError(f"the field {field!r} holds no text but {type(value).__name__}")
    return value


def text_pair(row: RawRow, one: str, other: str) -> Text:
    return text_field(row, one), text_field(row, other)


def text_of(row: RawRow) -> Text:
    return text_field(row, "text")


def post_of(row: RawRow) -> Text:
    return strip_headers(text_field(row, "text"))


def news_of(row: RawRow) -> Text:
    """Return title (if there is one) and description. A backslash in them stands for a line break."""
    return " ".join(str(part) for part in (row.get("title"), text_field(row, "text")) if part).replace("\\", " ")


def pair_of(row: RawRow) -> Text:
    return text_pair(row, "s1", "s2")


def answer_of(row: RawRow) -> Text:
    return text_pair(row, "question", "answer")


def _either_of(row: RawRow) -> Text:
    if "text" in row and "s1" in row:
        raise TypeError("has text as well as s1; expected one text, or the two of a pair")
    return pair_of(row) if "s1" in row else text_of(row)


def jsonl(
    text: Callable[[RawRow], Text], classes: Sequence[str] = (), *, label: Any = "y", n: int = 0, wants: str = ""
) -> TextReader:
    """Return a reader of one object per line with `split`, the fields that `text` reads, and the field `label`.

    A `label` that is a number is the label of all rows. `n` is the number of classes if their names are not given.
    """

    def read(path: Path, flag: str) -> TextDataset:
        return gather_texts((_row(i, row, flag) for i, row in _rows(path, flag)), flag, classes, n)

    def _row(i: int, row: RawRow, flag: str) -> TextExample:
        with row_errors(f"line {i}", row, flag, wants):
            return TextExample(row["split"], text(row), row[label] if isinstance(label, str) else label)

    return read


_read_loose = jsonl(_either_of, wants="; expected split (train, test or validation), y, and text, or s1 and s2")


def loose_jsonl(path: Path, flag: str) -> TextDataset:
    """Return a set that is not in the catalog: `split`, `y` and `text`, or `s1` and `s2`, in all lines."""
    made = _read_loose(path, flag)
    if len({isinstance(text, str) for text in (*made.train, *made.test, *made.unlabeled)}) > 1:
        raise BadInput(f"{flag}: some lines have text and some s1 and s2; all must be alike")
    return made


@contextmanager
def row_errors(where: str, row: RawRow, flag: str, wants: str = "") -> Iterator[None]:
    """Report errors of a row with its place in the file."""
    try:
        yield
    except KeyError as e:
        raise BadInput(f"{flag}: {where} has no field {e.args[0]!r}; it has {', '.join(row)}{wants}") from None
    except TypeError as e:
        raise BadInput(f"{flag}: {where}: {e}") from None


def question_jsonl(path: Path, flag: str) -> TextDataset:
    """Return the examples of GSM8K's own train.jsonl and test.jsonl."""
    rows = []
    for name, text in _read_texts(path, ("train.jsonl", "test.jsonl"), flag).items():
        for i, row in _json_rows(text, f"{flag}: {name}"):
            with row_errors(f"line {i}", row, f"{flag}: {name}"):
                rows.append(TextExample(name.removesuffix(".jsonl"), answer_of(row), 0))
    return gather_texts(rows, flag, ["grade school mathematics"])


def _rows(path: Path, flag: str) -> Iterator[tuple[int, RawRow]]:
    """Return the rows of a file of JSON lines, or of a Parquet file, with their numbers from 1."""
    if path.suffix == ".parquet":
        return enumerate(parquet_rows(path, flag, _MOST), 1)
    return _json_rows(_read_text(path, flag), flag)


def _json_rows(text: str, flag: str) -> Iterator[tuple[int, RawRow]]:
    for i, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise BadInput(f"{flag}: line {i} is no JSON ({e})") from e
        if not isinstance(row, dict):
            raise BadInput(f"{flag}: line {i} is no object but {type(row).__name__}")
        yield i, row


def _read_texts(path: Path, names: Sequence[str], flag: str, perhaps: Sequence[str] = ()) -> dict[str, str]:
    """Return these files of a folder (not of its sub-folders) or of an archive, and those of `perhaps` that exist."""
    wanted = (*names, *perhaps)
    if path.is_dir():
        found = {name: _read_bytes(path / name, flag) for name in wanted if isfile(path / name)}
    else:
        there = read_files(path, lambda n: n.rpartition("/")[2] in wanted, flag, most=_MOST, home=parent_folder)
        found = {name.rpartition("/")[2]: content for name, content in there}
    if missing := [name for name in names if name not in found]:
        raise BadInput(f"{flag}: lacks {', '.join(missing)}")
    return {name: _decode(content, f"{flag}: {name}") for name, content in found.items()}


def _read_bytes(path: Path, flag: str) -> bytes:
    return read_input(path, flag, _MOST)


def _read_text(path: Path, flag: str) -> str:
    return _decode(_read_bytes(path, flag), flag)


def _decode(content: bytes, flag: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise BadInput(f"{flag}: is no UTF-8 text ({e})") from e


def math_json(path: Path, flag: str) -> TextDataset:
    """Return MathInstruct. The class of a question is the collection that it was taken from. There is no test set."""
    text = _read_text(path, flag)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadInput(f"{flag}: is no JSON ({e})") from e
    wanted = ("instruction", "output", "source")
    if not isinstance(rows, list) or any(
        not isinstance(r, dict) or any(not isinstance(r.get(field), str) for field in wanted) for r in rows
    ):
        raise BadInput(f"{flag}: wants a list of objects with the fields {', '.join(wanted)}, all texts")
    return gather_texts((TextExample("train", (r["instruction"], r["output"]), r["source"]) for r in rows), flag)


def newsgroups(classes: Sequence[str]) -> TextReader:
    """Return a reader of 20news-bydate-train and 20news-bydate-test, folder or tar archive, each with all groups."""

    def read(path: Path, flag: str) -> TextDataset:
        places = [path / part for part in _BYDATE] if path.is_dir() else [path]
        posts = sorted(
            (_group(place, name), content.decode("latin-1"))
            for place in places
            for name, content in read_files(place, _is_post, flag, most=_MOST)
        )
        there = {(split, group) for (split, group, _), _ in posts}
        for split in ("train", "test"):
            if lacking := [group for group in classes if (split, group) not in there]:
                raise BadInput(f"{flag}: 20news-bydate-{split} has no posts of {', '.join(lacking)}")
        return gather_texts(
            (TextExample(split, strip_headers(post), group) for (split, group, _), post in posts), flag, classes
        )

    return read


_BYDATE = ("20news-bydate-train", "20news-bydate-test")


def _is_post(name: str) -> bool:
    *folders, number = name.split("/")
    return number.isdigit() and (len(folders) == 1 or (len(folders) > 1 and folders[-2] in _BYDATE))


def _group(place: Path, name: str) -> tuple[str, str, str]:
    """Return split, newsgroup and number of a post."""
    folder, group, number = f"{place.name}/{name}".split("/")[-3:]
    return folder.rpartition("-")[2], group, number


def ag_csv(classes: Sequence[str]) -> TextReader:
    """Return a reader of train.csv and test.csv: the class from 1 up, title, description; Kaggle's has a header."""

    def read(path: Path, flag: str) -> TextDataset:
        rows, found = [], _read_texts(path, ("train.csv", "test.csv"), flag)
        numbers = {str(i + 1): i for i in range(len(classes))}
        for split in ("train", "test"):
            for i, row in _csv_rows(found[f"{split}.csv"], f"{flag}: {split}.csv"):
                if i == 1 and row == ["Class Index", "Title", "Description"]:
                    continue
                if len(row) != 3 or row[0] not in numbers:
                    raise BadInput(
                        f"{flag}: line {i} of {split}.csv wants a class from 1 to {len(classes)}, a title and a"
                        " description"
                    )
                rows.append(TextExample(split, news_of({"title": row[1], "text": row[2]}), numbers[row[0]]))
        return gather_texts(rows, flag, classes)

    return read


def banking_csv(n: int) -> TextReader:
    """Return a reader of train.csv and test.csv with the columns text and category, which has `n` values."""

    def read(path: Path, flag: str) -> TextDataset:
        found = _read_texts(path, ("train.csv", "test.csv"), flag)
        rows = []
        for split in ("train", "test"):
            (_, header), *lines = list(_csv_rows(found[f"{split}.csv"], f"{flag}: {split}.csv")) or [(1, [])]
            if header != ["text", "category"]:
                begins = ", ".join(header)
                raise BadInput(f"{flag}: {split}.csv begins with {begins!r}; expected the columns text, category")
            for i, line in lines:
                if len(line) != 2:
                    raise BadInput(f"{flag}: line {i} of {split}.csv has {len(line)} columns; expected text, category")
                rows.append(TextExample(split, line[0], line[1]))
        return gather_texts(rows, flag, n=n)

    return read


def _csv_rows(text: str, flag: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table that are not blank, each with the number of its last line. Quotes must be in pairs."""
    csv.field_size_limit(_CSV_LIMIT)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows if row)
    except csv.Error as e:
        raise BadInput(f"{flag}: line {rows.line_num}: {e}; is a quote left open?") from e


def msr_txt(path: Path, flag: str) -> TextDataset:
    """Return the examples of msr_paraphrase_train.txt and msr_paraphrase_test.txt of a folder."""
    names = {f"msr_paraphrase_{split}.txt": split for split in ("train", "test")}
    tables = {names[name]: text for name, text in _read_texts(path, tuple(names), flag).items()}
    return gather_texts(_paraphrases(tables, flag), flag, ["different", "paraphrase"])


def glue_tsv(kind: str, classes: Sequence[str]) -> TextReader:
    """Return a reader of train.tsv, dev.tsv and, if it exists, test.tsv of a folder. `kind` is mrpc or sst2."""

    def read(path: Path, flag: str) -> TextDataset:
        names = {"train.tsv": "train", "dev.tsv": "validation", "test.tsv": "test"}
        found = _read_texts(path, ("train.tsv", "dev.tsv"), flag, perhaps=("test.tsv",))
        tables = {names[name]: text for name, text in found.items()}
        rows = _paraphrases(tables, flag) if kind == "mrpc" else _sentences(tables, flag)
        return gather_texts(rows, flag, classes)

    return read


def _paraphrases(tables: dict[str, str], flag: str) -> Iterator[TextExample]:
    for split, table in tables.items():
        for row in _tab_rows(table, ("#1 String", "#2 String"), f"{flag}: the {split} table"):
            yield TextExample(split, (row["#1 String"], row["#2 String"]), _digit(row.get("Quality")))


def _sentences(tables: dict[str, str], flag: str) -> Iterator[TextExample]:
    for split, table in tables.items():
        for row in _tab_rows(table, ("sentence",), f"{flag}: the {split} table"):
            yield TextExample(split, row["sentence"].strip(), _digit(row.get("label")))


def _digit(text: str | None) -> int | str | None:
    return int(text) if text in ("0", "1") else text


def _tab_rows(text: str, wanted: Sequence[str], flag: str) -> Iterator[dict[str, str]]:
    """Yield the lines of a table as dictionaries by its header. Quotes are ordinary characters."""
    header, *lines = text.rstrip("\n").split("\n")
    names = header.rstrip("\r").split("\t")
    if missing := [name for name in wanted if name not in names]:
        raise BadInput(f"{flag} has no column {missing[0]!r}; it has {', '.join(names)}")
    for i, line in enumerate(lines, 2):
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(names):
            raise BadInput(f"{flag} has {len(cells)} columns in line {i}, and {len(names)} in its header")
        yield dict(zip(names, cells, strict=True))
