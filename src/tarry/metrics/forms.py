"""Forms of outputs and targets that metrics take, and what they are turned into.

classes       outputs [..., C], targets [...] whole numbers; −100 does not count (PyTorch's ignore_index)
yes or no     outputs and targets of one size, targets 0 or 1: a label or several a row (multi-label)
numbers       outputs and targets of one size
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ..core.errors import BadInput

__all__ = ["IGNORED", "is_classes", "labeled_rows", "log_probabilities", "number_rows", "yes_no_rows"]

IGNORED = -100  # target of a place that does not count


def is_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether the outputs are scores of classes and the targets are their numbers."""
    numbers = not targets.is_floating_point() and targets.dtype != torch.bool
    return numbers and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1


def labeled_rows(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores [N, C] and classes [N] of all places that count; BadInput if they are not scores of classes."""
    if not is_classes(outputs, targets):
        raise _misfit(
            name, "scores of classes: outputs of examples × classes, and targets of whole numbers", outputs, targets
        )
    if targets.ndim == 1 and targets.numel() and int(targets.min()) >= 0:
        rows, classes = outputs, targets
    else:
        counted = targets != IGNORED
        rows, classes = outputs[counted], targets[counted]
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < outputs.shape[-1]:
        low, high = int(classes.min()), int(classes.max())
        raise BadInput(
            f"--metric {name}: the targets are {low} to {high}, and the model scores {outputs.shape[-1]} classes"
        )
    return rows, classes


def yes_no_rows(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores [N, L] and answers [N, L], 0 or 1; BadInput if they are not of one size or not 0 and 1."""
    outputs, targets = _same_rows(name, "scores of labels, with a target 0 or 1 for each", outputs, targets)
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise BadInput(
            f"--metric {name}: it is for classes, or for targets that are 0 or 1; these targets are other numbers"
            " (rmse, mae and r2 are for such)"
        )
    return outputs, targets.long()


def number_rows(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets [N, D] in double precision; BadInput if they are not of one size."""
    outputs, targets = _same_rows(name, "numbers, with a target for each output", outputs, targets)
    return outputs.double(), targets.double()


def log_probabilities(rows: Tensor) -> Tensor:
    """Return the logarithms of the probabilities of classes, in double precision.

    Rows are scores (logits) or log-probabilities; rows that are probabilities already are taken as these.
    """
    rows = rows.double()
    if bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all()):
        return (rows / rows.sum(-1, keepdim=True)).log()
    return log_softmax(rows, -1)


def _same_rows(name: str, wants: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    same = outputs.shape == targets.shape or (
        outputs.numel() == targets.numel()
        and len(outputs) == len(targets)
        and 1 in (outputs.shape[-1], targets.shape[-1])
    )
    if not same:
        raise _misfit(name, wants, outputs, targets)
    return outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)


def _misfit(name: str, wants: str, outputs: Tensor, targets: Tensor) -> BadInput:
    out, given = ("×".join(map(str, t.shape)) for t in (outputs, targets))
    kind = str(targets.dtype).removeprefix("torch.")
    return BadInput(
        f"--metric {name}: it is for {wants}; here a model's outputs are {out or 'single numbers'} and the targets"
        f" {given or 'single numbers'}, {kind}; `tarry metrics` lists others, loss is for all"
    )
