"""docs/models.md says what the code says, and the papers' sizes are those of the models."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tarry.tasks.models import model_for, models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


class Row(NamedTuple):
    name: str
    options: dict[str, str]
    shape: tuple[int, ...]
    classes: int
    params: int
    stats: int
    said: str

    def built(self) -> nn.Module:
        with torch.device("meta"):
            return model_for(self.name, self.shape, self.classes, **self.options)()


def rows() -> list[Row]:
    out = []
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in models:
            name, options, shape, classes, size, said, paper = cells
            assert paper
            params, _, stats = size.replace(",", "").partition("+")
            given = dict(o.split("=", 1) for o in options.split())
            at = tuple(int(n) for n in shape.split("×"))
            out.append(Row(name, given, at, int(classes), int(params), int(stats or 0), said))
    return out


ROWS = rows()


def label(row: Row) -> str:
    return " ".join([row.name, *row.options.values(), "×".join(map(str, row.shape)), str(row.classes)])


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_the_page_has_the_codes_numbers(row: Row) -> None:
    model = row.built()
    assert sum(p.numel() for p in model.parameters()) == row.params
    assert sum(b.numel() for b in model.buffers() if b.is_floating_point()) == row.stats


@pytest.mark.parametrize("row", [r for r in ROWS if r.said], ids=label)
def test_a_model_has_the_size_that_its_paper_says(row: Row) -> None:
    size = row.params + row.stats
    if row.said.endswith("MB"):
        assert f"{size * 4 / 2**20:.2f} MB" == row.said
    elif row.said.endswith("M"):
        assert f"{size / 1e6:.1f}M" == row.said
    elif row.said.endswith("K"):
        assert f"{size / 1e3:.0f}K" == row.said
    else:
        assert f"{size:,}" == row.said


#: from the issue: what the papers say
SAID = {
    ("lenet5", "44K"),
    ("cnn", "1,663,370"),
    ("vgg11", "9.2M"),
    ("resnet18-1d", "119K"),
    ("mobilenetv2", "2.4M"),
    ("textcnn", "9.92 MB"),
}


def test_every_size_that_a_paper_says_is_on_the_page() -> None:
    assert {(r.name, r.said) for r in ROWS if r.said} == SAID


def test_every_model_of_this_room_is_on_the_page() -> None:
    assert {n for n in models if not models[n].factory.__module__.endswith(".language")} == {r.name for r in ROWS}


def test_resnet18_by_hand() -> None:
    """3×3 convolutions without biases, two numbers a channel for each norm, 1×1 shortcuts where a stage begins."""
    widths = (64, 128, 256, 512)
    total = 3 * 64 * 9 + 2 * 64
    for before, w in zip((64, *widths), widths, strict=False):
        total += before * w * 9 + 3 * w * w * 9 + 4 * 2 * w
        total += before * w + 2 * w if before != w else 0
    assert total + 512 * 10 + 10 == next(r.params for r in ROWS if r.name == "resnet18" and r.classes == 10)


def test_vgg11_by_hand() -> None:
    widths = (3, 64, 128, 256, 256, 512, 512, 512, 512)
    maps = sum(a * b * 9 for a, b in pairwise(widths))
    plain = next(r.params for r in ROWS if r.name == "vgg11" and not r.options)
    assert plain == maps + 2 * sum(widths[1:]) + 512 * 10
    fedsol = next(r.params for r in ROWS if r.name == "vgg11" and r.options)
    assert fedsol == maps + sum(widths[1:]) + 2 * (512 * 512 + 512) + 512 * 10 + 10


def test_mlp_by_hand() -> None:
    row = next(r for r in ROWS if r.name == "mlp")
    assert row.params == prod(row.shape) * 64 + 64 + 64 * row.classes + row.classes
