"""Models fit their inputs, every weight is learnt, and what cannot be built is rejected with a way out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import tarry
from tarry import BadInput, Layout
from tarry.core.layout import Kind
from tarry.tasks.models import LeNet5, McMahanCNN, ResNet, ResNet1D, SLViT, TextCNN, mlp, model_for, models
from tarry.tasks.models.input_checks import Enlarged
from tarry.tasks.models.normalization import norm_layer
from tarry.training.flat_model import build_module
from tests.tasks.models.small_models import CASES, CLASSES, Case, every_model, slim

pytestmark = pytest.mark.usefixtures("slim")
__all__ = ["slim"]


def built(case: Case, seed: int = 0, **more: Any) -> nn.Module:
    return build_module(case.task((2,), **more), seed=seed, dtype=torch.float64)


def inputs(case: Case, n: int = 3) -> torch.Tensor:
    return case.inputs(n, torch.Generator().manual_seed(1))


@every_model
def test_a_factory_pickles_and_its_model_fits(case: Case) -> None:
    factory = pickle.loads(pickle.dumps(case.build()))  # noqa: S301
    assert factory()(inputs(case).float() if case.name != "textcnn" else inputs(case)).shape == (3, CLASSES)
    assert factory() is not factory()


@every_model
def test_first_weights_are_those_of_the_seed(case: Case) -> None:
    a, b, other = ([p.detach() for p in built(case, seed).parameters()] for seed in (5, 5, 6))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(a, other, strict=True))


@every_model
def test_a_gradient_reaches_every_parameter(case: Case) -> None:
    model = built(case)
    model(inputs(case, 8)).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


@every_model
def test_an_examples_output_depends_on_it_alone_and_inputs_stay_as_they_are(case: Case) -> None:
    model, x = built(case), inputs(case)
    before, out = x.clone(), model(x)
    torch.testing.assert_close(model(x[1:2]), out[1:2], rtol=1e-9, atol=1e-12)
    assert torch.equal(x, before)


@every_model
def test_weights_can_be_stacked(case: Case) -> None:
    """torch.func: two models in one pass say what each says alone, of its own examples."""
    pair, x = [built(case, seed) for seed in (1, 2)], torch.stack([inputs(case), inputs(case).flip(0)])
    params, buffers = stack_module_state(pair)
    out = vmap(lambda p, b, one: functional_call(pair[0], (p, b), (one,)))(params, buffers, x)
    for model, one, got in zip(pair, x, out, strict=True):
        torch.testing.assert_close(got, model(one), rtol=1e-9, atol=1e-12)


@every_model
def test_the_head_is_the_last_map(case: Case) -> None:
    layout = Layout.of(built(case), inputs(case))
    head = {b.name for b in layout.blocks if b.kind is Kind.HEAD}
    assert head <= ({"3.weight", "3.bias"} if case.name == "mlp" else {"head.weight", "head.bias"})
    assert head
    assert not layout.stats


def test_every_model_is_tried() -> None:
    assert {c.name for c in CASES} == {n for n in models if "language" not in models[n].factory.__module__}


# What is in them


def test_lenet5_has_no_biases_and_average_pooling() -> None:
    shapes = [tuple(p.shape) for p in LeNet5().parameters()]
    assert shapes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 256), (84, 120), (10, 84)]
    kinds = [type(m) for m in LeNet5().modules()]
    assert kinds.count(nn.AvgPool2d) == 2
    assert nn.MaxPool2d not in kinds


@pytest.mark.parametrize(("shape", "weights"), [((1, 28, 28), 1_663_370), ((3, 32, 32), 2_156_490)])
def test_the_cnn_has_mcmahans_number_of_weights(shape: tuple[int, ...], weights: int) -> None:
    # by hand for 28×28: 832 + 51,264 + 1,606,144 + 5,130; for 3×32×32: 2,432 + 51,264 + 2,097,664 + 5,130
    assert sum(p.numel() for p in McMahanCNN(shape, 10).parameters()) == weights


def test_mlp_computes_relu_between_two_affine_layers() -> None:
    model = mlp(3, 2, 4)
    w1, b1, w2, b2 = model.parameters()
    x = torch.tensor([[[1.0, -2.0, 0.5]], [[-1.0, 2.0, 3.0]]])
    hidden = (x.flatten(1) @ w1.T + b1).clamp(min=0)
    assert torch.allclose(model(x), hidden @ w2.T + b2)


@pytest.mark.parametrize(
    ("channels", "groups"), [(512, 32), (320, 32), (128, 32), (64, 16), (24, 6), (144, 24), (10, 2), (7, 1), (3, 1)]
)
def test_there_are_32_groups_or_fewer_of_four_channels_at_least(channels: int, groups: int) -> None:
    layer = norm_layer("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize(("side", "ends"), [(32, 4), (28, 4), (63, 8), (64, 4)])
def test_a_picture_of_64_comes_to_a_resnets_end_as_one_of_32(side: int, ends: int) -> None:
    model = ResNet((1, 1, 1, 1), (3, side, side), 10, width=4)
    assert model.stages(model.stem(torch.zeros(1, 3, side, side))).shape == (1, 32, ends, ends)


def test_small_images_are_enlarged_and_large_ones_are_not() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(Enlarged((1, 4, 4), 8)(x), x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    assert Enlarged((1, 4, 4), 3)(x) is x


@pytest.mark.parametrize("steps", [31, 64, 128, 129])
def test_a_series_is_read_the_same_either_way_round(steps: int) -> None:
    one, other = ResNet1D((9, steps), 6, width=4), ResNet1D((steps, 9), 6, width=4)
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 9, steps)
    assert torch.equal(one(x), other(x.transpose(1, 2)))
    z = one.features(x)
    halves = nn.functional.adaptive_avg_pool1d(z, 2)
    torch.testing.assert_close(one(x), one.head(halves.flatten(1)))


def test_no_token_of_the_vit_attends_to_itself() -> None:
    """With values that are 1 for one token alone, every other token's row holds its share, and its own row nothing."""
    attention = SLViT((1, 32, 32), 2, depth=1, head=16).layers[0].attention
    width = attention.out.in_features
    with torch.no_grad():
        attention.qkv.weight[: 2 * width] = 0  # q = k = 0: all shares are alike
        attention.out.weight.copy_(torch.eye(width))
        attention.out.bias.zero_()
    x = torch.zeros(1, 5, width)
    x[0, 2] = torch.randn(width)
    value = attention.qkv(x)[0, 2, 2 * width :]
    out = attention(x)[0]
    torch.testing.assert_close(out[2], torch.zeros(width))
    torch.testing.assert_close(out[0], value / 4)


def test_the_vits_patches_see_the_picture_and_its_four_diagonal_moves() -> None:
    tokens = SLViT((1, 32, 32), 2, patch=4).tokens
    x = torch.zeros(1, 1, 32, 32)
    x[0, 0, 9, 13] = 1.0  # patch (2, 3), at (1, 1) of its 4×4
    seen: list[torch.Tensor] = []
    tokens.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    tokens(x)
    cut = seen[0].view(8, 8, 4, 4, 5)  # patch row, patch column, row, column, copy
    where = {tuple(i.tolist()) for i in cut.nonzero()}
    assert where == {
        (2, 3, 1, 1, 0),
        (2, 3, 3, 3, 1),  # moved by (+2, +2)
        (2, 2, 3, 3, 2),  # (+2, −2)
        (1, 3, 3, 3, 3),  # (−2, +2)
        (1, 2, 3, 3, 4),  # (−2, −2)
    }


def test_textcnn_is_kims_equations() -> None:
    model = TextCNN(9, 3, embedding=4, maps=2).double()
    tokens = torch.tensor([[3, 1, 8, 8, 2, 5, 0, 0]])
    x, found = model.embedding.weight[tokens[0]], []
    assert torch.equal(model.embedding.weight[0], torch.zeros(4, dtype=torch.float64))
    for h, conv in zip((3, 4, 5), model.convolutions, strict=True):
        for m in range(2):
            c = [(conv.weight[m].T * x[i : i + h]).sum() + conv.bias[m] for i in range(len(x) - h + 1)]
            found.append(torch.stack(c).relu().max())
    torch.testing.assert_close(model(tokens)[0], model.head(torch.stack(found)))


def test_textcnns_padding_learns_nothing() -> None:
    model = TextCNN(9, 3, embedding=4, maps=2)
    model(torch.tensor([[3, 1, 8, 0, 0, 0, 0, 0]])).square().sum().backward()
    assert model.embedding.weight.grad is not None
    assert torch.equal(model.embedding.weight.grad[0], torch.zeros(4))


# What is rejected

PICTURE = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("lenet", PICTURE, {}, r"^--task.model lenet: there is no such model. Did you mean 'lenet5'\?$"),
        ("zzz", PICTURE, {}, r"^--task.model zzz: there is no such model. Known: .*cnn, .*lenet5, .*vgg11"),
        (
            "lenet5",
            (1, 8, 8),
            {},
            r"--task.model lenet5: requires images, .*16×16 .*1×8×8. Use --task.model mlp or cnn",
        ),
        ("lenet5", (1, 28, 15), {}, "at least 16×16"),
        ("cnn", (128, 6), {}, r"--task.model cnn: .*128×6. Use --task.model mlp."),
        ("cnn", (1, 3, 8), {}, "at least 4×4"),
        ("vgg11", (3, 15, 32), {}, r"--task.model vgg11: .* at least 16×16 .* 3×15×32"),
        ("resnet18", (3, 32, 7), {}, r"--task.model resnet18: .* at least 8×8"),
        ("resnet34", (32, 32), {}, r"--task.model resnet34: .* an example of this task is 32×32"),
        ("mobilenetv2", (3, 3, 32, 32), {}, r"--task.model mobilenetv2: .* an example of this task is 3×3×32×32"),
        ("sl-vit", (0, 32, 32), {}, r"--task.model sl-vit: requires images"),
        ("resnet18-1d", (9, 30), {}, r"--task.model resnet18-1d: requires series.* at least 31 steps.* 9×30"),
        ("resnet18-1d", PICTURE, {}, r"--task.model resnet18-1d: requires series.* 3×32×32"),
        ("textcnn", (4,), {"vocabulary": 5}, r"--task.model textcnn: .*at least 5 token numbers"),
        ("textcnn", (9,), {}, r"--task.vocabulary: model 'textcnn' needs it"),
        ("textcnn", (9,), {"vocabulary": 1}, r"--task.vocabulary 1: must be 2 or more"),
        ("textcnn", (9,), {"vocabulary": 5, "dropout": 1.0}, r"--task.dropout 1.0: must be at least 0 and below 1"),
        ("mlp", (4,), {"hidden": 0}, "--task.hidden 0: must be 1 or more"),
        (
            "lenet5",
            (1, 28, 28),
            {"hidden": 3},
            r"--task.hidden 3: model 'lenet5' has no parameter .* takes no parameters",
        ),
        ("resnet18", PICTURE, {"nrm": "batch"}, r"--task.nrm batch: .* no parameter 'nrm'. Did you mean 'norm'\?"),
        ("resnet18", PICTURE, {"norm": "layer"}, r"--task.norm layer: wants group \| batch, got 'layer'"),
        ("resnet18", PICTURE, {"width": 1}, r"--task.width 1: must be 2 or more"),
        ("vgg11", PICTURE, {"hidden": -1}, r"--task.hidden -1: must be 0 or more"),
        ("sl-vit", PICTURE, {"patch": 5}, r"--task.patch 5: .*divide the sides of the images, 32 and 32"),
        ("sl-vit", PICTURE, {"depth": 0}, r"--task.depth 0: must be 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(
    name: str, shape: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        model_for(name, shape, 10, **options)


def test_an_option_of_none_is_not_given_and_text_is_read() -> None:
    same = [model_for("mlp", (4,), 2, hidden=h)() for h in (None, "64", 64)]
    assert {sum(p.numel() for p in m.parameters()) for m in same} == {4 * 64 + 64 + 64 * 2 + 2}


def test_a_factory_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def line(shape, classes, *, bias: bool = True):\n"
        "    return lambda: nn.Linear(shape[0], classes, bias=bias)\n"
        "def wrong(shape, classes):\n"
        "    return 3\n"
    )
    model = model_for(f"{file}:line", (5,), 2, bias="no")()
    assert [tuple(p.shape) for p in model.parameters()] == [(2, 5)]
    with pytest.raises(BadInput, match=r"--task.model .*mine.py:wrong: its factory returned int"):
        model_for(f"{file}:wrong", (5,), 2)
    with pytest.raises(BadInput, match=r"^--task.model .*mine.py:lin: mine.py has no factory 'lin'"):
        model_for(f"{file}:lin", (5,), 2)


def test_a_task_takes_a_model_and_trains_it() -> None:
    case = next(c for c in CASES if c.name == "textcnn")
    result = tarry.run("fedasync", case.task((4, 4)), delay=[[1.0], [1.0]], steps=1, lr=0.1, time=2.0, batch=4)
    assert result.updates == 4
