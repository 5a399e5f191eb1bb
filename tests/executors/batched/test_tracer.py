"""The recorder of operations: what it writes down, what it leaves alone, and whom it stops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functionalize, vmap
from torch.utils._pytree import tree_leaves

from tarry.executors.batched.trace import NotStackable, stack_graph, trace_function
from tarry.executors.batched.tracer import DataDependentError, record_graph
from tests.helpers.processes import PATIENCE

G = torch.Generator().manual_seed(3)
W, X = torch.randn(5, 4, generator=G), torch.randn(7, 4, generator=G)
OTHER = torch.randn(5, generator=G)


def step(w: Tensor, x: Tensor) -> list[Tensor]:
    w = w.detach().requires_grad_()
    values, places = torch.relu(x @ w.T + OTHER).max(dim=1)
    (g,) = torch.autograd.grad(values.square().mean(), w)
    return [w.detach() - 0.1 * g, values.detach(), places]


def writing(w: Tensor, x: Tensor) -> list[Tensor]:
    w.mul_(2)
    x[0] = 0
    return [w, (x @ w.T).relu_()]


@pytest.mark.parametrize("fn", [step, writing])
def test_a_graph_does_what_the_function_does_with_whatever_it_is_given(fn: Callable[..., list[Tensor]]) -> None:
    graph = record_graph(fn, (W, X))
    for scale in (1.0, -3.0):
        expected = fn(scale * W, scale * X)
        torch.testing.assert_close(graph(scale * W, scale * X), expected, rtol=0, atol=0)


def test_arguments_and_random_numbers_are_left_alone() -> None:
    before, state = (W.clone(), X.clone()), torch.get_rng_state()
    record_graph(lambda w, x: [*writing(w, x), torch.rand(3)], (W, X))
    assert torch.equal(W, before[0])
    assert torch.equal(X, before[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stack_of_what_was_recorded_is_every_one_of_them() -> None:
    w, x = torch.stack([W, -W, 2 * W]), torch.stack([X, X + 1, X.flip(0)])
    one = record_graph(functionalize(record_graph(step, (W, X))), (W, X))
    many = record_graph(vmap(one), (w, x))
    alone = [torch.stack(column) for column in zip(*(step(a, b) for a, b in zip(w, x, strict=True)), strict=True)]
    torch.testing.assert_close(many(w, x), alone)


def test_shapes_and_types_are_in_the_graph_and_no_values() -> None:
    graph = record_graph(step, (W, X))
    values = [v for v in tree_leaves([node.meta["val"] for node in graph.graph.nodes]) if isinstance(v, Tensor)]
    assert all(v.device.type == "meta" for v in values)
    assert {(tuple(v.shape), v.dtype) for v in values} >= {((7,), torch.int64), ((5, 4), W.dtype)}


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: x * 2 if x.sum() > 0 else x,
        lambda x: x[: int(x[0, 0])],
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x.tolist(),
        lambda x: torch.from_numpy(x.numpy()),
        lambda x: np.asarray(x).sum(),
        lambda x: float(x[0, 0]),
    ],
)
def test_whoever_looks_at_values_is_stopped(look: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DataDependentError):
        record_graph(lambda x: look(x), (X,))


def test_a_step_that_depends_on_values_is_told_as_such() -> None:
    with pytest.raises(NotStackable, match="its step cannot be traced"):
        trace_function(lambda x: [x * 2 if x.sum() > 0 else x], (X,))


class Noticing(nn.Module):
    """As some models do: where there are values it saves itself work, else it does without."""

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor and bool((x == 0).all()):
            return x
        return x.exp()


def test_a_model_that_can_do_without_values_is_traced_without_them() -> None:
    model = Noticing()
    graph = stack_graph(trace_function(lambda x: [model(x)], (X,)), (torch.stack([X, X]),))
    torch.testing.assert_close(graph(torch.stack([X, -X]))[0], torch.stack([X, -X]).exp())


def test_stacks_do_not_wait_for_the_compiler_to_be_imported() -> None:
    """It takes about as long as torch itself, and seventy megabytes."""
    program = (
        "import sys, tarry\n"
        "tarry.run('fedasync', 'digits', updates=6, concurrency=3, executor='batched')\n"
        "print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]")
