"""What a federation leaves behind: result.json and the model when it is over, as a run; progress.json until then."""

from __future__ import annotations

import time
from pathlib import Path

from safetensors.numpy import save

from ..build import Plan
from ..personal import best_constant
from ..record.result import Result, sha256, staleness_summary, write_atomic
from ..version import __version__
from .driver import Driver

__all__ = ["so_far", "write"]


def so_far(driver: Driver, plan: Plan) -> Result:
    """The numbers of a run, as they are now."""
    course, spec = driver.course, plan.spec
    accuracy, loss = course.curve[-1][2:] if course.curve else (None, None)
    server, over = course.server, driver.ended not in ("", "stopped")
    return Result(
        method=plan.method.name,
        label=spec.label,
        task=plan.task.name,
        seed=spec.seed,
        n_clients=server.n_clients,
        virtual_time=course.time,
        updates=course.updates,
        rounds=server.version,
        final_accuracy=accuracy,
        final_loss=loss,
        curve=course.curve,
        staleness=staleness_summary(course.staleness),
        lost=course.lost,
        refused=course.refused,
        weights_sha256=sha256(server.answer),
        wall_s=max(0.0, time.time() - driver.keeper.began),
        bytes_up=course.bytes_up,
        bytes_down=course.bytes_down,
        peak_server_bytes=server.ledger.peak,
        tarry=__version__,
        chance=best_constant(plan.task),
        remarks=[*plan.remarks, f"a real federation{'' if over else ', not over yet'}: time is the wall clock's"],
        trained="trained by clients over Flower",
        weights=server.answer,
        out=driver.folder,
    )


def write(driver: Driver, plan: Plan, folder: Path) -> Result:
    """The end of it: the weights by name, then the result, which says that it is over."""
    result = so_far(driver, plan)
    assert result.weights is not None
    named = {k: v.numpy() for k, v in plan.layout.views(result.weights.cpu()).items()}
    write_atomic(folder / "model.safetensors", save(named))
    write_atomic(folder / "result.json", result.to_json().encode())
    return result
