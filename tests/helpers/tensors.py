"""Short names for tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def vec(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
