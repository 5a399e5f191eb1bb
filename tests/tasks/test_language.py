"""Models of the next token that learn to answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from tarry.core.errors import BadInput
from tarry.core.shards import Shards
from tarry.core.task import Task
from tarry.metrics.classification import Accuracy
from tarry.tasks import partitions, tasks
from tarry.tasks.language import _write, answer_loss, exact_match, last_number
from tarry.tasks.models.language import tokenizer_of
from tarry.training.flat_model import build_module
from tests.helpers.by_flags import build_by_flags
from tests.helpers.tiny_language import lines, save, sums


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    return tmp_path


def build(folder: Path, name: str = "gsm8k", **params: Any) -> Task:
    if not (folder / "llama").exists():
        save(folder / "llama", "llama")
    own = {"model": str(folder / "llama"), "length": 32, "unlabeled": 10}
    return build_by_flags(tasks, name, **{**own, **params})


def examples(task: Task) -> tuple[Tensor, Tensor]:
    assert task.train is not None
    return task.train


def test_targets_are_the_answers_next_tokens_and_nothing_else(folder: Path) -> None:
    sums(folder / "gsm8k.jsonl")
    task = build(folder)
    x, y = examples(task)
    tokens = tokenizer_of(str(folder / "llama"))
    assert len(x) == 50
    for row, target in zip(x, y, strict=True):
        text = tokens.decode(row[row != 0])
        question, answer = text.split("answer :")
        assert question.startswith("[CLS] question : ")
        assert tokens.decode(target[target >= 0]) == answer.strip()
        assert answer.endswith("[SEP]"), "it learns to stop"
        at = torch.nonzero(target >= 0).flatten()
        assert torch.equal(target[at], row[at + 1])
        assert at.tolist() == list(range(at[0].item(), at[0].item() + len(at)))


def test_questions_of_the_server_are_nobodys_examples_and_every_token_of_them_counts(folder: Path) -> None:
    rows = [
        {"split": s, "question": f"{i} ? " + "very " * (i % 3), "answer": "good"}
        for s in ("train", "test")
        for i in range(30)
    ]
    lines(folder / "gsm8k.jsonl", rows)
    task = build(folder, unlabeled=12)
    tokens = tokenizer_of(str(folder / "llama"))
    x, mask = task.unlabeled, task.unlabeled_mask
    assert x is not None
    assert mask is not None
    assert x.shape == mask.shape == (12, 9)
    assert torch.equal(mask, x != 0)
    numbers = {tokens.decode(row).split()[3] for row in x}
    theirs = {tokens.decode(row).split()[3] for row in examples(task)[0]}
    assert len(numbers) == 12
    assert len(theirs) == 18
    assert not numbers & theirs
    short = build(folder, unlabeled=12, prompt=5).unlabeled
    assert short is not None
    assert torch.equal(short, x[:, :5])


def test_an_answer_is_cut_and_a_question_never(folder: Path) -> None:
    rows = [
        {"split": s, "question": q, "answer": "1 2 3 4 5 6"}
        for s in ("train", "test")
        for q in ["good"] * 4 + ["bad " * 20] * 4
    ]
    lines(folder / "gsm8k.jsonl", rows)
    x, y = examples(build(folder, length=10, unlabeled=1))
    assert x.shape[1] == 10
    assert 3 <= len(x) <= 4
    assert ((y >= 0).sum(1) == 4).all()
    with pytest.raises(BadInput, match=r"--task\.length 5: no question of gsm8k leaves room for an answer"):
        build(folder, length=5, unlabeled=1)


def test_a_models_own_form_of_a_question_is_used(folder: Path) -> None:
    sums(folder / "gsm8k.jsonl")
    save(folder / "llama", "llama")
    config = json.loads((folder / "llama/tokenizer_config.json").read_text())
    form = "{% for m in messages %}a {{ m['content'] }} was {% endfor %}{% if add_generation_prompt %}# {% endif %}"
    (folder / "llama/tokenizer_config.json").write_text(json.dumps({**config, "chat_template": form}))
    x, _ = examples(build(folder))
    text = tokenizer_of(str(folder / "llama")).decode(x[0])
    assert text.startswith("a ")
    assert " was # the answer is" in text


def test_the_loss_is_a_mean_over_examples_of_a_mean_over_tokens() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4, 7, generator=g, dtype=torch.float64)
    y = torch.tensor([[-100, 2, 3, -100], [1, 2, 3, 4], [-100, -100, 6, -100]])
    by_hand = np.mean([cross_entropy(z[i][y[i] >= 0], y[i][y[i] >= 0]).item() for i in range(3)])
    assert answer_loss(z, y).item() == pytest.approx(by_hand)
    single = vmap(lambda a, b: answer_loss(a[None], b[None]))(z, y)
    torch.testing.assert_close(single.mean(), answer_loss(z, y))
    nothing = torch.full((1, 4), -100)
    assert answer_loss(z[:1], nothing).item() == 0


def test_the_score_is_each_examples_share_of_right_tokens() -> None:
    y = torch.tensor([[-100, 2, 3, -100], [1, 2, 3, 4]])
    z = torch.zeros(2, 4, 7)
    z[0, 0, 5] = z[0, 1, 2] = z[0, 2, 2] = 1  # of two tokens one
    for i in range(4):
        z[1, i, i + 1] = 1
    assert Accuracy.per_example(z, y).tolist() == [0.5, 1.0]
    z[1, 0, 0] = torch.nan
    assert Accuracy.per_example(z, y).tolist() == [0.5, 0.75]


def math_instruct(folder: Path) -> None:
    rows = [
        {"instruction": f"{i} + {kind} ?", "output": f"{i}", "source": f"data/{kind}.json"}
        for kind in range(3)
        for i in range(20)
    ]
    (folder / "MathInstruct.json").write_text(json.dumps(rows))


def test_partitions_go_by_the_collection_a_question_is_from(folder: Path) -> None:
    math_instruct(folder)
    task = build(folder, "mathinstruct", unlabeled=3)
    assert task.test is not None
    assert len(task.test[0]) == 12
    tokens, (x, y) = tokenizer_of(str(folder / "llama")), examples(task)
    groups = task.groups
    assert groups is not None

    def kind(row: Tensor) -> int:
        return int(tokens.decode(row).split("+")[1].split()[0])

    assert [kind(row) for row in x] == groups.tolist()
    dealt = task.split(partitions.build("groups"), 3, np.random.default_rng(0))
    assert isinstance(dealt.clients, Shards)
    assert [{kind(row) for row in client[0]} for client in dealt.clients] == [{0}, {1}, {2}]
    skewed = task.split(partitions.build("dirichlet", alpha=0.05), 3, np.random.default_rng(0))
    assert type(skewed) is type(task)
    assert min(len({kind(row) for row in client[0]}) for client in skewed.clients) < 3
    rows = {(*a.tolist(), *b.tolist()) for a, b in zip(x, y, strict=True)}
    for xs, ys in skewed.clients:
        assert all((*a.tolist(), *b.tolist()) in rows for a, b in zip(xs, ys, strict=True)), "targets stay with inputs"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 + 4 = 7.\n#### 1,234", "1234"),
        ("the answer is -2.50 dollars", "-2.5"),
        ("#### 7.00", "7"),
        ("#### none, but 12 before", "12"),
        ("nothing", None),
        ("", None),
    ],
)
def test_the_number_an_answer_ends_in(text: str, number: str | None) -> None:
    assert last_number(text) == number


class Parrot(nn.Module):
    """Writes the same tokens whatever it is asked."""

    def __init__(self, says: list[int]):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.says = says

    def generate(self, x: Tensor, *, max_new_tokens: int, **_: Any) -> Tensor:
        return torch.cat([x, torch.tensor([self.says[:max_new_tokens]]).expand(len(x), -1)], 1)


class Wrapped(nn.Module):
    def __init__(self, says: list[int]):
        super().__init__()
        self.model = Parrot(says)


def test_exact_match_counts_right_numbers(folder: Path) -> None:
    name = save(folder / "llama", "llama")
    says = tokenizer_of(name)("the answer is # # # # 7", add_special_tokens=False)["input_ids"]
    problems = [("3 + 4 ?", "#### 7"), ("1 + 1 ?", "#### 2"), ("7 ?", "7"), ("what ?", "none")]
    assert exact_match(Wrapped(says), name, problems) == 0.5
    assert exact_match(Wrapped(says), name, problems, tokens=3) == 0


def test_problems_are_answered_together_as_one_by_one(folder: Path) -> None:
    """Prompts of several lengths; a left-padded prompt changes no token that is written."""
    sums(folder / "gsm8k.jsonl")
    name = str(folder / "llama")
    module, tokenizer = build_module(build(folder), seed=0, dtype=torch.float64), tokenizer_of(name)
    prompts = [[5, 6, 7], [5, 9, 11, 3, 8, 10], [4]]
    module.eval()
    with torch.no_grad():
        together = _write(module, tokenizer, prompts, 6)
        alone = [_write(module, tokenizer, [p], 6)[0] for p in prompts]
    assert together == alone
    assert len({*together}) > 1


def test_questions_are_grouped_by_the_steps_of_their_answers(folder: Path) -> None:
    lines_of = {i: 1 + i % 3 for i in range(60)}
    rows = [
        {"split": "train" if i < 50 else "test", "question": f"{i} ?", "answer": "\n".join(["1"] * lines_of[i])}
        for i in range(60)
    ]
    (folder / "gsm8k.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    groups = build(folder, groups="steps").groups
    assert groups is not None
    assert sorted(set(groups.tolist())) == [0, 1, 2]
    assert set(build(folder).groups.tolist()) == {0}  # type: ignore[union-attr]


def test_a_real_model_writes_something(folder: Path) -> None:
    sums(folder / "gsm8k.jsonl")
    module = build_module(build(folder), seed=0, dtype=torch.float32)
    module.train()
    assert 0 <= exact_match(module, str(folder / "llama"), [("1 + 1 ?", "#### 2")], tokens=4) <= 1
    assert module.training


def test_what_cannot_be_done_is_said(folder: Path) -> None:
    sums(folder / "gsm8k.jsonl")
    for params, words in (
        ({"length": 65}, "--task.length 65: --task.model .* reads at most 64 tokens"),
        ({"prompt": 0}, "--task.prompt 0: must be 1 or more"),
        ({"lora": -1}, "--task.lora -1"),
        ({"unlabeled": 60}, "--task.unlabeled 60: leaves none of 60 training questions of gsm8k"),
    ):
        with pytest.raises(BadInput, match=words):
            build(folder, **params)
    assert len(examples(build(folder, unlabeled=59))[0]) == 1
    lines(folder / "gsm8k.jsonl", [{"split": "train", "question": f"{i} ?", "answer": "1"} for i in range(20)])
    with pytest.raises(BadInput, match=r"--task gsm8k: the set has no test examples"):
        build(folder)


def test_the_set_is_looked_for_before_the_model(folder: Path) -> None:
    for name in ("gsm8k", "mathinstruct"):
        with pytest.raises(BadInput, match=f"--task {name}: the data set is not there"):
            build_by_flags(tasks, name, model="no/such-model")
