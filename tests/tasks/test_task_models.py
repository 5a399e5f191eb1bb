from __future__ import annotations

import pickle

import pytest
import torch

from tarry.core.errors import BadInput
from tarry.tasks import LeNet5, McMahanCNN, mlp, model_for


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_lenet5_has_the_papers_44190_weights_no_biases_and_average_pooling() -> None:
    model = LeNet5()
    assert count(model) == 44_190
    assert [tuple(p.shape) for p in model.parameters()] == [
        (6, 1, 5, 5),
        (16, 6, 5, 5),
        (120, 256),
        (84, 120),
        (10, 84),
    ]
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(torch.nn.AvgPool2d) == 2
    assert torch.nn.MaxPool2d not in kinds


@pytest.mark.parametrize(("shape", "weights"), [((1, 28, 28), 1_663_370), ((3, 32, 32), 2_156_490)])
def test_the_cnn_has_mcmahans_number_of_weights(shape: tuple[int, ...], weights: int) -> None:
    # by hand for 28×28: 832 + 51,264 + 1,606,144 + 5,130; for 3×32×32: 2,432 + 51,264 + 2,097,664 + 5,130
    assert count(McMahanCNN(shape, 10)) == weights


def test_mlp_computes_relu_between_two_affine_layers() -> None:
    model = mlp(3, 2, 4)
    w1, b1, w2, b2 = model.parameters()
    x = torch.tensor([[[1.0, -2.0, 0.5]], [[-1.0, 2.0, 3.0]]])
    hidden = (x.flatten(1) @ w1.T + b1).clamp(min=0)
    assert torch.allclose(model(x), hidden @ w2.T + b2)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mlp", (128, 6), 6),
        ("mlp", (1, 8, 8), 10),
        ("lenet5", (1, 28, 28), 10),
        ("lenet5", (3, 32, 32), 100),
        ("lenet5", (1, 16, 21), 3),
        ("cnn", (1, 28, 28), 10),
        ("cnn", (3, 32, 32), 100),
        ("cnn", (1, 8, 8), 10),
        ("cnn", (2, 4, 7), 3),
    ],
)
def test_model_for_gives_a_factory_that_pickles_and_fits_the_shape(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    factory = pickle.loads(pickle.dumps(model_for(name, shape, classes)))  # noqa: S301
    assert factory()(torch.zeros(5, *shape)).shape == (5, classes)
    assert factory() is not factory()


def test_hidden_sets_the_width_of_the_mlp() -> None:
    assert count(model_for("mlp", (1, 8, 8), 10, hidden=7)()) == 64 * 7 + 7 + 7 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "hidden", "message"),
    [
        ("lenet", (1, 28, 28), 64, r"--task.model lenet: there is no such model. Did you mean 'lenet5'\?"),
        ("transformer", (1, 28, 28), 64, r"--task.model transformer: .* Known: cnn, lenet5, mlp."),
        ("lenet5", (1, 8, 8), 64, r"--task.model lenet5: wants images, .*at least 16×16 .*1×8×8. Use --task.model mlp"),
        ("lenet5", (1, 28, 15), 64, "at least 16×16"),
        ("cnn", (128, 6), 64, r"--task.model cnn: .*128×6"),
        ("cnn", (1, 3, 8), 64, "at least 4×4"),
        ("mlp", (4,), 0, "--task.hidden 0: must be 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, shape: tuple[int, ...], hidden: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        model_for(name, shape, 10, hidden=hidden)
