"""Text classification: texts as token numbers, by words or by a model's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tarry.core.errors import BadInput
from tarry.core.task import Task
from tarry.tasks import tasks
from tarry.tasks.models import TextCNN
from tarry.tasks.models.language import Classifier, tokenizer_of
from tarry.tasks.text import _tokenize_texts
from tarry.tasks.tokens import Vocabulary, pad_rows, sample_indices
from tests.helpers.by_flags import build_by_flags
from tests.helpers.tiny_language import films, lines, pairs, save


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    return tmp_path


def build(name: str, **params: Any) -> Task:
    return build_by_flags(tasks, name, **params)


def test_words_are_numbered_by_how_often_they_occur_and_ties_by_the_alphabet() -> None:
    words = Vocabulary(["B a, b!", "c B"], 10, 100)
    assert words.rows(["b ! , a c new"]) == [[3, 4, 5, 6, 7, 1]]
    assert len(words) == 8
    few = Vocabulary(["B a, b!", "c B"], 10, 5)
    assert len(few) == 5
    assert few.rows(["b ! a"]) == [[3, 4, 1]]


def test_words_are_cut_and_a_pair_shares_the_room() -> None:
    words = Vocabulary(["a b c d e"], 3, 100)
    assert words.rows(["a b c d"]) == [[3, 4, 5]]
    both = Vocabulary([("a b", "c d e f g"), ("a", "b")], 5, 100)
    assert both.rows([("a b", "c d e"), ("b", "a")]) == [[3, 4, 2, 5, 6], [4, 2, 3]]


def test_an_apostrophe_is_part_of_a_word() -> None:
    words = Vocabulary(["don't stop"], 10, 100)
    assert words.rows(["Don't"]) == [[3]]


def test_rows_are_padded_to_the_longest() -> None:
    assert pad_rows([[1, 2, 3], [4], []], 9).tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]


def test_a_limit_draws_the_same_examples_always_and_in_order() -> None:
    some = sample_indices(100, 10)
    assert some.tolist() == sample_indices(100, 10).tolist() == sorted(set(some.tolist()))
    assert some.tolist() != list(range(10))
    assert sample_indices(5, 10).tolist() == sample_indices(5, None).tolist() == [0, 1, 2, 3, 4]


def test_textcnn_reads_words(folder: Path) -> None:
    films(folder / "sst2.jsonl")
    task = build("sst2")
    x, y = task.train
    assert x.shape == (60, 8), "the longest phrase has 8 words"
    assert y.tolist() == [0, 1] * 30
    model = task.model()
    assert isinstance(model, TextCNN)
    assert model(x[:3]).shape == (3, 2)
    assert int(x.max()) < model.embedding.num_embeddings
    assert task.test is not None
    assert len(task.test[0]) == 30
    assert task.distill_lr == 1e-4


def test_limits_are_of_training_and_of_test_examples(folder: Path) -> None:
    films(folder / "sst2.jsonl")
    task = build("sst2", limit=7, test=5)
    assert task.test is not None
    assert (len(task.train[0]), len(task.test[0])) == (7, 5)


def test_an_encoder_reads_its_own_tokens(folder: Path) -> None:
    films(folder / "sst2.jsonl")
    task = build("sst2", model=save(folder / "bert", "bert"), length=6)
    x, _ = task.train
    tokens = tokenizer_of(str(folder / "bert"))
    assert x.shape == (60, 6)
    assert tokens.decode(x[0]) == "[CLS] the film 0 is [SEP]"
    model = task.model()
    assert isinstance(model, Classifier)
    assert model(x[:3]).shape == (3, 2)
    assert task.distill_lr == 3e-7


def test_short_texts_make_short_rows(folder: Path) -> None:
    films(folder / "sst2.jsonl")
    task = build("sst2", model=save(folder / "bert", "bert"))
    assert task.train[0].shape == (60, 10), "8 words, one before and one after"


def test_a_pair_has_a_separator_between_and_token_types_are_those_of_the_tokenizer(folder: Path) -> None:
    pairs(folder / "mrpc.jsonl")
    task = build("mrpc", model=save(folder / "bert", "bert"), length=32, held_out=10, unlabeled=7)
    x, y = task.train
    assert len(x) == 50
    assert task.test is not None
    assert len(task.test[0]) == 10
    assert task.unlabeled is not None
    assert task.unlabeled.shape == (7, x.shape[1])
    model, tokens = task.model(), tokenizer_of(str(folder / "bert"))
    assert isinstance(model, Classifier)
    for row, label in zip(x[:6], y[:6], strict=True):
        one, other = tokens.decode(row).split("[SEP]")[:2]
        assert (one.removeprefix("[CLS]").strip() == other.strip()) == bool(label)
        said = tokens(one.removeprefix("[CLS]").strip(), other.strip(), return_token_type_ids=True)
        assert row[row != 0].tolist() == said["input_ids"]
        assert model._second(row[None], row[None] != 0)[0, row != 0].tolist() == said["token_type_ids"]


def test_mrpc_with_a_validation_set_of_its_own_holds_nothing_out(folder: Path) -> None:
    table = "Quality\t#1 String\t#2 String\n" + "".join(f"{i % 2}\ta {i}\tb {i}\n" for i in range(6))
    (folder / "MRPC").mkdir()
    for part in ("train", "dev"):  # GLUE's, without its test.tsv
        (folder / "MRPC" / f"{part}.tsv").write_text(table)
    task = build("mrpc")
    assert task.test is not None
    assert (len(task.train[0]), len(task.test[0]), task.unlabeled) == (6, 6, None)


def test_mrpc_may_be_tested_on_its_test_pairs(folder: Path) -> None:
    pairs(folder / "mrpc.jsonl")
    task = build("mrpc", held_out=0)
    assert task.test is not None
    assert (len(task.train[0]), len(task.test[0]), task.unlabeled) == (60, 30, None)


def test_long_texts_are_cut_as_if_they_were_read_to_their_end(folder: Path) -> None:
    tokens = tokenizer_of(save(folder / "bert", "bert"))
    texts = ["good " * 400, "bad" + " " * 500 + "film " * 9, "the film is good", "film? " * 3 + " " * 300 + "not"]
    whole = [[*row[:6], 3] if len(row) > 7 else row for row in tokens(texts)["input_ids"]]
    assert _tokenize_texts(tokens, list(texts), 7) == whole


def test_every_set_makes_a_task(folder: Path) -> None:
    for name, classes in (("20newsgroups", 20), ("ag_news", 4)):
        rows = [
            {"split": s, "y": i % classes, "text": f"H: 1\n\n{i} good"} for s in ("train", "test") for i in range(40)
        ]
        lines(folder / f"{name}.jsonl", rows)
        task = build(name)
        assert task.model()(task.train[0][:2]).shape == (2, classes)
    rows = [{"split": s, "y": f"intent {i}", "text": "why ?"} for s in ("train", "test") for i in range(77)]
    lines(folder / "banking77.jsonl", rows)
    task = build("banking77")
    assert task.model()(task.train[0][:2]).shape == (2, 77)


def test_a_file_dropped_into_the_data_folder_is_a_task_of_its_name(folder: Path) -> None:
    films(folder / "reviews.jsonl")
    entry, known = tasks["reviews"], {p.name for p in tasks["sst2"].params}
    assert (entry.name, {p.name for p in entry.params}) == ("reviews", known - {"hub"})
    task = build("reviews", model=save(folder / "bert", "bert"), length=6, limit=7)
    assert (task.name, task.train[0].shape) == ("reviews", (7, 6))
    by_path = build("jsonl", path=str(folder / "reviews.jsonl"), limit=7)
    assert torch.equal(by_path.train[0], build("reviews", limit=7).train[0])
    np.savez(folder / "reviews.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    assert "hidden" in {p.name for p in tasks["reviews"].params}, "of two files of a name it is the .npz"


def test_such_a_file_may_have_pairs_names_of_classes_and_a_part_without_labels(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"split": s, "s1": "good ?", "s2": word, "y": None if s == "test" else word}
        for s in ("train", "validation", "test")
        for word in ("yes", "no", "perhaps")
    ]
    lines(folder / "doubts.jsonl", rows)
    task = build("doubts", unlabeled=2)
    assert task.train[1].tolist() == [2, 0, 1]
    assert task.unlabeled is not None
    assert len(task.unlabeled) == 2
    assert task.model()(task.train[0]).shape == (3, 3)


WANTED = r"expected split \(train, test or validation\), y, and text, or s1 and s2"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"split": "train", "text": "a"}, f"line 2 has no field 'y'; it has split, text; {WANTED}"),
        ({"split": "train", "review": "a", "y": 1}, f"line 2 has no field 'text'; it has split, review, y; {WANTED}"),
        ({"text": "a", "y": 1}, f"line 2 has no field 'split'; it has text, y; {WANTED}"),
        ({"split": "train", "s1": "a", "y": 1}, f"line 2 has no field 's2'; it has split, s1, y; {WANTED}"),
        ({"split": "train", "text": "a", "s1": "a", "y": 1}, "line 2: has text as well as s1"),
        ({"split": "train", "s1": "a", "s2": "b", "y": 1}, "some lines have text and some s1 and s2"),
    ],
)
def test_such_a_file_of_another_form_says_what_is_wanted(row: dict[str, Any], words: str, folder: Path) -> None:
    lines(folder / "reviews.jsonl", [{"split": "train", "text": "a", "y": 0}, row])
    with pytest.raises(BadInput, match=rf"--task\.path .*reviews\.jsonl: {words}"):
        build("reviews")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "--task.limit 0: must be 1 or more"),
    ({"test": 0}, "--task.test 0: must be 1 or more"),
    ({"length": 0}, "--task.length 0: must be 1 or more"),
    ({"unlabeled": 0}, "--task.unlabeled 0: must be 1 or more"),
    ({"model": "tiny", "length": 65}, "--task.length 65: --task.model tiny reads at most 64 tokens"),
    ({"model": "tiny", "lora": -1}, "--task.lora -1: must be 0"),
    ({"model": "tiny", "dropout": 1.0}, r"--task.dropout 1\.0: must be 0 or more"),
    ({"dropout": 1.0}, r"--task.dropout 1\.0"),
    ({"model": "lenet"}, "--task.model lenet: there is no such folder"),
    ({"held_out": 60}, "--task.held_out 60: must be from 0 to 59"),
]


@pytest.mark.parametrize(("params", "words"), BAD, ids=lambda p: str(p) if isinstance(p, dict) else "")
def test_what_cannot_be_done_is_said(
    params: dict[str, Any], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pairs(folder / "mrpc.jsonl")
    if params.get("model") == "tiny":
        save(folder / "tiny", "bert")
    with pytest.raises(BadInput, match=words):
        build("mrpc", **{"held_out": 10, **params})


def test_numbers_are_whole_and_labels_too(folder: Path) -> None:
    films(folder / "sst2.jsonl")
    x, y = build("sst2").train
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
