"""Text sets in the forms they are distributed in, made small here."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import _twenty_newsgroups as theirs

from tarry.core.errors import BadInput
from tarry.tasks.data import catalog, text_sets
from tarry.tasks.data.newsgroup_posts import strip_headers
from tarry.tasks.data.texts import TextDataset, TextExample, gather_texts, load_text, with_test


def lines(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


POST = "From: a@b.c\nSubject: Re: Löwen\n\nB. Smith wrote:\n> no\nYes, I do.\n\n-- \nA. Name\n"


def test_the_sets_are_in_the_catalog() -> None:
    names = {"20newsgroups", "ag_news", "mrpc", "sst2", "banking77", "gsm8k", "mathinstruct"}
    assert names <= catalog().keys()
    assert len(text_sets.NEWSGROUPS) == 20
    assert sorted(text_sets.NEWSGROUPS) == text_sets.NEWSGROUPS


def test_a_posts_body_is_what_scikit_learn_leaves_of_it() -> None:
    posts = [
        POST,
        "H: 1\n\none paragraph alone",
        "H: 1\n\nfirst\n---\nlast",
        "no header",
        "H: 1\n\n\n\n> all\n| quoted\n",
        "H: 1\n\n  \nIn article <1> x\nsaid: this\nkept\n \n",
        "",
    ]
    for post in posts:
        expected = theirs.strip_newsgroup_header(post)
        expected = theirs.strip_newsgroup_quoting(theirs.strip_newsgroup_footer(expected))
        assert strip_headers(post) == expected, post
    assert strip_headers(POST) == "Yes, I do.\n"


def test_newsgroups_from_json_lines(folder: Path) -> None:
    row = {"id": 1, "text": POST}
    lines(folder / "20newsgroups.jsonl", {"split": "test", "y": 0, **row}, {"split": "train", "y": 19, **row})
    texts = load_text("20newsgroups")
    assert texts.train == ("Yes, I do.\n",)
    assert texts.y_train.tolist() == [19]
    assert texts.y_test.tolist() == [0]
    assert texts.classes[19] == "talk.religion.misc"


def newsgroup_files() -> dict[str, bytes]:
    posts = {
        f"20news-bydate-{s}/{group}/5": "H: 1\n\nfive" for s in ("train", "test") for group in text_sets.NEWSGROUPS
    }
    posts |= {
        "20news-bydate-train/sci.space/2": "H: 1\n\ntwo",
        "20news-bydate-train/alt.atheism/1": "H: 1\n\none für alle",
        "20news-bydate-test/sci.space/3": "H: 1\n\nthree",
    }
    return {name: text.encode("latin-1") for name, text in posts.items()}


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("how", ["folder", "below", "tar"])
def test_newsgroups_from_its_folders_and_its_archive(how: str, folder: Path) -> None:
    if how == "tar":
        with tarfile.open(folder / "20news-bydate.tar.gz", "w:gz") as tar:
            for name, content in newsgroup_files().items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        write(folder / ("20news-bydate" if how == "below" else "."), newsgroup_files())
    texts = load_text("20newsgroups")
    assert texts.classes == tuple(text_sets.NEWSGROUPS)
    assert [texts.train[i] for i in (0, 1, 15)] == ["one für alle", "five", "two"]
    assert texts.y_train.tolist() == [0, *range(15), 14, *range(15, 20)]
    assert (texts.test[14], texts.y_test.tolist()) == ("three", [*range(15), 14, *range(15, 20)])


def test_newsgroups_that_are_missing_or_unknown_are_said(folder: Path) -> None:
    posts = newsgroup_files()
    write(folder, {**posts, "20news-bydate-test/alt.lions/1": b"H: 1\n\nno"})
    with pytest.raises(BadInput, match=r"a test example has the label 'alt\.lions'; its classes are 20"):
        load_text("20newsgroups")
    (folder / "20news-bydate-test/alt.lions/1").unlink()
    for group in ("sci.med", "rec.autos"):
        (folder / f"20news-bydate-test/{group}/5").unlink()
    with pytest.raises(BadInput, match=r"20news-bydate-test has no posts of rec\.autos, sci\.med$"):
        load_text("20newsgroups")


AG = '"3","Wall St. Bears","Reuters - ""Black"" bears\\band, again"\n"1","A title","A text"\n'


@pytest.mark.parametrize("how", ["ag_news_csv", "AG_NEWS", "tar"])
def test_ag_news_from_its_tables(how: str, folder: Path) -> None:
    if how == "tar":
        with tarfile.open(folder / "ag_news_csv.tar.gz", "w:gz") as tar:
            for name in ("train.csv", "test.csv"):
                info = tarfile.TarInfo(f"ag_news_csv/{name}")
                info.size = len(AG)
                tar.addfile(info, io.BytesIO(AG.encode()))
    else:
        (folder / how).mkdir()
        for name in ("train.csv", "test.csv"):
            (folder / how / name).write_text(AG)
    texts = load_text("ag_news")
    assert texts.train == ('Wall St. Bears Reuters - "Black" bears band, again', "A title A text")
    assert texts.y_train.tolist() == [2, 0]
    assert texts.classes[2] == "Business"


def test_ag_news_may_have_kaggles_header(folder: Path) -> None:
    for name in ("train.csv", "test.csv"):
        write(folder, {f"ag_news/{name}": b"Class Index,Title,Description\n" + AG.encode()})
    assert load_text("ag_news").y_train.tolist() == [2, 0]


def test_ag_news_from_json_lines_may_lack_titles(folder: Path) -> None:
    lines(
        folder / "ag_news.jsonl",
        {"split": "train", "y": 3, "title": None, "text": "alone"},
        {"split": "test", "y": 1, "title": "Title", "text": "text"},
    )
    texts = load_text("ag_news")
    assert (texts.train, texts.test) == (("alone",), ("Title text",))


MSR = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no.\tNo, he said.\n0\t9\t10\tOne.\tTwo.\n'


def test_mrpc_as_microsoft_gives_it(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / f"msr_paraphrase_{split}.txt").write_bytes(b"\xef\xbb\xbf" + MSR.replace("\n", "\r\n").encode())
    texts = load_text("mrpc")
    assert texts.train == (('He said "no.', "No, he said."), ("One.", "Two."))
    assert texts.y_test.tolist() == [1, 0]
    assert texts.unlabeled == ()


def test_mrpc_as_glue_gives_it_is_tested_on_the_validation_set(folder: Path) -> None:
    (folder / "MRPC").mkdir()
    (folder / "MRPC/train.tsv").write_text(MSR)
    (folder / "MRPC/dev.tsv").write_text(MSR.split("\n")[0] + "\n0\t1\t2\tDev.\tDev?\n")
    (folder / "MRPC/test.tsv").write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tA.\tB.\n")
    texts = load_text("mrpc")
    assert (texts.test, texts.y_test.tolist()) == ((("Dev.", "Dev?"),), [0])
    assert texts.unlabeled == (("A.", "B."),)


@pytest.mark.parametrize("zipped", [False, True])
def test_sst2_as_glue_gives_it(zipped: bool, folder: Path) -> None:
    tables = {
        "train.tsv": 'sentence\tlabel\nhide " new \t0\ngood\t1\n',
        "dev.tsv": "sentence\tlabel\nfine\t1\n",
        "test.tsv": "index\tsentence\n0\tuneasy\n",
    }
    if zipped:
        with zipfile.ZipFile(folder / "SST-2.zip", "w") as z:
            for name, text in tables.items():
                z.writestr(f"SST-2/{name}", text)
    else:
        (folder / "SST-2").mkdir()
        for name, text in tables.items():
            (folder / "SST-2" / name).write_text(text)
    texts = load_text("sst2")
    assert texts.train == ('hide " new', "good")
    assert texts.y_train.tolist() == [0, 1]
    assert (texts.test, texts.unlabeled) == (("fine",), ("uneasy",))


def test_sst2_from_json_lines_is_tested_on_the_validation_set(folder: Path) -> None:
    lines(folder / "sst2.jsonl", {"split": "train", "y": 1, "text": "a"}, {"split": "validation", "y": 0, "text": "b"})
    assert load_text("sst2").test == ("b",)


INTENTS = ["card_arrival", "age_limit", *(f"intent_{i}" for i in range(10, 85))]
BANKING = 'text,category\n"Where, oh\nwhere?",card_arrival\n' + "".join(f"Why?,{name}\n" for name in INTENTS[1:])


def test_banking77_numbers_its_intents_by_name(folder: Path) -> None:
    for name in ("train.csv", "test.csv"):
        write(folder, {f"banking77/{name}": BANKING.encode()})
    from_tables = load_text("banking77")
    assert from_tables.train[0] == "Where, oh\nwhere?"
    rows = [
        {"split": split, "y": y, "text": "Where, oh\nwhere?" if y == "card_arrival" else "Why?"}
        for split in ("train", "test")
        for y in INTENTS
    ]
    lines(folder / "banking77.jsonl", *rows)
    from_lines = load_text("banking77")
    assert from_lines.classes == from_tables.classes == tuple(sorted(INTENTS))
    assert from_lines.train == from_tables.train
    assert from_lines.y_train.tolist() == from_tables.y_train.tolist() == [1, 0, *range(2, 77)]


def test_banking77_has_77_intents_in_every_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, {"banking77/train.csv": (BANKING + "Who?,intent_1").encode(), "banking77/test.csv": BANKING.encode()})
    with pytest.raises(BadInput, match=r"has 78 classes in place of 77; seen once: intent_1$"):
        load_text("banking77")
    lines(folder / "banking77.jsonl", *({"split": "train", "y": y, "text": "a"} for y in INTENTS[:76] * 2))
    with pytest.raises(BadInput, match=r"has 76 classes in place of 77$"):
        load_text("banking77")
    (folder / "banking77.jsonl").unlink()
    (folder / "banking77/train.csv").unlink()
    hub(monkeypatch, train=[{"text": "a", "label_text": "b"}])
    with pytest.raises(BadInput, match="has 1 classes in place of 77; seen once: b"):
        load_text("banking77", hub=True)


TORN = {
    "torn": (AG[:-3], "line 2: unexpected end of data; is a quote left open?"),
    "a quote lost": (AG.replace('"A title"', '"A title'), "line 2: ',' expected after '\"'; is a quote left open?"),
    "a column too many": (
        AG.replace('"A text"', '"A","text"'),
        "line 2 of train.csv wants a class from 1 to 4, a title",
    ),
}


@pytest.mark.parametrize("how", TORN)
def test_a_table_whose_quotes_are_not_in_pairs_is_refused(how: str, folder: Path) -> None:
    text, words = TORN[how]
    write(folder, {"ag_news/train.csv": text.encode(), "ag_news/test.csv": AG.encode()})
    with pytest.raises(BadInput, match=re.escape(words)):
        load_text("ag_news")


@pytest.mark.parametrize("form", ["one", "two"])
def test_gsm8k_is_questions_and_answers(form: str, folder: Path) -> None:
    row = {"question": "1 + 1?", "answer": "2\n#### 2"}
    if form == "one":
        lines(folder / "gsm8k.jsonl", {"split": "train", **row}, {"split": "test", **row})
    else:
        for split in ("train", "test"):
            lines(folder / f"gsm8k/{split}.jsonl", row)
    texts = load_text("gsm8k")
    assert texts.train == texts.test == (("1 + 1?", "2\n#### 2"),)
    assert texts.y_train.tolist() == [0]


def test_mathinstruct_goes_by_its_collections(folder: Path) -> None:
    rows = [
        {"instruction": f"Question {i}", "output": "Answer", "source": f"data/{'PoT' if i % 2 else 'CoT'}/x.json"}
        for i in range(4)
    ]
    (folder / "MathInstruct.json").write_text(json.dumps(rows))
    texts = load_text("mathinstruct")
    assert texts.y_train.tolist() == [0, 1, 0, 1]
    assert texts.classes == ("data/CoT/x.json", "data/PoT/x.json")
    assert texts.test == ()


def test_held_out_texts_are_stratified_always_the_same_and_leave_the_test_set_without_labels() -> None:
    y = np.repeat([0, 1], [30, 10])
    texts = TextDataset(tuple(f"t{i}" for i in range(40)), y, ("x", "y"), np.array([0, 1]), ("a", "b"))
    one, two = with_test(texts, 8), with_test(texts, 8)
    assert one.test == two.test
    assert one.y_test.tolist().count(1) == 2
    assert not set(one.train) & set(one.test)
    assert len(one.train) == 32
    assert one.unlabeled == ("x", "y")
    assert [y[int(t[1:])] for t in one.test] == one.y_test.tolist()


def test_a_missing_set_says_where_it_is_looked_for_and_how_to_get_it(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"--task mrpc: .*mrpc\.jsonl.*msr_paraphrase_train\.txt.*Get it: .*stands in"):
        load_text("mrpc")


BROKEN: list[tuple[str, str, str, str]] = [
    ("sst2", "sst2.jsonl", "{]", r"sst2\.jsonl: line 1 is no JSON"),
    ("sst2", "sst2.jsonl", "[1]", "line 1 is no object but list"),
    ("sst2", "sst2.jsonl", '{"split": "train", "y": 1}', "line 1 has no field 'text'; it has split, y"),
    ("sst2", "sst2.jsonl", '{"split": "train", "y": 2, "text": "a"}', r"label 2; its classes are 2, from 0: negative"),
    ("sst2", "sst2.jsonl", '{"split": "train", "y": null, "text": "a"}', "a train example has the label None"),
    ("sst2", "sst2.jsonl", '{"split": "train", "y": 0.5, "text": "a"}', r"a train example has the label 0\.5"),
    ("sst2", "sst2.jsonl", '{"split": "train", "y": [1], "text": "a"}', r"a train example has the label \[1\]"),
    (
        "sst2",
        "sst2.jsonl",
        '{"split": "train", "y": 1, "text": null}',
        "line 1: the field 'text' holds no text but None",
    ),
    ("sst2", "sst2.jsonl", '{"split": ["train"], "y": 1, "text": "a"}', r"has the split \['train'\]; expected train"),
    ("sst2", "sst2.jsonl", "[" * 100_000, "line 1 is no JSON"),
    ("sst2", "sst2.jsonl", '{"split": "extra", "y": 1, "text": "a"}', "has the split 'extra'; expected train"),
    ("sst2", "sst2.jsonl", '{"split": "test", "y": 1, "text": "a"}', "has no training examples"),
    ("sst2", "sst2.jsonl", "\udcff", "is no UTF-8 text"),
    ("sst2", "SST-2/dev.tsv", "sentence\tlabel\n", r"lacks train\.tsv"),
    ("mrpc", "msr_paraphrase_train.txt", "Quality\n1\n", r"lacks msr_paraphrase_test\.txt"),
    ("ag_news", "ag_news/train.csv", "World,a,b\n", r"lacks test\.csv"),
    ("20newsgroups", "20news-bydate.tar.gz", "no archive", r"20news-bydate\.tar\.gz: cannot be read"),
    ("gsm8k", "gsm8k/train.jsonl", "{}", r"lacks test\.jsonl"),
    ("mathinstruct", "MathInstruct.json", "{}", "wants a list of objects with the fields instruction, output, source"),
    ("mathinstruct", "MathInstruct.json", "[", "is no JSON"),
    ("mathinstruct", "MathInstruct.json", "[" * 100_000, "is no JSON"),
    ("mathinstruct", "MathInstruct.json", '[{"instruction": "a", "output": null, "source": "b"}]', "source, all texts"),
]


@pytest.mark.parametrize(("name", "file", "text", "words"), BROKEN)
def test_what_is_broken_is_said(name: str, file: str, text: str, words: str, folder: Path) -> None:
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=f"--task {name}: .*{words}"):
        load_text(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Quality\t#1 String\n1\ta\n", "the train table has no column '#2 String'; it has Quality, #1 String"),
        ("Quality\t#1 String\t#2 String\n2\ta\tb\n", "a train example has the label '2'"),
        ("#1 String\t#2 String\na\n", "the train table has 1 columns in line 2, and 2 in its header"),
    ],
)
def test_a_broken_table_is_said(text: str, words: str, folder: Path) -> None:
    for split in ("train", "test"):
        (folder / f"msr_paraphrase_{split}.txt").write_text(text)
    with pytest.raises(BadInput, match=words):
        load_text("mrpc")


def hub(monkeypatch: pytest.MonkeyPatch, **splits: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A package `datasets` that has these splits; what it is asked for."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*args: Any) -> Any:
        asked.append(args)
        if not splits:
            raise ConnectionError("no network")
        return splits

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_the_hub_is_asked_only_when_that_is_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"sentence1": "a", "sentence2": "b"}
    asked = hub(
        monkeypatch,
        train=[{**pair, "label": 1}],
        validation=[{**pair, "label": 0}],
        test=[{"sentence1": "c", "sentence2": "d", "label": 1}],
    )
    with pytest.raises(BadInput, match="TARRY_HUB=1"):
        load_text("mrpc")
    assert asked == []
    texts = load_text("mrpc", hub=True)
    assert asked == [("nyu-mll/glue", "mrpc")]
    assert (texts.train, texts.y_test.tolist(), texts.unlabeled) == ((("a", "b"),), [0], (("c", "d"),))


def test_the_hubs_newsgroups_have_lost_their_headers_already(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"text": "first\n\nlast", "label": 3, "label_text": "x"}
    hub(monkeypatch, train=[row], test=[row])
    assert load_text("20newsgroups", hub=True).train == ("first\n\nlast",)


def test_a_hub_that_cannot_be_reached_or_asked_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch)
    with pytest.raises(BadInput, match=r"--task gsm8k: openai/gsm8k of the .* hub: could not be fetched.*no net"):
        load_text("gsm8k", hub=True)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r'needs the package datasets: pip install "tarry\[hub\]"'):
        load_text("gsm8k", hub=True)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"txt": "a", "label": 1}, "row 2 of train has no field 'text'; it has txt, label"),
        ({"text": "a", "class": 1}, "row 2 of train has no field 'label'; it has text, class"),
        ({"text": None, "label": 1}, "row 2 of train: the field 'text' holds no text but NoneType"),
    ],
)
@pytest.mark.parametrize("name", ["ag_news", "20newsgroups"])
def test_a_column_of_the_hubs_that_is_another_is_said(
    name: str, row: dict[str, Any], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"text": "a", "label": 0}
    hub(monkeypatch, train=[good, row], test=[good])
    with pytest.raises(BadInput, match=f"--task {name}: .* hub: {words}"):
        load_text(name, hub=True)


@pytest.mark.parametrize("name", ["mrpc", "sst2", "gsm8k", "mathinstruct", "banking77"])
def test_every_set_of_the_hub_says_what_it_lacks(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, train=[{"content": "a"}])
    with pytest.raises(BadInput, match=r"row 1 of train has no field '\w+'; it has content"):
        load_text(name, hub=True)


def test_labels_may_be_names_or_numbers_of_given_classes() -> None:
    texts = gather_texts(
        [TextExample("train", "a", "y"), TextExample("train", "b", 0), TextExample("test", "c", "x")], "f", ["x", "y"]
    )
    assert texts.y_train.tolist() == [1, 0]
    with pytest.raises(BadInput, match="f: a test example has the label 'z'"):
        gather_texts([TextExample("train", "a", "y"), TextExample("test", "c", "z")], "f", ["x", "y"])


def test_labels_of_classes_that_nobody_gave_are_all_names_or_all_numbers_from_0() -> None:
    assert gather_texts([TextExample("train", "a", 1), TextExample("test", "b", 0)], "f").y_train.tolist() == [1]
    with pytest.raises(BadInput, match="f: some labels are names and some numbers; all must be alike"):
        gather_texts([TextExample("train", "a", "x"), TextExample("train", "b", 0)], "f")
    with pytest.raises(BadInput, match="f: a train example has the label 2; its classes are 2, from 0: 1, 2"):
        gather_texts([TextExample("train", "a", 1), TextExample("train", "b", 2)], "f")


def test_of_two_copies_in_an_archive_the_nearest_to_the_top_is_read(folder: Path) -> None:
    with zipfile.ZipFile(folder / "SST-2.zip", "w") as z:
        for where, text in (("SST-2/", "new"), ("SST-2/old/", "old")):
            for part in ("train", "dev"):
                z.writestr(f"{where}{part}.tsv", f"sentence\tlabel\n{text} {part}\t1\n{text} other\t0\n")
    assert load_text("sst2").train == ("new train", "new other")


REAL = {
    "20newsgroups": (11314, 7532, 20),
    "mrpc": (4076, 1725, 2),
    "sst2": (67349, 872, 2),
    "banking77": (10003, 3080, 77),
    "gsm8k": (7473, 1319, 1),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_the_real_set_has_its_published_size(name: str) -> None:
    assert os.environ.get("TARRY_DATA"), "set TARRY_DATA to the folder that holds the text sets"
    texts = load_text(name)
    assert (len(texts.train), len(texts.test), len(texts.classes)) == REAL[name]
    assert {len(texts.train), len(texts.test)} == {len(texts.y_train), len(texts.y_test)}
