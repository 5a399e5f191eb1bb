"""Trackers: TensorBoard, MLflow, Weights & Biases, and the class for others. The import fills the registry.

The libraries are extras, which are imported when a tracker is made.
"""

from . import mlflow as mlflow
from . import tensorboard as tensorboard
from . import wandb as wandb
from .registry import trackers as trackers
from .tracker import Tracker as Tracker

__all__ = ["Tracker", "trackers"]
