"""Metrics of a model's outputs on the whole test set, by name: `tarry.metrics["f1"](average="micro")`."""

from . import classification as classification  # each registers its metrics
from . import ranking as ranking
from . import regression as regression
from .choice import MetricChoice, chosen_metrics, metrics_of
from .registry import metrics
from .scoring import Scoring, default_metrics, is_mean_over_examples

__all__ = [
    "MetricChoice",
    "Scoring",
    "chosen_metrics",
    "default_metrics",
    "is_mean_over_examples",
    "metrics",
    "metrics_of",
]
