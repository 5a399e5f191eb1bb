"""Data sets of image folders: Tiny-ImageNet (Le, Yang 2015) and CINIC-10 (Darlow et al. 2018).

    tiny-imagenet-200/  train/<class>/images/*.JPEG, val/images/*.JPEG with val/val_annotations.txt   200 classes, 64×64
                        (or val/<class>/…, the layout of many scripts); the unlabeled test/ is not read
    CINIC-10/           train/<class>/*.png, test/<class>/*.png; valid/ is not read                   10 classes, 32×32

A class's number is its place among the sorted names: the ten of CINIC-10, or those of Tiny-ImageNet's wnids.txt (if
there is none, those of the folders in train/). Images are ordered by class and file name.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...core.errors import BadInput
from ...core.slow_read import SlowReadNotice
from .archives import read_files
from .arrays import AnyArray, ArrayDataset, check_split
from .npz import UNREADABLE
from .sets import add_notice

__all__ = ["read_cinic10", "read_tiny_imagenet"]

_MOST_BYTES = 8 << 20  # of one image file
_PARTS = ("train", "val", "valid", "test")
_PICTURES = (".jpeg", ".jpg", ".png")
_ANNOTATIONS, _CLASSES = "val_annotations.txt", "wnids.txt"
_CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Decode = Callable[[bytes, str], bytes]


def read_cinic10(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of CINIC-10, a folder or an archive."""
    return _read(path, flag, side=32, parts=("train", "test"), classes=_CINIC10)


def read_tiny_imagenet(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of tiny-imagenet-200, a folder or an archive."""
    return _read(path, flag, side=64, parts=("train", "val"))


class _Split:
    """The images of one part: decoded bytes in sequence, and the class and file of each image."""

    def __init__(self) -> None:
        self.pixels, self.sources = bytearray(), list[tuple[str, str]]()  # of: folder of the class ("" if none), file

    def add(self, folder: str, file: str, pixels: bytes) -> None:
        self.sources.append((folder, file))
        self.pixels += pixels

    def arrays(
        self, classes: dict[str, int], side: int, annotations: dict[str, str], flag: str
    ) -> tuple[AnyArray, AnyArray]:
        named = []
        for folder, file in self.sources:
            name = folder or annotations.get(file, "")
            if name not in classes:
                hint = "" if folder else f"; {_ANNOTATIONS} gives {name or 'no class'}"
                shown = ", ".join(list(classes)[:10]) + (", …" if len(classes) > 10 else "")
                raise BadInput(f"{flag}: the class of {folder}/{file} is not among the {len(classes)}: {shown}{hint}")
            named.append((name, file))
        order = sorted(range(len(named)), key=named.__getitem__)
        x = np.frombuffer(self.pixels, np.uint8).reshape(-1, side, side, 3)
        return x[order], np.array([classes[named[i][0]] for i in order], np.int64)


def _read(path: Path, flag: str, *, side: int, parts: tuple[str, str], classes: Sequence[str] = ()) -> ArrayDataset:
    found, tables = {part: _Split() for part in parts}, dict.fromkeys((_ANNOTATIONS, _CLASSES), "")
    decode, notice, done = _decoder(side, flag), SlowReadNotice(flag), 0

    def wanted(name: str) -> bool:
        is_table = not classes and name.rpartition("/")[2] in tables
        return is_table or (name.lower().endswith(_PICTURES) and _place(name, parts) is not None)

    for name, content in read_files(path, wanted, flag, most=_MOST_BYTES, home=_home):
        file = name.rpartition("/")[2]
        if file in tables:
            tables[file] = content.decode("utf-8", "replace")
            continue
        place = _place(name, parts)
        assert place is not None
        part, folder = place
        found[part].add(folder, file, decode(content, name))
        notice(done := done + 1)
    train, test = (found[part] for part in parts)
    if not train.sources or not test.sources:
        raise BadInput(
            f"{flag}: has {len(train.sources):,} images in {parts[0]}/ and {len(test.sources):,} in {parts[1]}/"
        )
    known = classes or tables[_CLASSES].split() or {folder for folder, _ in train.sources if folder}
    numbers = {name: i for i, name in enumerate(sorted(known))}
    annotations = dict(line.split("\t")[:2] for line in tables[_ANNOTATIONS].splitlines() if line.count("\t"))
    x, y = train.arrays(numbers, side, annotations, flag)
    xt, yt = test.arrays(numbers, side, annotations, flag)
    for part, there in zip(parts, (y, yt), strict=True):
        if absent := [name for name, i in numbers.items() if i not in there]:
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            add_notice(f"{path.name}: {part}/ has no images of {', '.join(absent[:10])}{more}")
    names = (f"{parts[0]} images", f"{parts[0]} labels", f"{parts[1]} images", f"{parts[1]} labels")
    return check_split((x, y), (xt, yt), flag, names)


def _home(name: str) -> str:
    """Return the folder that contains the parts; the tables are in it or in a part."""
    steps = name.split("/")[:-1]
    return "/".join(steps[: next((i for i, step in enumerate(steps) if step in _PARTS), len(steps))])


def _place(name: str, parts: tuple[str, str]) -> tuple[str, str] | None:
    """Return part and class folder of an image by its path; the class is "" if a part is one folder."""
    steps = name.split("/")[:-1]
    for i, step in enumerate(steps):
        if step in parts:
            below = [s for s in steps[i + 1 :] if s != "images"]
            return (step, below[0] if below else "") if len(below) <= 1 else None
        if step in _PARTS:
            return None
    return None


def _decoder(side: int, flag: str) -> Decode:
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(f'{flag}: reading images needs Pillow: pip install "tarry[pictures]"') from None

    def decode(content: bytes, name: str) -> bytes:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # Pillow warns of an image that claims to be enormous
                with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
                    if image.size != (side, side):
                        width, height = image.size
                        raise BadInput(f"{flag}: {name} is {width}×{height} pixels; expected {side}×{side}")
                    return image.convert("RGB").tobytes()
        except BadInput:
            raise  # a ValueError, too
        except (*UNREADABLE, SyntaxError, Warning, Image.DecompressionBombError) as e:
            raise BadInput(f"{flag}: {name} is no image that can be read ({type(e).__name__}: {e})") from e

    return decode
