"""OrthoFL, Fig. 8: histograms of the four distributions of delays.

    rpi           Normal(mean, sd) of a client's Raspberry Pi profile; ≤ 0 becomes the mean
    lognormal, half-normal, uniform          derived from all profiles' rounds (App. D.4)

App. D.4 samples "the latency for each client" from the three derived ones. Columns are the two readings: a draw for
every visit, or one draw for each client, which it keeps. `lasting` is the share of the variance that lies between
clients' means: near 0 no client is slow for good, at 100 % every client always takes the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.errors import BadInput
from ...delays.base import ClientPopulation, delays
from .series import short
from .study import Tell, begin

__all__ = ["PAPER", "QUICK", "durations", "run", "summary"]

PAPER: dict[str, Any] = {"clients": 100, "visits": 10_000, "bins": 40, "longest": 1500.0}
QUICK: dict[str, Any] = {"visits": 200}
_NAMES = {
    "rpi": "orthofl-rpi",
    "lognormal": "orthofl-rpi-lognormal",
    "half-normal": "orthofl-rpi-half-normal",
    "uniform": "orthofl-rpi-uniform",
}
_READINGS = ("visit", "client")

DurationTable = npt.NDArray[np.float64]


def durations(name: str, per: str, clients: int, visits: int, seed: int) -> DurationTable:
    """Return the duration of every visit of every client; the profiles have one reading only."""
    options = {} if name == "rpi" else {"per": per}
    delay = delays.build(_NAMES[name], **options)(ClientPopulation(clients, [1] * clients, 1, seed))
    return np.array([[delay(c, v) for v in range(visits)] for c in range(clients)], np.float64)


def summary(table: DurationTable) -> dict[str, float]:
    """Return mean, sd, skewness and 95th percentile of all visits, and the share of variance between clients (%)."""
    mean, sd = float(table.mean()), float(table.std())
    third = float((((table - mean) / sd) ** 3).mean()) if sd else 0.0
    lasting = 100 * float(table.mean(1).var()) / sd**2 if sd else 0.0
    found = {"mean": mean, "sd": sd, "skewness": third, "p95": float(np.percentile(table, 95)), "lasting": lasting}
    return {name: short(value) for name, value in found.items()}


def run(
    options: Mapping[str, Any], *, quick: bool, seeds: Sequence[int], device: str, folder: Path, tell: Tell
) -> dict[str, Any]:
    """Rows: rpi, lognormal, half-normal, uniform. Columns: visit, client. Measures: those of `summary`."""
    study = begin(PAPER, QUICK, options, quick=quick, seeds=seeds, device=device, folder=folder, tell=tell)
    o = study.options
    if o["clients"] < 1 or o["visits"] < 1 or o["bins"] < 1:
        raise BadInput("[study_options] clients, visits, bins: must be 1 or more")
    numbers: dict[str, Any] = {name: {} for name in _NAMES}
    curves: dict[str, Any] = {}
    for seed in seeds:
        for name in _NAMES:
            for per in _READINGS[: 1 if name == "rpi" else 2]:
                found = study.piece(f"{name}-{per}-{seed}", [seed, o], partial(_piece, o, name, per, seed))
                numbers[name].setdefault(per, {})[str(seed)] = found["numbers"]
                if seed == seeds[0]:
                    curves.setdefault(name, {})[_label(per)] = found["histogram"]
    axes = {"x": "seconds of a visit", "y": "visits (%)"}
    return {"numbers": numbers, "curves": curves, "axes": axes, "notes": study.notes}


def _label(per: str) -> str:
    return "a draw for every visit" if per == "visit" else "one draw for each client"


def _piece(o: Mapping[str, Any], name: str, per: str, seed: int) -> dict[str, Any]:
    table = durations(name, per, o["clients"], o["visits"], seed)
    counts, edges = np.histogram(table, bins=o["bins"], range=(0.0, o["longest"]))
    middles = (edges[:-1] + edges[1:]) / 2
    histogram = {"x": [short(x) for x in middles], "y": [short(100 * n / table.size) for n in counts]}
    return {"numbers": summary(table), "histogram": histogram}
