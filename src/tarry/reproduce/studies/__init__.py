"""What of the papers' figures and tables is no grid of runs: a module each, named in an experiment's TOML by `study`.

    run(options, *, quick, seeds, device, folder, tell) → {"numbers", "curves", "axes", "notes"}, plain JSON
    draw(result, path)                                    the figure, where lines alone do not show it

Options not given are the paper's, or with `quick` small ones (PAPER and QUICK of a module). Finished pieces are kept in
`folder`. All run with torch and numpy alone; matplotlib draws.
"""

from __future__ import annotations

__all__ = ["STUDIES"]

_HERE = "tarry.reproduce.studies"
#: name → module
STUDIES = {
    name: f"{_HERE}.{name}"
    for name in (
        "adaptive_strength",
        "calibration",
        "client_curves",
        "control_corrections",
        "endpoint_corrections",
        "hessian",
        "landscape",
        "latency",
        "local_effects",
        "manifold_quality",
        "toy",
        "two_clients",
    )
}
