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

In A4 the perturbation is scaled by the same Λ and along the same combination, g_l + β g_p, as its losses. The paper's
formula has neither Λ nor β there; with β = 1 and `adaptive=false` it is the printed one.
ρ = 0 is FedAvg (A2 to A4 and A6: A5). A5 with l2 is FedProx with μ = β, with ntd FedNTD, with moon MOON.

What the text leaves open: 0/0 in Eq. 7 and 8 is 0, so an adaptive visit's first step is not perturbed, nor is a fixed
one where g_p is 0 at w_g (norms below 1e-12 count as 1e-12). With a perturbed part, ‖g_p‖ runs over that part alone, as
in the authors' code: that is what lets `head` do with one pass of the body. A layer is one parameter tensor. Running
statistics move in a step's first pass only. A5 is printed without its β, and ε_c with β = 1; App. H's words for A2 are
those for A3, so the formulas are followed. moon is a loss of features, on which the head has no influence: with it the
body or all is perturbed, as in Table 4; it is not 0 at w_g, and nothing at a client's first visit. Algorithm 1 prints
the plain mean (`weighting="uniform"`); the default weighs by examples so that ρ = 0 is FedAvg. The authors' code
normalizes |w − w_g| over dimension 0 of each tensor (`norm="dim0"`) and perturbs the whole model (`part="all"`) with ρ
= 1.

Table 4 joins FedSOL with other methods' losses. FedProx's is l2, MOON's has a name here; those of SCAFFOLD, FedDyn and
FedNova want their servers, too: --method scaffold --local fedsol:proximal=scaffold,part=all. How they are joined the
paper does not say. Here clients keep c_k, λ_k and ‖a_k‖₁ as those methods do, c_k being the mean of the visit's own
gradients; in A1 no step holds what they would add, so FedDyn's h is then a momentum that never forgets. FedDyn's α is
0.01 and FedNova's μ 1 in L_p, whatever the server's: A1 and projection do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from ...core.local_rule import ClientModel, Context, LocalRule
from ...core.method import Method
from ...core.search_space import Range
from ...core.task import Examples
from ...parts.aggregate import Weighting
from ...parts.checks import above, at_least, check
from ...parts.perturbation import Norm, Perturbation, Region
from ...parts.proximal import KL, L2, MOON, NTD, ProximalLoss, WholePasses
from ...parts.rounds import rounds
from ...parts.variates import Control, Dual, Normal
from ..registry import methods
from .ablations import A2, A3, A4, A5, A6, DirectProjection, Plain, PlainWithVariate
from .descent import Direction, PerturbedDescent, ProximalDescent

__all__ = ["FedSOL", "fedsol"]

ProximalLossName = Literal["kl", "l2", "ntd", "moon", "scaffold", "feddyn", "fednova"]
Strategy = Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6", "projection"]


@dataclass(frozen=True)
class FedSOL(PerturbedDescent):
    """A1, Eq. 6: descend the local gradient taken at weights perturbed along the proximal gradient."""

    def direction(self, w: Tensor, batch: Examples, context: Context, model: ClientModel) -> Direction:
        x, y = batch
        loss_p = self.proximal.on(batch, context, model)
        # where the head alone is perturbed, both gradients share one pass of the body
        passes = model.head_split(w, x) if self.perturb.region == "head" else WholePasses(model, x)
        g_p, l_p = self.proximal_gradient(loss_p, passes, w, context, model)  # ∇L_p(w; w_g)
        perturbed = self.perturb(w, g_p, context)  # w + ε, Eq. 7, 8
        g, loss = passes.grad(perturbed, y)  # ∇L_local(w + ε), Eq. 6
        return Direction(g, loss, l_p, g_p)

    def step(
        self, w: Tensor, batch: Examples, context: Context, state: Any, model: ClientModel
    ) -> tuple[Tensor, Any, Tensor]:
        if state.at_start and (self.perturb.adaptive or self.gradient_is_zero(model)):  # w = w_g, so ε = 0
            return self.apply_gradient(w, Direction(*model.grad(w, batch)), context, state, model)
        return super().step(w, batch, context, state, model)

    def cosine(self, g: Tensor, g_p: Tensor, context: Context) -> Tensor:
        if self.perturb.region == "head":  # g_p is known there only
            g, g_p = self.perturb.inside(g, context), self.perturb.inside(g_p, context)
        return super().cosine(g, g_p, context)


STRATEGIES: dict[Strategy, type[ProximalDescent]] = {
    "A1": FedSOL,
    "A2": A2,
    "A3": A3,
    "A4": A4,
    "A5": A5,
    "A6": A6,
    "projection": DirectProjection,
}
UNPERTURBED: dict[Strategy, Strategy] = {"A1": "A0", "A2": "A5", "A3": "A5", "A4": "A5", "A6": "A5"}


@methods.register(
    "fedsol",
    paper="FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
    use="Rounds, or any server, over clients whose data differ much: less forgetting for little more local work.",
    space={"rho": Range(0.5, 3.0)},
)
def fedsol(
    *,
    rho: Annotated[float, "ρ, how strongly weights are perturbed; with A1, 0 is FedAvg"] = 2.0,
    proximal: Annotated[
        ProximalLossName,
        "L_p: divergence of outputs, distance of weights, FedNTD's, MOON's; or of the server it is put under",
    ] = "kl",
    temperature: Annotated[float, "T of kl, ntd and moon; FedNTD takes 1, MOON 0.5"] = 3.0,
    adaptive: Annotated[bool, "scale the perturbation by |w − w_g| in its layer (Eq. 7)"] = True,
    part: Annotated[Region, "what is perturbed: the last linear or conv map (the paper's), the rest, or all"] = "head",
    norm: Annotated[Norm, "Eq. 7's norm over a layer, or over dimension 0 of it as in the authors' code"] = "layer",
    strategy: Annotated[Strategy, "Table 12's A0 to A6, A1 being FedSOL; or Eq. 3's direct projection"] = "A1",
    beta: Annotated[float, "β, the weight of L_p in A2 to A6"] = 1.0,
    weighting: Weighting = "examples",
) -> Method:
    """Rounds whose clients take local gradients at weights perturbed along a proximal gradient."""
    check(at_least(0, rho=rho), above(0, temperature=temperature), at_least(0, beta=beta))
    loss = proximal_loss(proximal, temperature)
    if strategy in ("A0", "A5", "projection"):  # nothing is perturbed
        rho, adaptive, part = 0.0, True, "head"
    if strategy in ("A0", "A1", "projection"):
        beta = 1.0
    norm = norm if adaptive and rho > 0 else "layer"
    return rounds("fedsol", weighting, local=_rule(strategy, loss, Perturbation(rho, adaptive, part, norm), beta))


def _rule(strategy: Strategy, loss: ProximalLoss, perturb: Perturbation, beta: float) -> LocalRule:
    if perturb.rho == 0:
        strategy = UNPERTURBED.get(strategy, strategy)
    if strategy == "A0":
        return PlainWithVariate(loss, perturb, beta) if loss.required_payload else Plain(loss, perturb, beta)
    return STRATEGIES[strategy](loss, perturb, beta)


def proximal_loss(name: ProximalLossName, temperature: float) -> ProximalLoss:
    """Return the proximal loss of that name; the temperature is kl's, ntd's and moon's."""
    losses: dict[str, ProximalLoss] = {
        "kl": KL(temperature),
        "l2": L2(),
        "ntd": NTD(temperature),
        "moon": MOON(temperature),
        "scaffold": Control(),
        "feddyn": Dual(0.01),  # α, as `feddyn` has it
        "fednova": Normal(1.0),
    }
    return losses[name]
