"""The text sets of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import text_files as files
from .hub import download
from .sets import DataSet, Form, Hub, add
from .texts import Row, Texts, gathered

__all__ = ["AG_NEWS", "NEWSGROUPS"]

NEWSGROUPS = [
    "alt.atheism",
    "comp.graphics",
    "comp.os.ms-windows.misc",
    "comp.sys.ibm.pc.hardware",
    "comp.sys.mac.hardware",
    "comp.windows.x",
    "misc.forsale",
    "rec.autos",
    "rec.motorcycles",
    "rec.sport.baseball",
    "rec.sport.hockey",
    "sci.crypt",
    "sci.electronics",
    "sci.med",
    "sci.space",
    "soc.religion.christian",
    "talk.politics.guns",
    "talk.politics.mideast",
    "talk.politics.misc",
    "talk.religion.misc",
]
AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_MRPC, _SST2, _SCHOOL = ("different", "paraphrase"), ("negative", "positive"), ("grade school mathematics",)
_STAND_IN = "any other text set that is there, or --task digits, bundled"


def _at_hub(
    id: str, row: Callable[[str, dict[str, Any]], Row], classes: Sequence[str] = (), config: str | None = None
) -> Hub:
    """A set of texts at the hub: what `row` makes of a row and its split."""

    def read(flag: str) -> Texts:
        splits = download(id, config, flag)
        return gathered((row(split, dict(r)) for split, rows in splits.items() for r in rows), flag, classes)

    return Hub(id, read)


def _glue(split: str, r: dict[str, Any]) -> Row:
    text = (r["sentence1"], r["sentence2"]) if "sentence1" in r else r["sentence"].strip()
    return Row(split, text, None if split == "test" else r["label"])


add(
    DataSet(
        name="20newsgroups",
        what="posts to 20 newsgroups without header, signature and quotes, cut by date: 11,314 / 7,532",
        forms=(
            Form(("20newsgroups.jsonl",), files.jsonl(files.post_of, NEWSGROUPS)),
            Form(("./", "20news-bydate/"), files.newsgroups, marks=("20news-bydate-train",)),
            Form(("20news-bydate.tar.gz",), files.newsgroups),
        ),
        get="20news-bydate.tar.gz of qwone.com/~jason/20Newsgroups, as it is or unpacked",
        stand_in=_STAND_IN,
        folders=("20newsgroups",),
        hub=_at_hub("SetFit/20_newsgroups", lambda s, r: Row(s, r["text"], r["label"]), NEWSGROUPS),  # bodies already
    )
)
add(
    DataSet(
        name="ag_news",
        what="news, title and description, 4 classes: 120,000 / 7,600",
        forms=(
            Form(("ag_news.jsonl",), files.jsonl(files.news_of, AG_NEWS)),
            Form(("ag_news_csv/", "ag_news/", "AG_NEWS/"), files.ag_csv(AG_NEWS), marks=("train.csv",)),
            Form(("ag_news_csv.tar.gz",), files.ag_csv(AG_NEWS)),
        ),
        get="train.csv and test.csv of Zhang et al. 2015 (ag_news_csv.tar.gz, as it is or unpacked)",
        stand_in=_STAND_IN,
        hub=_at_hub("fancyzhx/ag_news", lambda s, r: Row(s, r["text"].replace("\\", " "), r["label"]), AG_NEWS),
    )
)
add(
    DataSet(
        name="mrpc",
        what="pairs of sentences, whether they say the same: 4,076 / 1,725, or 3,668 / 408 as in GLUE",
        forms=(
            Form(("mrpc.jsonl",), files.jsonl(files.pair_of, _MRPC)),
            Form(("./", "mrpc/", "MRPC/"), files.msr_txt, marks=("msr_paraphrase_train.txt",)),
            Form(("MRPC/", "glue_data/MRPC/"), files.glue_tsv("mrpc", _MRPC), marks=("dev.tsv",)),
        ),
        get="msr_paraphrase_train.txt and _test.txt of the Microsoft Research Paraphrase Corpus, or MRPC of GLUE",
        stand_in=_STAND_IN,
        hub=_at_hub("nyu-mll/glue", _glue, _MRPC, "mrpc"),
    )
)
add(
    DataSet(
        name="sst2",
        what="phrases of film reviews, negative or positive: 67,349 / 872 (GLUE's validation set)",
        forms=(
            Form(("sst2.jsonl",), files.jsonl(files.text_of, _SST2)),
            Form(("SST-2/", "glue_data/SST-2/"), files.glue_tsv("sst2", _SST2), marks=("dev.tsv",)),
            Form(("SST-2.zip",), files.glue_tsv("sst2", _SST2)),
        ),
        get="SST-2.zip of GLUE, as it is or unpacked",
        stand_in=_STAND_IN,
        hub=_at_hub("nyu-mll/glue", _glue, _SST2, "sst2"),
    )
)
add(
    DataSet(
        name="banking77",
        what="customers' questions to a bank, 77 intents: 10,003 / 3,080",
        forms=(
            Form(("banking77.jsonl",), files.jsonl(files.text_of)),
            Form(("banking77/", "banking_data/"), files.banking_csv, marks=("train.csv",)),
        ),
        get="train.csv and test.csv of banking_data in github.com/PolyAI-LDN/task-specific-datasets",
        stand_in=_STAND_IN,
        hub=_at_hub("mteb/banking77", lambda s, r: Row(s, r["text"], r["label_text"])),
    )
)
add(
    DataSet(
        name="gsm8k",
        what="grade school mathematics, questions with worked answers: 7,473 / 1,319",
        forms=(
            Form(("gsm8k.jsonl",), files.jsonl(files.answer_of, _SCHOOL, label=0)),
            Form(("gsm8k/", "grade-school-math/grade_school_math/data/"), files.question_jsonl, marks=("train.jsonl",)),
        ),
        get="train.jsonl and test.jsonl of github.com/openai/grade-school-math",
        stand_in=_STAND_IN,
        hub=_at_hub("openai/gsm8k", lambda s, r: Row(s, files.answer_of(r), 0), _SCHOOL, "main"),
    )
)
add(
    DataSet(
        name="mathinstruct",
        what="mathematical questions with answers from 13 collections: 262,039, no test set",
        forms=(Form(("MathInstruct.json", "mathinstruct.json"), files.math_json),),
        get="MathInstruct.json of TIGER-Lab/MathInstruct at the Hugging Face hub",
        stand_in="--task gsm8k",
        folders=("MathInstruct", "mathinstruct"),
        hub=_at_hub("TIGER-Lab/MathInstruct", lambda s, r: Row(s, (r["instruction"], r["output"]), r["source"])),
    )
)
