"""Convert texts to rows of token numbers, padded on the right to the longest row of the set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core import rng
from ..core.errors import BadInput
from ..core.rng import Stream
from .data.texts import Text

__all__ = ["Vocabulary", "check_counts", "pad_rows", "sample_indices"]

PAD, UNKNOWN, BETWEEN = 0, 1, 2  # reserved numbers of a word-level vocabulary
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def pad_rows(rows: Sequence[Sequence[int]], pad: int, width: int = 0) -> Tensor:
    """Return the rows padded to one length: `width`, or by default that of the longest row."""
    width = width or max((len(row) for row in rows), default=0)
    table = np.full((len(rows), max(width, 1)), pad, np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return torch.from_numpy(table)


def sample_indices(n: int, most: int | None, stream: int = 0) -> npt.NDArray[np.int64]:
    """Return the indices of at most `most` of n examples: a random sample in stored order, the same for every seed."""
    if most is None or most >= n:
        return np.arange(n)
    return np.sort(rng.permutation(rng.key(0, Stream.DATA, stream), n)[:most])


def check_counts(**counts: int | None) -> None:
    """Raise BadInput if a count of examples or tokens is given and is below 1."""
    if problems := [f"--task.{k} {v}: must be 1 or more" for k, v in counts.items() if v is not None and v < 1]:
        raise BadInput(problems)


class Vocabulary:
    """Word-level vocabulary: lower case, the most frequent words of the training texts, ties in alphabetical order."""

    def __init__(self, texts: Iterable[Text], length: int, most: int):
        self._length = length
        counts = Counter(chain.from_iterable(self._words(t) for t in texts))
        counts.pop("", None)  # the separator of two texts
        frequent = sorted(counts, key=lambda w: (-counts[w], w))[: max(most - 3, 0)]
        self._numbers = {"": BETWEEN} | {word: 3 + i for i, word in enumerate(frequent)}

    def __len__(self) -> int:
        return 2 + len(self._numbers)

    def rows(self, texts: Iterable[Text]) -> list[list[int]]:
        """Return the numbers of the first `length` words of each text. A text of a pair gets at most half."""
        get = self._numbers.get
        return [[get(word, UNKNOWN) for word in self._words(text)] for text in texts]

    def _words(self, text: Text) -> list[str]:
        if isinstance(text, str):
            return _first_words(text, self._length)
        half = (self._length - 1) // 2
        return [*_first_words(text[0], half), "", *_first_words(text[1], half)]


def _first_words(text: str, most: int) -> list[str]:
    return [match.group() for match in islice(_WORD.finditer(text.lower()), most)]
