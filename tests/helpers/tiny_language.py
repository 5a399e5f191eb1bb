"""Language models of a few hundred numbers with tokenizers of a few words, in the files of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

WORDS = ["good", "bad", "film", "the", "a", "is", "was", "very", "not", "and", "question", "answer", ":", "?", "."]
WORDS += [str(i) for i in range(30)] + ["#", "+", "="]


def tokenizer(folder: Path, *, causal: bool = False) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if causal:
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    else:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)


def save(folder: Path, kind: str) -> str:
    """A random model of that kind in a folder: bert, distilbert or llama."""
    import transformers

    transformers.logging.disable_progress_bar()
    n = len(WORDS) + 4
    small: dict[str, Any] = {"vocab_size": n, "max_position_embeddings": 64}
    if kind == "bert":
        sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        build, config = transformers.BertModel, transformers.BertConfig(**small, **sizes)
    elif kind == "distilbert":
        build = transformers.DistilBertModel
        config = transformers.DistilBertConfig(**small, n_layers=1, dim=16, n_heads=2, hidden_dim=32)
    else:
        sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
        build = transformers.LlamaForCausalLM
        ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        config = transformers.LlamaConfig(**small, **sizes, **ends, intermediate_size=32, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        build(config).save_pretrained(folder)
    tokenizer(folder, causal=kind == "llama")
    return str(folder)


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def films(path: Path, n: int = 60) -> None:
    """Phrases in the form of sst2.jsonl whose class can be read off them."""
    rows = []
    for i in range(n + n // 2):
        word = ("bad", "good")[i % 2]
        text = f"the film {i % 30} is {'very ' * (i % 4)}{word}"
        rows.append({"split": "train" if i < n else "validation", "y": i % 2, "text": text})
    lines(path, rows)


def sums(path: Path, n: int = 60) -> None:
    """Questions in the form of gsm8k.jsonl."""
    rows = []
    for i in range(n + n // 2):
        a, b = i % 10, i % 7
        row = {"question": f"{a} + {b} ?", "answer": f"the answer is {a + b} . #### {a + b}"}
        rows.append({"split": "train" if i < n else "test", **row})
    lines(path, rows)


def pairs(path: Path, n: int = 60) -> None:
    """Pairs in the form of mrpc.jsonl: the same sentence twice, or two."""
    rows = []
    for i in range(n + n // 2):
        one, other = f"the film {i % 30} is good", f"{(i + 1) % 30} was very bad and not good"
        rows.append({"split": "train" if i < n else "test", "y": i % 2, "s1": one, "s2": one if i % 2 else other})
    lines(path, rows)
