"""Text data sets of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import text_files as files
from .hub import download
from .sets import DataSet, FileFormat, HubSource, add_set
from .texts import Text, TextDataset, TextExample, gather_texts

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
_MRPC, _SST2, _GSM8K = ("different", "paraphrase"), ("negative", "positive"), ("grade school mathematics",)
_INTENTS = 77
_STAND_IN = "any other text set that is there, or --task digits, bundled"


def _hub_source(
    id: str,
    row: Callable[[str, dict[str, Any]], TextExample],
    classes: Sequence[str] = (),
    config: str | None = None,
    n: int = 0,
) -> HubSource:
    """Return the source of a set of texts at the hub. `row` converts a split and a row to an example."""

    def read(flag: str) -> TextDataset:
        splits = download(id, config, flag)
        rows = (_row(i, split, dict(r), flag) for split, part in splits.items() for i, r in enumerate(part, 1))
        return gather_texts(rows, flag, classes, n)

    def _row(i: int, split: str, r: dict[str, Any], flag: str) -> TextExample:
        with files.row_errors(f"row {i} of {split}", r, flag):
            return row(split, r)

    return HubSource(id, read)


def _glue(split: str, text: Text, r: dict[str, Any]) -> TextExample:
    return TextExample(split, text, None if split == "test" else r["label"])


add_set(
    DataSet(
        name="20newsgroups",
        what="posts to 20 newsgroups without header, signature and quotes, cut by date: 11,314 / 7,532",
        sizes=((11_314, 7_532),),
        forms=(
            FileFormat(("20newsgroups.jsonl",), files.jsonl(files.post_of, NEWSGROUPS)),
            FileFormat(("./", "20news-bydate/"), files.newsgroups(NEWSGROUPS), marks=("20news-bydate-train",)),
            FileFormat(("20news-bydate.tar.gz",), files.newsgroups(NEWSGROUPS)),
        ),
        get="20news-bydate.tar.gz of qwone.com/~jason/20Newsgroups, as it is or unpacked",
        stand_in=_STAND_IN,
        folders=("20newsgroups",),
        # bodies already
        hub=_hub_source("SetFit/20_newsgroups", lambda s, r: TextExample(s, files.text_of(r), r["label"]), NEWSGROUPS),
    )
)
add_set(
    DataSet(
        name="ag_news",
        what="news, title and description, 4 classes: 120,000 / 7,600",
        sizes=((120_000, 7_600),),
        forms=(
            FileFormat(("ag_news.jsonl",), files.jsonl(files.news_of, AG_NEWS)),
            FileFormat(("ag_news_csv/", "ag_news/", "AG_NEWS/"), files.ag_csv(AG_NEWS), marks=("train.csv",)),
            FileFormat(("ag_news_csv.tar.gz",), files.ag_csv(AG_NEWS)),
        ),
        get="train.csv and test.csv of Zhang et al. 2015 (ag_news_csv.tar.gz, as it is or unpacked)",
        stand_in=_STAND_IN,
        hub=_hub_source("fancyzhx/ag_news", lambda s, r: TextExample(s, files.news_of(r), r["label"]), AG_NEWS),
    )
)
add_set(
    DataSet(
        name="mrpc",
        what="pairs of sentences, whether they say the same: 4,076 / 1,725, or 3,668 / 408 as in GLUE",
        sizes=((4_076, 1_725), (3_668, 408)),
        forms=(
            FileFormat(("mrpc.jsonl",), files.jsonl(files.pair_of, _MRPC)),
            FileFormat(("./", "mrpc/", "MRPC/"), files.msr_txt, marks=("msr_paraphrase_train.txt",)),
            FileFormat(("MRPC/", "glue_data/MRPC/"), files.glue_tsv("mrpc", _MRPC), marks=("dev.tsv",)),
        ),
        get="msr_paraphrase_train.txt and _test.txt of the Microsoft Research Paraphrase Corpus, or MRPC of GLUE",
        stand_in=_STAND_IN,
        hub=_hub_source(
            "nyu-mll/glue", lambda s, r: _glue(s, files.text_pair(r, "sentence1", "sentence2"), r), _MRPC, "mrpc"
        ),
    )
)
add_set(
    DataSet(
        name="sst2",
        what="phrases of film reviews, negative or positive: 67,349 / 872 (GLUE's validation set)",
        sizes=((67_349, 872),),
        forms=(
            FileFormat(("sst2.jsonl",), files.jsonl(files.text_of, _SST2)),
            FileFormat(("SST-2/", "glue_data/SST-2/"), files.glue_tsv("sst2", _SST2), marks=("dev.tsv",)),
            FileFormat(("SST-2.zip",), files.glue_tsv("sst2", _SST2)),
        ),
        get="SST-2.zip of GLUE, as it is or unpacked",
        stand_in=_STAND_IN,
        hub=_hub_source(
            "nyu-mll/glue", lambda s, r: _glue(s, files.text_field(r, "sentence").strip(), r), _SST2, "sst2"
        ),
    )
)
add_set(
    DataSet(
        name="banking77",
        what="customers' questions to a bank, 77 intents: 10,003 / 3,080",
        sizes=((10_003, 3_080),),
        forms=(
            FileFormat(("banking77.jsonl",), files.jsonl(files.text_of, n=_INTENTS)),
            FileFormat(("banking77/", "banking_data/"), files.banking_csv(_INTENTS), marks=("train.csv",)),
        ),
        get="train.csv and test.csv of banking_data in github.com/PolyAI-LDN/task-specific-datasets",
        stand_in=_STAND_IN,
        hub=_hub_source("mteb/banking77", lambda s, r: TextExample(s, files.text_of(r), r["label_text"]), n=_INTENTS),
    )
)
add_set(
    DataSet(
        name="gsm8k",
        what="grade school mathematics, questions with worked answers: 7,473 / 1,319",
        sizes=((7_473, 1_319),),
        forms=(
            FileFormat(("gsm8k.jsonl",), files.jsonl(files.answer_of, _GSM8K, label=0)),
            FileFormat(
                ("gsm8k/", "grade-school-math/grade_school_math/data/"), files.question_jsonl, marks=("train.jsonl",)
            ),
        ),
        get="train.jsonl and test.jsonl of github.com/openai/grade-school-math",
        stand_in=_STAND_IN,
        hub=_hub_source("openai/gsm8k", lambda s, r: TextExample(s, files.answer_of(r), 0), _GSM8K, "main"),
    )
)
add_set(
    DataSet(
        name="mathinstruct",
        what="mathematical questions with answers from 13 collections: 262,039, no test set",
        sizes=((262_039, 0),),
        forms=(FileFormat(("MathInstruct.json", "mathinstruct.json"), files.math_json),),
        get="MathInstruct.json of TIGER-Lab/MathInstruct at the Hugging Face hub",
        stand_in="--task gsm8k",
        folders=("MathInstruct", "mathinstruct"),
        hub=_hub_source(
            "TIGER-Lab/MathInstruct",
            lambda s, r: TextExample(s, files.text_pair(r, "instruction", "output"), r["source"]),
        ),
    )
)
