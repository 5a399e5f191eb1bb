"""Language generation: a model of the next token learns to answer questions, by LoRA (FedEcho Sec. 5.2, App. A.1.2).

    x    question and answer as token numbers, padded on the right                     [length]
    y    at each place of the answer the token that comes next, −100 everywhere else   [length]

The loss is the mean over examples of the mean over an answer's tokens, so that no example counts for more than another.
The score is the share of an answer's tokens that are the likeliest ones, given all before them; whether an answer that
the model writes by itself ends in the right number is said by `exact_match`.

A hundred questions are kept out of everybody's examples: they are what a server distils on, without their answers. All
their places count (Task.unlabelled_mask), so a client's table of logits has questions × tokens × vocabulary numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.errors import BadInput
from ..core.task import Partitioner, Shards, Task
from .data import text_sets as text_sets  # fills the catalogue
from .data.texts import Text, TextDataset, load_text, with_test
from .models.language import Adapter, causal, max_length, tokenizer_of
from .registries import tasks
from .tokens import check_counts, pad_rows, sample_indices

__all__ = ["Sequences", "answer_loss", "exact_match", "last_number", "token_accuracy"]

IGNORED = -100  # a target that is none
PAPER_DISTILL_LR = 3e-6  # at which FedEcho distils Qwen2.5
_TEST_QUESTIONS = 1000  # of MathInstruct, which has no test set
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Model = Annotated[str, "smollm2, qwen, a folder or .gguf file, or an id of the Hugging Face hub"]
Length = Annotated[int, "tokens of a question with its answer, at most; an answer is cut, a question never"]
Lora = Annotated[int, "rank of LoRA's matrices; 0: the whole model is trained"]
Alpha = Annotated[float, "α of LoRA: what its matrices add is scaled by α / rank"]
Dropout = Annotated[float, "of LoRA's inputs; with 0 clients can be trained in stacks"]
Limit = Annotated[int | None, "use only so many training examples, drawn at random"]
Tested = Annotated[int | None, "use only so many test examples, drawn at random; none: all"]
Unlabelled = Annotated[int, "questions kept out of the training set for the server to distil on"]
Prompt = Annotated[int, "tokens of such a question, at most"]
FromHub = Annotated[bool, "fetch the set from the Hugging Face hub when it is not in TARRY_DATA"]


@dataclass(frozen=True)
class Sequences(Task):
    """A task whose targets are sequences: a partition goes by the natural group of an example in place of its class."""

    def split(self, partitioner: Partitioner, n_clients: int, rng: np.random.Generator) -> Task:
        if self.train is None:
            return super().split(partitioner, n_clients, rng)
        x, y = self.train
        kinds = torch.zeros(len(x), dtype=torch.int64) if self.groups is None else self.groups
        order = Task.split(replace(self, train=(torch.arange(len(x)), kinds)), partitioner, n_clients, rng)
        dealt = order.clients
        assert isinstance(dealt, Shards)
        shards = Shards(x[dealt.x], y[dealt.x], np.diff(dealt.ends).tolist())
        return replace(self, clients=shards, train=None, groups=None)


@dataclass(frozen=True)
class _LanguageSettings:
    """What a task's flags say."""

    model: str
    length: int
    adapter: Adapter
    limit: int | None
    test: int | None
    unlabelled: int
    prompt: int

    def __post_init__(self) -> None:
        check_counts(
            length=self.length, limit=self.limit, test=self.test, unlabelled=self.unlabelled, prompt=self.prompt
        )


def _add(
    name: str, summary: str, *, model: str, prepare: Callable[[TextDataset], TextDataset] = lambda texts: texts
) -> None:
    """Register the task of a set of questions and answers; `prepare` changes the set before it is tokenized."""

    def task(
        *,
        model: Model = model,
        length: Length = 256,
        lora: Lora = 8,
        alpha: Alpha = 16.0,
        dropout: Dropout = 0.1,
        limit: Limit = None,
        test: Tested = 32,
        unlabelled: Unlabelled = 100,
        prompt: Prompt = 64,
        hub: FromHub = False,
    ) -> Task:
        settings = _LanguageSettings(model, length, Adapter(lora, alpha, dropout), limit, test, unlabelled, prompt)
        return _task(name, prepare(load_text(name, hub=hub)), settings)

    task.__doc__ = summary
    tasks.register(name)(task)


def _hold_out_test(texts: TextDataset) -> TextDataset:
    return with_test(texts, min(_TEST_QUESTIONS, len(texts.train) // 5))


_add("gsm8k", "GSM8K: worked answers to grade school problems, token by token.", model="smollm2")
_add(
    "mathinstruct",
    """MathInstruct: answers to mathematical questions of 13 collections, by which partitions go.

    Tested on a thousand questions held out, the same for every seed: the set has no test part. FedEcho tests what its
    models write for GSM8K's questions (`exact_match`).
    """,
    model="qwen",
    prepare=_hold_out_test,
)


def _task(name: str, texts: TextDataset, how: _LanguageSettings) -> Task:
    if how.unlabelled >= len(texts.train):
        raise BadInput(
            f"--task.unlabelled {how.unlabelled}: leaves none of the {len(texts.train)} training questions of {name} to"
            " train on; use a smaller one"
        )
    if not texts.test:
        raise BadInput(f"--task {name}: the set has no test examples (split 'test')")
    most = max_length(how.model)
    if most is not None and how.length > most:
        raise BadInput(f"--task.length {how.length}: --task.model {how.model} reads at most {most} tokens")
    tokenizer = tokenizer_of(how.model)
    asked = sample_indices(len(texts.train), how.unlabelled, 1)
    others = np.setdiff1d(np.arange(len(texts.train)), asked)
    train = others[sample_indices(len(others), how.limit)]
    test = sample_indices(len(texts.test), how.test)
    x, y, kept = _examples([texts.train[i] for i in train], tokenizer, how.length)
    x_test, y_test, _ = _examples([texts.test[i] for i in test], tokenizer, how.length)
    if not len(x) or not len(x_test):
        raise BadInput(f"--task.length {how.length}: no question of {name} leaves room for an answer; use a larger one")
    prompts = [row[: how.prompt] for row in _prompts([texts.train[i] for i in asked], tokenizer)]
    return Sequences(
        name,
        model=partial(causal, how.model, how.adapter),
        loss=answer_loss,
        score=token_accuracy,
        train=(x, y),
        test=(x_test, y_test),
        groups=torch.from_numpy(texts.y_train[train][kept]),
        unlabelled=pad_rows(prompts, _padding(tokenizer)),
        unlabelled_mask=pad_rows([[1] * len(row) for row in prompts], 0).bool(),
        distil_lr=PAPER_DISTILL_LR,
        chunk=8,  # a number for every word of the vocabulary, at every place
    )


def _examples(texts: Sequence[Text], tokenizer: Any, length: int) -> tuple[Tensor, Tensor, list[int]]:
    """Inputs, targets, and which of the texts they are: those whose question leaves room for an answer."""
    rows, targets, kept = [], [], []
    answers = _tokenize(tokenizer, [t[1] for t in texts])
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for i, (question, answer) in enumerate(zip(_prompts(texts, tokenizer), answers, strict=True)):
        row = [*question, *answer, *end][:length]
        if len(question) < len(row):
            rows.append(row)
            targets.append([IGNORED] * (len(question) - 1) + row[len(question) :] + [IGNORED])
            kept.append(i)
    return pad_rows(rows, _padding(tokenizer)), pad_rows(targets, IGNORED), kept


def _prompts(texts: Sequence[Text], tokenizer: Any) -> list[list[int]]:
    """The questions in the form the model was taught, where it says so."""
    if tokenizer.chat_template:
        said = [[{"role": "user", "content": t[0]}] for t in texts]
        return _tokenize(
            tokenizer, [tokenizer.apply_chat_template(s, tokenize=False, add_generation_prompt=True) for s in said]
        )
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [[*begin, *row] for row in _tokenize(tokenizer, [f"Question: {t[0]}\nAnswer: " for t in texts])]


def _tokenize(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return rows


def _padding(tokenizer: Any) -> int:
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(c for c in candidates if c is not None)


def answer_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over examples of the mean cross-entropy of an answer's tokens."""
    counted = targets != IGNORED
    each = cross_entropy(outputs.flatten(0, 1), targets.clamp_min(0).flatten(), reduction="none").view_as(targets)
    return (torch.where(counted, each, 0.0).sum(1) / counted.sum(1).clamp_min(1)).mean()


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum over examples of the share of an answer's tokens that are the likeliest. NaN is never right."""
    counted = targets != IGNORED
    scores = outputs[counted]
    right = torch.zeros_like(targets)
    right[counted] = ((scores.argmax(-1) == targets[counted]) & ~scores.isnan().any(-1)).long()
    return (right.sum(1) / counted.sum(1).clamp_min(1)).sum()


def last_number(text: str) -> str | None:
    """The number an answer ends in, plainly written: after GSM8K's ####, else the last one."""
    found: list[str] = _NUMBER.findall(text.rpartition("####")[2]) or _NUMBER.findall(text)
    if not found:
        return None
    plain = found[-1].replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


@torch.no_grad()
def exact_match(module: nn.Module, name: str, problems: Sequence[Text], *, tokens: int = 256) -> float:
    """The share of problems (question, answer) whose written answer ends in the right number, by greedy choice.

    `module` is the task's (build_module), with the weights to be asked; `name` is --task.model. One problem at a time
    and one token at a time: up to `tokens` passes a problem, so GSM8K's 1,319 are an affair of hours on a processor.
    """
    tokenizer, model = tokenizer_of(name), module.model
    was, device = module.training, next(module.parameters()).device
    module.eval()
    right = 0
    for row, problem in zip(_prompts(problems, tokenizer), problems, strict=True):
        x = torch.tensor([row], device=device)
        said: Any = model.generate(  # type: ignore[operator,union-attr]
            x,
            attention_mask=torch.ones_like(x),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=_padding(tokenizer),
        )
        written = tokenizer.decode(said[0, x.shape[1] :], skip_special_tokens=True)
        right += last_number(written) is not None and last_number(written) == last_number(problem[1])
    module.train(was)
    return right / max(len(problems), 1)
