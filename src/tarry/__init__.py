"""tarry: asynchronous federated learning that makes stragglers count.

    import tarry
    result = tarry.run("orthofl", "digits", time=10_000, seed=1)
    comparison = tarry.compare(["fedavg", "fedasync", "orthofl"], "digits", seeds=[0, 1, 2])

A task of your own is a `Task`; a method of your own a `Method` made of `Part`s and a `LocalRule`.
The public names are imported when they are first used, so that `import tarry` alone does not import torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .config.keywords import Setting as Setting
    from .config.keywords import settings as settings
    from .core.errors import BadInput as BadInput
    from .core.errors import DamagedFile as DamagedFile
    from .core.errors import Diverged as Diverged
    from .core.errors import SolverFailed as SolverFailed
    from .core.errors import StorageError as StorageError
    from .core.errors import TarryError as TarryError
    from .core.errors import TarryWarning as TarryWarning
    from .core.errors import WorkerDied as WorkerDied
    from .core.events import Event as Event
    from .core.layout import Layout as Layout
    from .core.local_rule import ClientModel as ClientModel
    from .core.local_rule import LocalRule as LocalRule
    from .core.local_rule import VisitInput as VisitInput
    from .core.local_rule import VisitOutput as VisitOutput
    from .core.method import Method as Method
    from .core.method import ServerView as ServerView
    from .core.metric import CurvePoint as CurvePoint
    from .core.metric import Metric as Metric
    from .core.parts import Aggregate as Aggregate
    from .core.parts import Correct as Correct
    from .core.parts import Dispatch as Dispatch
    from .core.parts import Part as Part
    from .core.parts import Reply as Reply
    from .core.parts import Step as Step
    from .core.parts import stateless as stateless
    from .core.schedule import ScheduleInput as ScheduleInput
    from .core.task import Task as Task
    from .core.tickets import NextStart as NextStart
    from .core.tickets import Ticket as Ticket
    from .core.tickets import TicketExtras as TicketExtras
    from .core.tickets import Update as Update
    from .delays import delays as delays
    from .methods import methods as methods
    from .metrics import metrics as metrics
    from .parts.manifold import manifolds as manifolds
    from .record.result import Result as Result
    from .runs.compare import compare as compare
    from .runs.comparison import Comparison as Comparison
    from .runs.read import read as read
    from .runs.replay import Replay as Replay
    from .runs.replay import replay as replay
    from .runs.run import Progress as Progress
    from .runs.run import resume as resume
    from .runs.run import run as run
    from .runs.tuning.study import tune as tune
    from .runs.tuning.tuning import Tuning as Tuning
    from .runs.verify import Verification as Verification
    from .runs.verify import verify as verify
    from .tasks import partitions as partitions
    from .tasks import tasks as tasks
    from .tasks.unlabeled import unlabeled_sets as unlabeled_sets
    from .trackers import trackers as trackers
    from .trackers.tracker import TrackedGroup as TrackedGroup
    from .trackers.tracker import TrackedPoint as TrackedPoint
    from .trackers.tracker import TrackedRun as TrackedRun
    from .trackers.tracker import Tracker as Tracker
    from .training.schedules import schedules as schedules

#: the module that defines each public name
_MODULES = {
    "Aggregate": "core.parts",
    "BadInput": "core.errors",
    "ClientModel": "core.local_rule",
    "Comparison": "runs.comparison",
    "Correct": "core.parts",
    "CurvePoint": "core.metric",
    "DamagedFile": "core.errors",
    "Dispatch": "core.parts",
    "Diverged": "core.errors",
    "Event": "core.events",
    "Layout": "core.layout",
    "LocalRule": "core.local_rule",
    "Method": "core.method",
    "Metric": "core.metric",
    "NextStart": "core.tickets",
    "Part": "core.parts",
    "Progress": "runs.run",
    "Replay": "runs.replay",
    "Reply": "core.parts",
    "Result": "record.result",
    "ScheduleInput": "core.schedule",
    "ServerView": "core.method",
    "Setting": "config.keywords",
    "SolverFailed": "core.errors",
    "StorageError": "core.errors",
    "Step": "core.parts",
    "TarryError": "core.errors",
    "TarryWarning": "core.errors",
    "Task": "core.task",
    "Ticket": "core.tickets",
    "TicketExtras": "core.tickets",
    "TrackedGroup": "trackers.tracker",
    "TrackedPoint": "trackers.tracker",
    "TrackedRun": "trackers.tracker",
    "Tracker": "trackers.tracker",
    "Tuning": "runs.tuning.tuning",
    "Update": "core.tickets",
    "Verification": "runs.verify",
    "VisitInput": "core.local_rule",
    "VisitOutput": "core.local_rule",
    "WorkerDied": "core.errors",
    "compare": "runs.compare",
    "delays": "delays",
    "manifolds": "parts.manifold",
    "methods": "methods",
    "metrics": "metrics",
    "partitions": "tasks",
    "read": "runs.read",
    "replay": "runs.replay",
    "resume": "runs.run",
    "run": "runs.run",
    "schedules": "training.schedules",
    "settings": "config.keywords",
    "stateless": "core.parts",
    "tasks": "tasks",
    "trackers": "trackers",
    "tune": "runs.tuning.study",
    "unlabeled_sets": "tasks.unlabeled",
    "verify": "runs.verify",
}
__all__ = list(_MODULES)


class _LazyPackage(ModuleType):
    """The package itself: public names and subpackages are imported on first access (PEP 562, as a class).

    Registries such as `methods` and `metrics` share their names with subpackages. The import system assigns a
    subpackage to its parent; `__setattr__` drops that assignment, so that the public name is always the registry.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        elif name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        else:
            value = self._submodule(name)
        self.__dict__[name] = value
        return value

    def _submodule(self, name: str) -> ModuleType:
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as e:
            if e.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _MODULES):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULES})


sys.modules[__name__].__class__ = _LazyPackage
