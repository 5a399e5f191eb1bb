from __future__ import annotations

import pytest
import torch
from torch import nn

from tarry.core.errors import BadInput
from tarry.core.layout import Kind, Layout
from tests.helpers.models import Tied

F32 = torch.float32


def kinds(module: nn.Module) -> dict[str, str]:
    return {b.name: b.kind.value for b in Layout.of(module).blocks}


class Norms(nn.Module):
    """Named so that only the types tell what is what."""

    def __init__(self):
        super().__init__()
        self.bn_but_linear = nn.Linear(4, 6)
        self.a = nn.BatchNorm1d(6)
        self.b = nn.Conv2d(1, 2, 3)
        self.c = nn.BatchNorm2d(2)
        self.d = nn.LayerNorm(5)
        self.e = nn.GroupNorm(1, 2)
        self.f = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
        self.g = nn.RMSNorm(3)
        self.norm_last = nn.Linear(6, 3, bias=False)


def test_blocks_are_marked_by_the_type_of_the_module_that_owns_them_not_by_name():
    assert kinds(Norms()) == {
        "bn_but_linear.weight": "param",
        "bn_but_linear.bias": "param",
        "a.weight": "norm",
        "a.bias": "norm",
        "b.weight": "param",
        "b.bias": "param",
        "c.weight": "norm",
        "c.bias": "norm",
        "d.weight": "norm",
        "d.bias": "norm",
        "e.weight": "norm",
        "e.bias": "norm",
        "f.weight": "norm",
        "f.bias": "norm",
        "g.weight": "norm",
        "norm_last.weight": "head",
        "a.running_mean": "stat",
        "a.running_var": "stat",
        "c.running_mean": "stat",
        "c.running_var": "stat",
        "f.running_mean": "stat",
        "f.running_var": "stat",
    }


def test_trained_tensors_come_first_in_the_modules_order_then_statistics_without_gaps():
    net = Norms()
    layout = Layout.of(net)
    assert [b.name for b in layout.layers] == [n for n, _ in net.named_parameters()]
    assert [b.name for b in layout.blocks] == [b.name for b in (*layout.layers, *layout.stats)]
    assert [b.start for b in layout.blocks] == [0, *(b.stop for b in layout.blocks[:-1])]
    assert layout.n_params == sum(p.numel() for p in net.parameters())
    assert layout.size == layout.n_params + 2 * (6 + 2 + 3)


def test_the_head_is_the_last_linear_or_conv_map_also_inside_nested_modules_and_without_bias():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))), nn.ReLU())
    assert kinds(net) == {
        "0.weight": "param",
        "0.bias": "param",
        "1.0.weight": "param",
        "1.0.bias": "param",
        "1.1.0.weight": "head",
        "1.1.0.bias": "head",
    }
    assert kinds(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1, bias=False))) == {
        "0.weight": "param",
        "0.bias": "param",
        "1.weight": "head",
    }


def test_an_embedding_is_never_the_head():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 2)
            self.where = nn.Embedding(5, 3)

    assert kinds(Positions()) == {"out.weight": "head", "out.bias": "head", "where.weight": "param"}


def test_a_net_of_normalization_only_has_no_head():
    assert kinds(nn.LayerNorm(3)) == {"weight": "norm", "bias": "norm"}


def test_tied_weights_are_one_block_and_belong_to_the_head():
    layout = Layout.of(Tied())
    assert {b.name: b.kind.value for b in layout.blocks} == {
        "embed.weight": "head",
        "middle.weight": "param",
        "middle.bias": "param",
        "out.bias": "head",
    }
    assert layout.size == 15 + 9 + 3 + 5


def test_frozen_parameters_are_not_in_the_vector_and_the_head_is_the_last_trained_one():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2))
    for p in (*net[0].parameters(), *net[2].parameters()):
        p.requires_grad_(False)
    assert kinds(net) == {"1.weight": "head", "1.bias": "head"}
    net[1].bias.requires_grad_(False)
    assert kinds(net) == {"1.weight": "head"}
    assert Layout.of(net).size == 12


def test_a_net_with_nothing_to_train_is_refused():
    net = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(BadInput, match="no trainable parameters"):
        Layout.of(net)
    with pytest.raises(BadInput, match="no trainable parameters"):
        Layout.of(nn.ReLU())


def test_whole_number_and_bool_buffers_stay_out_and_floating_ones_of_any_shape_are_statistics():
    net = nn.Linear(2, 2)
    net.register_buffer("count", torch.tensor(7))
    net.register_buffer("mask", torch.ones(2, dtype=torch.bool))
    net.register_buffer("scale", torch.tensor(0.5))
    net.register_buffer("table", torch.ones(2, 3, dtype=torch.float64))
    layout = Layout.of(net)
    assert [(b.name, b.shape) for b in layout.stats] == [("scale", ()), ("table", (2, 3))]
    assert layout.size == 6 + 1 + 6


def test_reading_a_module_gives_its_values_by_name():
    net = Norms()
    with torch.no_grad():
        for i, t in enumerate((*net.parameters(), *(b for b in net.buffers() if b.is_floating_point()))):
            t.fill_(float(i))
    layout = Layout.of(net)
    vec = layout.read(net, torch.float64)
    assert vec.dtype == torch.float64
    assert vec.shape == (layout.size,)
    assert not vec.requires_grad
    for i, block in enumerate(layout.blocks):
        assert vec[block.at].tolist() == [float(i)] * (block.stop - block.start)


def test_reading_copies_so_that_the_module_can_change_afterwards():
    net = nn.Linear(2, 2)
    layout = Layout.of(net)
    vec = layout.read(net, F32)
    before = vec.clone()
    with torch.no_grad():
        net.weight.zero_()
    assert torch.equal(vec, before)


def test_views_are_views_in_the_shape_of_the_tensors():
    net = Norms()
    layout = Layout.of(net)
    vec = layout.read(net, F32)
    views = layout.views(vec)
    own = {**dict(net.named_parameters()), **{n: b for n, b in net.named_buffers() if b.is_floating_point()}}
    assert views.keys() == own.keys()
    for name, view in views.items():
        assert torch.equal(view, own[name])
        assert view.untyped_storage().data_ptr() == vec.untyped_storage().data_ptr()
    views["b.weight"][0, 0, 0, 0] = 42.0
    block = next(b for b in layout.blocks if b.name == "b.weight")
    assert vec[block.start] == 42.0


def test_params_is_a_view_of_the_trained_part():
    layout = Layout.of(Norms())
    vec = torch.arange(layout.size, dtype=F32)
    params = layout.params(vec)
    assert params.tolist() == list(range(layout.n_params))
    params.zero_()
    assert vec[: layout.n_params].abs().sum() == 0
    assert vec[layout.n_params] == layout.n_params


def test_a_layout_is_a_value_equal_for_equal_nets():
    assert Layout.of(Norms()) == Layout.of(Norms())
    assert hash(Layout.of(Norms())) == hash(Layout.of(Norms()))
    assert Layout.of(Norms()) != Layout.of(Tied())
    assert {b.kind for b in Layout.of(Norms()).stats} == {Kind.STAT}
