"""FedEcho against its twin, and what its distillation promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, currently_in_test_context, given, settings
from hypothesis import strategies as st

import tarry
from tarry.core import rng
from tarry.core.errors import BadInput
from tarry.core.rng import Stream
from tarry.methods.fedecho import theorem_rates
from tests.helpers.by_flags import build_by_flags
from tests.methods.fedecho.reference import Classes, FedEcho
from tests.reference.loop import Arrival, play
from tests.reference.match import Case, cases, few
from tests.reference.problem import Vec

Batches = Callable[[int], list[npt.NDArray[np.int64]]]
SIZE = 7  # of the unlabeled set

few = settings(few, max_examples=6)  # of each ablation


def problem_of(case: Case, *tokens: int, masked: bool = False) -> Classes:
    return Classes.draw(case.seed, p=case.p, h=case.h + 1, C=3, sizes=case.sizes, shape=(SIZE, *tokens), masked=masked)


def nudged(twin: FedEcho) -> FedEcho:
    return replace(twin, problem=replace(twin.problem, w0=twin.problem.w0 * (1 + 1e-13)))


def whole(q: int) -> Batches:
    return lambda _: [np.arange(SIZE)] * q


def events_of(method: Any, case: Case, problem: Classes, **more: Any) -> list[tarry.Event]:
    seen: list[tarry.Event] = []
    options: dict[str, Any] = {
        "dtype": "float64",
        "batch": "all",
        "steps": case.steps,
        "lr": 10 * case.lr,
        "delay": case.durations,
        "updates": case.updates,
        "time": 1000.0,  # in case of a mistake
    }
    tarry.run(method, problem.task(), callbacks=[seen.append], **{**options, **more})
    return seen


def check(method: dict[str, Any], case: Case, twin: FedEcho, *, concurrency: int | None = None, seed: int = 0) -> None:
    """The library and the twin agree on every arrival; the twin follows the library's hand-outs where it draws.

    Adam divides by the size of a gradient. Where one is all but 0 its digits are rounding, which then grows: cases that
    were drawn and in which a nudge of the first weights grows a thousandfold are not compared.
    """
    seen = events_of({"name": "fedecho", **method}, case, twin.problem, concurrency=concurrency, seed=seed)

    def pick(now: float, idle: list[int]) -> list[int]:
        return [e.client for e in seen if e.kind == "hand_out" and e.time == now] if concurrency else idle

    def train(m: int, w: Vec) -> Vec:
        return twin.problem.train(m, w, steps=case.steps, lr=10 * case.lr)

    expected, other = (play(t, train, case.durations, updates=case.updates, pick=pick) for t in (twin, nudged(twin)))
    if currently_in_test_context():
        assume(all(np.abs(a.w - b.w).max() < 1e-10 for a, b in zip(expected, other, strict=True)))
    arrived = [Arrival(e.time, e.client, e.staleness, e.weights.numpy()) for e in seen if e.kind == "arrival"]
    assert [a[:3] for a in arrived] == [e[:3] for e in expected]
    for number, (a, e) in enumerate(zip(arrived, expected, strict=True)):
        np.testing.assert_allclose(a.w, e.w, rtol=1e-9, atol=1e-9, err_msg=f"global weights after arrival {number}")


@few
@given(cases(), st.integers(1, 4), st.sampled_from([0.5, 1.0]), st.sampled_from([None, 1, 3]))
def test_fedecho_is_its_twin(case: Case, M: int, eta: float, q: int | None) -> None:
    """A batch of everything: one step a pass."""
    method = {"buffer": M, "eta": eta, "lr": 0.02, "q": q}
    check(method, case, FedEcho(problem_of(case), M, eta, 0.02, whole(q or 1), nu=5.0))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@few
@given(case=cases())
def test_a_fixed_weight_of_the_two_losses_is_its_twins(case: Case, alpha: float) -> None:
    method = {"buffer": 2, "lr": 0.02, "q": 3, "alpha": alpha}
    check(method, case, FedEcho(problem_of(case), 2, 1.0, 0.02, whole(3), alpha, nu=5.0))


@few
@given(cases())
def test_other_ends_of_the_dynamic_weight_are_the_twins(case: Case) -> None:
    check(
        {"buffer": 2, "lr": 0.02, "q": 3, "alpha_min": 0.05, "alpha_max": 0.4},
        case,
        FedEcho(problem_of(case), 2, 1.0, 0.02, whole(3), None, 0.05, 0.4, nu=5.0),
    )


@pytest.mark.parametrize(("clip", "nu"), [(0.3, 0.3), (1.0, 1.0), (5.0, 5.0), (None, np.inf)])
@few
@given(case=cases())
def test_clipping_is_its_twins(case: Case, clip: float | None, nu: float) -> None:
    check(
        {"buffer": 2, "lr": 0.05, "q": 3, "clip": clip}, case, FedEcho(problem_of(case), 2, 1.0, 0.05, whole(3), nu=nu)
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("teacher", ["logits", "outputs"])
@few
@given(case=cases())
def test_both_optimizers_and_both_teachers_are_its_twins(case: Case, optimizer: str, teacher: str) -> None:
    method = {"buffer": 2, "lr": 0.05, "q": 3, "clip": 0.3, "optimizer": optimizer, "teacher": teacher}
    twin = FedEcho(problem_of(case), 2, 1.0, 0.05, whole(3), nu=0.3, optimizer=optimizer, teacher=teacher)
    check(method, case, twin)


@few
@given(case=cases())
def test_kept_moments_and_other_numbers_of_adam_are_its_twins(case: Case) -> None:
    adam: dict[str, Any] = {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "moments": "keep"}
    method = {"buffer": 2, "lr": 0.05, "q": 3, "clip": 0.3, **adam}
    check(method, case, FedEcho(problem_of(case), 2, 1.0, 0.05, whole(3), nu=0.3, **adam))


def test_kept_moments_make_a_difference_and_sgd_has_none() -> None:
    last = {
        moments: events_of({"name": "fedecho", "buffer": 2, "lr": 0.05, "moments": moments}, CASE, problem_of(CASE))[-1]
        for moments in ("restart", "keep")
    }
    assert not torch.equal(last["restart"].weights, last["keep"].weights)
    for wrong, flag in (
        ({"optimizer": "sgd", "moments": "keep"}, "--method.moments keep"),
        ({"beta1": 1.0}, "--method.beta1 1.0"),
        ({"eps": 0.0}, "--method.eps 0.0"),
    ):
        with pytest.raises(BadInput, match=flag):
            build_by_flags(tarry.methods, "fedecho", **wrong)


def test_the_rates_of_theorem_4_5_by_hand() -> None:
    found = theorem_rates(rounds=4, steps=3, buffer=9, q=5, gap=2.0, local_variance=1.0, global_variance=1.0)
    assert found == pytest.approx((3.0, (2 / 48) ** 0.5, 2 / (256**0.5 * 5)))
    twice = theorem_rates(rounds=8, steps=3, buffer=9, q=5, gap=2.0, local_variance=1.0, global_variance=1.0)
    assert twice.local / found.local == pytest.approx(2**-0.5)
    assert twice.distillation / found.distillation == pytest.approx(2**-1.5)
    with pytest.raises(BadInput, match="rounds 0"):
        theorem_rates(rounds=0, steps=3, buffer=9, q=5, gap=2.0, local_variance=1.0, global_variance=1.0)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@few
@given(case=cases())
def test_on_sequences_every_token_counts_alike_and_those_of_the_mask_alone(case: Case, masked: bool) -> None:
    problem = problem_of(case, 4, masked=masked)
    check({"buffer": 2, "lr": 0.02, "q": 3}, case, FedEcho(problem, 2, 1.0, 0.02, whole(3), nu=5.0))


@few
@given(cases())
def test_tokens_of_two_dimensions_are_the_twins(case: Case) -> None:
    problem = problem_of(case, 2, 3, masked=True)
    check({"buffer": 2, "lr": 0.02}, case, FedEcho(problem, 2, 1.0, 0.02, whole(1), nu=5.0))


@few
@given(cases())
def test_fedecho_with_two_at_a_time_is_its_twin(case: Case) -> None:
    twin = FedEcho(problem_of(case), 2, 1.0, 0.02, whole(1), nu=5.0)
    check({"buffer": 2, "lr": 0.02}, case, twin, concurrency=2)


def drawn(case: Case, problem: Classes, *, batch: int, q: int | None, seed: int) -> Batches:
    """Pass l of the step at a moment is cut from permutation(key(seed, dispatch, moment, l), |U|).

    Moments count the server's decisions: the first hand-outs, then every arrival and the hand-outs after each instant.
    """
    seen = events_of({"name": "fedecho", "buffer": 2, "q": 0}, case, problem, seed=seed)
    times = [e.time for e in seen if e.kind == "arrival"]

    def batches(arrival: int) -> list[npt.NDArray[np.int64]]:
        moment = arrival + len(set(times[:arrival]))
        steps, out = -(-SIZE // batch) if q is None else q, list[npt.NDArray[np.int64]]()
        for lap in range(steps):
            order = rng.permutation(rng.key(seed, Stream.DISPATCH, moment, lap), SIZE)
            out += [order[i : i + batch] for i in range(0, SIZE, batch)]
        return out[:steps]

    return batches


@pytest.mark.parametrize(("batch", "q"), [(3, None), (3, 1), (3, 7), (6, 2), (1, None)])
@few
@given(case=cases(), seed=st.integers(0, 3))
def test_small_batches_are_the_twins_at_the_documented_keys(case: Case, seed: int, batch: int, q: int | None) -> None:
    problem = problem_of(case)
    batches = drawn(case, problem, batch=batch, q=q, seed=seed)
    method = {"buffer": 2, "lr": 0.02, "batch": batch, "q": q}
    check(method, case, FedEcho(problem, 2, 1.0, 0.02, batches, nu=5.0), seed=seed)


@few
@given(cases())
def test_one_pass_shows_every_input_once_and_the_last_batch_is_short(case: Case) -> None:
    batches = drawn(case, problem_of(case), batch=3, q=None, seed=0)(1)
    assert [len(b) for b in batches] == [3, 3, 1]
    assert sorted(np.concatenate(batches)) == list(range(SIZE))


CASE = Case(
    seed=3, p=3, h=3, sizes=[4, 5, 6], durations=[[1.0], [1.5], [4.0]], steps=3, lr=0.05, updates=20, blind=False
)


@pytest.mark.parametrize("seed", range(5))
def test_kl_alone_is_its_twin(seed: int) -> None:
    """Not where cases are drawn: a teacher who says what the student says gives KL no gradient, only rounding."""
    case = replace(CASE, seed=seed)
    method = {"buffer": 3, "lr": 0.001, "q": 3, "alpha": 1}
    check(method, case, FedEcho(problem_of(case), 3, 1.0, 0.001, whole(3), 1.0, nu=5.0))


def test_the_ablations_differ_and_the_clip_bites() -> None:
    """So that none of the twins above agreed for want of anything to see."""
    problem = problem_of(CASE)
    variants: list[dict[str, Any]] = [{}, {"alpha": 0}, {"alpha": 0.5}, {"alpha": 1}, {"clip": 0.3}, {"q": 3}, {"q": 0}]
    last = [events_of({"name": "fedecho", "buffer": 2, "lr": 0.02, "q": 2, **v}, CASE, problem)[-1] for v in variants]
    for i, one in enumerate(last):
        for other in last[:i]:
            assert not torch.allclose(one.weights, other.weights, rtol=1e-4)
    twin = FedEcho(problem, 2, 1.0, 0.02, whole(2), nu=0.3)
    check({"buffer": 2, "lr": 0.02, "q": 2, "clip": 0.3}, CASE, twin)
    assert min(twin.norms) < 0.3 < max(twin.norms)
    assert max(twin.alphas) - min(twin.alphas) > 0.1


@few
@given(cases())
def test_without_distillation_it_is_fedbuff_without_its_staleness_factor(case: Case) -> None:
    problem = problem_of(case)
    one = events_of({"name": "fedecho", "buffer": 3, "eta": 0.7, "q": 0}, case, problem)
    other = events_of({"name": "fedbuff", "buffer": 3, "eta": 0.7, "a": 0.0}, case, problem)
    assert [e._replace(weights=None) for e in one] == [e._replace(weights=None) for e in other]
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(one, other, strict=True))


def rate(method: dict[str, Any], **task: Any) -> torch.Tensor:
    seen: list[tarry.Event] = []
    problem = problem_of(CASE)
    options: dict[str, Any] = {"dtype": "float64", "delay": CASE.durations, "updates": 6, "steps": 1, "batch": "all"}
    tarry.run({"name": "fedecho", "buffer": 2, **method}, problem.task(**task), callbacks=[seen.append], **options)
    return seen[-1].weights


def test_the_rate_is_the_methods_then_the_tasks_then_the_papers() -> None:
    assert torch.equal(rate({"lr": 0.01}), rate({"lr": 0.01}, distill_lr=0.5))
    assert torch.equal(rate({}, distill_lr=0.02), rate({"lr": 0.02}))
    assert torch.equal(rate({}), rate({"lr": 3e-6}))


def test_what_it_notes_of_itself_is_what_the_twin_saw() -> None:
    problem, twin = problem_of(CASE), FedEcho(problem_of(CASE), 2, 1.0, 0.02, whole(3), nu=5.0)
    method = {"buffer": 2, "lr": 0.02, "q": 3}
    seen = events_of({"name": "fedecho", **method}, CASE, problem, diagnose=True)
    check(method, CASE, twin)
    steps = [e for e in seen if e.kind == "arrival" and e.stepped]
    assert len(steps) == 10
    came = [e.client for e in seen if e.kind == "arrival"]
    for i, e in enumerate(steps):
        assert e.notes is not None
        at = slice(3 * i, 3 * i + 3)
        assert e.notes["alpha"] == pytest.approx(np.mean(twin.alphas[at]), rel=1e-9)
        assert e.notes["entropy"] == pytest.approx(np.mean(twin.entropies[at]), rel=1e-9)
        assert e.notes["teachers"] == len(set(came[: 2 * i + 2]))
    assert not any("alpha" in (e.notes or {}) for e in seen if e.kind == "arrival" and not e.stepped)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("lr", 0.0),
        ("q", -1),
        ("batch", 0),
        ("alpha", 1.5),
        ("alpha", "sometimes"),
        ("alpha_min", 0.9),
        ("alpha_max", 1.1),
        ("clip", 0.0),
        ("clip", float("nan")),
        ("buffer", 0),
        ("eta", -1.0),
    ],
)
def test_a_setting_that_cannot_be_is_named(flag: str, value: Any) -> None:
    with pytest.raises(tarry.BadInput, match=rf"--method\.{flag} {value}"):
        build_by_flags(tarry.methods, "fedecho", **{flag: value})


def test_all_settings_that_cannot_be_are_named_at_once() -> None:
    with pytest.raises(tarry.BadInput) as caught:
        build_by_flags(tarry.methods, "fedecho", lr=-1.0, batch=-2, clip=-3.0)
    assert len(caught.value.problems) == 3


def test_outputs_that_are_no_classes_and_masks_that_do_not_fit_are_refused() -> None:
    task = problem_of(CASE).task()
    options: dict[str, Any] = {"dtype": "float64", "delay": CASE.durations, "updates": 6}

    def square(outputs: Any, y: Any) -> Any:
        return (outputs[:, 0] - y).square().mean()

    line = replace(task, model=torch.nn.Linear(3, 1), loss=square)
    with pytest.raises(tarry.BadInput, match="outputs for it are 7×1; only scores of classes"):
        tarry.run("fedecho", line, **options)
    with pytest.raises(tarry.BadInput, match="mask is 7×2, the model's outputs are 7×3"):
        tarry.run("fedecho", replace(task, unlabeled_mask=torch.ones(7, 2)), **options)
    with pytest.raises(tarry.BadInput, match="no inputs in it"):
        tarry.run("fedecho", replace(task, unlabeled=torch.empty(0, 3)), **options)
