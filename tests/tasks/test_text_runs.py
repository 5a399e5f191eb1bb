"""Whole runs on texts: every kind of method, one by one and in stacks, taken up again to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tarry
from tarry.core.events import Event
from tests.helpers.tiny_language import films, save, sums

METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "fedasync": "fedasync",
    "orthofl": "orthofl",
    "fedsol": {"name": "fedsol", "rho": 0.1},
    "fedecho": {"name": "fedecho", "buffer": 2, "lr": 0.01, "q": 2, "batch": 4},
}
SHORT: dict[str, Any] = {
    "clients": 3,
    "partition": "iid",
    "delay": [[1.0], [1.5], [2.5]],
    "lr": 0.05,
    "batch": 8,
    "epochs": 1,
    "updates": 6,
    "eval_every": 100.0,
    "seed": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """TARRY_DATA with a set of phrases, one of questions, and a model for each."""
    path: Path = tmp_path_factory.mktemp("data")
    films(path / "sst2.jsonl", 36)
    sums(path / "gsm8k.jsonl", 48)
    with pytest.MonkeyPatch.context() as m:
        m.setenv("HF_HUB_OFFLINE", "1")
        m.setenv("TARRY_DATA", str(path))
        save(path / "bert", "bert")
        save(path / "llama", "llama")
        yield path


def choice(folder: Path, kind: str, **more: Any) -> dict[str, Any]:
    if kind == "bert":
        return {"name": "sst2", "model": str(folder / "bert"), "length": 12, **more}
    if kind == "llama":
        own = {"length": 32, "unlabeled": 10, "test": 8}
        return {"name": "gsm8k", "model": str(folder / "llama"), **own, **more}
    return {"name": "sst2", **more}


def run(folder: Path, kind: str, method: str, executor: str = "inline", dropout: float = 0.0, **more: Any) -> Any:
    given = {
        **SHORT,
        **({"unlabeled": {"name": "test", "samples": 8}} if method == "fedecho" and kind != "llama" else {}),
    }
    return tarry.run(METHODS[method], choice(folder, kind, dropout=dropout), **{**given, "executor": executor, **more})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["textcnn", "bert", "llama"])
def test_every_kind_of_method_trains_every_kind_of_model(kind: str, method: str, folder: Path) -> None:
    first, result = run(folder, kind, method, updates=1), run(folder, kind, method)
    assert result.updates == 6
    assert torch.isfinite(result.weights).all()
    assert not torch.equal(result.weights, first.weights)


@pytest.mark.parametrize(("kind", "method"), [("textcnn", "fedavg"), ("bert", "fedsol"), ("llama", "fedecho")])
def test_clients_train_in_stacks_as_they_do_one_by_one(kind: str, method: str, folder: Path) -> None:
    alone, together = (run(folder, kind, method, executor, dtype="float64") for executor in ("inline", "batched"))
    assert together.executor_info.startswith("clients are trained together"), together.executor_info
    torch.testing.assert_close(together.weights, alone.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("kind", "method"), [("textcnn", "orthofl"), ("bert", "fedasync"), ("llama", "fedecho")])
def test_dropout_leaves_out_the_same_in_stacks_as_one_by_one(kind: str, method: str, folder: Path) -> None:
    alone, together, without = (
        run(folder, kind, method, executor, dropout=dropout, dtype="float64")
        for executor, dropout in (("inline", 0.1), ("batched", 0.1), ("inline", 0.0))
    )
    assert together.executor_info.startswith("clients are trained together"), together.executor_info
    torch.testing.assert_close(together.weights, alone.weights, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(without.weights, alone.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_processes_train_the_same_as_one(kind: str, folder: Path) -> None:
    one, two = (
        run(folder, kind, "orthofl", dropout=0.1, workers=n, executor=e) for n, e in ((1, "inline"), (2, "pool"))
    )
    assert one.weights_sha256 == two.weights_sha256


class Pulled(Exception):
    """The plug."""


@pytest.mark.parametrize(("kind", "method"), [("bert", "orthofl"), ("llama", "fedecho")])
def test_a_run_with_dropout_is_taken_up_again_to_the_bit(kind: str, method: str, folder: Path, tmp_path: Path) -> None:
    def pull(event: Event) -> None:
        if event.updates == 4:
            raise Pulled

    whole = run(folder, kind, method, dropout=0.1, out=str(tmp_path / "whole"))
    with pytest.raises(Pulled):
        run(folder, kind, method, dropout=0.1, out=str(tmp_path / "torn"), checkpoint_every=1, callbacks=[pull])
    again = tarry.resume(str(tmp_path / "torn"))
    assert again.weights_sha256 == whole.weights_sha256
    assert again.curve == whole.curve
    size = (tmp_path / "torn/model.safetensors").stat().st_size
    assert size < 12_000, "what is frozen is not written"


def test_an_encoder_learns_what_can_be_learnt(folder: Path) -> None:
    result = run(folder, "bert", "fedavg", lr=0.05, optimizer="adam", updates=24, epochs=2)
    assert result.curve[-1][2] > 0.9
    assert result.curve[0][2] < 0.7


def test_a_model_of_the_next_token_learns_how_answers_begin(folder: Path) -> None:
    result = run(folder, "llama", "fedavg", lr=0.05, optimizer="adam", updates=24, epochs=2)
    assert result.curve[-1][2] > result.curve[0][2] + 0.1
    assert result.curve[-1][3] < result.curve[0][3]


def test_the_command_line_runs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--task.model", str(folder / "bert"), "--task.length", "12", "--task.lora", "2", "--task.alpha", "4"]
    more = ["--clients", "3", "--updates", "3", "--batch", "8", "--partition", "iid"]
    monkeypatch.setattr(sys, "argv", ["tarry", "run", "--method", "orthofl", "--task", "sst2", *flags, *more])
    from tarry.cli.app import main

    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, capsys.readouterr().err


def test_the_command_line_lists_and_runs_a_file_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tarry.cli.app import main

    monkeypatch.setenv("TARRY_DATA", str(tmp_path))
    films(tmp_path / "reviews.jsonl")
    few = ["--task.limit", "30", "--clients", "3", "--updates", "3", "--partition", "iid"]
    for words, said in (["tasks"], "--task reviews"), (["run", "--task", "reviews", *few], "on reviews"):
        monkeypatch.setattr(sys, "argv", ["tarry", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        assert end.value.code == 0, out.err
        assert said in out.out
