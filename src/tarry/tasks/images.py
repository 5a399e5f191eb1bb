"""Image tasks: digits lies in the package, the others are read from TARRY_DATA (`tarry.tasks.data`).

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
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import BadInput
from ..core.task import Task
from .arrays import limit_training, make_task, normalize_images
from .data import ArrayDataset, catalog, hold_out, load
from .data.augment import fedsol
from .data.npz import read_npz
from .registries import tasks

__all__ = ["FromHub", "Limit", "Model", "digits", "load_digits", "npz"]

_DIGITS_TEST = 360
DISTIL_LR = 1e-4  # of small models trained from scratch: FedEcho's own 3e-6, for ResNet-18, hardly moves them

Model = Annotated[str, "mlp, lenet5, cnn, vgg11, resnet18, … (tarry.tasks.models); its own options are flags beside it"]
Limit = Annotated[int | None, "use only the first so many training examples, for quick runs"]
Augmented = Annotated[
    Literal["none", "fedsol"], "what is done to an image before each step; fedsol: crop, flip, cutout of its App. B.2"
]
Rgb = Annotated[bool, "grey images get three equal channels, as in FedSOL"]
FromHub = Annotated[bool, "fetch it from the Hugging Face hub where it is not in TARRY_DATA (as does TARRY_HUB=1)"]


def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (1797×8×8, values 0 … 16) and labels of the bundled handwritten digits.

    Provenance: UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998), CC BY 4.0, as bundled by
    scikit-learn (BSD-3); value for value the same as its `load_digits`.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as z:
        return z["x"], z["y"]


@tasks.register("digits")
def digits(*, model: Model = "mlp", limit: Limit = None, **options: Any) -> Task:
    """Handwritten digits, 8×8 pixels, 10 classes: 1,437 to train on, 360 to test; no download.

    Pixels are scaled to [0, 1]. The test set is stratified and the same for every seed.
    """
    x, labels = load_digits()
    y = labels.astype(np.int64)
    scaled = x[:, None].astype(np.float32) / 16
    test = hold_out(y, _DIGITS_TEST)
    arrays = limit_training(ArrayDataset(scaled[~test], y[~test], scaled[test], y[test]), limit)
    return replace(make_task("digits", arrays, model=model, classes=10, **options), distil_lr=DISTIL_LR)


@tasks.register("npz")
def npz(*, path: Annotated[str, "the .npz file"], model: Model = "mlp", limit: Limit = None, **options: Any) -> Task:
    """Any .npz file: x_train, y_train, x_test, y_test, or x and y with subject or group and is_test if wanted.

    uint8 inputs are images, normalised per channel by the mean and standard deviation of the training set;
    floating-point inputs are kept as they are (lenet5 and cnn want them N×C×H×W). Without is_test, a stratified fifth
    is held out, the same for every seed. `subject` or `group` (whole numbers) is what the partition `groups` cuts by.
    The files of MedMNIST (train_images, …) are read too.
    """
    file = Path(path).expanduser()
    arrays = read_npz(file, f"--task.path {path}")
    classes = 1 + int(max(arrays.y_train.max(), arrays.y_test.max()))
    arrays = normalize_images(arrays, limit)[0] if arrays.x_train.dtype == np.uint8 else limit_training(arrays, limit)
    return make_task(file.stem, arrays, model=model, classes=classes, **options)


def _add(name: str, title: str, classes: int, usual: str, distil_lr: float | None = None) -> None:
    """Register the task of an image set of the catalogue; `usual` is its model."""

    def task(
        *,
        model: Model = usual,
        augment: Augmented = "none",
        rgb: Rgb = False,
        limit: Limit = None,
        hub: FromHub = False,
        **options: Any,
    ) -> Task:
        arrays, black = normalize_images(load(name, hub=hub), limit)
        if rgb:
            arrays, black = _to_rgb(name, arrays), black * 3
        made = replace(make_task(name, arrays, model=model, classes=classes, **options), distil_lr=distil_lr)
        if augment == "none":
            return made
        change = fedsol(name, arrays.x_train.shape[-1], black)
        return replace(made, augment=change, draws=change.draws)

    task.__doc__ = f"{title}: {catalog()[name].what}."
    tasks.register(name)(task)


def _to_rgb(name: str, a: ArrayDataset) -> ArrayDataset:
    if a.x_train.shape[1] != 1:
        raise BadInput(f"--task.rgb true: the images of {name} are not grey; leave it out")
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
