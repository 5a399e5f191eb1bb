"""Federations whose clients hold examples of their own: the server has a test set at most, a node its data.

The task's factory is called on each machine; what it finds there, undivided, is that client's data. On the server it
gives the model, the loss and the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config.components import Choice
from ..core.errors import BadInput
from ..core.task import Examples
from ..runs.build import Plan, plan
from ..tasks import tasks

if TYPE_CHECKING:
    from .config import Setting

__all__ = ["shaped", "with_own_data"]


class _Mine(Sequence[Examples]):
    """The same examples whatever place the client has."""

    def __init__(self, examples: Examples, n: int):
        self._examples, self._n = examples, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]
        if not 0 <= client < self._n:
            raise IndexError(client)
        return self._examples


def shaped(setting: Setting) -> Plan:
    """The plan of a server that has nobody's examples: those that its task finds here give shapes, nothing else."""
    s = setting.spec
    if s.clients is None:
        raise BadInput("clients: say how many there are at most; the server does not hold their examples")
    task = tasks.build(s.task.name, s.task.params) if isinstance(s.task, Choice) else s.task
    if task.train is None and not task.clients:
        if task.test is None:
            raise BadInput(f"task = {task.name}: on the server it needs a test set, or examples to see shapes by")
        task = replace(task, clients=[task.test])
    alone = None if task.train is None else 1
    if task.train is None:
        task = replace(task, clients=task.clients[:1])
    made = plan(replace(s, task=task, clients=alone, partition=Choice("iid"), concurrency=None))
    return replace(made, spec=s)


def with_own_data(setting: Setting) -> Plan:
    """The plan of a client: all that its task finds on this machine is its own."""
    made = shaped(setting)
    n = setting.spec.clients or 1
    return replace(made, task=replace(made.task, clients=_Mine(made.task.clients[0], n)))
