"""Text classification: TextCNN on words, or a pretrained encoder of Hugging Face with LoRA on its own tokens.

An example is one row of token numbers; its padding, and where the second text of a pair begins, can be read off it.
Texts are tokenised when the task is built; rows are as long as the longest one, `length` at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.errors import BadInput
from ..core.task import Task
from .data import text_sets as text_sets  # fills the catalogue
from .data.text_files import loose_jsonl
from .data.texts import Text, TextDataset, load_text, with_test
from .models import Build, model_for
from .models.language import Adapter, classifier, max_length, tokenizer_of
from .registries import tasks
from .tokens import Vocabulary, check_counts, pad_rows, sample_indices

__all__ = ["jsonl", "mrpc", "sst2"]

MRPC_VALIDATION = 408  # GLUE's
SMALL_LR, BERT_LR = 1e-4, 3e-7  # at which FedEcho distils: TextCNN from scratch (as small image models); the paper's

Model = Annotated[str, "textcnn, minilm, distilbert, bert, a folder, or an id of the Hugging Face hub"]
Length = Annotated[int, "tokens of a text, at most"]
Lora = Annotated[int, "rank of LoRA's matrices; 0: the whole encoder is trained"]
Alpha = Annotated[float, "α of LoRA: what its matrices add is scaled by α / rank"]
Dropout = Annotated[float | None, "of LoRA's inputs; 0: none in the encoder either. none: 0.1, and 0 for textcnn"]
Vocabulary = Annotated[int, "words of textcnn at most, with three for padding, unknown ones and what is between texts"]
Limit = Annotated[int | None, "use only so many training examples, drawn at random, for quick runs"]
Tested = Annotated[int | None, "use only so many test examples, drawn at random"]
Unlabelled = Annotated[int, "inputs without labels that the server has, drawn at random"]
FromHub = Annotated[bool, "fetch the set from the Hugging Face hub when it is not in TARRY_DATA"]


@dataclass(frozen=True)
class _TextSettings:
    """What a text task's flags say."""

    model: str
    length: int
    lora: int
    alpha: float
    dropout: float | None
    vocabulary: int
    limit: int | None
    test: int | None
    unlabelled: int | None = None

    def __post_init__(self) -> None:
        check_counts(
            length=self.length, limit=self.limit, test=self.test, unlabelled=self.unlabelled, vocabulary=self.vocabulary
        )


def _add(name: str, summary: str, *, length: int) -> None:
    """Register the task of a text set that has no unlabeled part; `length` is the default of --task.length."""

    def task(
        *,
        model: Model = "textcnn",
        length: Length = length,
        lora: Lora = 8,
        alpha: Alpha = 16.0,
        dropout: Dropout = None,
        vocabulary: Vocabulary = 24790,
        limit: Limit = None,
        test: Tested = None,
        hub: FromHub = False,
    ) -> Task:
        settings = _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test)
        return _task(name, load_text(name, hub=hub), settings)

    task.__doc__ = summary
    tasks.register(name)(task)


_add(
    "20newsgroups",
    """20 Newsgroups: which group a post was sent to; header, signature and quotes are cut away.

    OrthoFL's is --task.model distilbert --task.length 512 (LoRA r = 8, α = 16, dropout 0.1: the defaults); --task.model
    minilm can be installed by pip.
    """,
    length=128,
)
_add(
    "ag_news",
    "AG_NEWS: world, sports, business or technology; textcnn is Fed-OGD's model, of its size in bytes.",
    length=64,
)
_add("banking77", "Banking77: which of 77 things a bank's customer wants.", length=64)


@tasks.register("mrpc")
def mrpc(
    *,
    model: Model = "textcnn",
    length: Length = 128,
    lora: Lora = 8,
    alpha: Alpha = 16.0,
    dropout: Dropout = None,
    vocabulary: Vocabulary = 24790,
    limit: Limit = None,
    test: Tested = None,
    validation: Annotated[
        int, "training pairs held out to test on, where the files have no validation set; 0: the test pairs are"
    ] = MRPC_VALIDATION,
    unlabelled: Unlabelled = 100,
    hub: FromHub = False,
) -> Task:
    """MRPC: whether two sentences say the same; the test pairs, without labels, are what a server distils on.

    As FedEcho has it: tested on the validation set (GLUE's own or as many pairs, the same for every seed), 100 test
    pairs unlabelled. Its model is --task.model bert --task.lora 0.
    """
    texts = load_text("mrpc", hub=hub)
    if not texts.has_validation and not 0 <= validation < len(texts.train):
        raise BadInput(f"--task.validation {validation}: must be from 0 to {len(texts.train) - 1}")
    if not texts.has_validation and validation:
        texts = with_test(texts, validation)
    return _task("mrpc", texts, _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabelled))


@tasks.register("sst2")
def sst2(
    *,
    model: Model = "textcnn",
    length: Length = 64,
    lora: Lora = 8,
    alpha: Alpha = 16.0,
    dropout: Dropout = None,
    vocabulary: Vocabulary = 24790,
    limit: Limit = None,
    test: Tested = None,
    unlabelled: Unlabelled = 100,
    hub: FromHub = False,
) -> Task:
    """SST-2: whether a phrase of a film review is positive; tested on GLUE's validation set."""
    how = _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabelled)
    return _task("sst2", load_text("sst2", hub=hub), how)


@tasks.register("jsonl")
def jsonl(
    *,
    path: Annotated[str, "the .jsonl file"],
    model: Model = "textcnn",
    length: Length = 128,
    lora: Lora = 8,
    alpha: Alpha = 16.0,
    dropout: Dropout = None,
    vocabulary: Vocabulary = 24790,
    limit: Limit = None,
    test: Tested = None,
    unlabelled: Unlabelled = 100,
) -> Task:
    """Any .jsonl file of texts: an object a line with split (train, test, validation), y, and text, or s1 and s2.

    Classes are names, or numbers from 0 up. Where there is a validation part it is what is tested on, and the texts of
    the test part, whose y may be null, are without labels, as in GLUE.
    """
    file, how = (
        Path(path).expanduser(),
        _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabelled),
    )
    return _task(file.stem, loose_jsonl(file, f"--task.path {path}"), how)


def _task(name: str, texts: TextDataset, how: _TextSettings) -> Task:
    train, test = sample_indices(len(texts.train), how.limit), sample_indices(len(texts.test), how.test)
    if not len(test):
        raise BadInput(f"--task {name}: the set has no test examples (split 'test' or 'validation')")
    others = sample_indices(len(texts.unlabeled), how.unlabelled, 1)
    sets = [[texts.train[i] for i in train], [texts.test[i] for i in test], [texts.unlabeled[i] for i in others]]
    classes, small = len(texts.classes), how.model == "textcnn"
    (x, x_test, x_other), build = _textcnn_rows(sets, classes, how) if small else _encoder_rows(sets, classes, how)
    return Task(
        name,
        model=build,
        loss=cross_entropy,
        train=(x, torch.from_numpy(texts.y_train[train])),
        test=(x_test, torch.from_numpy(texts.y_test[test])),
        unlabelled=x_other if len(x_other) else None,
        distil_lr=SMALL_LR if small else BERT_LR,
    )


def _textcnn_rows(sets: Sequence[list[Text]], classes: int, how: _TextSettings) -> tuple[list[Tensor], Build]:
    words = Vocabulary(sets[0], how.length, how.vocabulary)
    rows = _pad_to_longest([words.rows(texts) for texts in sets], 0, least=_MIN_LENGTH)
    build = model_for("textcnn", rows[0].shape[1:], classes, vocabulary=len(words), dropout=how.dropout)
    return rows, build


_MIN_LENGTH = 5  # textcnn's widest convolution


def _encoder_rows(sets: Sequence[list[Text]], classes: int, how: _TextSettings) -> tuple[list[Tensor], Build]:
    adapter = Adapter(how.lora, how.alpha, 0.1 if how.dropout is None else how.dropout)
    most = max_length(how.model)
    if most is not None and how.length > most:
        raise BadInput(f"--task.length {how.length}: --task.model {how.model} reads at most {most} tokens")
    tokenizer = tokenizer_of(how.model)
    pad = _first_number(tokenizer.pad_token_id, tokenizer.eos_token_id)
    rows = _pad_to_longest([_tokenize_texts(tokenizer, texts, how.length) for texts in sets], pad)
    separator = tokenizer.sep_token_id
    return rows, partial(classifier, how.model, classes, adapter, pad=pad, separator=separator)


def _first_number(*candidates: int | None) -> int:
    return next((c for c in candidates if c is not None), 0)


def _tokenize_texts(tokenizer: Any, texts: list[Text], length: int) -> list[list[int]]:
    """The numbers of every text; of two, as a pair."""
    first, second = [t if isinstance(t, str) else t[0] for t in texts], [t[1] for t in texts if not isinstance(t, str)]
    begun = first if second else [_leading_words(t, length * _LETTERS_PER_TOKEN) for t in first]
    rows = _tokenize(tokenizer, begun, second, length)
    short = [i for i, row in enumerate(rows) if len(row) < length and begun[i] is not first[i]]
    for i, row in zip(short, _tokenize(tokenizer, [first[i] for i in short], [], length), strict=True):
        rows[i] = row
    return rows


_LETTERS_PER_TOKEN = (
    12  # of a text for a token wanted: most have fewer a token, and nobody need look at more of a long text
)


def _leading_words(text: str, letters: int) -> str:
    """So many letters of it, and no broken word."""
    return text if len(text) <= letters else text[:letters].rpartition(" ")[0]


def _tokenize(tokenizer: Any, first: list[str], second: list[str], length: int) -> list[list[int]]:
    if not first:
        return []
    made = tokenizer(
        first,
        second or None,
        truncation=True,
        max_length=length,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    rows: list[list[int]] = made["input_ids"]
    return rows


def _pad_to_longest(sets: Sequence[list[list[int]]], pad: int, least: int = 1) -> list[Tensor]:
    """Every set's rows in the width of the longest of all."""
    width = max(least, *(len(row) for rows in sets for row in rows))
    return [pad_rows(rows, pad, width) for rows in sets]
