"""Steps to be traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def stepped(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Any, list[Tensor]]:
    """Outputs, gradients of weights and of images, and arguments for it."""
    names = [n for n, _ in module.named_parameters()]

    def fn(*args: Tensor) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() for a in args]
        out = functional_call(module, dict(zip(names, leaves[:-1], strict=True)), (leaves[-1],))
        return [out.detach(), *torch.autograd.grad((out**2).mean(), leaves)]

    return fn, [*(p.detach() for p in module.parameters()), torch.randn(shape, dtype=dtype, device=device)]
