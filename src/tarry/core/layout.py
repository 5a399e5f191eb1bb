"""A model as one flat vector, and the table that says which stretch of it is what.

The vector holds the trained tensors first, in the module's own order, then the running statistics:

    kind     what                                             rule
    param    a trained tensor                                 trained, averaged, projected
    norm     a trained tensor of a normalisation layer        the same; marked, so that a method may treat it apart
    head     a trained tensor of the last linear or conv map  the same; marked
    stat     a floating-point buffer (BatchNorm's mean, var)  travels and is averaged with the weights; never a
                                                              direction: no projection, cosine, norm or gradient step
                                                              touches it

Two things stay with the module and are never sent: parameters with requires_grad=False (a frozen base under LoRA), and
whole-number buffers (BatchNorm's batch counter), which begin every local training at the value they were built with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .errors import BadInput

__all__ = ["Block", "Kind", "Layout"]

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_TABLES = (nn.Embedding, nn.EmbeddingBag)  # looked up, not a map: never the head


class Kind(StrEnum):
    PARAM = "param"
    NORM = "norm"
    HEAD = "head"
    STAT = "stat"


@dataclass(frozen=True)
class Block:
    """One tensor's stretch of the flat vector. 'Layer' in the papers' equations means one such tensor."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    kind: Kind

    @property
    def at(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Layout:
    """The table: trained tensors (`layers`), then running statistics (`stats`)."""

    blocks: tuple[Block, ...]

    @cached_property
    def layers(self) -> tuple[Block, ...]:
        return tuple(b for b in self.blocks if b.kind is not Kind.STAT)

    @cached_property
    def stats(self) -> tuple[Block, ...]:
        return tuple(b for b in self.blocks if b.kind is Kind.STAT)

    @cached_property
    def n_params(self) -> int:
        return self.layers[-1].stop

    @cached_property
    def size(self) -> int:
        return self.blocks[-1].stop

    def params(self, vec: Tensor) -> Tensor:
        """The trained part of a vector: what directions, norms and cosines are about."""
        return vec[: self.n_params]

    def views(self, vec: Tensor) -> dict[str, Tensor]:
        """Every tensor by name, as a view of the vector."""
        return {b.name: vec[b.at].view(b.shape) for b in self.blocks}

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Read the table off a module."""
        kinds = _kinds(module)
        named: list[tuple[str, Tensor, Kind]] = [
            (n, p, kinds.get(id(p), Kind.PARAM)) for n, p in module.named_parameters() if p.requires_grad
        ]
        if not named:
            raise BadInput("the model has no trainable parameters")
        named += [(n, b, Kind.STAT) for n, b in module.named_buffers() if b.is_floating_point()]
        blocks, start = [], 0
        for name, tensor, kind in named:
            blocks.append(Block(name, start, start + tensor.numel(), tuple(tensor.shape), kind))
            start += tensor.numel()
        return cls(tuple(blocks))

    def read(self, module: nn.Module, dtype: torch.dtype) -> Tensor:
        """The module's present values as a new flat vector."""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([tensors[b.name].detach().reshape(-1).to(dtype) for b in self.blocks])


def _kinds(module: nn.Module) -> dict[int, Kind]:
    """Which trained tensors are normalisation or head, by the type of the module that owns them."""
    kinds: dict[int, Kind] = {}
    head: nn.Module | None = None
    for owner in module.modules():
        own = list(_trained(owner))
        if isinstance(owner, _NORMS):
            kinds.update((id(p), Kind.NORM) for p in own)
        elif any(p.ndim >= 2 for p in own) and not isinstance(owner, _TABLES):
            head = owner
    if head is not None:
        kinds.update((id(p), Kind.HEAD) for p in _trained(head))
    return kinds


def _trained(owner: nn.Module) -> Iterator[Tensor]:
    return (p for p in owner.parameters(recurse=False) if p.requires_grad)
