"""kNN-Per against its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tarry
from tarry.core.errors import BadInput
from tests.helpers.by_flags import build_by_flags
from tests.methods.knnper.reference import choose, predict
from tests.reference.match import few


class Given:
    """A model whose features are the inputs, and whose outputs are a linear map of them."""

    def __init__(self, head: Tensor):
        self.head = head

    def features(self, vec: Tensor, x: Tensor) -> Tensor:
        return x

    def outputs(self, vec: Tensor, x: Tensor) -> Tensor:
        return x @ self.head


@st.composite
def stores(draw: st.DrawFn) -> tuple[np.random.Generator, int, int, int, int]:
    seed = draw(st.integers(0, 2**32 - 1))
    n, d, classes, k = (draw(st.integers(*r)) for r in ((1, 25), (1, 4), (2, 4), (1, 12)))
    return np.random.default_rng(seed), n, d, classes, k


@few
@given(stores(), st.sampled_from([None, 0.0, 0.3, 1.0]), st.sampled_from([0.5, 1.0, 4.0]))
def test_a_clients_answers_are_the_twins(store: Any, lam: float | None, scale: float) -> None:
    rng, n, d, classes, k = store
    keys, labels, head = rng.normal(size=(n, d)), rng.integers(classes, size=n), rng.normal(size=(d, classes))
    asked = rng.normal(size=(7, d))
    predictor = tarry.methods.build("knn-per", k=k, lam=lam, scale=scale).personalization.predict
    assert predictor is not None
    own = (torch.from_numpy(keys), torch.from_numpy(labels))
    model: Any = Given(torch.from_numpy(head))
    answers = predictor(torch.zeros(1), own, model)(torch.from_numpy(asked))
    chosen = choose(keys, keys @ head, labels, k=k, scale=scale) if lam is None else lam
    expected = [predict(x, x @ head, keys, labels, lam=chosen, k=k, scale=scale) for x in asked]
    np.testing.assert_allclose(answers.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_many_examples_are_the_same_in_pieces() -> None:
    """More than are worked on at once: each left out of its own neighbors for λ, and asked of all of them after."""
    rng, n, k = np.random.default_rng(0), 1203, 3
    labels, head = rng.integers(3, size=n), np.diag([1.0, 1.0, 0.3])
    keys = rng.normal(size=(n, 3)) + np.eye(3)[labels]
    says = np.exp(keys @ head)
    says /= says.sum(1, keepdims=True)
    far = ((keys[:, None] - keys) ** 2).sum(2)

    def votes(far: Any) -> Any:
        near = np.argsort(far, axis=1)[:, :k]
        weight = np.exp(-np.take_along_axis(far, near, axis=1) / 3)
        out = np.stack([(weight * (labels[near] == c)).sum(1) for c in range(3)], axis=1)
        return out / out.sum(1, keepdims=True)

    others = votes(far + np.diag(np.full(n, np.inf)))
    right = [((lam * others + (1 - lam) * says).argmax(1) == labels).sum() for lam in np.arange(11) / 10]
    assert sorted(right)[-2] < max(right), "one λ is best"
    lam = int(np.argmax(right)) / 10
    assert 0 < lam < 1
    predictor = tarry.methods.build("knn-per", k=k).personalization.predict
    assert predictor is not None
    own = (torch.from_numpy(keys), torch.from_numpy(labels))
    model: Any = Given(torch.from_numpy(head))
    answers = predictor(torch.zeros(1), own, model)(own[0])
    np.testing.assert_allclose(answers.numpy(), lam * votes(far) + (1 - lam) * says, rtol=1e-9, atol=1e-12)


def test_far_neighbors_count_as_near_ones_do_among_themselves() -> None:
    """exp(−10⁶) is 0 in any machine's numbers; what matters is how much nearer one is than another."""
    predictor = tarry.methods.build("knn-per", k=2, lam=1.0).personalization.predict
    assert predictor is not None
    own = (torch.tensor([[1000.0], [1001.0]]), torch.tensor([0, 1]))
    model: Any = Given(torch.zeros(1, 2))
    (answer,) = predictor(torch.zeros(1), own, model)(torch.tensor([[0.0]]))
    assert answer.tolist() == [1.0, 0.0]


def clustered() -> tarry.Task:
    """Two clients who name the same two clouds of points the other way round: no model is right for both."""
    g = torch.Generator().manual_seed(1)

    def cloud(n: int, flip: bool) -> tuple[Tensor, Tensor]:
        side = torch.arange(n) % 2
        x = torch.randn(n, 2, generator=g) * 0.1 + torch.where(side == 0, -1.0, 1.0)[:, None]
        return x, 1 - side if flip else side

    test = cloud(40, False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    data = [cloud(20, False), cloud(20, True)]
    return tarry.Task("clouds", module, nn.functional.cross_entropy, clients=data, test=test)


RUN: dict[str, Any] = {"delay": [[1.0], [1.0]], "rounds": 4, "steps": 2, "batch": "all", "lr": 0.1}


def test_training_is_fedavg_and_clients_answer_by_their_own() -> None:
    """Of the test set's names the first client's are right, the second's all wrong: memory, not the model, tells."""
    ours, plain = (tarry.run(m, clustered(), personalize=0, **RUN) for m in ("knn-per", "fedavg"))
    assert ours.weights_sha256 == plain.weights_sha256
    assert ours.personalization is not None
    assert plain.personalization is not None
    assert ours.personalization["after"]["per_client"] == [1.0, 0.0]
    assert ours.personalization["before"] == plain.personalization["before"] == plain.personalization["after"]


def test_lambda_0_is_the_model_alone_and_any_server_may_be_asked_so() -> None:
    for server in ("fedavg", "orthofl"):
        alone = tarry.run(server, clustered(), local="knn-per:lam=0", personalize=0, **RUN).personalization
        beside = tarry.run(server, clustered(), local="knn-per", personalize=0, **RUN).personalization
        assert alone is not None
        assert beside is not None
        assert alone["after"] == alone["before"]
        assert beside["after"]["per_client"] == [1.0, 0.0]


def test_a_task_without_classes_or_a_model_without_features_is_refused_before_the_run() -> None:
    x = torch.randn(8, 2)
    regression = tarry.Task(
        "line", nn.Linear(2, 1), nn.functional.mse_loss, clients=[(x, x[:, :1])] * 2, test=(x, x[:, :1])
    )
    with pytest.raises(BadInput, match=r"method='knn-per': .*classes.*use method='fedavg'"):
        tarry.run("knn-per", regression, personalize=0, **RUN)

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = nn.Linear(2, 2), Outer()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.body(x))
            return out

    class Outer(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.act = nn.Tanh()

    task = clustered()
    headless = tarry.Task("nested", Nested(), task.loss, clients=task.clients, test=task.test)
    with pytest.raises(BadInput, match="no last map of its own"):
        tarry.run("knn-per", headless, personalize=0, **RUN)
    assert tarry.run("knn-per", headless, **RUN).personalization is None


@pytest.mark.parametrize(
    ("params", "said"),
    [({"k": 0}, "--method.k 0"), ({"lam": 1.1}, "--method.lam 1.1"), ({"scale": 0.0}, "--method.scale 0.0")],
)
def test_what_cannot_be_is_refused(params: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build_by_flags(tarry.methods, "knn-per", **params)
