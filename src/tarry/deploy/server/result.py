"""Result of a federation: result.json and the model when it is over, as of a run; the present result until then."""

from __future__ import annotations

import time
from pathlib import Path

from ...core.metric import Scores
from ...record.result import Result, write_result
from ...runs.build import BuiltRun
from ...runs.result import make_result
from .driver import Driver

__all__ = ["so_far", "write"]


def so_far(driver: Driver, built: BuiltRun, *, test: Scores | None = None) -> Result:
    """Return the result as it is now; `test`: the metrics on the test set, where the curve is on a validation set."""
    over = driver.ended not in ("", "stopped")
    return make_result(
        built,
        driver.engine,
        wall_s=max(0.0, time.time() - driver.state.began),
        warnings=[*built.notices, f"a real federation{'' if over else ', not over yet'}: time is the wall clock's"],
        clock="wall",
        executor_info="trained by clients over Flower",
        test=test,
        out=driver.folder,
        finished=over,
    )


def write(driver: Driver, built: BuiltRun, folder: Path) -> Result:
    """Write result.json and the model; return the result."""
    result = so_far(driver, built, test=built.test_scores(driver.engine.result_weights, lent=True))
    write_result(folder, result)
    return result
