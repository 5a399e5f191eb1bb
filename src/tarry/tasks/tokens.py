"""Texts as rows of token numbers, padded on the right to the longest row of the set."""

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

PAD, UNKNOWN, BETWEEN = 0, 1, 2  # the numbers of a word-level vocabulary that stand for no word
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def pad_rows(rows: Sequence[Sequence[int]], pad: int, width: int = 0) -> Tensor:
    """Rows of one length: of the longest, or of `width`."""
    width = width or max((len(row) for row in rows), default=0)
    table = np.full((len(rows), max(width, 1)), pad, np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return torch.from_numpy(table)


def sample_indices(n: int, most: int | None, stream: int = 0) -> npt.NDArray[np.int64]:
    """Which of n examples are used when there are to be `most`: at random, the same for every seed, in stored order."""
    if most is None or most >= n:
        return np.arange(n)
    return np.sort(rng.permutation(rng.key(0, Stream.DATA, stream), n)[:most])


def check_counts(**counts: int | None) -> None:
    """Numbers of examples or tokens: 1 or more, where one is given."""
    if problems := [f"--task.{k} {v}: must be 1 or more" for k, v in counts.items() if v is not None and v < 1]:
        raise BadInput(problems)


class Vocabulary:
    """A word-level vocabulary: lower case, the most frequent words of the training texts, ties by the alphabet."""

    def __init__(self, texts: Iterable[Text], length: int, most: int):
        self._length = length
        counts = Counter(chain.from_iterable(self._words(t) for t in texts))
        counts.pop("", None)  # what stands between two texts
        frequent = sorted(counts, key=lambda w: (-counts[w], w))[: max(most - 3, 0)]
        self._numbers = {"": BETWEEN} | {word: 3 + i for i, word in enumerate(frequent)}

    def __len__(self) -> int:
        return 2 + len(self._numbers)

    def rows(self, texts: Iterable[Text]) -> list[list[int]]:
        """The numbers of the first `length` words; of a pair, each of the two has half of them at most."""
        get = self._numbers.get
        return [[get(word, UNKNOWN) for word in self._words(text)] for text in texts]

    def _words(self, text: Text) -> list[str]:
        if isinstance(text, str):
            return _first_words(text, self._length)
        half = (self._length - 1) // 2
        return [*_first_words(text[0], half), "", *_first_words(text[1], half)]


def _first_words(text: str, most: int) -> list[str]:
    return [match.group() for match in islice(_WORD.finditer(text.lower()), most)]
