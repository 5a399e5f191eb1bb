"""Studies: figures and tables that are not a grid of runs, one module each, named by `study` in the TOML.

    run(options, *, quick, seeds, device, folder, tell) → {"numbers", "curves", "axes", "notes"}, plain JSON
    draw(result, path)                                    the figure, if lines are not enough

Options that are not given are PAPER of the module, with `quick` QUICK. Finished pieces are stored in `folder`. All run
with torch and numpy only; figures need matplotlib.
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
        "calibration_share",
        "client_curves",
        "control_corrections",
        "delay_histograms",
        "distillation_cost",
        "endpoint_corrections",
        "flops",
        "generation",
        "hessian",
        "landscape",
        "latency",
        "local_effects",
        "manifold_assumptions",
        "manifold_quality",
        "one_step",
        "projected_component",
        "toy",
        "two_clients",
    )
}
