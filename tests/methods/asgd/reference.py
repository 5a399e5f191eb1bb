"""ASGD (Mishchenko et al. 2022), as a correction in AsyncManifold's uphill signs: Δ̂ = Δ."""

from __future__ import annotations

from tests.reference.problem import Vec


def asgd(delta: Vec, old: Vec, new: Vec) -> Vec:
    return delta
