"""The setting of FedSOL's analyses: CIFAR-10, McMahan's network, LDA 0.1, 10 of 100 clients a round (its Sec. 4.1)."""

from __future__ import annotations

from typing import Any

__all__ = ["SETTINGS", "SMALL"]

#: of `tarry run`; the batch is not in the paper
SETTINGS: dict[str, Any] = {
    "task": {"name": "cifar10", "model": "cnn"},
    "clients": 100,
    "concurrency": 10,
    "partition": {"name": "lda", "alpha": 0.1},
    "delay": "constant",
    "rounds": 300,
    "epochs": 5,
    "batch": 50,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "lr_decay": 0.99,
}
#: a quick run's
SMALL: dict[str, Any] = {
    "task": {"name": "digits", "model": "mlp"},
    "clients": 20,
    "concurrency": 5,
    "rounds": 30,
    "batch": 10,
}
