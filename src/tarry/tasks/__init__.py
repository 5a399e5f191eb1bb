"""Learning tasks: data sets, models, losses, and partitions of the data over clients.

tasks.build("digits", hidden=32)                a task whose data are not yet split over clients
    .split(partitions.build("dirichlet", alpha=0.3), 10, rng)
"""

from . import images as images  # registers tasks; .partitions registers the partitions
from . import language as language
from . import series as series
from . import text as text
from .models import LeNet5, McMahanCNN, mlp, model_for
from .partitions import at_least
from .registries import partitions, tasks

__all__ = ["LeNet5", "McMahanCNN", "at_least", "mlp", "model_for", "partitions", "tasks"]
