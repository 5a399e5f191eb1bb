"""Share of problems that a language model solves by writing the answer, after it was trained (FedEcho, Table 5).

Each row is trained with each column's task. Then the model answers test problems of `problems`, GSM8K in the paper for
all columns, and the share of right last numbers is stored as `solved`, in per cent. `tokens_right` is the accuracy of a
run with teacher forcing. The row `untrained` is the model at its first weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ...config.components import Choice
from ...core.errors import BadInput
from ...runs.build import BuiltRun
from ...tasks.data.texts import load_text
from ...tasks.language import exact_match
from ...tasks.tokens import sample_indices
from .study import Study, Tell, begin
from .watch import model_of, run_observed

__all__ = ["PAPER", "QUICK", "UNTRAINED", "run", "solved"]

UNTRAINED = "untrained"
_BUFFERED = {"buffer": 3, "eta": 1.0}
_ADAPTIVE = {"buffer": 3, "eta": 0.1}
PAPER: dict[str, Any] = {
    "settings": {
        "task": {"name": "gsm8k", "model": "smollm2", "groups": "steps"},
        "partition": {"name": "lda", "alpha": 0.6},
        "delay": {"name": "fedecho-large", "gamma": 1.0},
        "clients": 10,
        "concurrency": 5,
        "min_samples": 8,
        "rounds": 5,
        "epochs": 1,
        "batch": 8,
        "optimizer": "adamw",
    },
    "columns": {"gsm8k": {}, "mathinstruct": {"task": {"name": "mathinstruct", "model": "qwen"}}},
    "rows": {
        UNTRAINED: {"method": "fedavg", "lr": 3e-5},
        "fedbuff": {"method": {"name": "fedbuff", **_BUFFERED}, "lr": 3e-5},
        "ca2fl": {"method": {"name": "ca2fl", **_BUFFERED}, "lr": 3e-5},
        "fedac": {"method": {"name": "fedac", **_ADAPTIVE, "correction": False, "eps": 1e-2}, "lr": 3e-6},
        "fadas": {"method": {"name": "fadas", **_ADAPTIVE}, "lr": 3e-6},
        "fedecho": {"method": {"name": "fedecho", **_BUFFERED, "lr": 3e-6}, "lr": 3e-5},
    },
    "problems": "gsm8k",
    "number": 500,
    "tokens": 256,
    "batch": 32,
    "stand_ins": [],
}
QUICK: dict[str, Any] = {
    "settings": {
        "task": {"limit": 24, "test": 8, "unlabeled": 4, "prompt": 16, "length": 96},
        "clients": 4,
        "concurrency": 3,
        "min_samples": 2,
        "rounds": 2,
    },
    "number": 4,
    "tokens": 8,
}


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: methods. Columns: what they were trained on. Measures: solved, tokens_right."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    numbers: dict[str, dict[str, dict[str, Any]]] = {}
    for column, task in study.choices("columns").items():
        if (problem := _missing(study, task)) is not None:
            study.tell(f"{column} is left out: {problem}")
            study.notes.append(f"{column} was not run: its data or model were not there.")
            continue
        for row, changes in study.choices("rows").items():
            for seed in study.seeds:
                both = {**task, **changes}
                inputs = [seed, study.settings(both), [study.options[o] for o in ("problems", "number", "tokens")]]
                made = study.piece(f"{row}-{column}-{seed}", inputs, partial(_measure, study, seed, row, both))
                numbers.setdefault(row, {}).setdefault(column, {})[str(seed)] = made
                study.tell(f"{row}, {column}, seed {seed}: {made['solved']:.1f} % solved")
    return {"numbers": numbers, "notes": study.notes}


def _missing(study: Study, changes: Mapping[str, Any]) -> str | None:
    """Return why a column cannot be run here, or None."""
    try:
        study.plan(study.seeds[0], changes)
    except BadInput as e:
        return e.problems[0]
    return None


def _measure(study: Study, seed: int, row: str, changes: Mapping[str, Any]) -> dict[str, float | None]:
    built = study.plan(seed, changes)
    weights, tokens_right = built.first_weights(), None
    if row != UNTRAINED:
        result = run_observed(built, tell=study.tell, what=row)
        assert result.weights is not None
        weights, tokens_right = result.weights, result.final_accuracy
    o = study.options
    share = solved(built, weights, o["problems"], number=o["number"], tokens=o["tokens"], batch=o["batch"])
    return {"solved": 100 * share, "tokens_right": None if tokens_right is None else 100 * tokens_right}


def solved(built: BuiltRun, weights: Tensor, problems: str, *, number: int, tokens: int, batch: int = 32) -> float:
    """Return the share of `number` test problems of a set that the model of a run solves at these weights."""
    texts = load_text(problems).test
    if not texts:
        raise BadInput(f"[study_options] problems {problems}: the set has no test part")
    bound = model_of(built)
    bound.load(weights.to(bound.flat))
    name = Choice.of(built.spec.task).params.get("model") or PAPER["settings"]["task"]["model"]
    chosen = [texts[i] for i in sample_indices(len(texts), number)]
    return exact_match(bound.module, name, chosen, tokens=tokens, batch=batch)
