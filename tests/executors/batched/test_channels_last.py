"""Vectors in inner order, convolutions with their channels last: the same numbers, whatever a rule keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.core.layout import Layout
from tarry.core.local_rule import ClientModel, Context, LocalRule
from tarry.core.optim import make_optimizer
from tarry.core.task import Examples
from tarry.core.tickets import LocalResult, VisitJob
from tarry.executors.batched.channels_last import ChannelsLastOrder, flat, is_worthwhile, view
from tarry.executors.batched.trainer import BatchedTrainer
from tarry.training.flat_model import FlatModel
from tarry.training.visit import LocalWork, train

F64 = torch.float64
SIZES = (3, 4, 9)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 4, (3, 2), bias=False), nn.Tanh(),
        nn.Flatten(), nn.Linear(4 * 3 * 3, 3),
    )  # fmt: skip


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))


def conv_head() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 3, (3, 2)), nn.Flatten())


def bound_of(module: nn.Module) -> FlatModel:
    g = torch.Generator().manual_seed(5)
    data = [(torch.randn(n, 2, 5, 4, generator=g, dtype=F64), torch.randint(3, (n,), generator=g)) for n in SIZES]
    task = tarry.Task("turned", model=module, loss=nn.functional.cross_entropy, clients=data)
    return FlatModel(module, Layout.of(module, data[0][0]), task, make_optimizer("sgd", lr=0.05, momentum=0.5))


def trained(bound: FlatModel, rule: LocalRule, how: LocalWork, jobs: list[VisitJob], **ways: Any) -> list[LocalResult]:
    return BatchedTrainer(bound, rule=rule, work=how, seed=1, **ways).train(jobs)


CASES: list[tuple[Any, str, dict[str, Any]]] = [
    (net, "fedavg", {}),
    (normed, "fedavg", {}),
    (net, "fedprox", {"mu": 0.1}),
    (net, "fedsol", {}),
    (conv_head, "fedsol", {}),
    (net, "fedsol", {"part": "all"}),
    (net, "fedsol", {"part": "all", "norm": "dim0", "strategy": "A4", "rho": 0.1}),
    (net, "asynccurve", {}),
    (net, "fedogd", {"privacy": True}),
    (net, "scaffold", {}),
    (normed, "moon", {}),
    (net, "fedasam", {}),
]


@pytest.mark.parametrize(("model", "name", "params"), CASES, ids=lambda c: getattr(c, "__name__", str(c)))
def test_rules_come_to_what_they_come_to_one_by_one(name: str, params: dict[str, Any], model: Any) -> None:
    """Two visits, so that what a client keeps and sends comes back in the layout's own order."""
    torch.manual_seed(0)
    bound, rule = bound_of(model().to(F64)), tarry.methods.build(name, **params).local
    layout, g = bound.layout, torch.Generator().manual_seed(2)
    work, sent = LocalWork(bound.optimizer, epochs=2, batch=4), bound.flat.clone()
    payload = {k: 1e-2 * torch.randn(layout.n_params, generator=g, dtype=F64) for k in rule.required_payload}
    jobs = [VisitJob(c, c, 0, sent, payload) for c in range(len(SIZES))]
    trainer = BatchedTrainer(bound, rule=rule, work=work, seed=1, channels_last=True)
    for visit in (1, 2):
        alone = [train(j, bound, rule=rule, work=work, seed=1) for j in jobs]
        for a, b in zip(alone, trainer.train(jobs), strict=True):
            for one, other in ((a.extras, b.extras), (a.memory, b.memory), ({"": a.delta}, {"": b.delta})):
                assert one.keys() == other.keys()
                for k in one:
                    torch.testing.assert_close(one[k], other[k], rtol=1e-6, atol=1e-9)
        jobs = [VisitJob(9 * visit + c, c, visit, sent + a.delta, payload, a.memory) for c, a in enumerate(alone)]


@pytest.mark.parametrize("ways", [{"size": 1}, {"size": 2}, {"lanes": 2}], ids=str)
def test_stacks_of_every_size_on_every_lane(ways: dict[str, Any]) -> None:
    torch.manual_seed(0)
    bound = bound_of(net().to(F64))
    work, jobs = (
        LocalWork(bound.optimizer, epochs=2, batch=4),
        [VisitJob(c, c, 0, bound.flat.clone()) for c in range(len(SIZES))],
    )
    plain = [train(j, bound, rule=LocalRule(), work=work, seed=1) for j in jobs]
    for a, b in zip(plain, trained(bound, LocalRule(), work, jobs, channels_last=True, **ways), strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-6, atol=1e-9)


def test_every_optimizer_state_and_context_is_turned_and_turned_back() -> None:
    """A rule that sends its whole state back sends it in the layout's own order."""

    class Telling(LocalRule):
        def begin(self, brief: Any) -> Any:
            n = brief.layout.n_params
            return brief.weights, {"mask": torch.arange(2 * n).view(2, n) % 3 == 0, "n": torch.tensor(2.0, dtype=F64)}

        def step(self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel) -> Any:
            g, loss = model.grad(w, batch)
            w, state = model.apply_gradient(w, torch.where(context["mask"].any(0), g, context["n"] * g), state)
            return w, state, loss

        def finish(self, w: Tensor, context: Context, state: Any) -> Any:
            return super().finish(w, context, state)._replace(extras={"m": state[0], "v": state[1], "w": w})

    torch.manual_seed(0)
    bound, how = bound_of(net().to(F64)), make_optimizer("adam", lr=0.01)
    work, jobs = LocalWork(how, epochs=2, batch=4), [VisitJob(c, c, 0, bound.flat.clone()) for c in range(len(SIZES))]
    plain = trained(bound, Telling(), work, jobs)
    for a, b in zip(plain, trained(bound, Telling(), work, jobs, channels_last=True), strict=True):
        for k in ("m", "v", "w"):
            torch.testing.assert_close(a.extras[k], b.extras[k], rtol=1e-6, atol=1e-9)


def test_the_inner_order_is_a_convolutions_with_channels_last() -> None:
    layout = Layout.of(net())
    stack = torch.arange(3 * layout.size, dtype=F64).view(3, layout.size)
    inner = ChannelsLastOrder(layout, torch.device("cpu"))
    turned = inner.to_inner(stack)
    assert torch.equal(inner.to_layout(turned), stack)
    assert torch.equal(inner.to_layout(inner.to_inner(stack[:, : layout.n_params])), stack[:, : layout.n_params])
    assert torch.equal(turned[:, layout.n_params :], stack[:, layout.n_params :])
    for block in layout.layers:
        seen = view(turned[1, block.at], block)
        assert torch.equal(seen, stack[1, block.at].view(block.shape))
        assert flat(seen).data_ptr() == turned[1, block.at].data_ptr(), "no copy"
        if len(block.shape) == 4:
            assert seen.is_contiguous(memory_format=torch.channels_last)
    for other in (torch.ones(3), torch.ones(3, 2), torch.ones(layout.size)):
        assert inner.to_inner(other) is other


def test_a_step_turns_no_weights_round() -> None:
    bound = bound_of(net().to(F64))
    trainer = BatchedTrainer(
        bound, rule=LocalRule(), work=LocalWork(bound.optimizer, batch=4), seed=1, size=1, channels_last=True
    )
    trainer.train([VisitJob(0, 0, 0, bound.flat.clone())])
    (step,) = (one.graph for key, one in trainer._steps._ones.items() if key[0][0] == "step")  # type: ignore[index]
    copied = [n.meta["val"].shape for n in step.graph.nodes if "clone" in str(n.target)]
    assert (4, 5, 4, 2) in copied, "the images are"
    assert not {b.stop - b.start for b in bound.layout.layers if len(b.shape) == 4} & {c.numel() for c in copied}


def test_it_pays_where_a_convolution_has_many_channels() -> None:
    assert not is_worthwhile(Layout.of(net()))
    assert not is_worthwhile(Layout.of(nn.Linear(64, 64)))
    assert is_worthwhile(Layout.of(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3))))
