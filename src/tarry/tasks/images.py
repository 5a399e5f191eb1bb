"""Image tasks. The set digits is part of the package; the others are read from TARRY_DATA (`tarry.tasks.data`).

digits.npz is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; UCI Machine
Learning Repository, CC BY 4.0): 1,797 images of 8×8 pixels with values 0 … 16, as bundled by scikit-learn (BSD-3).
This code made the file:

    import numpy as np
    from sklearn.datasets import load_digits
    d = load_digits()
    np.savez_compressed("digits.npz", x=d.images.astype(np.uint8), y=d.target.astype(np.uint8))
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import BadInput
from ..core.task import Task
from .arrays import limit_training, make_task, normalize_images
from .data import ArrayDataset, catalog, hold_out, load
from .data.augment import crop_and_flip, fedsol
from .data.npz import read_npz
from .data.sets import without_suffix
from .options import FetchFromHub, ImageModel, TrainingLimit
from .registries import tasks

__all__ = ["digits", "load_digits", "npz"]

_DIGITS_TEST = 360
#: distillation rate of small models trained from scratch; FedEcho's 3e-6, meant for ResNet-18, hardly changes them
DISTIL_LR = 1e-4

Augmentation = Annotated[
    Literal["none", "crop-flip", "fedsol"],
    "Random changes to an image before each step; crop-flip: a crop with 4 pixels of padding and a flip; fedsol: the"
    " crop, flip and cutout of FedSOL's App. B.2",
]
Rgb = Annotated[bool, "Copy the channel of gray images to three equal channels, as FedSOL does"]


def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return images (1797×8×8, values 0 … 16) and labels of the bundled handwritten digits.

    Source: UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998), CC BY 4.0, as bundled by scikit-learn
    (BSD-3). The values equal those of scikit-learn's `load_digits`.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as z:
        return z["x"], z["y"]


@tasks.register("digits")
def digits(*, model: ImageModel = "mlp", limit: TrainingLimit = None, **options: Any) -> Task:
    """Handwritten digits, 8×8 pixels, 10 classes: 1,437 training and 360 test images, bundled.

    Pixels are scaled to [0, 1]. The test set is stratified and the same for every seed.
    """
    x, labels = load_digits()
    y = labels.astype(np.int64)
    scaled = x[:, None].astype(np.float32) / 16
    test = hold_out(y, _DIGITS_TEST)
    arrays = limit_training(ArrayDataset(scaled[~test], y[~test], scaled[test], y[test]), limit)
    return replace(make_task("digits", arrays, model=model, classes=10, **options), distill_lr=DISTIL_LR)


@tasks.register("npz")
def npz(
    *,
    path: Annotated[str, "Path of the .npz file, which may be packed (.gz, .xz), or .parquet file"],
    model: ImageModel = "mlp",
    limit: TrainingLimit = None,
    **options: Any,
) -> Task:
    """Any .npz file: x_train, y_train, x_test, y_test, or x and y with optional subject or group and is_test.

    uint8 inputs are images, normalized per channel by the mean and standard deviation of the training set.
    Floating-point inputs are used as they are (lenet5 and cnn expect N×C×H×W). Without is_test, a stratified fifth is
    held out for testing, the same for every seed. The partition `groups` splits by `subject` or `group` (integers).
    Files of MedMNIST (train_images, …) are read too.
    """
    file = Path(path).expanduser()
    arrays = read_npz(file, f"--task.path {path}")
    classes = 1 + int(max(arrays.y_train.max(), arrays.y_test.max()))
    arrays = normalize_images(arrays, limit)[0] if arrays.x_train.dtype == np.uint8 else limit_training(arrays, limit)
    return make_task(without_suffix(file.name), arrays, model=model, classes=classes, **options)


def _add(name: str, title: str, classes: int, default_model: str, distill_lr: float | None = None) -> None:
    """Register the task of an image set of the catalog. `default_model` is the default of --task.model."""

    def factory(
        *,
        model: ImageModel = default_model,
        augment: Augmentation = "none",
        rgb: Rgb = False,
        limit: TrainingLimit = None,
        hub: FetchFromHub = False,
        **options: Any,
    ) -> Task:
        arrays, black = normalize_images(load(name, hub=hub), limit)
        if rgb:
            arrays, black = _to_rgb(name, arrays), black * 3
        task = replace(make_task(name, arrays, model=model, classes=classes, **options), distill_lr=distill_lr)
        if augment == "none":
            return task
        side = arrays.x_train.shape[-1]
        augmentation = crop_and_flip(side, black) if augment == "crop-flip" else fedsol(name, side, black)
        return replace(task, augment=augmentation, n_draws=augmentation.n_draws)

    factory.__doc__ = f"{title}: {catalog()[name].what}."
    tasks.register(name)(factory)


def _to_rgb(name: str, a: ArrayDataset) -> ArrayDataset:
    if a.x_train.shape[1] != 1:
        raise BadInput(f"--task.rgb true: the images of {name} are not gray; remove this flag")
    return replace(a, x_train=np.repeat(a.x_train, 3, axis=1), x_test=np.repeat(a.x_test, 3, axis=1))


_add("mnist", "MNIST", 10, "lenet5", DISTIL_LR)
_add("fashion_mnist", "Fashion-MNIST", 10, "lenet5", DISTIL_LR)
_add("cifar10", "CIFAR-10", 10, "cnn")
_add("cifar100", "CIFAR-100", 100, "cnn")
_add("svhn", "Street View House Numbers", 10, "cnn")
_add("cinic10", "CINIC-10", 10, "cnn")
_add("pathmnist", "PathMNIST", 9, "cnn")
_add("tissuemnist", "TissueMNIST", 8, "cnn")
_add("femnist", "FEMNIST", 62, "cnn")
_add("stl10", "STL-10", 10, "resnet18")
_add("tiny_imagenet", "Tiny-ImageNet", 200, "resnet18")
