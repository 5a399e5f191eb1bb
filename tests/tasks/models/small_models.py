"""Every model at a size that trains in a moment."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.tasks.models import Build, mobilenet, model_for, vgg

CLASSES, TOKENS = 3, 11


class Case(NamedTuple):
    name: str
    shape: tuple[int, ...]
    options: dict[str, Any]

    def build(self, **more: Any) -> Build:
        return model_for(self.name, self.shape, CLASSES, **self.options, **more)

    def inputs(self, n: int, g: torch.Generator) -> Tensor:
        if self.name == "textcnn":
            return torch.randint(0, TOKENS, (n, *self.shape), generator=g)
        return torch.randn(n, *self.shape, generator=g, dtype=torch.float64)

    def task(self, sizes: tuple[int, ...], **more: Any) -> tarry.Task:
        g = torch.Generator().manual_seed(4)
        data = [(self.inputs(n, g), torch.randint(0, CLASSES, (n,), generator=g)) for n in sizes]
        loss = nn.functional.cross_entropy
        return tarry.Task("small", model=self.build(**more), loss=loss, clients=data, test=data[-1])


CASES = [
    Case("mlp", (5, 2), {"hidden": 4}),
    Case("lenet5", (1, 16, 17), {}),
    Case("cnn", (2, 4, 5), {}),
    Case("vgg11", (1, 16, 20), {}),
    Case("vgg11", (2, 32, 33), {"norm": "none", "hidden": 8}),
    Case("resnet18", (1, 16, 17), {"width": 4}),
    Case("resnet18", (3, 64, 64), {"width": 4}),
    Case("resnet34", (2, 16, 16), {"width": 4}),
    Case("resnet18-1d", (3, 64), {"width": 4}),
    Case("resnet18-1d", (65, 3), {"width": 4}),
    Case("mobilenetv2", (1, 16, 16), {}),
    Case("sl-vit", (1, 28, 28), {"depth": 1, "patch": 8, "head": 4, "hidden": 8}),
    Case("textcnn", (7,), {"vocabulary": TOKENS, "embedding": 6, "maps": 5}),
]
NORMED = [c for c in CASES if c.name in ("vgg11", "resnet18", "resnet34", "resnet18-1d", "mobilenetv2")]
NORMED = [c for c in NORMED if "norm" not in c.options]


def label(case: Case) -> str:
    return " ".join([case.name, "×".join(map(str, case.shape)), *map(str, case.options.values())])


every_model = pytest.mark.parametrize("case", CASES, ids=label)


@pytest.fixture
def slim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two models whose widths are no option: the same layers, fewer channels."""
    monkeypatch.setattr(vgg, "_STAGES", ((4,), (4,), (6, 6), (8, 8), (8, 8)))
    monkeypatch.setattr(mobilenet, "_STAGES", ((1, 4, 1, 1), (2, 6, 2, 1), (2, 8, 1, 2)))
    monkeypatch.setattr(mobilenet, "_FIRST", 4)
    monkeypatch.setattr(mobilenet, "_LAST", 16)
