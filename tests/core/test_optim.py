"""Client optimizers: clipping, against torch's own optimizers and clipping functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tarry.core.errors import BadInput
from tarry.core.optim import clip_norm, make_optimizer

CLIPS: list[dict[str, float]] = [{"clip_norm": 0.5}, {"clip_value": 0.2}, {"clip_norm": 0.5, "clip_value": 0.2}]
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.1},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    {"name": "adam", "lr": 0.01, "weight_decay": 0.01},
    {"name": "adamw", "lr": 0.01, "weight_decay": 0.01},
]


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(7, generator=generator, dtype=torch.float64) for scale in (1.0, 0.01, 5.0, 0.1)]


def by_torch(how: dict[str, Any], clips: dict[str, float]) -> Tensor:
    """Four steps of a hand-written loop: clip, then step."""
    w = torch.nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64))
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[how["name"]]
    optimizer = kind([w], **{k: v for k, v in how.items() if k != "name"})
    for g in gradients():
        w.grad = g.clone()
        if "clip_value" in clips:
            clip_grad_value_([w], clips["clip_value"])
        if "clip_norm" in clips:
            clip_grad_norm_([w], clips["clip_norm"])
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize("clips", CLIPS, ids=str)
@pytest.mark.parametrize("how", OPTIMIZERS, ids=str)
def test_clipped_steps_are_those_of_torch(how, clips):
    optimizer = make_optimizer(**how, **clips)
    w = torch.linspace(-1, 1, 7, dtype=torch.float64)
    state = optimizer.init(w)
    for g in gradients():
        w, state = optimizer.apply_gradient(w, g, state)
    torch.testing.assert_close(w, by_torch(how, clips), rtol=1e-5, atol=1e-7)  # torch adds 1e-6 to the norm
    assert not torch.allclose(w, by_torch(how, {}), rtol=1e-3)


@pytest.mark.parametrize("clips", CLIPS, ids=str)
@pytest.mark.parametrize("how", OPTIMIZERS, ids=str)
def test_steps_in_place_and_at_another_rate_are_clipped_with_the_same_bits(how, clips):
    first, again = make_optimizer(**how, **clips), make_optimizer(**{**how, "lr": 7.0}, **clips)
    assert again.at is not None
    other = again.at(how["lr"])
    assert other.overwrite is not None
    w = torch.linspace(-1, 1, 7)
    changed, state, changed_state = w.clone(), first.init(w), other.init(w)
    for g in gradients():
        before = g.float()
        w, state = first.apply_gradient(w, before, state)
        changed_state = other.overwrite(changed, before.clone(), changed_state)
    assert torch.equal(w, changed)


def test_a_limit_that_is_not_reached_changes_no_bit():
    plain, limited = make_optimizer(lr=0.1), make_optimizer(lr=0.1, clip_norm=1e6, clip_value=1e6)
    w = torch.linspace(-1, 1, 7)
    for g in gradients():
        assert torch.equal(plain.apply_gradient(w, g.float(), None)[0], limited.apply_gradient(w, g.float(), None)[0])


def test_a_gradient_longer_than_the_clip_is_rescaled_and_others_are_left_alone():
    g = torch.tensor([3.0, 4.0])
    assert clip_norm(g, 2.5).tolist() == [1.5, 2.0]
    assert torch.equal(clip_norm(g, 5.0), g)
    assert torch.equal(clip_norm(g, None), g)
    assert clip_norm(torch.zeros(2), 1.0).tolist() == [0.0, 0.0]


def test_limits_that_are_none_are_rejected_together():
    with pytest.raises(BadInput) as e:
        make_optimizer(lr=0.1, clip_norm=0.0, clip_value=-1.0)
    assert [p.split(":")[0] for p in e.value.problems] == ["--clip-norm 0.0", "--clip-value -1.0"]
