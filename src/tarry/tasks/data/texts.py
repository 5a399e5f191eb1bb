"""Data sets of texts, and how the rows of a reader become one.

A text is a string, or a pair of strings: two sentences to compare, or a question and its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core.errors import BadInput
from .arrays import Labels, hold_out
from .sets import fetch

__all__ = ["Text", "TextDataset", "TextExample", "gather_texts", "load_text", "with_test"]

Text = str | tuple[str, str]


@dataclass(frozen=True)
class TextDataset:
    """Texts and their classes. A label is an index into `classes`. `unlabeled` are the texts without labels.

    `has_validation` says that the test set is the set's own validation part.
    """

    train: tuple[Text, ...]
    y_train: Labels
    test: tuple[Text, ...]
    y_test: Labels
    classes: tuple[str, ...]
    unlabeled: tuple[Text, ...] = ()
    has_validation: bool = False


class TextExample(NamedTuple):
    """One example as read: its split, its text, and its class by number or name (None: unknown)."""

    split: str
    text: Text
    label: int | str | None = None


def gather_texts(rows: Iterable[TextExample], flag: str, classes: Sequence[str] = (), n: int = 0) -> TextDataset:
    """Return the rows of the splits train, test and validation as one set.

    If there is a validation split, it is the test set, and the texts of the test split are unlabeled, as in GLUE. If
    `classes` is empty, labels are names, numbered in alphabetical order, or numbers from 0 up; `n` is then the required
    number of classes, if it is known.
    """
    by: dict[str, list[TextExample]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        if not isinstance(row.split, str) or row.split not in by:
            raise BadInput(f"{flag}: has the split {row.split!r}; expected {', '.join(by)}")
        by[row.split].append(row)
    train, test = by["train"], by["validation"] or by["test"]
    if not train:
        raise BadInput(f"{flag}: has no training examples (split 'train')")
    classes = classes or _classes((*train, *test), flag, n)
    place = {name: i for i, name in enumerate(classes)}
    return TextDataset(
        train=tuple(r.text for r in train),
        y_train=_labels(train, place, flag),
        test=tuple(r.text for r in test),
        y_test=_labels(test, place, flag),
        classes=tuple(classes),
        unlabeled=tuple(r.text for r in by["test"]) if by["validation"] else (),
        has_validation=bool(by["validation"]),
    )


def _classes(rows: Sequence[TextExample], flag: str, n: int) -> list[str]:
    if len({isinstance(row.label, str) for row in rows if isinstance(row.label, str | int)}) > 1:
        raise BadInput(f"{flag}: some labels are names and some numbers; all must be alike")
    counts = Counter(str(row.label) for row in rows)
    if n and len(counts) != n:
        once = [name for name, count in counts.items() if count == 1]
        few = f"; seen once: {', '.join(once[:5])}{', …' if len(once) > 5 else ''}" if once else ""
        raise BadInput(f"{flag}: has {len(counts)} classes in place of {n}{few}")
    return sorted(counts)


def _labels(rows: Sequence[TextExample], place: dict[str, int], flag: str) -> Labels:
    found = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows):
        label = place.get(row.label, -1) if isinstance(row.label, str) else row.label
        if not isinstance(label, int) or not 0 <= label < len(place):
            raise BadInput(
                f"{flag}: a {row.split} example has the label {row.label!r}; its classes are {len(place)}, from 0:"
                f" {', '.join(list(place)[:5])}{', …' if len(place) > 5 else ''}"
            )
        found[i] = label
    return found


def with_test(texts: TextDataset, n: int) -> TextDataset:
    """Return the set with `n` training examples held out for testing, stratified by class, the same for every seed.

    The former test texts become unlabeled.
    """
    marked = hold_out(texts.y_train, n)
    remaining, held = np.flatnonzero(~marked), np.flatnonzero(marked)
    return TextDataset(
        train=tuple(texts.train[i] for i in remaining),
        y_train=texts.y_train[remaining],
        test=tuple(texts.train[i] for i in held),
        y_test=texts.y_train[held],
        classes=texts.classes,
        unlabeled=texts.unlabeled or texts.test,
    )


def load_text(name: str, *, hub: bool = False) -> TextDataset:
    """Return a data set of texts: from TARRY_DATA, else from the hub if asked for. Raise BadInput otherwise."""
    texts = fetch(name, hub=hub)
    if not isinstance(texts, TextDataset):
        raise BadInput(f"--task {name}: it is a set of images or series, not of texts")
    return texts
