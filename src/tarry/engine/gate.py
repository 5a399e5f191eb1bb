"""Gate: the checks that an update passes before the method sees it. Simulator and deployment share it.

    shape and type     of the displacement: those of the global weights; no extra is larger than the model
    finite             displacement, extras and loss
    counts             examples: at most the declared number, and consistent with the client's earlier reports
    norm               of the displacement and of each extra: at most the absolute bound, if there is one, and a
                       multiple of the running medians of all clients and of this client (typical_size.py)

`examine` changes nothing; `record_acceptance` and `record_rejection` learn from what was examined. The same calls give
the same verdicts to the bit. A client whose updates are rejected again and again is quarantined (quarantine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.rejections import Reason
from ..core.tickets import LocalResult
from .quarantine import Quarantine
from .typical_size import TypicalSize

__all__ = ["ACCEPTED", "Gate", "GateSettings", "GateVerdict"]

_DELTA, _EXAMPLES = "delta", "examples"  # kinds of sizes; extras have their own names, after a dot
_LARGEST_LOSS = 1e30
_EXAMPLES_MULTIPLE, _OWN_EXAMPLES_MULTIPLE = 1000.0, 4.0  # of the typical number of examples


@dataclass(frozen=True)
class GateSettings:
    """Limits of the gate."""

    norm_multiple: float = 20.0  # of the typical norm; 0: no limit
    norm_bound: float | None = None  # of the displacement
    max_examples: int | None = None  # that a client may report
    quarantine: float = 60.0  # seconds of a first period; 0: none


class GateVerdict(NamedTuple):
    """The result of an examination. `sizes` is what the gate learns from; `reason` is None if all is right."""

    reason: Reason | None
    detail: str = ""
    sizes: Mapping[str, float] = {}  # never written to


ACCEPTED = GateVerdict(None)


@dataclass
class Gate:
    """The checks and their memory, for a server with these first weights and so many clients."""

    settings: GateSettings
    weights: Tensor
    n_clients: int

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.settings.quarantine)
        self._shape, self._dtype = self.weights.shape, self.weights.dtype
        self._scale = max(_norm(self.weights), sqrt(self.weights.numel()))
        self._typical: dict[str, TypicalSize] = {}

    def examine(self, client: int, result: LocalResult) -> GateVerdict:
        """Return whether an update may reach the method, or why it may not."""
        if result.delta.shape != self._shape or result.delta.dtype != self._dtype:
            given = f"{tuple(result.delta.shape)[:8]} {result.delta.dtype}"
            return GateVerdict(Reason.ARRAYS, f"the displacement is {given}, not {tuple(self._shape)} {self._dtype}")
        for name, extra in result.extras.items():
            if extra.numel() > self._shape.numel():
                return GateVerdict(Reason.ARRAYS, f"extra {name[:40]!r} has {extra.numel():,} numbers")
        if not result.finite:
            return GateVerdict(Reason.NOT_FINITE, "it holds NaN or infinity")
        sizes = {_DELTA: _norm(result.delta), _EXAMPLES: float(result.n_examples)}
        sizes |= {f".{name}": _norm(extra) for name, extra in result.extras.items()}
        if not all(map(isfinite, sizes.values())):
            return GateVerdict(Reason.NOT_FINITE, "it holds NaN or infinity")
        if abs(result.loss) > _LARGEST_LOSS:
            return GateVerdict(Reason.METADATA, f"a loss of {result.loss:.3g}", sizes)
        return self._check_examples(client, result.n_examples, sizes) or self._check_norms(client, sizes)

    def _check_examples(self, client: int, count: int, sizes: Mapping[str, float]) -> GateVerdict | None:
        most, limit = self.settings.max_examples, self._sizes_of(_EXAMPLES).limit(client)
        if most is not None and count > most:
            return GateVerdict(Reason.EXAMPLES, f"{count:,} examples, where at most {most:,} are declared", sizes)
        if count > limit:
            return GateVerdict(Reason.EXAMPLES, f"{count:,} examples, where {limit:,.0f} are plausible", sizes)
        return None

    def _check_norms(self, client: int, sizes: Mapping[str, float]) -> GateVerdict:
        bound = self.settings.norm_bound
        if bound is not None and sizes[_DELTA] > bound:
            return GateVerdict(Reason.NORM, f"a displacement of norm {sizes[_DELTA]:.3g}, above {bound:.3g}", sizes)
        for name, norm in sizes.items():
            limit = inf if name == _EXAMPLES else self._sizes_of(name).limit(client)
            if norm > limit:
                what = "a displacement" if name == _DELTA else f"extra {name[1:41]!r}"
                return GateVerdict(Reason.NORM, f"{what} of norm {norm:.3g}, above {limit:.3g}", sizes)
        return GateVerdict(None, "", sizes)

    def record_acceptance(self, client: int, sizes: Mapping[str, float]) -> None:
        """Learn from an accepted update."""
        self._learn(client, sizes)
        self.quarantine.record_acceptance(client)

    def record_rejection(self, client: int, time: float, sizes: Mapping[str, float]) -> None:
        """Learn from a rejected update, and quarantine a client that is over its quota."""
        self._learn(client, sizes)
        self.quarantine.record_rejection(client, time)

    def _learn(self, client: int, sizes: Mapping[str, float]) -> None:
        for name, size in sizes.items():
            self._sizes_of(name).learn(client, size)

    def _sizes_of(self, name: str) -> TypicalSize:
        if name not in self._typical:
            self._typical[name] = self._make_typical(name)
        return self._typical[name]

    def _make_typical(self, name: str) -> TypicalSize:
        if name == _EXAMPLES:
            limits = (_EXAMPLES_MULTIPLE, _OWN_EXAMPLES_MULTIPLE, inf)
        elif self.settings.norm_multiple == 0:
            limits = (inf, inf, inf)
        elif name == _DELTA:
            limits = (
                self.settings.norm_multiple,
                self.settings.norm_multiple,
                self.settings.norm_multiple * self._scale,
            )
        else:  # an extra may be a number of steps, which differs more between clients than a displacement
            wide = self.settings.norm_multiple**2
            limits = (wide, self.settings.norm_multiple, wide * self._scale)
        multiple, own_multiple, at_first = limits
        return TypicalSize(multiple, own_multiple, at_first=at_first, clients=self.n_clients)

    def save(self) -> dict[str, Any]:
        return {
            "typical": {name: typical.save() for name, typical in self._typical.items()},
            "quarantine": self.quarantine.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._typical = {}
        for name, record in saved["typical"].items():
            self._sizes_of(name).load(record)
        self.quarantine.load(saved["quarantine"])


def _norm(tensor: Tensor) -> float:
    """Return the norm, which does not overflow where the numbers are finite."""
    flat = tensor.detach().reshape(-1)
    if flat.is_floating_point():
        norm = float(torch.linalg.vector_norm(flat).item())
        if isfinite(norm):
            return norm
    return float(torch.linalg.vector_norm(flat.double()).item())
