"""Distillation on the server: clients' logits on unlabeled inputs teach the global model (FedEcho, Sec. 3.2).

    arrival   y^i ← logits of x_{t−τ} + Δ^i on U, in place of client i's older ones           Algorithm 1, line 5
    step      x̂ ← the method's own step, then Q times with a batch B ⊂ U                      lines 11–16
                y = mean of the y^i there are,  ŷ = logits of x̂,  both on B                   line 14
                x̂ ← x̂ − η_d Adam(Clip(∇f_d, ν))                                               Eq. 2
                f_d = α KL(σ(y) ‖ σ(ŷ)) + (1 − α) CE(ŷ, argmax y)                             Eq. 3
                α = Ĥ α_max + (1 − Ĥ) α_min,  Ĥ = mean entropy of σ(y) over B / log C         Eq. 4

`with_distillation` puts this around any server. Models run in eval mode: dropout off, fixed running statistics. Outputs
may have any number of dimensions before the classes: all tokens of a sequence count alike, or those of a given mask.
Clip rescales a gradient longer than ν to the norm ν. Every distillation begins with Adam's moments at 0. Adam hardly
depends on the length of a gradient, so that ν has little effect with it. `optimizer="sgd"` is Eq. 2 as printed, without
Adam. `teacher="outputs"` is App. B's teacher, σ(y) = mean of the σ(y^i), in place of line 14's. Logits that are not
finite are not stored: such a client keeps its older ones, or has none. With `moments="keep"` Adam continues with the
moments and the count of the distillation before.

The batches of the l-th pass over U (l = 0, 1, ...) are cut from rng.permutation(rng.extend(view.key, l), |U|), the last
one short; a batch of the whole set keeps the stored order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from ..core import rng
from ..core.client_table import ClientTable
from ..core.errors import BadInput
from ..core.method import Method, ServerView
from ..core.optim import USUAL_ADAM, AdamNumbers, clip_norm, make_optimizer
from ..core.parts import Aggregate, Correct, Step
from ..core.state_tree import StateRecord
from ..core.task import Task
from ..core.tickets import TicketExtras, Update
from .classes import want_classes

__all__ = ["Distillation", "with_distillation"]

PAPERS_LR = 3e-6
LOGITS, TEACHER = "logits", "teacher"  # the extras that carry y^i and y from part to part


@dataclass(frozen=True)
class Distillation:
    """The settings of a distillation; the defaults are the paper's."""

    lr: float | None = None  # η_d; None = the task's own rate, else the paper's
    q: int | None = None  # Q; None = one pass over the set
    batch: int = 50
    alpha: float | Literal["dynamic"] = "dynamic"  # Eq. 4, or one number always
    alpha_min: float = 0.2
    alpha_max: float = 0.8
    clip: float | None = 5.0  # ν; None = ∞
    optimizer: Literal["adam", "sgd"] = "adam"
    teacher: Literal["logits", "outputs"] = "logits"  # whose mean over clients teaches
    adam: AdamNumbers = USUAL_ADAM
    moments: Literal["restart", "keep"] = "restart"  # Adam's, from one distillation to the next

    def __post_init__(self) -> None:
        fixed = 0.0 if self.alpha == "dynamic" else self.alpha
        wrong = {
            f"lr {self.lr}: must be above 0": self.lr is not None and not self.lr > 0,
            f"q {self.q}: must be 0 or more": self.q is not None and self.q < 0,
            f"batch {self.batch}: must be 1 or more": self.batch < 1,
            f"alpha {self.alpha}: must be dynamic, or between 0 and 1": not 0 <= fixed <= 1,
            f"alpha_min {self.alpha_min} --method.alpha_max {self.alpha_max}: want 0 ≤ α_min ≤ α_max ≤ 1": (
                not 0 <= self.alpha_min <= self.alpha_max <= 1
            ),
            f"clip {self.clip}: must be above 0, or none": self.clip is not None and not self.clip > 0,
            f"beta1 {self.adam.beta1}: must be in [0, 1)": not 0 <= self.adam.beta1 < 1,
            f"beta2 {self.adam.beta2}: must be in [0, 1)": not 0 <= self.adam.beta2 < 1,
            f"eps {self.adam.eps}: must be above 0": not self.adam.eps > 0,
            "moments keep: sgd has none; leave it out": self.moments == "keep" and self.optimizer == "sgd",
        }
        if problems := [f"--method.{problem}" for problem, is_so in wrong.items() if is_so]:
            raise BadInput(problems)

    def weigh(self, entropy: Tensor) -> Tensor:
        """α for a batch of normalized entropy Ĥ (Eq. 4)."""
        if self.alpha != "dynamic":
            return torch.full_like(entropy, self.alpha)
        return entropy * self.alpha_max + (1 - entropy) * self.alpha_min


class DistillLoss(NamedTuple):
    """The loss of a batch, as a function of the student's outputs, with its Ĥ and α."""

    f_d: Callable[[Tensor], Tensor]
    entropy: Tensor
    alpha: Tensor


def distill_loss(y: Tensor, mask: Tensor | None, how: Distillation) -> DistillLoss:
    """Return Eq. 3 with the α of Eq. 4, from the teacher's logits of a batch."""
    log_p = log_softmax(y, -1)
    p, best = log_p.exp(), y.argmax(-1, keepdim=True)

    def mean(values: Tensor) -> Tensor:
        if mask is None:
            return values.mean()
        counted = torch.where(mask.bool(), values, 0)  # values outside the mask may be NaN
        return counted.sum() / mask.sum().clamp_min(1)

    entropy = mean(-(p * log_p).sum(-1)) / log(y.shape[-1])
    alpha = how.weigh(entropy)

    def f_d(out: Tensor) -> Tensor:
        log_q = log_softmax(out, -1)
        kl = (p * (log_p - log_q)).sum(-1)
        ce = -log_q.gather(-1, best).squeeze(-1)
        return mean(alpha * kl + (1 - alpha) * ce)

    return DistillLoss(f_d, entropy, alpha)


def distill(x: Tensor, teacher: Tensor, view: ServerView, how: Distillation, moments: Any = None) -> tuple[Tensor, Any]:
    """Return x̂ after Q steps of Eq. 2, and Adam's moments (None: from 0). Running statistics do not change."""
    server_model, n = view.model, view.layout.n_params
    assert server_model is not None, "a method that distils says that it needs unlabeled inputs"
    optimizer = make_optimizer(how.optimizer, lr=how.lr or server_model.distill_lr or PAPERS_LR, numbers=how.adam)
    w, stats, seen = x[:n], x[n:], list[Tensor]()
    moments = optimizer.init(w) if moments is None else moments
    for at in batches(server_model.inputs, how, view.key):
        loss = distill_loss(teacher[at], None if server_model.mask is None else server_model.mask[at], how)
        g, _ = server_model.grad(torch.cat([w, stats]) if len(stats) else w, server_model.inputs[at], loss.f_d)
        w, moments = optimizer.apply_gradient(w, clip_norm(g, how.clip), moments)
        if view.notes is not None:
            seen.append(torch.stack([loss.entropy, loss.alpha]))
    if view.notes is not None:
        view.notes["entropy"], view.notes["alpha"] = torch.stack(seen).mean(0).tolist()
    return (torch.cat([w, stats]) if len(stats) else w), moments


def batches(inputs: Tensor, how: Distillation, key: int) -> Iterator[Tensor | slice]:
    """Yield the indices of Q batches of the set."""
    n, epoch = len(inputs), 0
    left = ceil(n / how.batch) if how.q is None else how.q
    while left > 0:
        cuts: Sequence[Tensor | slice] = [slice(None)]
        if how.batch < n:
            order = torch.from_numpy(rng.permutation(rng.extend(key, epoch), n)).to(inputs.device)
            cuts = torch.split(order, how.batch)[:left]
        yield from cuts
        left, epoch = left - len(cuts), epoch + 1


def with_distillation(method: Method, how: Distillation) -> Method:
    """Return the method with a distillation around its server; with Q = 0 the method itself."""
    if how.q == 0:
        return method
    answer = method.output_weights

    def answered(weights: Tensor, states: Mapping[str, Any]) -> Tensor:
        assert answer is not None
        inner = {"aggregate": states["aggregate"].inner}
        if how.moments == "keep":
            inner["step"] = states["step"].inner
        return answer(weights, {**states, **inner})

    return replace(
        method,
        correct=_with_logits(method.correct),
        aggregate=_keeping_logits(method.aggregate, how),
        step=_with_distillation_step(method.step, how),
        output_weights=answered if answer is not None else None,
        needs_unlabeled=True,
    )


def _with_logits(part: Correct) -> Correct:
    """Return a correct part that adds the logits of the client's own model on U to the update's extras."""

    def apply(update: Update, state: Any, view: ServerView) -> tuple[Update, Any]:
        corrected, state = part(update, state, view)
        logits = _logits(update, view)
        if _finite(logits, view):
            corrected = corrected.replace(extras={**corrected.extras, LOGITS: logits})
        return corrected, state

    return replace(part, apply=apply)


def _finite(logits: Tensor, view: ServerView) -> bool:
    """Return whether the logits are finite, at the positions of the mask."""
    mask = None if view.model is None else view.model.mask
    return bool(torch.isfinite(logits if mask is None else logits[mask.bool()]).all())


def _logits(update: Update, view: ServerView) -> Tensor:
    server_model = view.model
    assert server_model is not None, "a method that distils says that it needs unlabeled inputs"
    trained = update.ticket.sent + update.delta  # not update.local, which would stay in memory
    logits = server_model.outputs(trained, server_model.inputs)
    if logits.ndim < 2 or logits.shape[-1] < 2:
        form = "×".join(map(str, logits.shape))
        raise BadInput(f"--unlabeled: the model's outputs for it are {form}; only scores of classes can be distill")
    if server_model.mask is not None and server_model.mask.shape != logits.shape[:-1]:
        forms = ("×".join(map(str, shape)) for shape in (server_model.mask.shape, logits.shape))
        raise BadInput("--unlabeled: its mask is {}, the model's outputs are {}; wants a mark a token".format(*forms))
    return logits


@dataclass(frozen=True)
class LogitsState(StateRecord):
    """The state of the aggregate inside, and every client's logits y^i."""

    inner: Any
    logits: ClientTable


def _keeping_logits(part: Aggregate, how: Distillation) -> Aggregate:
    """Return an aggregate part that stores every client's logits, and adds their mean to the update it passes on."""

    def apply(update: Update | None, state: LogitsState, view: ServerView) -> tuple[Update | None, LogitsState]:
        if update is not None and LOGITS in update.extras:
            extras = dict(update.extras)
            state.logits.put(update.ticket.client, extras.pop(LOGITS))
            update = update.replace(extras=extras)
        mean, inner = part(update, state.inner, view)
        return _with_teacher(mean, state.logits, view, how), replace(state, inner=inner)

    def init(weights: Tensor) -> LogitsState:
        return LogitsState(part.init(weights), ClientTable())

    def offer(client: int, state: LogitsState, view: ServerView) -> TicketExtras | None:
        assert part.offer is not None
        return part.offer(client, state.inner, view)

    def on_instant_end(state: LogitsState, view: ServerView) -> tuple[Update | None, LogitsState]:
        assert part.on_instant_end is not None
        mean, inner = part.on_instant_end(state.inner, view)
        return _with_teacher(mean, state.logits, view, how), replace(state, inner=inner)

    def next_wakeup(state: LogitsState, view: ServerView) -> float:
        assert part.next_wakeup is not None
        return part.next_wakeup(state.inner, view)

    return replace(
        part,
        apply=apply,
        init=init,
        offer=part.offer and offer,
        on_instant_end=part.on_instant_end and on_instant_end,
        next_wakeup=part.next_wakeup and next_wakeup,
    )


def _with_teacher(update: Update | None, logits: ClientTable, view: ServerView, how: Distillation) -> Update | None:
    """Add y, the mean of all y^i (or the logarithm of the mean of all σ(y^i)), to the update's extras."""
    if update is None or not len(logits):
        return update
    outputs = how.teacher == "outputs"
    first, *rest = logits.values()
    total = softmax(first, -1) if outputs else first.clone()
    for row in rest:
        total += softmax(row, -1) if outputs else row
    if view.notes is not None:
        view.notes["teachers"] = len(logits)
    mean = total / len(logits)
    return update.replace(
        extras={**update.extras, TEACHER: mean.clamp_min(torch.finfo(mean.dtype).tiny).log() if outputs else mean}
    )


@dataclass(frozen=True)
class StepWithMoments(StateRecord):
    """The state of the step inside, and Adam's moments; None before the first distillation."""

    inner: Any
    moments: Any


def _with_distillation_step(part: Step, how: Distillation) -> Step:
    """Return a step part that distills after its step, if there are logits to teach from."""

    def apply(update: Update, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        new, state = part(update, state, view)
        teacher = update.extras.get(TEACHER)
        return (new if teacher is None else distill(new, teacher, view, how)[0]), state

    def apply_keeping(update: Update, state: StepWithMoments, view: ServerView) -> tuple[Tensor, StepWithMoments]:
        new, inner = part(update, state.inner, view)
        teacher, moments = update.extras.get(TEACHER), state.moments
        if teacher is not None:
            new, moments = distill(new, teacher, view, how, moments)
        return new, StepWithMoments(inner, moments)

    def offer(client: int, state: StepWithMoments, view: ServerView) -> TicketExtras | None:
        assert part.offer is not None
        return part.offer(client, state.inner, view)

    curved, rated = part.with_geodesic, part.with_schedule
    with_geodesic = curved and (lambda geodesic: _with_distillation_step(curved(geodesic), how))
    with_schedule = rated and (lambda schedule: _with_distillation_step(rated(schedule), how))

    def check_task(task: Task) -> None:
        want_classes(task, f"--task {task.name}: a distillation", "use another task, or leave out the distillation")
        if part.check_task is not None:
            part.check_task(task)

    # after a distillation the formula does not hold
    part_around = replace(
        part,
        apply=apply,
        with_geodesic=with_geodesic,
        with_schedule=with_schedule,
        formula=None,
        check_task=check_task,
    )
    if how.moments == "restart":
        return part_around
    return replace(
        part_around,
        apply=apply_keeping,
        init=lambda weights: StepWithMoments(part.init(weights), None),
        offer=part.offer and offer,
    )
