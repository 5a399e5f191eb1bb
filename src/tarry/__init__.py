"""tarry: asynchronous federated learning that makes stragglers count.

    import tarry
    result = tarry.run("orthofl", "digits", time=10_000, seed=1)
    comparison = tarry.compare(["fedavg", "fedasync", "orthofl"], "digits", seeds=[0, 1, 2])

A task of your own is a `Task`; a method of your own a `Method` made of `Part`s and a `LocalRule`.
"""

from .compare import Comparison as Comparison
from .compare import compare as compare
from .core.errors import BadInput as BadInput
from .core.errors import TarryError as TarryError
from .core.event import Event as Event
from .core.layout import Layout as Layout
from .core.local import Brief as Brief
from .core.local import Functions as Functions
from .core.local import LocalRule as LocalRule
from .core.local import Outcome as Outcome
from .core.method import Method as Method
from .core.method import Now as Now
from .core.method import Part as Part
from .core.method import stateless as stateless
from .core.task import Task as Task
from .core.ticket import Offer as Offer
from .core.ticket import Start as Start
from .core.ticket import Ticket as Ticket
from .core.ticket import Update as Update
from .experiment import Progress as Progress
from .experiment import resume as resume
from .experiment import run as run
from .methods import methods as methods
from .parts.manifold import manifolds as manifolds
from .record.result import Result as Result
from .sim.fleet import delays as delays
from .tasks import partitions as partitions
from .tasks import tasks as tasks
from .tasks.unlabelled import unlabelled_sets as unlabelled_sets
from .version import __version__ as __version__

__all__ = [
    "BadInput",
    "Brief",
    "Comparison",
    "Event",
    "Functions",
    "Layout",
    "LocalRule",
    "Method",
    "Now",
    "Offer",
    "Outcome",
    "Part",
    "Progress",
    "Result",
    "Start",
    "TarryError",
    "Task",
    "Ticket",
    "Update",
    "compare",
    "delays",
    "manifolds",
    "methods",
    "partitions",
    "resume",
    "run",
    "stateless",
    "tasks",
    "unlabelled_sets",
]
