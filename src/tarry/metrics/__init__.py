"""Metrics of a model's outputs on the whole test set, by name: `tarry.metrics["f1"](average="micro")`."""

from . import ranking as ranking  # registers auroc; .scoring imports the others
from .choice import MetricChoice, chosen_metrics, metrics_of
from .classification import accuracy
from .registry import metrics
from .scoring import Scoring, default_metrics, is_mean_over_examples

__all__ = [
    "MetricChoice",
    "Scoring",
    "accuracy",
    "chosen_metrics",
    "default_metrics",
    "is_mean_over_examples",
    "metrics",
    "metrics_of",
]
