"""Federations whose clients hold examples of their own: the server has at most a test set, each node its data.

The task's factory is called on each machine. On a node all examples that it finds are that client's data; on the
server it gives the model, the loss and the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import BadInput
from ..core.task import Examples
from ..runs.build import BuiltRun
from ..runs.remote_data import build_without_data

if TYPE_CHECKING:
    from .config import DeployConfig

__all__ = ["plan_with_own_data", "plan_without_data"]


class _SameForAll(Sequence[Examples]):
    """The same examples at every index."""

    def __init__(self, examples: Examples, n: int):
        self._examples, self._n = examples, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]
        if not 0 <= client < self._n:
            raise IndexError(client)
        return self._examples


def plan_without_data(setting: DeployConfig) -> BuiltRun:
    """Build the run of a server without client data."""
    if setting.spec.clients is None:
        raise BadInput("clients: say how many there are at most; the server does not hold their examples")
    return build_without_data(setting.spec, may_lack_shapes=setting.options.client != "tarry")


def plan_with_own_data(setting: DeployConfig) -> BuiltRun:
    """Build the run of a client: all examples that its task finds on this machine are its own."""
    built = plan_without_data(setting)
    n = setting.spec.clients or 1
    return replace(built, task=replace(built.task, clients=_SameForAll(built.task.clients[0], n)))
