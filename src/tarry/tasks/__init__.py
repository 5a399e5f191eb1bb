"""What there is to learn: tasks (data, model, loss), the models, and the ways to deal the data out to clients.

tasks.build("digits", {"hidden": 32})             a task that is not cut up yet
    .split(partitions.build("dirichlet", {"alpha": 0.3}), 10, rng)
"""

from . import images as images  # fills the registry of tasks, as .partitions does that of partitions
from . import language as language
from . import series as series
from . import text as text
from .models import LeNet5, McMahanCNN, mlp, model_for
from .partitions import at_least
from .registries import find_task, partitions, tasks

__all__ = ["LeNet5", "McMahanCNN", "at_least", "find_task", "mlp", "model_for", "partitions", "tasks"]
