"""tarry: asynchronous federated learning that makes stragglers count.

    import tarry
    result = tarry.run("orthofl", "digits", time=10_000, seed=1)
    comparison = tarry.compare(["fedavg", "fedasync", "orthofl"], "digits", seeds=[0, 1, 2])

A task of your own is a `Task`; a method of your own a `Method` made of `Part`s and a `LocalRule`.
"""

from .core.errors import BadInput as BadInput
from .core.errors import TarryError as TarryError
from .core.events import Event as Event
from .core.layout import Layout as Layout
from .core.local_rule import Brief as Brief
from .core.local_rule import Functions as Functions
from .core.local_rule import LocalRule as LocalRule
from .core.local_rule import Outcome as Outcome
from .core.method import Method as Method
from .core.method import Now as Now
from .core.parts import Aggregate as Aggregate
from .core.parts import Correct as Correct
from .core.parts import Dispatch as Dispatch
from .core.parts import Part as Part
from .core.parts import Reply as Reply
from .core.parts import Step as Step
from .core.parts import stateless as stateless
from .core.task import Task as Task
from .core.tickets import Offer as Offer
from .core.tickets import Start as Start
from .core.tickets import Ticket as Ticket
from .core.tickets import Update as Update
from .delays.base import delays as delays
from .methods import methods as methods
from .parts.manifold import manifolds as manifolds
from .record.result import Result as Result
from .runs.compare import Comparison as Comparison
from .runs.compare import compare as compare
from .runs.run import Progress as Progress
from .runs.run import resume as resume
from .runs.run import run as run
from .tasks import partitions as partitions
from .tasks import tasks as tasks
from .tasks.unlabeled import unlabeled_sets as unlabeled_sets
from .version import __version__ as __version__

__all__ = [
    "Aggregate",
    "BadInput",
    "Brief",
    "Comparison",
    "Correct",
    "Dispatch",
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
    "Reply",
    "Result",
    "Start",
    "Step",
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
    "unlabeled_sets",
]
