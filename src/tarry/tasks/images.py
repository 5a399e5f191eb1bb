"""Image tasks: digits lies in the package, the others are read from .npz files.

digits.npz is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; UCI Machine
Learning Repository, CC BY 4.0), 1,797 images of 8×8 pixels with values 0 … 16, as scikit-learn (BSD-3) bundles it.
It was made once by

    import numpy as np
    from sklearn.datasets import load_digits
    d = load_digits()
    np.savez_compressed("digits.npz", x=d.images.astype(np.uint8), y=d.target.astype(np.uint8))
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from ..core.errors import BadInput
from ..core.task import Task
from .files import Arrays, data_file, hold_out, read_npz
from .models import model_for
from .registries import tasks

__all__ = ["cifar10", "cifar100", "digits", "load_digits", "mnist", "npz"]

_DIGITS_TEST = 360
DISTIL_LR = 1e-4  # of small models trained from scratch: FedEcho's own 3e-6, for ResNet-18, hardly moves them

Model = Annotated[str, "mlp, lenet5 or cnn"]
Limit = Annotated[int | None, "use only the first so many training examples, for quick runs"]


def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (1797×8×8, values 0 … 16) and labels of the bundled handwritten digits.

    Provenance: UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998), CC BY 4.0, as bundled by
    scikit-learn (BSD-3); value for value the same as its `load_digits`.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as z:
        return z["x"], z["y"]


@tasks.register("digits")
def digits(
    *,
    model: Model = "mlp",
    hidden: Annotated[int, "units of the mlp's hidden layer"] = 64,
    limit: Limit = None,
) -> Task:
    """Handwritten digits, 8×8 pixels, 10 classes: 1,437 to train on, 360 to test; no download.

    Pixels are scaled to [0, 1]. The test set is stratified and the same for every seed.
    """
    x, labels = load_digits()
    y = labels.astype(np.int64)
    scaled = x[:, None].astype(np.float32) / 16
    test = hold_out(y, _DIGITS_TEST)
    arrays = Arrays(scaled[~test], y[~test], scaled[test], y[test])
    return replace(_task("digits", arrays, model=model, classes=10, limit=limit, hidden=hidden), distil_lr=DISTIL_LR)


@tasks.register("mnist")
def mnist(*, model: Model = "lenet5", limit: Limit = None) -> Task:
    """MNIST: handwritten digits, 28×28 pixels, 10 classes; mnist.npz in TARRY_DATA."""
    return replace(_from_data_folder("mnist", classes=10, model=model, limit=limit), distil_lr=DISTIL_LR)


@tasks.register("cifar10")
def cifar10(*, model: Model = "cnn", limit: Limit = None) -> Task:
    """CIFAR-10: colour photographs, 32×32 pixels, 10 classes; cifar10.npz in TARRY_DATA."""
    return _from_data_folder("cifar10", classes=10, model=model, limit=limit)


@tasks.register("cifar100")
def cifar100(*, model: Model = "cnn", limit: Limit = None) -> Task:
    """CIFAR-100: colour photographs, 32×32 pixels, 100 classes; cifar100.npz in TARRY_DATA."""
    return _from_data_folder("cifar100", classes=100, model=model, limit=limit)


@tasks.register("npz")
def npz(*, path: Annotated[str, "the .npz file"], model: Model = "mlp", limit: Limit = None) -> Task:
    """Any .npz file: x_train, y_train, x_test, y_test, or x and y with subject or group and is_test if wanted.

    uint8 inputs are images, normalised per channel by the mean and standard deviation of the training set;
    floating-point inputs are kept as they are (lenet5 and cnn want them N×C×H×W). Without is_test, a stratified fifth
    is held out, the same for every seed. `subject` or `group` (whole numbers) is what the partition `groups` cuts by.
    """
    file = Path(path).expanduser()
    arrays = read_npz(file, flag=f"--task.path {path}")
    classes = 1 + int(max(arrays.y_train.max(), arrays.y_test.max()))
    return _task(file.stem, arrays, model=model, classes=classes, limit=limit)


def _from_data_folder(name: str, *, classes: int, model: str, limit: int | None) -> Task:
    file = data_file(name)
    arrays = read_npz(file, flag=f"--task {name}: {file}")
    largest = int(max(arrays.y_train.max(), arrays.y_test.max()))
    if largest >= classes:
        raise BadInput(f"--task {name}: {file} has the label {largest}; {name} has the classes 0 … {classes - 1}")
    return _task(name, arrays, model=model, classes=classes, limit=limit)


def _task(name: str, a: Arrays, *, model: str, classes: int, limit: int | None, **model_options: int) -> Task:
    if limit is not None and limit < 1:
        raise BadInput(f"--task.limit {limit}: must be 1 or more")
    x_train, x_test = a.x_train[:limit], a.x_test
    if a.x_train.dtype == np.uint8:
        table = _pixel_values(a.x_train)
        x_train, x_test = _channels_first(x_train, table), _channels_first(x_test, table)
    return Task(
        name,
        model=model_for(model, x_train.shape[1:], classes, **model_options),
        loss=cross_entropy,
        train=(torch.from_numpy(x_train), torch.from_numpy(a.y_train[:limit])),
        test=(torch.from_numpy(x_test), torch.from_numpy(a.y_test)),
        groups=None if a.groups is None else torch.from_numpy(a.groups[:limit]),
    )


def _channels(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """N×H×W×C, with one channel where there was no such axis."""
    return images if images.ndim == 4 else images[..., None]


def _pixel_values(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """For each channel what a pixel 0 … 255 becomes: (v/255 − mean) / std over these images (std 1 where it is 0)."""
    v = np.arange(256) / 255
    rows = []
    for channel in np.moveaxis(_channels(images), 3, 0):
        share = np.bincount(channel.ravel(), minlength=256) / channel.size
        mean = share @ v
        std = np.sqrt(share @ (v - mean) ** 2)
        rows.append((v - mean) / (std if std > 1e-9 else 1.0))
    return np.array(rows, np.float32)


def _channels_first(images: npt.NDArray[np.uint8], table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    pixels = _channels(images)
    n, h, w, c = pixels.shape
    out = np.empty((n, c, h, w), np.float32)
    for i in range(c):
        out[:, i] = table[i][pixels[..., i]]
    return out
