"""Unlabeled input sets by name, on which a server can distill without access to the clients' examples.

    noise     standard normal numbers                       needs only the shape of an input
    task      the training inputs of another task           CIFAR-100 for CIFAR-10 and the reverse
    stl10     the unlabeled part of STL-10                  FedEcho's
    folder    a directory of images, or an array file       for example generated images
    test      the task's own test inputs                    transductive: the test set is used in training
    mixup     mixes of pairs of the task's training inputs  stands in for a generator trained in the domain

A factory returns a function (task, seed) → inputs in the task's shape and number type. Labels are never used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..core import rng
from ..core.errors import BadInput
from ..core.memory import check_memory
from ..core.registry import Registry
from ..core.rng import Stream
from ..core.shards import Shards
from ..core.task import Task
from .data.sets import catalog, missing_files_message
from .data.stl10 import read_unlabeled
from .image_inputs import fit_images, normalize_to_shape, read_inputs
from .registries import tasks

__all__ = ["Maker", "unlabeled_sets"]

Maker = Callable[[Task, int], Tensor]
unlabeled_sets: Registry[Maker] = Registry("unlabeled", Callable, title="unlabeled sets")

SampleCount = Annotated[int, "Number of inputs to make"]
MaxSamples = Annotated[int, "Number of inputs to use, drawn at random; all if the set has fewer"]


@unlabeled_sets.register("noise")
def noise(
    *,
    samples: SampleCount = 2000,
    mean: Annotated[float, "Mean of each number of an input"] = 0.0,
    std: Annotated[float, "Standard deviation of each number of an input"] = 1.0,
) -> Maker:
    """Gaussian noise: the server knows only the shape and the scale of an input.

    Normalized images have mean 0 and deviation 1. Set `mean` and `std` for inputs on another scale.
    """
    _check_samples(samples)
    if not std > 0:
        raise BadInput(f"--unlabeled.std {std}: must be above 0")

    def make(task: Task, seed: int) -> Tensor:
        like = _inputs(task)
        _check_numeric(like, task, "noise")
        _check_size(samples, like, copies=2)  # float64, then the type of the inputs
        values = _generator(seed).standard_normal((samples, *like.shape[1:]))
        return torch.from_numpy(mean + std * values).to(like)

    return make


@unlabeled_sets.register("mixup", paper="Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization")
def mixup(
    *,
    samples: SampleCount = 2000,
    alpha: Annotated[float, "The weight of the first input of a pair is drawn from Beta(alpha, alpha)"] = 1.0,
) -> Maker:
    """Convex mixes of random pairs of the training inputs of all clients.

    They are made from private data and stand in for samples of a generative model trained in the domain.
    """
    _check_samples(samples)
    if not alpha > 0:
        raise BadInput(f"--unlabeled.alpha {alpha}: must be above 0")

    def make(task: Task, seed: int) -> Tensor:
        x = _inputs(task)
        _check_numeric(x, task, "mixup")
        _check_size(samples, x, copies=3)
        g = _generator(seed)
        one, other = (torch.from_numpy(g.integers(len(x), size=samples)).to(x.device) for _ in range(2))
        share = torch.from_numpy(g.beta(alpha, alpha, size=samples)).to(x).view(-1, *[1] * (x.ndim - 1))
        return torch.lerp(x[other], x[one], share)

    return make


@unlabeled_sets.register("task")
def other_task(
    *, of: Annotated[str, "Name of the other task (`tarry tasks` lists them)"], samples: MaxSamples = 2000
) -> Maker:
    """The training inputs of another task, resized and converted to this task's channels. Its labels are not used.

    They are normalized by that task's own mean and deviation.
    """
    _check_samples(samples)

    def make(task: Task, seed: int) -> Tensor:
        like, flag = _inputs(task), f"--unlabeled.of {of}"
        try:
            entry = tasks.find(of)
            source = entry.make(entry.check({}))
        except BadInput as e:
            raise BadInput([f"{flag}: {problem}" for problem in e.problems]) from e
        x = _sample(_inputs(source), samples, seed)
        return fit_images(x, like.shape[1:], whole=not like.is_floating_point(), flag=flag).to(like)

    return make


@unlabeled_sets.register("test")
def own_test(*, samples: MaxSamples = 2000) -> Maker:
    """The task's own test inputs without labels. Transductive: do not compare its accuracies with others."""
    _check_samples(samples)

    def make(task: Task, seed: int) -> Tensor:
        if task.test is None:
            raise BadInput(f"--unlabeled test: task {task.name!r} has no test set; use --unlabeled noise")
        return _sample(task.test[0], samples, seed)

    return make


@unlabeled_sets.register("folder")
def folder(
    *, path: Annotated[str, "A directory of images, or an .npz or .npy file"], samples: MaxSamples = 2000
) -> Maker:
    """Images of a directory (needs Pillow), or inputs of an .npz (x, x_train or its only array) or .npy file.

    Images (uint8 in a file, N×H×W or N×H×W×C) are resized and converted to the task's channels, then normalized per
    channel by the mean and standard deviation of the inputs used. Floating-point inputs are used as they are.
    """
    _check_samples(samples)

    def make(task: Task, seed: int) -> Tensor:
        like, flag = _inputs(task), f"--unlabeled.path {path}"
        shape, whole = tuple(like.shape[1:]), not like.is_floating_point()
        x = read_inputs(Path(path).expanduser(), shape, lambda n: _choose(n, samples, seed), whole=whole, flag=flag)
        return x.to(like)

    return make


@unlabeled_sets.register("stl10")
def stl10(*, samples: MaxSamples = 2000) -> Maker:
    """The unlabeled part of STL-10: 100,000 photographs, resized, converted to the task's channels and normalized.

    It is read from unlabeled_X.bin of stl10_binary in TARRY_DATA, a folder or the original archive.
    """
    _check_samples(samples)

    def make(task: Task, seed: int) -> Tensor:
        like, data_set = _inputs(task), catalog()["stl10"]
        found = data_set.find([form for form in data_set.forms if any("binary" in at for at in form.at)])
        if found is None:
            raise BadInput(f"--unlabeled stl10: {missing_files_message(data_set)}")
        flag = f"--unlabeled stl10: {found[0]}"
        pixels = read_unlabeled(found[0], flag, lambda n: _choose(n, samples, seed))
        return normalize_to_shape(pixels, tuple(like.shape[1:]), whole=not like.is_floating_point(), flag=flag).to(like)

    return make


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise BadInput(f"--unlabeled.samples {samples}: must be 1 or more")


def _check_size(samples: int, like: Tensor, *, copies: int) -> None:
    """Raise BadInput if the inputs do not fit the memory."""
    nbytes = samples * (8 * copies * like[0].numel() + 24)  # 24: the indices and the weight of a pair
    check_memory(nbytes, f"--unlabeled.samples {samples}", "use fewer")


def _inputs(task: Task) -> Tensor:
    """Return all training inputs of a task, whether or not they are split over clients."""
    if task.train is not None:
        return task.train[0]
    if not task.clients:
        raise BadInput(f"--unlabeled: task {task.name!r} has neither clients nor training examples")
    return task.clients.x if isinstance(task.clients, Shards) else torch.cat([client[0] for client in task.clients])


def _check_numeric(x: Tensor, task: Task, name: str) -> None:
    if not x.is_floating_point():
        raise BadInput(
            f"--unlabeled {name}: the inputs of task {task.name!r} are integers (tokens), which cannot be generated or"
            " mixed; use --unlabeled test, task or folder"
        )


def _generator(seed: int) -> np.random.Generator:
    return rng.generator(rng.key(seed, Stream.DATA, 1))


def _choose(n: int, samples: int, seed: int) -> list[int]:
    """Return the indices of the inputs to use, in stored order; all if there are at most `samples`."""
    if n <= samples:
        return list(range(n))
    return sorted(rng.permutation(rng.key(seed, Stream.DATA, 1), n)[:samples].tolist())


def _sample(x: Tensor, samples: int, seed: int) -> Tensor:
    return x if len(x) <= samples else x[torch.tensor(_choose(len(x), samples, seed), device=x.device)]
