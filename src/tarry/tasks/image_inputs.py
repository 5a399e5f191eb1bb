"""Fit inputs to a task that they were not made for: resize images, convert between gray and color, read array files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..core.errors import BadInput
from ..core.storage import open_input
from .data.npz import UNREADABLE, array_of, single_array
from .models import ExampleShape

__all__ = ["fit_images", "normalize_to_shape", "read_inputs"]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray, ITU-R BT.601

ChooseIndices = Callable[[int], list[int]]  # number of inputs → indices of those to use


def fit_images(x: Tensor, shape: ExampleShape, *, whole: bool, flag: str) -> Tensor:
    """Return the inputs in the given shape. Images (N×C×H×W) are resized and converted to gray or color.

    Raise BadInput if the number types differ (`whole` says that the task's inputs are integers) or if inputs of another
    shape are not images.
    """
    if x.is_floating_point() == whole:
        have, want = ("floating-point numbers", "integers") if whole else ("integers", "floating-point numbers")
        raise BadInput(f"{flag}: its inputs are {have}, those of the task are {want}; use another set")
    if x.shape[1:] == shape:
        return x
    if x.ndim != 4 or len(shape) != 3 or whole:
        has, expected = ("×".join(map(str, s)) for s in (x.shape[1:], shape))
        raise BadInput(f"{flag}: its inputs are {has}, those of the task {expected}; only images can be resized")
    return _resize(_match_channels(x, shape[0], flag), shape[1:])


def _match_channels(x: Tensor, channels: int, flag: str) -> Tensor:
    have = x.shape[1]
    if have == channels:
        return x
    if have == 1:
        return x.expand(-1, channels, -1, -1)
    if have == 3 and channels == 1:
        return torch.einsum("nchw,c->nhw", x, torch.tensor(_LUMA).to(x))[:, None]
    raise BadInput(f"{flag}: cannot convert images of {have} channels to {channels}; only gray and RGB are converted")


def _resize(x: Tensor, size: ExampleShape) -> Tensor:
    return x if x.shape[2:] == size else interpolate(x, size=list(size), mode="bilinear", antialias=True)


def read_inputs(path: Path, shape: ExampleShape, chosen: ChooseIndices, *, whole: bool, flag: str) -> Tensor:
    """Return the chosen inputs of a directory of images or of an array file, fitted to `shape`."""
    if path.is_dir():
        if len(shape) != 3 or shape[0] not in (1, 3) or whole:
            expected = "×".join(map(str, shape))
            raise BadInput(
                f"{flag}: the inputs of the task are {expected}, not gray or RGB images; give an .npz or .npy file"
            )
        return _normalize(_read_images(path, shape, chosen, flag))
    if path.suffix not in (".npz", ".npy") or not path.is_file():
        raise BadInput(f"{flag}: there is no such directory of images, and no .npz or .npy file of that name")
    array = _read_array(path, flag)
    if array.ndim < 2 or not len(array) or array.dtype.kind not in "uif":
        found = f"{array.dtype} {'×'.join(map(str, array.shape))}"
        raise BadInput(f"{flag}: holds {found}; expected numbers, one input per row")
    array = array[chosen(len(array))]
    if array.dtype == np.uint8 and not whole:
        return normalize_to_shape(array, shape, whole=False, flag=flag)
    x = torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "ui" else np.float32))
    if not torch.isfinite(x).all():
        raise BadInput(f"{flag}: holds NaN or infinite values; remove them")
    return fit_images(x, shape, whole=whole, flag=flag)


def normalize_to_shape(images: npt.NDArray[np.uint8], shape: ExampleShape, *, whole: bool, flag: str) -> Tensor:
    """Return uint8 images in the given shape, normalized per channel."""
    return _normalize(fit_images(_pixels(images, flag), shape, whole=whole, flag=flag))


def _read_array(path: Path, flag: str) -> npt.NDArray[Any]:
    """Return the array of a file. From an archive, only the inputs are read."""
    try:
        with open_input(path, flag) as file:
            if path.suffix == ".npy" or not zipfile.is_zipfile(file):
                file.seek(0)
                return single_array(file, path.name, path.stat().st_size)
            with zipfile.ZipFile(file) as z:
                members = {i.filename.removesuffix(".npy"): i for i in z.infolist()}
                names = [n for n in members if n == "x"] or [n for n in members if n == "x_train"] or list(members)
                if len(names) == 1 or names[:1] in (["x"], ["x_train"]):
                    return array_of(z, members[names[0]])
    except BadInput:
        raise
    except (*UNREADABLE, TypeError, SyntaxError) as e:
        raise BadInput(f"{flag}: is not a plain file of numbers ({type(e).__name__}: {e})") from e
    raise BadInput(
        f"{flag}: expected an array x or x_train, or a single array; it has {', '.join(names) or 'no arrays'}"
    )


def _pixels(images: npt.NDArray[np.uint8], flag: str) -> Tensor:
    """Return uint8 images (N×H×W or N×H×W×C) as numbers from 0 to 1, N×C×H×W."""
    if images.ndim not in (3, 4):
        raise BadInput(f"{flag}: uint8 inputs are images, N×H×W or N×H×W×C; save other inputs as float32")
    channels_last = images if images.ndim == 4 else images[..., None]
    return torch.from_numpy(np.moveaxis(channels_last, 3, 1).astype(np.float32) / 255)


def _normalize(x: Tensor) -> Tensor:
    """Return the images with mean 0 and standard deviation 1 in each channel. A constant channel becomes 0."""
    std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / torch.where(std > 1e-6, std, torch.ones_like(std))


def _read_images(path: Path, shape: ExampleShape, chosen: ChooseIndices, flag: str) -> Tensor:
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(f"{flag}: reading images needs Pillow; install it, or save the images as an .npz file") from None
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise BadInput(f"{flag}: has no images; expected files that end in {', '.join(sorted(_SUFFIXES))}")
    rows = []
    for file in (files[i] for i in chosen(len(files))):
        try:
            with Image.open(file) as image:
                array = np.array(image.convert("L" if shape[0] == 1 else "RGB"))
        except UNREADABLE as e:
            raise BadInput(f"{flag}: {file.name} cannot be read as an image ({e})") from e
        rows.append(_resize(_pixels(array[None], flag), shape[1:])[0])
    return torch.stack(rows)
