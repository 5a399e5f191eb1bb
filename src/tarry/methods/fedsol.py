"""FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning (Lee et al., CVPR 2024).

    client, per step   g_p = ∇L_p(w; w_g)                        L_p: proximal loss, w_g: the weights received
                       λ   = |w − w_g| / ‖w − w_g‖₂              layer by layer; Λ all of them             Eq. 7
                       ε   = ρ Λ ⊙ g_p / ‖g_p‖₂                  Λ = 1 where not adaptive                  Eq. 8, 5
                       w   ← w − γ ∇L_local(w + ε)               no gradient through ε                     Eq. 6
    server             W   ← mean of the cohort's w              rounds, as FedAvg                         Algorithm 1

    Table 12   A0  L(w)                                  A4  L(w + ε_c) + β L_p(w + ε_c),  ε_c along g_l + β g_p
               A1  L(w + ε_p)               FedSOL       A5  L(w) + β L_p(w)
               A2  L(w) + β L_p(w + ε_p)                 A6  L(w + ε_p) + β L_p(w)
               A3  L(w + ε_p) + β L_p(w + ε_p)
    projection     g_l − (g_l·g_p / g_p·g_p) g_p  where g_l·g_p < 0, over the whole gradient               Eq. 3

ρ = 0 is FedAvg (A2 to A4 and A6: A5). A5 with l2 is FedProx with μ = β, with ntd FedNTD, with moon MOON.

What the text leaves open: 0/0 in Eq. 7 and 8 is 0, so an adaptive visit's first step is not perturbed, nor is a fixed
one where g_p is 0 at w_g (norms below 1e-12 count as 1e-12). With a perturbed part, ‖g_p‖ runs over that part alone, as
in the authors' code: that is what lets `head` do with one pass of the body. A layer is one parameter tensor. Running
statistics move in a step's first pass only. A5 is printed without its β, and ε_c with β = 1; App. H's words for A2 are
those for A3, so the formulas are followed. moon is a loss of features, on which the head has no influence: with it the
body or all is perturbed, as in Table 4; it is not 0 at w_g, and nothing at a client's first visit. Algorithm 1 prints
the plain mean (`weighting="uniform"`); the default weighs by examples so that ρ = 0 is FedAvg. The authors' code
normalises |w − w_g| over dimension 0 of each tensor (`norm="dim0"`) and perturbs the whole model (`part="all"`) with ρ
= 1.

Table 4 joins FedSOL with other methods' losses. FedProx's is l2, MOON's has a name here; those of SCAFFOLD, FedDyn and
FedNova want their servers, too: --method scaffold --local fedsol:proximal=scaffold,part=all. How they are joined the
paper does not say. Here clients keep c_k, λ_k and ‖a_k‖₁ as those methods do, c_k being the mean of the visit's own
gradients; in A1 no step holds what they would add, so FedDyn's h is then a momentum that never forgets. FedDyn's α is
0.01 and FedNova's μ 1 in L_p, whatever the server's: A1 and projection do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.layout import Block, Kind, Layout
from ..core.local_rule import Brief, Context, Functions, LocalRule, Outcome
from ..core.method import Method
from ..core.optim import Optimiser
from ..core.task import Examples, Task
from ..parts.aggregate import round_mean
from ..parts.dispatch import barrier
from ..parts.proximal import Proximal, ProximalLoss, proximal_loss
from .registry import methods

__all__ = ["FedSOL", "fedsol"]

Part = Literal["head", "body", "all"]
Norm = Literal["layer", "dim0"]
Strategy = Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6", "projection"]

_SMALL = 1e-12  # what a norm is divided by at least
_UNPERTURBED: dict[Strategy, Strategy] = {"A1": "A0", "A2": "A5", "A3": "A5", "A4": "A5", "A6": "A5"}


class Found(NamedTuple):
    """A step's direction and loss; and for diagnostics what the proximal loss was, and its gradient."""

    g: Tensor
    loss: Tensor
    proximal: Tensor
    g_p: Tensor


class Progress(NamedTuple):
    """What goes from step to step: the optimiser's state, whether w is w_g still, sums for the notes; the optimiser."""

    inner: Any
    at_start: bool
    sums: Tensor | None
    optimiser: Optimiser


@dataclass(frozen=True)
class FedSOL(LocalRule):
    """Local gradients at weights perturbed along the proximal gradient; and the strategies it was compared with."""

    proximal: ProximalLoss
    rho: float = 2.0
    adaptive: bool = True
    part: Part = "head"
    norm: Norm = "layer"
    strategy: Strategy = "A1"
    beta: float = 1.0

    @property
    def course(self) -> Strategy:
        """The strategy; without perturbation, what is left of it."""
        return self.strategy if self.rho > 0 else _UNPERTURBED.get(self.strategy, self.strategy)

    @property
    def bare(self) -> bool:
        """Plain training, of which no server expects anything more."""
        return self.course == "A0" and not self.proximal.needs

    @property
    def notes(self) -> bool:
        return self.watch and self.course != "A0"

    def rests(self, f: Functions) -> bool:
        """Whether g_p is 0 at w_g: not where the client's model is asked in training, and says something else then."""
        return self.proximal.rests and f.steady

    @property
    def needs(self) -> frozenset[str]:
        return self.proximal.needs

    @property
    def gives(self) -> frozenset[str]:
        return self.proximal.gives

    def check(self, layout: Layout, optimiser: Optimiser) -> None:
        if self.bare:
            return
        self.proximal.check(layout, optimiser)
        if self.course in _UNPERTURBED:
            self.perturbs(layout)
            if self.part == "head" and self.course != "A4" and not self.proximal.reaches_head:
                raise BadInput(
                    "--method.part head: the proximal loss does not depend on the head, so nothing would be perturbed;"
                    " use --method.part all"
                )

    def suits(self, task: Task) -> None:
        if self.course != "A0":
            self.proximal.suits(task)

    def begin(self, brief: Brief) -> tuple[Tensor, Context]:
        if self.bare:
            return super().begin(brief)
        blocks = self.perturbs(brief.layout) if self.course in _UNPERTURBED else ()
        runs = _runs(blocks)
        context = {"blocks": blocks, "runs": runs, "gaps": _gaps(runs, brief.layout.n_params), "n_steps": brief.n_steps}
        w_g = brief.layout.params(brief.weights)
        return brief.weights, {"w_g": w_g, **context, **self.proximal.begin(brief)}

    def perturbs(self, layout: Layout) -> tuple[Block, ...]:
        """The layers of the perturbed part."""
        chosen = tuple(b for b in layout.layers if self.part == "all" or (b.kind is Kind.HEAD) == (self.part == "head"))
        if not chosen:
            why = "all of the model is head" if self.part == "body" else "the model has no linear or conv map"
            raise BadInput(f"--method.part {self.part}: {why}; use --method.part all")
        return chosen

    def init(self, w: Tensor, context: Context, f: Functions) -> Any:  # noqa: ARG002
        if self.bare:
            return f.init(w)
        return Progress(f.init(w), True, w.new_zeros(2) if self.notes else None, f.optimiser)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, f: Functions
    ) -> tuple[Tensor, Any, Tensor]:
        if self.bare:
            return super().step(w, batch, context, state, f)
        inner, at_start, sums, optimiser = state
        by_head = self.course == "A1" and self.part == "head"
        plain = self.course == "A0" or (at_start and self.course == "A1")
        if plain and (self.course == "A0" or self.adaptive or self.rests(f)):  # ε is 0, whatever g_p
            g, loss = f.grad(w, batch)
            w, inner = f.descend(w, g, inner)
            return w, Progress(inner, False, sums, optimiser), loss
        found = self.by_head(w, batch, context, f) if by_head else self.by_passes(w, batch, context, f)
        w, inner = f.descend(w, found.g, inner)
        if sums is not None:
            g, g_p = (_part(v, context["runs"]) if by_head else v for v in (found.g, found.g_p))
            sums = sums + torch.stack([found.proximal, _cosine(g, g_p)])
        return w, Progress(inner, False, sums, optimiser), found.loss

    def by_head(self, w: Tensor, batch: Examples, context: Context, f: Functions) -> Found:
        """A1 where only the head is perturbed: the body is run once, the head twice."""
        x, y = batch
        near = self.proximal.near(batch, context, f)
        split = f.split(w, x)
        g_p, proximal = near.on_head(split, w)
        g_p = self.settled(g_p, w, context, f)
        g, loss = split.grad(self.perturbed(w, g_p, context), y)
        return Found(g, loss, proximal, g_p)

    def by_passes(self, w: Tensor, batch: Examples, context: Context, f: Functions) -> Found:
        """Any strategy, by whole passes. Running statistics move in the first one."""
        near = self.proximal.near(batch, context, f)
        g_p, proximal = near.gradient(w, still=False)
        g_p, moved = self.settled(g_p, w, context, f), near.passes
        if self.course in ("A5", "projection"):
            g, loss = f.grad(w, batch, still=moved)
            bent = _projected(g, g_p) if self.course == "projection" else torch.add(g, g_p, alpha=self.beta)
            return Found(bent, loss, proximal, g_p)
        along = g_p
        if self.course == "A4":
            along, _ = f.grad(w, batch, still=moved)
            along, moved = torch.add(along, g_p, alpha=self.beta), True
        away = self.perturbed(w, along, context)
        g, loss = f.grad(w if self.course == "A2" else away, batch, still=moved)
        if self.course == "A6":
            g = torch.add(g, g_p, alpha=self.beta)
        elif self.course != "A1":
            there, _ = near.gradient(away, still=True)
            g = torch.add(g, there, alpha=self.beta)
        return Found(g, loss, proximal, g_p)

    def settled(self, g_p: Tensor, w: Tensor, context: Context, f: Functions) -> Tensor:
        """0 where w is w_g still and g_p would be 0: what is left of it there is rounding, which a norm would blow up.

        An adaptive perturbation is 0 there anyhow.
        """
        if not self.rests(f) or (self.adaptive and self.course != "projection"):
            return g_p
        return torch.mul(g_p, (w != context["w_g"]).any())

    def perturbed(self, w: Tensor, g: Tensor, context: Context) -> Tensor:
        """w + ρ Λ ⊙ g/‖g‖ in the perturbed part, w elsewhere (Eq. 5, 8)."""
        share = self.rho / _part(g, context["runs"]).norm().clamp_min(_SMALL)
        if not self.adaptive:
            out = torch.addcmul(w, g, share)
        else:
            out = w - context["w_g"]  # one vector for all of it: memory costs more than arithmetic
            for b in context["blocks"]:
                layer = out[b.at].view(b.shape)
                length = layer.norm() if self.norm == "layer" else layer.norm(dim=0, keepdim=True)
                layer.abs_().mul_(share / length.clamp_min(_SMALL))
            torch.addcmul(w, out, g, out=out)
        for at in context["gaps"]:
            out[at].copy_(w[at])
        return out

    def finish(self, w: Tensor, context: Context, state: Any) -> Outcome:
        if self.bare:
            return Outcome()
        share = 0.0 if self.course in ("A0", "A1", "projection") else self.beta
        out = self.proximal.finish(w, context, state.optimiser, share)
        if not self.notes:
            return out
        proximal, cosine = state.sums / context["n_steps"]
        return out._replace(notes={"proximal": proximal, "cosine_proximal": cosine})


def _runs(blocks: Sequence[Block]) -> tuple[slice, ...]:
    """Their stretches of the vector, neighbours together."""
    runs: list[slice] = []
    for b in blocks:
        joined = runs and runs[-1].stop == b.start
        runs.append(slice(runs.pop().start, b.stop) if joined else b.at)
    return tuple(runs)


def _gaps(runs: Sequence[slice], n: int) -> tuple[slice, ...]:
    """What of n numbers lies between the runs."""
    ends = [0, *(edge for at in runs for edge in (at.start, at.stop)), n]
    return tuple(slice(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b)


def _part(vec: Tensor, runs: Sequence[slice]) -> Tensor:
    return vec[runs[0]] if len(runs) == 1 else torch.cat([vec[at] for at in runs])


def _projected(g: Tensor, g_p: Tensor) -> Tensor:
    """Eq. 3: g without its component along g_p where the two conflict."""
    along, size = torch.dot(g, g_p), torch.dot(g_p, g_p)
    share = along.clamp_max(0) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return torch.sub(g, share * g_p)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    sizes: Tensor = a.norm() * b.norm()
    return torch.dot(a, b) / sizes.clamp_min(torch.finfo(a.dtype).tiny)


@methods.register(
    "fedsol",
    paper="FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
    use="Rounds, or any server, over clients whose data differ much: less forgetting for little more local work.",
)
def fedsol(
    *,
    rho: Annotated[float, "ρ, how strongly weights are perturbed; with A1, 0 is FedAvg"] = 2.0,
    proximal: Annotated[
        Proximal, "L_p: divergence of outputs, distance of weights, FedNTD's, MOON's; or of the server it is put under"
    ] = "kl",
    temperature: Annotated[float, "T of kl, ntd and moon; FedNTD takes 1, MOON 0.5"] = 3.0,
    adaptive: Annotated[bool, "scale the perturbation by |w − w_g| in its layer (Eq. 7)"] = True,
    part: Annotated[Part, "what is perturbed: the last linear or conv map (the paper's), the rest, or all"] = "head",
    norm: Annotated[Norm, "Eq. 7's norm over a layer, or over dimension 0 of it as in the authors' code"] = "layer",
    strategy: Annotated[Strategy, "Table 12's A0 to A6, A1 being FedSOL; or Eq. 3's direct projection"] = "A1",
    beta: Annotated[float, "β, the weight of L_p in A2 to A6"] = 1.0,
    weighting: Annotated[Literal["examples", "uniform"], "clients weigh by their examples, or all alike"] = "examples",
) -> Method:
    """Rounds whose clients take local gradients at weights perturbed along a proximal gradient."""
    _check(rho, temperature, beta)
    loss = proximal_loss(proximal, temperature=temperature)
    if strategy in ("A0", "A5", "projection"):  # nothing is perturbed
        rho, adaptive, part = 0.0, True, "head"
    if strategy in ("A0", "A1", "projection"):
        beta = 1.0
    norm = norm if adaptive and rho > 0 else "layer"
    return Method(
        "fedsol",
        staleness="always 0",
        local=FedSOL(loss, rho, adaptive, part, norm, strategy, beta),
        aggregate=round_mean(weighting),
        dispatch=barrier(),
    )


def _check(rho: float, temperature: float, beta: float) -> None:
    problems = []
    if not rho >= 0:
        problems.append(f"--method.rho {rho}: must be 0 or more")
    if not temperature > 0:
        problems.append(f"--method.temperature {temperature}: must be above 0")
    if not beta >= 0:
        problems.append(f"--method.beta {beta}: must be 0 or more")
    if problems:
        raise BadInput(problems)
