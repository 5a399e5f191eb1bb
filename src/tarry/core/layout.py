"""A model as one flat vector, and the table that says which stretch of it is what.

The vector holds the trained tensors first, in the module's own order, then the running statistics:

    kind     what                                             rule
    param    a trained tensor                                 trained, averaged, projected
    norm     a trained tensor of a normalization layer        the same; marked, so that a method may treat it apart
    head     a trained tensor of the last linear or conv map  the same; marked
    stat     a floating-point buffer (BatchNorm's mean, var)  travels and is averaged with the weights; never a
                                                              direction: no projection, cosine, norm or gradient step
                                                              touches it

The head is the last map that a forward pass begins to run (`Layout.of(module, x)`); without inputs, the last declared.

Two kinds of tensors stay with the module and are never sent: parameters with requires_grad=False (a frozen base under
LoRA), and whole-number buffers (BatchNorm's batch counter), which begin every local training at the value they were
built with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, repr=False)
class Layout:
    """Layout of the flat vector of a model: trained tensors (`layers`), then running statistics (`stats`).

    >>> from torch import nn
    >>> module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    >>> layout = tarry.Layout.of(module)
    >>> layout
    Layout(12 weights in 4 tensors, 4 statistics in 2)
    >>> for block in layout.blocks:
    ...     print(block.name, block.kind, block.shape)
    0.weight head (2, 3)
    0.bias head (2,)
    1.weight norm (2,)
    1.bias norm (2,)
    1.running_mean stat (2,)
    1.running_var stat (2,)
    """

    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        statistics = f", {self.size - self.n_params:,} statistics in {len(self.stats)}" if self.stats else ""
        return f"Layout({self.n_params:,} weights in {len(self.layers)} tensors{statistics})"

    @cached_property
    def layers(self) -> tuple[Block, ...]:
        """The trained tensors.

        >>> layout = tarry.Layout.of(torch.nn.Linear(3, 2))
        >>> [(block.name, block.start, block.stop) for block in layout.layers]
        [('weight', 0, 6), ('bias', 6, 8)]
        """
        return tuple(b for b in self.blocks if b.kind is not Kind.STAT)

    @cached_property
    def layer_slices(self) -> tuple[slice, ...]:
        """The slice of the vector of each trained tensor.

        >>> tarry.Layout.of(torch.nn.Linear(3, 2)).layer_slices
        (slice(0, 6, None), slice(6, 8, None))
        """
        return tuple(b.at for b in self.layers)

    @cached_property
    def stats(self) -> tuple[Block, ...]:
        """The running statistics, which travel with the weights and are averaged like them.

        >>> [block.name for block in tarry.Layout.of(torch.nn.BatchNorm1d(2)).stats]
        ['running_mean', 'running_var']
        """
        return tuple(b for b in self.blocks if b.kind is Kind.STAT)

    @cached_property
    def n_params(self) -> int:
        """The number of trained weights.

        >>> tarry.Layout.of(torch.nn.BatchNorm1d(2)).n_params
        4
        """
        return self.layers[-1].stop

    @cached_property
    def size(self) -> int:
        """The length of the vector: trained weights and running statistics.

        >>> tarry.Layout.of(torch.nn.BatchNorm1d(2)).size
        8
        """
        return self.blocks[-1].stop

    def params(self, vec: Tensor) -> Tensor:
        """Return the trained part of a vector, without the statistics: for directions, norms and cosines.

        >>> tarry.Layout.of(torch.nn.BatchNorm1d(1)).params(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([1., 2.])
        """
        return vec[: self.n_params]

    def views(self, vec: Tensor) -> dict[str, Tensor]:
        """Return every tensor by name, as a view of the vector.

        >>> views = tarry.Layout.of(torch.nn.Linear(2, 1)).views(torch.tensor([1.0, 2.0, 3.0]))
        >>> views["weight"], views["bias"]
        (tensor([[1., 2.]]), tensor([3.]))
        """
        return {b.name: vec[b.at].view(b.shape) for b in self.blocks}

    @classmethod
    def of(cls, module: nn.Module, x: Tensor | None = None) -> Layout:
        """Return the layout of a module; x: some of its inputs, to see which map runs last.

        >>> tarry.Layout.of(torch.nn.Linear(3, 2))
        Layout(8 weights in 2 tensors)
        """
        kinds = _kinds(module, x)
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
        """Return the present values of the module as a new flat vector.

        >>> module = torch.nn.Linear(2, 1)
        >>> vector = tarry.Layout.of(module).read(module, torch.float32)
        >>> vector.shape, torch.equal(vector[:2], module.weight.data[0])
        (torch.Size([3]), True)
        """
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([tensors[b.name].detach().reshape(-1).to(dtype) for b in self.blocks])


def _kinds(module: nn.Module, x: Tensor | None) -> dict[int, Kind]:
    """Which trained tensors are normalization or head, by the type of the module that owns them."""
    owners = dict(module.named_modules())
    kinds = {
        id(p): Kind.NORM for owner in owners.values() if isinstance(owner, _NORMS) for p in _trained_parameters(owner)
    }
    maps = [name for name, owner in owners.items() if _is_map(owner)]
    if len(maps) > 1 and x is not None:
        maps = _as_run(module, maps, x) or maps
    if maps:
        kinds.update((id(p), Kind.HEAD) for p in _trained_parameters(owners[maps[-1]]))
    return kinds


def _is_map(owner: nn.Module) -> bool:
    return not isinstance(owner, _NORMS + _TABLES) and any(p.ndim >= 2 for p in _trained_parameters(owner))


def _as_run(module: nn.Module, names: Sequence[str], x: Tensor) -> list[str]:
    """Return the names of submodules that a pass in eval mode runs, in their order; the module does not change."""
    probe, ran = copy.deepcopy(module).eval(), list[str]()
    for name in names:
        probe.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        probe(x)
    return ran


def _trained_parameters(owner: nn.Module) -> Iterator[Tensor]:
    return (p for p in owner.parameters(recurse=False) if p.requires_grad)
