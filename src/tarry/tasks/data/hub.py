"""Data sets of the Hugging Face hub, read by the package `datasets`. Downloads only on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import BadInput
from ...core.slow_read import SlowReadNotice
from .arrays import AnyArray, ArrayDataset, Labels, check_labels, check_split, hold_out
from .sets import HubSource

__all__ = ["download", "image_source"]


def download(name: str, config: str | None, flag: str) -> Any:
    """Return all parts of a set of the hub by name, as `datasets.load_dataset` does. No code of the set is executed."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise BadInput(f'{flag}: fetching it needs the package datasets: pip install "tarry[hub]"') from None
    try:
        return load_dataset(name, config) if config else load_dataset(name)
    except Exception as e:  # offline, gone, renamed: whatever the package raises
        raise BadInput(f"{flag}: could not be fetched ({type(e).__name__}: {e})") from e


def image_source(
    name: str,
    *,
    config: str | None = None,
    x: str = "image",
    y: str = "label",
    group: str | None = None,
    test: str | None = "test",
    rgb: bool = True,
) -> HubSource:
    """Return the source of a set of images at the hub. Without a test part, a fixed stratified fifth is held out."""

    def read(flag: str) -> ArrayDataset:
        parts = download(name, config, flag)
        wanted = ["train", *([] if test is None else [test])]
        if missing := [part for part in wanted if part not in parts]:
            raise BadInput(f"{flag}: has no part {', '.join(missing)}; it has {', '.join(parts)}")
        found = {part: _part(parts[part], x, y, group, rgb, flag) for part in wanted}
        xs, ys, gs = found["train"]
        if test is not None:
            names = (f"train {x}", f"train {y}", f"{test} {x}", f"{test} {y}")
            arrays = check_split((xs, ys), found[test][:2], flag, names)
            return replace(arrays, groups=gs if group else None)
        held = hold_out(check_labels(ys, len(xs), f"{flag}: {y}"), max(1, len(ys) // 5))
        return ArrayDataset(xs[~held], ys[~held], xs[held], ys[held], gs[~held] if group else None)

    return HubSource(name, read)


def _part(rows: Any, x: str, y: str, group: str | None, rgb: bool, flag: str) -> tuple[AnyArray, Labels, Labels]:
    columns = list(rows.column_names)
    if missing := [c for c in (x, y, group) if c is not None and c not in columns]:
        raise BadInput(f"{flag}: has no column {', '.join(missing)}; it has {', '.join(columns)}")
    notice, images = SlowReadNotice(flag), []
    for done, row in enumerate(rows):
        images.append(np.asarray(row[x].convert("RGB" if rgb else "L"), np.uint8))
        notice(done)
    if len(shapes := sorted({image.shape[:2] for image in images})) > 1:
        sizes = ", ".join(f"{height}×{width}" for height, width in shapes[:3]) + (", …" if len(shapes) > 3 else "")
        raise BadInput(f"{flag}: its images are of several sizes, {sizes}; a task wants one")
    names: dict[Any, int] = {}
    groups = [names.setdefault(g, len(names)) for g in rows[group]] if group else [0] * len(images)
    return np.stack(images), np.array(rows[y], np.int64), np.array(groups, np.int64)
