"""Names that other frameworks and papers give to settings: what to suggest for `learning_rate` or `num_clients`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.errors import nearest
from .components import example_of, groups_with

__all__ = ["suggestion", "unknown_setting"]

_OTHER_NAMES = {
    "lr": ("learning_rate", "client_lr", "local_lr", "client_learning_rate", "local_learning_rate", "eta_l"),
    "clients": ("num_clients", "n_clients", "nclients", "num_users", "num_nodes", "num_supernodes", "num_partitions"),
    "concurrency": (
        "clients_per_round",
        "num_clients_per_round",
        "cohort_size",
        "cohort",
        "num_selected",
        "max_in_flight",
    ),
    "epochs": ("local_epochs", "num_epochs", "n_epochs", "client_epochs", "num_local_epochs"),
    "steps": ("local_steps", "num_steps", "n_steps", "num_local_steps", "local_iterations"),
    "batch": ("batch_size", "local_batch_size", "train_batch_size", "bs"),
    "rounds": ("num_rounds", "n_rounds", "num_server_rounds", "global_rounds", "comm_rounds", "communication_rounds"),
    "updates": ("num_updates", "n_updates", "max_updates", "arrivals", "server_steps"),
    "time": ("max_time", "time_budget", "duration", "max_seconds"),
    "target": ("target_accuracy", "target_acc"),
    "metric": ("metrics", "eval_metric", "eval_metrics", "scoring", "score", "monitor"),
    "optimizer": ("client_optimizer", "local_optimizer", "optim", "opt"),
    "weight_decay": ("wd", "l2_reg"),
    "lr_decay": ("learning_rate_decay", "decay", "gamma"),
    "lr_schedule": ("lr_scheduler", "scheduler", "learning_rate_schedule", "learning_rate_scheduler"),
    "server_lr_schedule": ("server_lr_scheduler", "server_scheduler", "server_learning_rate_schedule"),
    "clip_norm": ("max_grad_norm", "clip_grad_norm", "grad_clip", "clip_grad", "gradient_clipping", "max_norm"),
    "clip_value": ("clip_grad_value", "max_grad_value"),
    "seed": ("random_seed", "rng_seed", "manual_seed"),
    "workers": ("num_workers", "n_workers", "n_jobs", "num_processes"),
    "device": ("gpu", "cuda", "client_device"),
    "method": ("strategy", "algorithm", "algo", "alg", "aggregator", "fl_algorithm"),
    "task": ("dataset", "data", "dataset_name"),
    "delay": ("delays", "latency", "staleness_distribution"),
    "partition": ("partitioner", "partitioning", "split", "data_split", "non_iid"),
    "failure_rate": ("dropout_rate", "drop_rate", "dropout_prob", "failure_prob"),
    "out": ("output", "output_dir", "save_dir", "log_dir", "result_dir", "outdir"),
    "eval_every": ("eval_interval", "evaluate_every", "test_every", "eval_freq"),
    "task.model": ("model", "net", "arch", "architecture", "model_name"),
    "partition.alpha": ("dirichlet", "dirichlet_alpha", "dir_alpha", "non_iid_alpha", "concentration"),
    "method.buffer": ("buffer_size", "buffer_k"),
    "method.eta": ("server_lr", "server_learning_rate", "global_lr", "eta_g"),
    "method.mu": ("proximal_mu", "prox_mu"),
}
_SETTING_OF = {other: setting for setting, others in _OTHER_NAMES.items() for other in others}


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return the setting that an unknown name stands for elsewhere, or the known one that resembles it, or None."""
    name = name.replace("-", "_").casefold()
    return _SETTING_OF.get(name) or nearest(name, known)


def unknown_setting(name: str, value: Any, known: Iterable[str], chosen: Mapping[str, Any]) -> str:
    """Return the problem of an unknown setting: what it is called here, or which component has such a parameter."""
    own, others = groups_with(name, chosen)
    close = None if own else suggestion(name, known)
    meant = [close] if close else [f"{group}.{name}" for group in own or others]
    hint = f"did you mean {' or '.join(map(repr, meant))}?" if meant else f"known are {', '.join(known)}"
    if meant and "." in meant[0]:
        group, _, parameter = meant[-1].partition(".")
        hint = f"{hint[:-1]}, as in {example_of(group, parameter, value, chosen[group])}?"
    return f"--{name.replace('_', '-')}: no such setting; {hint}"
