"""Question answering by next-token prediction, trained with LoRA (FedEcho Sec. 5.2, App. A.1.2).

    x    question and answer as token numbers, padded on the right                     [length]
    y    the next token at each place of the answer, −100 everywhere else              [length]

The loss is the mean over examples of the mean over the tokens of an answer, so that all examples weigh the same.
The accuracy is the share of answer tokens predicted correctly, given all tokens before them (teacher forcing).
`exact_match` tests whether an answer that the model writes by itself ends in the right number.

A hundred questions are kept out of the clients' examples: the server distills on them, without their answers. All
their places count (Task.unlabeled_mask), so a client's table of logits has questions × tokens × vocabulary numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.errors import BadInput
from ..core.task import Indices, Task
from .data import text_sets as text_sets  # fills the catalog
from .data.texts import Text, TextDataset, load_text, with_test
from .models.language import Adapter, causal, padding_of, tokenizer_of
from .options import FetchFromHub, LoraAlpha, LoraRank, TestSample, TrainingSample
from .registries import tasks
from .tokens import check_counts, pad_rows, sample_indices

__all__ = ["Sequences", "answer_loss", "exact_match", "last_number"]

IGNORED = -100  # target of a place that does not count
PAPER_DISTILL_LR = 3e-6  # FedEcho's distillation rate for Qwen2.5
_TEST_QUESTIONS = 1000  # held out of MathInstruct, which has no test set
_MOST_STEPS = 8  # longer answers are one group
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

GenerativeModel = Annotated[str, "smollm2, qwen, a folder or .gguf file, or an id of the Hugging Face hub"]
SequenceLength = Annotated[
    int, "Maximum number of tokens of a question and its answer; answers are truncated, questions are not"
]
LoraDropout = Annotated[float, "Dropout of LoRA's inputs"]
HeldOutQuestions = Annotated[int, "Number of questions kept out of the training set for distillation on the server"]
PromptLength = Annotated[int, "Maximum number of tokens of a question kept for distillation"]
QuestionGroups = Annotated[
    Literal["collection", "steps"],
    "What partitions take as the class of a question: its collection, or the number of steps of its answer, up to 8",
]


@dataclass(frozen=True)
class Sequences(Task):
    """A task whose targets are sequences. Partitions use the natural group of an example instead of its class."""

    def kinds(self) -> Indices:
        assert self.train is not None
        n = len(self.train[0])
        return np.zeros(n, np.int64) if self.groups is None else self.groups.numpy().astype(np.int64)


@dataclass(frozen=True)
class _LanguageSettings:
    """The checked settings of a language task."""

    model: str
    length: int
    adapter: Adapter
    limit: int | None
    test: int | None
    unlabeled: int
    prompt: int
    groups: str

    def __post_init__(self) -> None:
        check_counts(length=self.length, limit=self.limit, test=self.test, unlabeled=self.unlabeled, prompt=self.prompt)


def _add(
    name: str, summary: str, *, model: str, prepare: Callable[[TextDataset], TextDataset] = lambda texts: texts
) -> None:
    """Register the task of a set of questions and answers; `prepare` changes the set before it is tokenized."""

    def task(
        *,
        model: GenerativeModel = model,
        length: SequenceLength = 256,
        lora: LoraRank = 8,
        alpha: LoraAlpha = 16.0,
        dropout: LoraDropout = 0.1,
        limit: TrainingSample = None,
        test: TestSample = 32,
        unlabeled: HeldOutQuestions = 100,
        prompt: PromptLength = 64,
        groups: QuestionGroups = "collection",
        hub: FetchFromHub = False,
    ) -> Task:
        adapter = Adapter(lora, alpha, dropout)
        settings = _LanguageSettings(model, length, adapter, limit, test, unlabeled, prompt, groups)
        return _task(name, prepare(load_text(name, hub=hub)), settings)

    task.__doc__ = summary
    tasks.register(name)(task)


def _hold_out_test(texts: TextDataset) -> TextDataset:
    return with_test(texts, min(_TEST_QUESTIONS, len(texts.train) // 5))


_add("gsm8k", "GSM8K: worked answers to grade school problems, learned token by token.", model="smollm2")
_add(
    "mathinstruct",
    """MathInstruct: answers to mathematical questions of 13 collections, which serve as classes for partitions.

    The set has no test part: a thousand questions are held out, the same for every seed. FedEcho tests the answers
    that its models write to the questions of GSM8K (`exact_match`).
    """,
    model="qwen",
    prepare=_hold_out_test,
)


def _task(name: str, texts: TextDataset, settings: _LanguageSettings) -> Task:
    if settings.unlabeled >= len(texts.train):
        raise BadInput(
            f"--task.unlabeled {settings.unlabeled}: leaves none of {len(texts.train)} training questions of {name}"
            " for training; use a smaller one"
        )
    if not texts.test:
        raise BadInput(f"--task {name}: the set has no test examples (split 'test')")
    tokenizer = tokenizer_of(settings.model, settings.length)
    held_out = sample_indices(len(texts.train), settings.unlabeled, 1)
    remaining = np.setdiff1d(np.arange(len(texts.train)), held_out)
    train = remaining[sample_indices(len(remaining), settings.limit)]
    test = sample_indices(len(texts.test), settings.test)
    x, y, used = _examples([texts.train[i] for i in train], tokenizer, settings.length)
    x_test, y_test, _ = _examples([texts.test[i] for i in test], tokenizer, settings.length)
    if not len(x) or not len(x_test):
        raise BadInput(
            f"--task.length {settings.length}: no question of {name} leaves room for an answer; use a larger one"
        )
    prompts = [row[: settings.prompt] for row in _prompts([texts.train[i] for i in held_out], tokenizer)]
    return Sequences(
        name,
        model=partial(causal, settings.model, settings.adapter),
        loss=answer_loss,
        train=(x, y),
        test=(x_test, y_test),
        groups=_groups(texts, train[used], settings.groups),
        unlabeled=pad_rows(prompts, padding_of(tokenizer)),
        unlabeled_mask=pad_rows([[1] * len(row) for row in prompts], 0).bool(),
        distill_lr=PAPER_DISTILL_LR,
        chunk=8,  # small, because the outputs have one number per place and vocabulary entry
    )


def _groups(texts: TextDataset, chosen: npt.NDArray[np.int64], kind: str) -> Tensor:
    """Return the group of each chosen question. Steps are lines of the answer, as GSM8K's and most worked answers."""
    if kind == "collection":
        return torch.from_numpy(texts.y_train[chosen])
    lines = [sum(bool(line.strip()) for line in texts.train[i][1].splitlines()) for i in chosen]
    return torch.tensor([min(max(n, 1), _MOST_STEPS) - 1 for n in lines], dtype=torch.int64)


def _examples(texts: Sequence[Text], tokenizer: Any, length: int) -> tuple[Tensor, Tensor, list[int]]:
    """Return inputs, targets and the indices of the texts used: those whose question leaves room for an answer."""
    rows, targets, used = [], [], []
    answers = _tokenize(tokenizer, [t[1] for t in texts])
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for i, (prompt, answer) in enumerate(zip(_prompts(texts, tokenizer), answers, strict=True)):
        row = [*prompt, *answer, *end][:length]
        if len(prompt) < len(row):
            rows.append(row)
            targets.append([IGNORED] * (len(prompt) - 1) + row[len(prompt) :] + [IGNORED])
            used.append(i)
    return pad_rows(rows, padding_of(tokenizer)), pad_rows(targets, IGNORED), used


def _prompts(texts: Sequence[Text], tokenizer: Any) -> list[list[int]]:
    """Return the token numbers of the questions, in the model's chat template if it has one."""
    if tokenizer.chat_template:
        chats = [[{"role": "user", "content": t[0]}] for t in texts]
        return _tokenize(
            tokenizer,
            [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats],
        )
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [[*begin, *row] for row in _tokenize(tokenizer, [f"Question: {t[0]}\nAnswer: " for t in texts])]


def _tokenize(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return rows


def answer_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over examples of the mean cross-entropy of the answer tokens."""
    counted = targets != IGNORED
    each = cross_entropy(outputs.flatten(0, 1), targets.clamp_min(0).flatten(), reduction="none").view_as(targets)
    return (torch.where(counted, each, 0.0).sum(1) / counted.sum(1).clamp_min(1)).mean()


def last_number(text: str) -> str | None:
    """Return the number that an answer ends in, without commas: after GSM8K's ####, else the last one; else None."""
    found: list[str] = _NUMBER.findall(text.rpartition("####")[2]) or _NUMBER.findall(text)
    if not found:
        return None
    plain = found[-1].replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


@torch.no_grad()
def exact_match(module: nn.Module, name: str, problems: Sequence[Text], *, tokens: int = 256, batch: int = 32) -> float:
    """Return the share of problems (question, answer) whose answer, decoded greedily, ends in the right number.

    `module` is the task's module (build_module) with the weights to be tested; `name` is --task.model. `batch` problems
    are answered at once, up to `tokens` tokens each, with the keys and values of earlier tokens kept: on a GPU 500
    problems take minutes, on a CPU hours.
    """
    tokenizer = tokenizer_of(name)
    was_training = module.training
    module.eval()
    prompts = _prompts(problems, tokenizer)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # similar lengths together: little padding
    right = 0
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        written = _write(module, tokenizer, [prompts[i] for i in chosen], tokens)
        right += sum(
            (number := last_number(text)) is not None and number == last_number(problems[i][1])
            for i, text in zip(chosen, written, strict=True)
        )
    module.train(was_training)
    return right / max(len(problems), 1)


def _write(module: nn.Module, tokenizer: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
    """Return the texts that follow the prompts. Prompts are padded on the left, so that all end at the same place."""
    padding, length = padding_of(tokenizer), max(map(len, prompts))
    device = next(module.parameters()).device
    x = torch.tensor([[padding] * (length - len(row)) + [*row] for row in prompts], device=device)
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in prompts], device=device)
    generated: Any = module.model.generate(  # type: ignore[operator,union-attr]
        x, attention_mask=mask, max_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=padding
    )
    texts: list[str] = tokenizer.batch_decode(generated[:, length:], skip_special_tokens=True)
    return texts
